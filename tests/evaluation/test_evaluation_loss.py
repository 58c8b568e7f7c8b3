"""Real checkpoints on real evaluation-set files: the whole step."""

import hashlib
import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from seqarch.architecture import resolve
from seqarch.cli import loss as cli
from seqarch.evaluation.loss_tables import Documents, Level, domain_rows
from seqarch.evaluation.score import document_nll
from seqarch.files import read_parquet_provenance, sha256_file, write_json
from seqarch.mixers import registry
from seqarch.model import Decoder
from seqarch.training.checkpoint import Metadata, load_model, save_model

T, V, BOS = 16, 48, 0
DOMAINS = {"news": "in", "books": "in", "code": "out", "maths": "out"}


def write_set(folder, domain, role, texts, lossy=()):
    """An evaluation set of texts under a toy tokenizer: byte modulo V - 1, plus 1."""
    documents = [np.frombuffer(text.encode(), dtype=np.uint8) % (V - 1) + 1 for text in texts]
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    lengths = [len(ids) for ids in documents]
    folder.mkdir(parents=True, exist_ok=True)
    np.concatenate([np.zeros(0), *documents]).astype("<u2").tofile(folder / f"{domain}.bin")
    table = {
        "doc_id": [f"{domain}-{i}" for i in range(len(texts))],
        "text_sha256": digests,
        "n_bytes": [len(text.encode()) for text in texts],
        "n_tokens": lengths,
        "offset": np.cumsum([0, *lengths])[:-1],
        "roundtrip_ok": [i not in lossy for i in range(len(texts))],
    }
    pq.write_table(pa.table(table), folder / f"{domain}.docs.parquet")
    names = [f"{domain}.bin", f"{domain}.docs.parquet"]
    manifest = {
        "kind": "evaluation_set",
        "domain": domain,
        "role": role,
        "sha256": hashlib.sha256("".join(digests).encode()).hexdigest(),
        "n_docs": len(texts),
        "n_bytes": sum(table["n_bytes"]),
        "n_tokens": sum(lengths),
        "low_n": True,
        "vocab_size": V,
        "bos_id": BOS,
        "tokenizer_sha256": "t" * 64,
        "dtype": "uint16",
        "files": [{"name": name, "sha256": sha256_file(folder / name)} for name in names],
    }
    write_json(folder / f"{domain}.json", manifest)
    return documents


