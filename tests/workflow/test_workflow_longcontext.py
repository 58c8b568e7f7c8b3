"""Long context, end to end: samples, the answers of a run and of published models, scores, tables."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from seqarch.provenance import read_record

transformers = pytest.importorskip("transformers", reason="transformers is an extra")
LENGTH = 1024  # one that the paper has


def published(folder: Path) -> None:
    """A random Mamba-2 as transformers saves it, the same as mamba_ssm does, and a tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(["the grass is green the sky is blue"] * 20, trainer)
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "essays.txt").write_text("The grass is green. The sky is blue. Here we go. " * 50)
    library.save(str(folder / "tokenizer/tokenizer.json"))
    (folder / "tokenizer/tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    torch.manual_seed(0)
    options = {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 32}
    config = transformers.Mamba2Config(vocab_size=304, hidden_size=32, num_hidden_layers=1, **options)
    model = transformers.Mamba2ForCausalLM(config)
    model.save_pretrained(folder / "theirs")
    (folder / "ours").mkdir()
    weights = {name.replace("embeddings.", "embedding."): each for name, each in model.state_dict().items()}
    torch.save(weights, folder / "ours/pytorch_model.bin")
    ssm = {"layer": "Mamba2", "headdim": 16, "d_state": 8}
    about = {"d_model": 32, "n_layer": 1, "vocab_size": 300, "ssm_cfg": ssm, "rms_norm": True}
    (folder / "ours/config.json").write_text(json.dumps({**about, "tie_embeddings": False}))


def sections(config: dict[str, Any], folder: Path) -> None:
    """One run of the finished experiment and two published models."""
    config["architectures"] = {"gla": config["architectures"]["gla"]}
    config["train"]["settings"] = {"limited": "in"}
    config["studies"] = {}
    essays = {"kind": "file", "path": str(folder / "essays.txt")}
    config["evaluation"]["ruler"] = {
        "tasks": ["niah_single_2", "fwe"],
        "lengths": [LENGTH],
        "samples": 2,
        "haystack": essays,
        "models": ["pretrained"],
    }
    config["evaluation"]["needle"] = {
        "formats": ["Repeat-Word-Num"],
        "depths": [0, 100],
        "samples": 2,
        "multiples": [],
        "lengths": [LENGTH],
    }
    model = {
        "tokenizer": "words",
        "training_length": 64,
        "training_length_source": "a test",
        "dtype": "float32",
    }
    config["pretrained"] = {
        "tokenizers": {"words": {"path": str(folder / "tokenizer")}},
        "models": {
            "theirs": {**model, "path": str(folder / "theirs"), "published": "Mamba2"},
            "ours": {**model, "path": str(folder / "ours"), "context": 2000},
        },
    }


@pytest.mark.slow
def test_samples_answers_scores_and_tables(project: Any, tmp_path: Path) -> None:
    published(tmp_path / "hub")
    project.configure(lambda config: sections(config, tmp_path / "hub"))
    project.snakemake("paper_b", "--cores", "2", "--show-failed-logs")
    tables = project.results / "tiny/tables"
    ruler, needle = pd.read_parquet(tables / "ruler.parquet"), pd.read_parquet(tables / "needle.parquet")
    assert set(ruler["arch"]) == {"theirs", "ours"}
    assert set(ruler["task"]) == {"niah_single_2", "fwe", "partial_mean"}
    assert set(needle["arch"]) == {"theirs", "ours", "gla"}
    assert set(needle["depth"]) == {0, 100}
    assert set(needle["signal"]) == {"no signal"}  # random weights read nothing, and the table says so
    assert set(needle.loc[needle["arch"] == "gla", "setting"]) == {"limited"}
    assert (ruler["comparable"] == "RULER-style").all()
    figures = project.results / "tiny/figures"
    for figure in ("ruler", "published", "needle_formats", "needle_text"):
        assert (figures / f"{figure}.svg").stat().st_size > 5000
    assert pd.read_csv(figures / "published.csv")["arch"].unique().tolist() == ["theirs"]
    for table in ("ruler", "needle"):
        assert read_record(tables / f"{table}.parquet")["step"] == "long_context_table"
    # The same weights through transformers and through our mixers say the same.
    said = {}
    for name in ("theirs", "ours"):
        path = project.results / f"tiny/longcontext/predictions/pretrained/{name}/fixed/fwe/L{LENGTH}.jsonl"
        said[name] = [json.loads(line) for line in path.read_text().splitlines()]
        assert [row["index"] for row in said[name]] == [0, 1]
    assert said["theirs"] == said["ours"]
    # One file of samples for the tokenizer that both share, and one for the run's.
    data = project.results / "tiny/longcontext/data"
    assert sorted(path.name for path in data.iterdir()) == ["own", "words"]
    assert project.pending("paper_b") == set()

    # A longer length makes its own files; a new context limit that is too small stops with its reason.
    def longer(config: dict[str, Any]) -> None:
        config["evaluation"]["ruler"]["lengths"].append(1200)
        config["pretrained"]["models"]["ours"]["context"] = 900

    project.configure(longer)
    pending = project.pending("paper_b")
    assert {"ruler_data", "predict_pretrained", "pretrained_scores", "ruler_table"} <= pending
    assert not {job for job in pending if job.split()[0] in ("train", "needle_data", "predict", "run_scores")}
    output = project.snakemake("paper_b", "--cores", "2", "--show-failed-logs", "--keep-going", fails=True)
    assert "nothing is cut off" in output
