"""The commands, end to end: samples, predictions and scores as files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from seqarch.cli import needle_data, ruler_data, ruler_score
from seqarch.evaluation.ruler import records
from seqarch.evaluation.ruler.errors import RulerError
from seqarch.evaluation.ruler.oracle import read_answer
from seqarch.evaluation.ruler.prompt import Setup
from seqarch.evaluation.ruler.records import comparable, read, write_predictions
from seqarch.evaluation.ruler.spec import TASKS
from seqarch.files import sha256_file, write_json

DATA = Path(__file__).parent / "data"
WHO = {"experiment": "test", "arch": "oracle", "setting": "limited", "seed": 0, "checkpoint": "annealed-1"}


@pytest.fixture
def tokenizer(tmp_path: Path, libraries: dict[str, str]) -> Path:
    """The manifest as `cli.tokenizer` writes it."""
    file = tmp_path / "tokenizer" / "tokenizer.json"
    file.parent.mkdir()
    file.write_text(libraries["bpe-1k"])
    manifest = {
        "file": file.name,
        "bos": "<|bos|>",
        "sha256": sha256_file(file),
        "vocab_size": 1000,
        "bos_id": 0,
    }
    write_json(file.parent / "manifest.json", manifest)
    return file.parent / "manifest.json"


@pytest.fixture
def essay_file(tmp_path: Path, essays: Any) -> Path:
    path = tmp_path / "essays.txt"
    path.write_text(essays.text)
    return path


def spec_of(task: str, essay_file: Path, **options: Any) -> dict[str, Any]:
    questions = DATA / ("squad.json" if task == "qa_1" else "hotpot.json")
    return {
        "task": task,
        "length": 1400,
        "n": 3,
        "haystack": {"kind": "file", "path": str(essay_file)},
        "questions": {"kind": "file", "path": str(questions)},
        **options,
    }


def run(command: Any, spec: dict[str, Any], **paths: Path) -> int:
    options = [part for name, path in paths.items() for part in (f"--{name}", str(path))]
    return command.main(["--spec", json.dumps(spec), *options])


def answer(data: Path, out: Path, reader: Callable[[dict[str, Any]], str] = read_answer) -> None:
    lines, header = read(data)
    said = [
        {"index": line["index"], "pred": reader(line), "n_new_tokens": 5, "hit_max_tokens": False}
        for line in lines
    ]
    write_predictions(out, said, header, {"model": "oracle"})


@pytest.mark.parametrize("task", TASKS)
def test_from_spec_to_score(tmp_path: Path, tokenizer: Path, essay_file: Path, task: str) -> None:
    data, said, out = tmp_path / "d" / "seed42.jsonl", tmp_path / "p.jsonl", tmp_path / "scores" / "cell"
    spec = spec_of(task, essay_file)
    assert run(ruler_data, spec, tokenizer=tokenizer, out=data) == 0
    before = (data.read_bytes(), data.with_suffix(".json").read_bytes())
    assert run(ruler_data, spec, tokenizer=tokenizer, out=data) == 0
    assert (data.read_bytes(), data.with_suffix(".json").read_bytes()) == before
    answer(data, said)
    assert run(ruler_score, WHO, data=data, predictions=said, out=out) == 0
    (row,) = pq.read_table(out.with_name("cell.parquet")).to_pylist()
    assert (row["score"], row["n"], row["task"], row["length"], row["arch"]) == (1.0, 3, task, 1400, "oracle")
    assert row["dataset_key"] == read(data)[1]["dataset_key"]
    assert row["comparable"] == "RULER-style"
    assert row["depth"] is None
    samples = pq.read_table(out.with_name("cell.samples.parquet")).to_pylist()
    assert [sample["index"] for sample in samples] == [0, 1, 2]
    assert out.with_name("cell.csv").is_file()


def test_two_chunks_are_one_file(tmp_path: Path, tokenizer: Path, essay_file: Path) -> None:
    """Fault 26."""
    lines = {}
    for name, options in {"all": {"n": 10}, "a": {"n": 5}, "b": {"n": 5, "first": 5}}.items():
        path = tmp_path / f"{name}.jsonl"
        assert (
            run(ruler_data, spec_of("niah_multikey_1", essay_file, **options), tokenizer=tokenizer, out=path)
            == 0
        )
        lines[name] = path.read_text()
    assert lines["all"] == lines["a"] + lines["b"]


def test_needles_from_spec_to_score(tmp_path: Path, tokenizer: Path, essay_file: Path) -> None:
    data, said, out = tmp_path / "n.jsonl", tmp_path / "p.jsonl", tmp_path / "cell"
    haystack = {"kind": "file", "path": str(essay_file)}
    spec = {"format": "Essay-Word-Num", "length": 1000, "depths": [0, 50, 100], "n": 4, "haystack": haystack}
    assert run(needle_data, spec, tokenizer=tokenizer, out=data) == 0
    answer(data, said)
    assert run(ruler_score, WHO, data=data, predictions=said, out=out) == 0
    rows = pq.read_table(out.with_name("cell.parquet")).to_pylist()
    assert [(row["depth"], row["score"], row["n"], row["signal"]) for row in rows] == [
        (0.0, 1.0, 4, "ok"),
        (50.0, 1.0, 4, "ok"),
        (100.0, 1.0, 4, "ok"),
    ]
    controls = [row["control"] for row in pq.read_table(out.with_name("cell.samples.parquet")).to_pylist()]
    assert controls.count("no_needle") == controls.count("adjacent") == 4


def test_an_infeasible_length_leaves_nothing_behind(
    tmp_path: Path, tokenizer: Path, essay_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fault 1: an error with the least length, and no half-written file."""
    path = tmp_path / "out" / "x.jsonl"
    assert run(ruler_data, spec_of("cwe", essay_file, length=128), tokenizer=tokenizer, out=path) == 1
    assert "does not fit into 128 tokens" in capsys.readouterr().err
    assert not path.parent.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lenght": 1}, "did you mean"),
        ({"task": "niah"}, "niah_single_1"),
        ({"haystack": None}, "give `haystack`"),
        ({"random_offset": True, "profile": "faithful"}, "random_offset"),
        ({"n": 0}, "greater than or equal to 1"),
    ],
)
def test_bad_options_are_explained(
    tmp_path: Path,
    tokenizer: Path,
    essay_file: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    message: str,
) -> None:
    spec = {**spec_of("niah_single_2", essay_file), **change}
    assert run(ruler_data, spec, tokenizer=tokenizer, out=tmp_path / "x.jsonl") == 2
    assert message in capsys.readouterr().err