def texts(domain, n=5):
    generator = np.random.default_rng(len(domain) * 7)
    extra = ["é🙂 e\u0301\r\n", ""] if domain == "code" else []
    return [
        "".join(generator.choice(list("abcdefgh \n"), size)) for size in generator.integers(1, 60, n)
    ] + extra


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Sets of four domains and a run with two checkpoints."""
    root = tmp_path_factory.mktemp("world with space")
    documents = {}
    for domain, role in DOMAINS.items():
        documents[domain] = write_set(
            root / "sets", domain, role, texts(domain), lossy=[1] if domain == "maths" else []
        )
    model = resolve("a", {"a": {"mixer": "attention"}}, {"d_model": 32, "n_layers": 1}, V, T)
    for step, phase in ((3, "stable"), (5, "annealed")):
        decoder = Decoder(model)
        decoder.init_weights(seed=step)
        save_model(
            root / "run" / "checkpoints" / f"{phase}-{step:08d}.safetensors",
            decoder,
            Metadata({"recipe": "r", "spec": {"model": model}}, step, step * 64, phase),
        )
    return root, documents, model


def spec(model, **changes):
    names = ["stable-00000003", "annealed-00000005"]
    train = {"sequence_length": T, "batch_tokens": 64, "checkpoints": names, "torch_threads": 1}
    options = {"bytes_per_domain": 300, "checkpoints": ["annealed", "stable"], "windows": [1, 2]}
    options |= {"position_bucket": 4, "bootstrap": 200}
    options |= changes.pop("loss", {})
    return {
        "experiment": "x",
        "setting": "limited",
        "architecture": "a",
        "seed": 1,
        "model": model,
        "train": train,
        "loss": options,
        "domains": DOMAINS,
    } | changes


def run(root, out, value):
    return cli.main(
        [
            "--spec",
            json.dumps(value),
            "--run",
            str(root / "run"),
            "--sets",
            str(root / "sets"),
            "--out",
            str(out),
        ]
    )


@pytest.fixture(scope="module")
def result(world, tmp_path_factory):
    root, _, model = world
    out = tmp_path_factory.mktemp("out")
    assert run(root, out, spec(model)) == 0
    return {name: pd.read_parquet(out / f"{name}.parquet") for name in ("docs", "positions", "domains")} | {
        "out": out
    }


def test_rows_and_what_they_say(world, result):
    docs = result["docs"]
    n = sum(len(texts(domain)) for domain in DOMAINS)
    assert len(docs) == n * 2 * 2
    assert set(docs["phase"]) == {"stable", "annealed"}
    assert set(docs["length"]) == {T, 2 * T}
    assert set(docs["tokens_seen"]) == {192, 320}
    assert docs[["score", "depth", "fill"]].isna().all().all()
    assert set(docs["role"]) == {"id", "ood"}
    assert (docs["run_id"] == "limited/a/seed1").all()
    provenance = read_parquet_provenance(result["out"] / "docs.parquet")
    assert provenance["spec_sha256"] == docs["spec_sha256"].iloc[0]
    assert set(provenance["inputs"]) == {*DOMAINS, "stable-00000003", "annealed-00000005"}


@torch.no_grad()
def test_losses_are_the_models(world, result):
    """Against one full forward pass a document, with its own log-softmax."""
    root, documents, _ = world
    model, _ = load_model(root / "run" / "checkpoints" / "annealed-00000005.safetensors")
    docs = result["docs"].query("phase == 'annealed' and length == 32").set_index("doc_id")["nll_nats"]
    for domain, items in documents.items():
        for i, ids in enumerate(items):
            if 0 < len(ids) <= 2 * T:
                target = torch.tensor(ids.astype(np.int64))
                logits, _ = model(torch.cat([torch.tensor([BOS]), target[:-1]])[None])
                expected = -torch.log_softmax(logits[0].double(), -1)[range(len(ids)), target].sum()
                assert docs[f"{domain}-{i}"] == pytest.approx(float(expected), rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("mode", ["disjoint", "sliding"])
def test_ends_of_documents_are_what_training_predicted(world, result, tmp_path, mode):
    """After a document's last token the model was taught BOS; windows, not losses, change for it."""
    root, documents, trained = world
    docs = result["docs"].query("phase == 'annealed'")
    if mode == "sliding":
        assert run(root, tmp_path, spec(trained, loss={"window_mode": "sliding"})) == 0
        docs = pd.read_parquet(tmp_path / "docs.parquet").query("phase == 'annealed'")
    model, _ = load_model(root / "run" / "checkpoints" / "annealed-00000005.safetensors")
    for width, part in docs.groupby("length"):
        found = part.set_index("doc_id")
        for domain, items in documents.items():
            for i, ids in enumerate(items):
                end = found.loc[f"{domain}-{i}", "eos_nll"]
                if len(ids) == 0:
                    assert np.isnan(end)
                    continue
                last = (len(ids) - 1) % width + 1 if mode == "disjoint" else min(len(ids), width)
                seen = ids[len(ids) - min(last, width - 1) :]
                inputs = torch.tensor([BOS, *seen.tolist()])
                expected = -torch.log_softmax(model(inputs[None])[0][0, -1].double(), -1)[BOS]
                assert end == pytest.approx(float(expected), rel=1e-5)
        expected = document_nll(
            model, [ids.astype(np.int64) for ids in documents["news"]], int(width), mode, prefix=BOS
        )
        mine = found.loc[[f"news-{i}" for i in range(len(expected))], "nll_nats"]
        assert mine.to_numpy() == pytest.approx(expected, rel=1e-6)


