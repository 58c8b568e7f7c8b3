"""The training loop against a bare one: forward, backward, step on batches made beforehand, and nothing else.

Ours also reads and cuts batches, clips, guards against non-finite values, records, reports and saves. Both
train the same model on the same batches under the same switches; the best of several turns counts.
"""

import hashlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F

from seqarch.architecture import resolve
from seqarch.files import write_json
from seqarch.model import Decoder
from seqarch.provenance import record
from seqarch.tokens.packing import merge_shards, pack
from seqarch.tokens.spec import BpeTokenizer
from seqarch.tokens.text import TextFile
from seqarch.tokens.training import train_bpe
from seqarch.training.data import name_manifests, open_data
from seqarch.training.job import Job
from seqarch.training.loop import Trainer
from seqarch.training.numerics import numerics
from seqarch.training.signals import Stop
from seqarch.training.spec import RunSpec
from seqarch.training.workdir import WorkDirectory
from seqarch.training.world import World

GOAL, TURNS, STEPS = 0.95, 4, 50
T, BATCH, VOCAB = 128, 8, 1024  # the demo's
CPU = torch.device("cpu")


def rows() -> Iterator[dict[str, Any]]:
    """One row an architecture, at the demo's size on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        manifests = _tokens(Path(folder))
        for number, (name, mixer) in enumerate({"transformer": "attention", "mamba2": "mamba2"}.items()):
            job = _job(Path(folder) / str(number), name, mixer, manifests)
            with numerics(1, CPU):
                turns = [(_ours(job), _bare(job)) for _ in range(TURNS)]
            ours, peer = (min(column) for column in zip(*turns, strict=True))
            yield {
                "benchmark": f"training loop, {name} nano",
                "shape": f"B={BATCH} T={T} vocab={VOCAB}",
                "threads": 1,
                "ours": "seqarch.training.loop",
                "peer": "bare loop",
                "ours_seconds": ours / STEPS,
                "peer_seconds": peer / STEPS,
                "ratio": peer / ours,
                "goal": GOAL,
                "pass": peer / ours >= GOAL,
            }


def _ours(job: Job) -> float:
    with WorkDirectory(job.work, "run") as work:
        trainer = Trainer(job, World(CPU), work, Stop())
        start = time.perf_counter()
        trainer.fit()
        seconds = time.perf_counter() - start
        work.remove()
    return seconds


def _bare(job: Job) -> float:
    data, _ = open_data(job.spec, job.manifests)
    batches = [data.batch(step) for step in range(STEPS)]
    model = Decoder(job.spec.model)
    model.init_weights(job.spec.seed)
    optimizer = torch.optim.AdamW(model.decay_groups(0.1), lr=1e-3, betas=(0.9, 0.95), fused=True)
    start = time.perf_counter()
    for batch in batches:
        logits, _ = model(batch.inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - start


def _job(folder: Path, name: str, mixer: str, manifests: list[Path]) -> Job:
    train = {
        "sequence_length": T,
        "batch_tokens": BATCH * T,
        "budgets": [STEPS * BATCH * T],
        "schedule": {"kind": "cosine"},
        "learning_rate": 1e-3,
        "validation": {"tokens": T, "every_tokens": STEPS * BATCH * T},
    }
    spec = {
        "architecture": name,
        "setting": "benchmark",
        "seed": 0,
        "model": resolve(name, {name: {"mixer": mixer}}, {"scale": "nano"}, VOCAB, T),
        "data": {"kind": "tokens", "weights": {"code": None}, "id_domains": ["code"]},
        "train": train,
    }
    named = name_manifests(manifests)
    provenance = record("train", spec, "0" * 64, named)
    return Job(RunSpec.model_validate(spec), named, folder / "work", folder / "run", provenance, "cpu")


def _tokens(folder: Path) -> list[Path]:
    """This package's source as training and validation tokens."""
    texts = [
        file.read_text(encoding="utf-8") for file in sorted((Path(__file__).parents[2] / "src").rglob("*.py"))
    ]
    texts = [text for text in texts if text]
    files = [
        _text(folder / "text" / split / "code" / "00000.parquet", texts) for split in ("train", "validation")
    ]
    tokenizer = train_bpe(BpeTokenizer(kind="bpe", vocab_size=VOCAB), files[:1], folder / "tokenizer.json")
    manifests = []
    for file in files:
        target = folder / file.split / file.domain
        entry = pack(file, target, tokenizer, {}, lambda steps=1, status="": None)
        part = {
            "dtype": tokenizer.dtype_name,
            "vocab_size": tokenizer.vocab_size,
            "bos_id": tokenizer.bos_id,
            "tokenizer_sha256": tokenizer.sha256,
            "files": [{"domain": file.domain, "split": file.split, **entry}],
        }
        write_json(target / "part.json", part)
        write_json(target / "manifest.json", merge_shards([target / "part.json"], file.domain, file.split))
        manifests.append(target / "manifest.json")
    return manifests


def _text(path: Path, documents: list[str]) -> TextFile:
    path.parent.mkdir(parents=True)
    data = [document.encode() for document in documents]
    table = {
        "doc_id": [str(i) for i in range(len(data))],
        "text": documents,
        "n_bytes": [len(each) for each in data],
        "text_sha256": [hashlib.sha256(each).hexdigest() for each in data],
    }
    pq.write_table(pa.table(table), path)
    return TextFile(path.parent.name, path.parent.parent.name, path, sum(map(len, data)), None)


if __name__ == "__main__":
    for row in rows():
        print(row)