def test_damaged_and_foreign_files_are_refused(tmp_path: Path, tokenizer: Path, essay_file: Path) -> None:
    """Fault 27: nothing stale is taken for the right file."""
    paths = {}
    for name, seed in (("a", 1), ("b", 2)):
        paths[name] = tmp_path / f"{name}.jsonl"
        spec = spec_of("niah_single_1", essay_file, seed=seed)
        assert run(ruler_data, spec, tokenizer=tokenizer, out=paths[name]) == 0
    answer(paths["a"], tmp_path / "p.jsonl")
    assert run(ruler_score, WHO, data=paths["b"], predictions=tmp_path / "p.jsonl", out=tmp_path / "s") == 1
    lines = paths["a"].read_text().splitlines(keepends=True)
    for damaged in ("".join(lines[:-1]), "".join(lines).replace("magic", "magik"), "".join(lines)[:-30]):
        paths["a"].write_text(damaged)
        with pytest.raises(RulerError):
            read(paths["a"])
    with pytest.raises(RulerError, match="make them again"):
        read(tmp_path / "missing.jsonl")


def test_a_file_has_the_samples_it_says(tmp_path: Path) -> None:
    """Fault 2."""
    with pytest.raises(RulerError, match="1 samples instead of 2"):
        records.write(tmp_path / "x.jsonl", [{}], {"n": 2})
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_count_is_noticed(make_setup: Callable[..., Setup], monkeypatch: pytest.MonkeyPatch) -> None:
    setup = make_setup("niah_single_1", 1000)
    count = setup.encoder.count
    monkeypatch.setattr(setup.encoder, "count", lambda pieces: count(pieces) - 1)
    with pytest.raises(RulerError, match="counted were"):
        records.make(setup, 1)


def test_only_upstream_s_setting_is_called_comparable(make_setup: Callable[..., Setup]) -> None:
    faithful = make_setup("niah_single_1", 4096, profile="faithful")
    assert comparable(faithful, 500, None) == "RULER-comparable"
    assert comparable(faithful, 499, None) == "RULER-style"
    assert comparable(make_setup("niah_single_1", 4096), 500, None) == "RULER-style"
    assert comparable(make_setup("niah_single_1", 2048, profile="faithful"), 500, None) == "RULER-style"
    assert comparable(faithful, 500, "another text's hash") == "RULER-style"