@torch.no_grad()
def test_packed_documents_are_scored_as_they_were_trained_on(world, result, tmp_path):
    root, documents, trained = world
    value = spec(trained, loss={"boundary_modes": ["document", "packed"], "windows": [1]})
    assert run(root, tmp_path, value) == 0
    docs = pd.read_parquet(tmp_path / "docs.parquet")
    one = result["docs"].query(f"length == {T}").reset_index(drop=True)
    alone = docs[docs["boundary_mode"] == "document"].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone.drop(columns="spec_sha256"), one.drop(columns="spec_sha256"))
    both = docs.query("boundary_mode == 'packed' and phase == 'annealed'").set_index("doc_id")
    model, _ = load_model(root / "run" / "checkpoints" / "annealed-00000005.safetensors")
    for domain, items in documents.items():
        stream = torch.tensor([BOS, *(int(i) for ids in items for i in [*ids, BOS])])
        nll = [
            -torch.log_softmax(model(stream[None, s : s + T][:, : len(stream) - 1 - s])[0][0].double(), -1)[
                range(min(T, len(stream) - 1 - s)), stream[s + 1 : s + 1 + T]
            ]
            for s in range(0, len(stream) - 1, T)
        ]
        parts = torch.cat(nll).split([len(ids) + 1 for ids in items])
        for i, part in enumerate(parts):
            row = both.loc[f"{domain}-{i}"]
            assert row["nll_nats"] == pytest.approx(float(part[:-1].sum()), rel=1e-5, abs=1e-9)
            assert row["eos_nll"] == pytest.approx(float(part[-1]), rel=1e-5)
    domains = pd.read_parquet(tmp_path / "domains.parquet")
    assert len(domains[domains["boundary_mode"] == "packed"]) == len(domains) // 2
    assert set(pd.read_parquet(tmp_path / "positions.parquet")["boundary_mode"]) == {"document"}
    assert run(root, tmp_path, spec(trained, loss={"boundary_modes": ["packed"]})) == 2


def test_domains_average_documents(result):
    docs, domains = result["docs"], result["domains"]
    key = ["checkpoint", "length", "domain"]
    sums = docs.groupby(key)[["nll_nats", "n_tokens", "n_bytes"]].sum()
    rows = domains[~domains["domain"].str.startswith("macro")].set_index(key)
    assert (rows["nats_per_token"] - sums["nll_nats"] / sums["n_tokens"]).abs().max() < 1e-12
    bpb = (sums["nll_nats"] / (math.log(2) * sums["n_bytes"])).drop("maths", level="domain")
    assert (rows["bpb"].drop("maths", level="domain") - bpb).abs().max() < 1e-12
    assert (rows["ci_lo"] <= rows["nats_per_token"]).all()
    assert (rows["nats_per_token"] <= rows["ci_hi"]).all()
    for macro, parts in (("macro_id", ["news", "books"]), ("macro_ood", ["code", "maths"])):
        of_macro = domains[domains["domain"] == macro].set_index(key[:2])["nats_per_token"]
        mean = domains[domains["domain"].isin(parts)].groupby(key[:2])["nats_per_token"].mean()
        assert (of_macro - mean).abs().max() < 1e-12
    assert domains["low_n"].all()


def test_a_lossy_tokenizer_has_no_bits_per_byte(result):
    domains = result["domains"].set_index("domain")
    assert domains.loc[["maths", "macro_ood"], ["bpb", "doc_weighted_bpb"]].isna().all().all()
    assert (domains.loc["maths", "n_roundtrip_fail"] == 1).all()
    assert domains.loc[["news", "macro_id"], "bpb"].notna().all()
    assert domains.loc[["maths", "macro_ood"], "nats_per_token"].notna().all()


def test_only_the_configured_kinds_are_scored(world, tmp_path, capsys):
    root, _, model = world
    assert run(root, tmp_path, spec(model, loss={"checkpoints": ["stable"], "windows": [1]})) == 0
    assert set(pd.read_parquet(tmp_path / "docs.parquet")["checkpoint"]) == {"stable-00000003"}
    assert run(root, tmp_path, spec(model, loss={"checkpoints": ["mid"]})) == 2
    assert "kinds to score" in capsys.readouterr().err


