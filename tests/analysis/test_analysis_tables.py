"""Tables over all runs, and the unigram reference on real token files."""

import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqarch.analysis.errors import ComparisonError
from seqarch.analysis.tables import MOST_ROWS, gathered, training
from seqarch.cli import tables as tables_cli
from seqarch.cli import unigram as unigram_cli
from seqarch.files import sha256_file, write_json


def metrics(path, arch, seed, steps, every=50):
    table = pd.DataFrame({"step": np.arange(1, steps + 1)})
    table = table.assign(arch=arch, setting="limited", seed=seed, branch="trunk", phase="stable", lr=1e-3)
    table = table.assign(tokens=table["step"] * 8, loss=10 - table["step"] / steps, grad_norm=1.0)
    table["validation_loss"] = table["loss"].where(table["step"] % every == 0)
    table.to_parquet(path)
    return path


def test_short_runs_are_kept_as_they_are(tmp_path):
    paths = [metrics(tmp_path / f"{seed}.parquet", "a", seed, 120) for seed in (1, 0)]
    result = training(paths, "x").to_pandas()
    assert len(result) == 240
    assert result["seed"].tolist() == [0] * 120 + [1] * 120
    assert (result["steps"] == 1).all()
    assert (result["experiment"] == "x").all()
    assert result["validation_loss"].notna().sum() == 4


def test_long_runs_are_thinned_without_losing_validation(tmp_path):
    steps = 5 * MOST_ROWS
    result = training([metrics(tmp_path / "a.parquet", "a", 0, steps, every=1001)], "x").to_pandas()
    assert MOST_ROWS <= len(result) <= 1.1 * MOST_ROWS
    assert result["steps"].sum() == steps
    assert result["validation_loss"].notna().sum() == steps // 1001
    at = result[result["validation_loss"].notna()]
    assert (at["step"] % 1001 == 0).all()
    assert np.average(result["loss"], weights=result["steps"]) == pytest.approx(10 - (steps + 1) / 2 / steps)


def test_files_with_other_columns_are_not_mixed(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"b": [1]}), tmp_path / "2.parquet")
    with pytest.raises(ComparisonError, match="other columns"):
        gathered([tmp_path / "1.parquet", tmp_path / "2.parquet"], ["a"])
    with pytest.raises(ComparisonError, match="at least one"):
        gathered([], ["a"])


def test_step_writes_parquet_and_csv(tmp_path):
    path = metrics(tmp_path / "m.parquet", "a", 0, 10)
    out = tmp_path / "tables" / "training.parquet"
    spec = json.dumps({"experiment": "x"})
    assert tables_cli.main(["--spec", spec, "--metrics", str(path), "--out-training", str(out)]) == 0
    assert len(pd.read_csv(out.with_suffix(".csv"))) == 10
    assert [path.name for path in sorted(out.parent.iterdir())] == ["training.csv", "training.parquet"]


# --- unigram ------------------------------------------------------------------------------------------

V, BOS = 6, 0


def token_set(folder, domain, documents):
    folder = folder / domain
    folder.mkdir(parents=True)
    ids = [np.array([BOS, *document]) for document in documents]
    np.concatenate(ids).astype("<u2").tofile(folder / "00000.bin")
    np.cumsum([0, *map(len, ids)]).astype("<i8").tofile(folder / "00000.idx")
    n = sum(map(len, ids))
    entry = {
        "name": "00000.bin",
        "n_tokens": n,
        "n_docs": len(ids),
        "sha256": sha256_file(folder / "00000.bin"),
    }
    values = {"domain": domain, "split": "train", "dtype": "uint16", "vocab_size": V, "bos_id": BOS}
    values |= {"tokenizer_sha256": "t", "n_tokens": n, "n_docs": len(ids), "n_bytes": 9, "files": [entry]}
    write_json(folder / "manifest.json", values)
    return folder / "manifest.json"


def evaluation_set(folder, domain, role, ids):
    folder.mkdir(exist_ok=True)
    np.array(ids, dtype="<u2").tofile(folder / f"{domain}.bin")
    row = {
        "doc_id": ["d"],
        "text_sha256": ["s"],
        "n_bytes": [20],
        "n_tokens": [len(ids)],
        "offset": [0],
        "roundtrip_ok": [True],
    }
    pq.write_table(pa.table(row), folder / f"{domain}.docs.parquet")
    names = [f"{domain}.bin", f"{domain}.docs.parquet"]
    values = {
        "kind": "evaluation_set",
        "domain": domain,
        "role": role,
        "sha256": "x",
        "n_docs": 1,
        "n_bytes": 20,
    }
    values |= {
        "n_tokens": len(ids),
        "low_n": True,
        "vocab_size": V,
        "bos_id": BOS,
        "tokenizer_sha256": "t",
        "dtype": "uint16",
    }
    values |= {"files": [{"name": name, "sha256": sha256_file(folder / name)} for name in names]}
    write_json(folder / f"{domain}.json", values)


def test_unigram_losses_in_closed_form(tmp_path):
    manifests = [
        token_set(tmp_path / "t", "news", [[1, 1, 1, 2]]),
        token_set(tmp_path / "t", "code", [[3, 3], [4, 4]]),
    ]
    evaluation_set(tmp_path / "sets", "news", "in", [1, 2])
    evaluation_set(tmp_path / "sets", "code", "out", [3, 3, 5])
    settings = {"limited": {"news": None}, "mixed": {"news": 3.0, "code": 1.0}}
    spec = {"experiment": "x", "settings": settings, "domains": {"news": "in", "code": "out"}}
    out = tmp_path / "unigram"
    arguments = [
        "--spec",
        json.dumps(spec),
        "--manifests",
        *map(str, manifests),
        "--sets",
        str(tmp_path / "sets"),
    ]
    assert unigram_cli.main([*arguments, "--out", str(out)]) == 0
    rows = pd.read_parquet(out.with_suffix(".parquet")).set_index(["setting", "domain"])
    loss = rows["nats_per_token"]
    # news: 1 three times and 2 once of 4 tokens, one more of each of the 6 entries
    assert loss["limited", "news"] == pytest.approx(-(math.log(4 / 10) + math.log(2 / 10)) / 2)
    assert loss["limited", "code"] == pytest.approx(-math.log(1 / 10))
    # mixed: 8 tokens counted, shared out 3 : 1 -> 1: 4.5, 2: 1.5, 3: 1, 4: 1
    assert loss["mixed", "news"] == pytest.approx(-(math.log(5.5 / 14) + math.log(2.5 / 14)) / 2)
    assert loss["mixed", "macro_ood"] == loss["mixed", "code"]
    assert rows.loc[("limited", "macro_id"), "bpb"] == pytest.approx(
        loss["limited", "news"] * 2 / (math.log(2) * 20)
    )


def test_a_missing_training_domain_is_an_error(tmp_path, capsys):
    manifest = token_set(tmp_path / "t", "news", [[1]])
    evaluation_set(tmp_path / "sets", "news", "in", [1])
    spec = {"experiment": "x", "settings": {"mixed": {"news": None, "code": None}}, "domains": {"news": "in"}}
    arguments = ["--spec", json.dumps(spec), "--manifests", str(manifest), "--sets", str(tmp_path / "sets")]
    assert unigram_cli.main([*arguments, "--out", str(tmp_path / "u")]) == 1
    assert "no training manifest of code" in capsys.readouterr().err