def test_empty_and_odd_documents(result):
    docs = result["docs"].set_index("doc_id")
    assert (docs.loc["code-6", "nll_nats"] == 0).all()
    assert (docs.loc["code-5", "n_bytes"] == len("é🙂 e\u0301\r\n".encode())).all()
    assert (result["domains"].set_index("domain").loc["code", "n_empty"] == 1).all()


def test_positions_average_the_same_windows(world, result):
    _, documents, _ = world
    rows = result["positions"].query("phase == 'annealed'")
    long = {domain: [len(ids) for ids in items if len(ids) >= 2 * T] for domain, items in documents.items()}
    for length, stops in ((T, list(range(4, T + 1, 4))), (2 * T, list(range(4, 2 * T + 1, 4)))):
        for domain, lengths in long.items():
            part = rows[(rows["domain"] == domain) & (rows["length"] == length)]
            assert part["bucket_hi"].tolist() == (stops if lengths else [])
            assert (part["n_tokens"] == 4 * sum(n // length for n in lengths)).all()
            assert (part["n_docs"] == len(lengths)).all()


def test_equal_runs_give_equal_bytes(world, result, tmp_path):
    root, _, model = world
    assert run(root, tmp_path, spec(model)) == 0
    for name in ("docs", "positions", "domains"):
        assert (tmp_path / f"{name}.parquet").read_bytes() == (result["out"] / f"{name}.parquet").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"domains": DOMAINS | {"code": "in"}}, "role"),
        ({"domains": DOMAINS | {"poems": "out"}}, "no evaluation set"),
        ({"architecture": 3}, "architecture"),
        ({"loss": {"window_mod": "sliding"}}, "did you mean"),
    ],
)
def test_what_does_not_fit_is_a_clear_error(world, tmp_path, capsys, change, message):
    root, _, model = world
    assert run(root, tmp_path / "out", spec(model, **change)) in (1, 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_another_model_and_a_missing_checkpoint_are_errors(world, tmp_path, capsys):
    root, _, model = world
    assert run(root, tmp_path, spec(model | {"tie_embeddings": False})) == 1
    assert "another model" in capsys.readouterr().err
    value = spec(model)
    value["train"]["checkpoints"] = ["annealed-00000009"]
    assert run(root, tmp_path, value) == 1
    assert "annealed-00000009" in capsys.readouterr().err


@pytest.mark.parametrize("mixer", registry.names())
def test_token_by_token_equals_parallel(mixer):
    """Each architecture's recurrent form gives the losses that the scorer reports."""
    model = Decoder(resolve("a", {"a": {"mixer": mixer}}, {"d_model": 32, "n_layers": 2}, V, 2 * T))
    model.init_weights(seed=1)
    model.double().eval()
    documents = [np.random.default_rng(i).integers(1, V, n) for i, n in enumerate((1, 20, 7))]
    expected = []
    with torch.inference_mode():
        for ids in documents:
            state, total, last = None, 0.0, BOS
            for token in ids:
                logits, state = model.step(torch.tensor([last]), state)
                total -= float(torch.log_softmax(logits[0], -1)[token])
                last = int(token)
            expected.append(total)
    assert document_nll(model, documents, 2 * T, prefix=BOS) == pytest.approx(expected, rel=1e-6)


def test_macro_intervals_are_over_documents():
    """One document has no interval; with more, the interval narrows as the square root of their number."""
    generator = np.random.default_rng(0)

    def rows(n):
        tokens = np.full(n, 100)
        nats = tokens * generator.normal(3, 0.5, n)
        part = Documents("a", "in", tokens, tokens * 3, np.ones(n, dtype=bool), "s")
        return domain_rows([part], [nats], Level(seed=0, replicates=1000, confidence=0.95))

    assert rows(1)[0]["ci_lo"] is None
    wide, narrow = (row["ci_hi"] - row["ci_lo"] for row in (rows(50)[0], rows(5000)[1]))
    assert wide / narrow == pytest.approx(10, rel=0.35)
