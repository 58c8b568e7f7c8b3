"""Loss of one run's checkpoints on every domain: three tables."""

import logging
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from seqarch.errors import SeqarchError
from seqarch.evaluation.columns import ROLE, result_table
from seqarch.evaluation.loss_spec import LossJob
from seqarch.evaluation.loss_tables import (
    DOCS,
    DOMAINS,
    POSITIONS,
    Documents,
    Level,
    domain_rows,
    position_rows,
)
from seqarch.evaluation.score import Passage, packed, passages, sum_by_document, token_nll
from seqarch.evaluation.windows import Ints, Windows, complete, plan, positions, stride, with_ends
from seqarch.progress import progress
from seqarch.tokens.evaluation_set import EvaluationSet
from seqarch.training.checkpoint import Metadata, load_model

log = logging.getLogger(__name__)


class LossError(SeqarchError):
    """A run and the evaluation sets do not fit together."""


@dataclass(frozen=True)
class Tables:
    """One row a document, a position bucket, a domain; each per checkpoint and window width."""

    docs: pa.Table
    positions: pa.Table
    domains: pa.Table


@dataclass(frozen=True)
class _Pass:
    """One window width and boundary mode over all sets, prepared once for all checkpoints."""

    width: int
    boundary: str
    windows: Windows  # of the mode "document", ends of documents aside
    batches: Sequence[Passage]


def evaluate(job: LossJob, run: Path, sets: Path, spec_sha256: str) -> Tables:
    """Score `job.checkpoints` of the run in folder `run` on the evaluation sets in folder `sets`.

    The tables depend on the number of threads in the last bit; set `torch.set_num_threads` before.

    Raises:
        LossError: sets of different tokenizers, with other roles than the job's, or another vocabulary than
            the model's.
        EvaluationSetError, CheckpointError: files that are missing, changed or of another kind.
    """
    opened = _open(job, sets)
    tokens, ends = _with_ends(opened)
    passes = [
        _prepare(job, opened, tokens, width * job.train.sequence_length, boundary)
        for width in job.loss.windows
        for boundary in job.loss.boundary_modes
    ]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    docs: list[dict[str, Any]] = []
    buckets: list[dict[str, Any]] = []
    domains: list[dict[str, Any]] = []
    with progress("loss", len(job.checkpoints) * len(passes)) as advance:
        for checkpoint in job.checkpoints:
            model, metadata = load_model(run / "checkpoints" / f"{checkpoint}.safetensors", device)
            _check_model(job, metadata, checkpoint)
            for each in passes:
                with _precision(job, device):
                    nll = token_nll(model, each.batches, len(tokens), device)
                point = _point(job, each, checkpoint, metadata, opened[0])
                found = _rows(job, opened, each, nll[~ends], nll[ends])
                for rows, new in zip((docs, buckets, domains), found, strict=True):
                    rows += [point | row for row in new]
                advance(1, f"{checkpoint}, window {each.width}")
    constant = {
        "experiment": job.experiment,
        "setting": job.setting,
        "model": job.architecture,
        "arch": job.architecture,
        "seed": job.seed,
        "run_id": f"{job.setting}/{job.architecture}/seed{job.seed}",
        "task": "loss",
        "split": "test",
        "tokenizer_sha256": opened[0].tokenizer_sha256,
        "spec_sha256": spec_sha256,
    }
    tables = ((docs, DOCS), (buckets, POSITIONS), (domains, DOMAINS))
    return Tables(*(result_table(rows, schema, **constant) for rows, schema in tables))


def _precision(job: LossJob, device: torch.device) -> Any:
    if job.loss.precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def _open(job: LossJob, sets: Path) -> list[EvaluationSet]:
    opened = [EvaluationSet(sets / f"{domain}.json") for domain in sorted(job.domains)]
    for each in opened:
        if each.role != job.domains[each.domain]:
            raise LossError(
                f"{each.path}: role {each.role!r}, but {each.domain} is {job.domains[each.domain]!r} here"
            )
        if each.tokenizer_sha256 != opened[0].tokenizer_sha256:
            raise LossError(
                f"{each.path} and {opened[0].path} have different tokenizers: make the sets again"
            )
        empty = int((np.diff(each.offsets) == 0).sum())
        if empty:
            log.warning("%s: %d documents without a token", each.domain, empty)
    return opened


def _check_model(job: LossJob, metadata: Metadata, checkpoint: str) -> None:
    if metadata.model != job.model:
        raise LossError(
            f"checkpoint {checkpoint} of {job.architecture} is of another model than the configuration's: "
            "train this run again"
        )


def _with_ends(sets: Sequence[EvaluationSet]) -> tuple[Ints, NDArray[np.bool_]]:
    """All documents' ids, each document followed by BOS as in training, where predicting it means "the
    document ends here"; and which of them are these ends."""
    lengths = np.concatenate([np.diff(each.offsets) for each in sets])
    ends = np.zeros(int(lengths.sum()) + len(lengths), dtype=bool)
    ends[np.cumsum(lengths + 1) - 1] = True
    tokens = np.full(len(ends), sets[0].bos_id, dtype=np.int64)
    tokens[~ends] = np.concatenate([each.ids for each in sets])
    return tokens, ends


def _prepare(job: LossJob, sets: Sequence[EvaluationSet], tokens: Ints, width: int, boundary: str) -> _Pass:
    prefix, vocabulary = sets[0].bos_id, job.model["vocab_size"]
    if sets[0].vocab_size > vocabulary:
        raise LossError(f"the tokenizer has {sets[0].vocab_size} entries, the model {vocabulary}")
    lengths = np.concatenate([np.diff(each.offsets) for each in sets])
    windows = plan(lengths, width, job.loss.window_mode)
    if boundary == "packed":
        streams = [each.n_tokens + len(each) for each in sets]
        batches = packed(tokens, streams, prefix, width, job.loss.batch_tokens)
    else:
        batches = passages(tokens, with_ends(windows, lengths, width), prefix, job.loss.batch_tokens)
    return _Pass(width, boundary, windows, batches)


def _point(
    job: LossJob, each: _Pass, checkpoint: str, metadata: Metadata, first: EvaluationSet
) -> dict[str, Any]:
    """What the rows of one checkpoint, window width and boundary mode share."""
    width = each.width
    mode = job.loss.window_mode if each.boundary == "document" else "disjoint"
    return {
        "checkpoint": checkpoint,
        "step": metadata.step,
        "tokens_seen": metadata.tokens,
        "phase": metadata.phase,
        "length": width,
        "eval_len": width,
        "stride": stride(width, mode),
        "window_mode": mode,
        "boundary_mode": each.boundary,
        "prefix_token": first.bos_id,
        "dtype": job.loss.precision,
    }


def _rows(
    job: LossJob,
    sets: Sequence[EvaluationSet],
    each: _Pass,
    nll: NDArray[np.float64],
    ends: NDArray[np.float64],
) -> tuple[list[dict], list[dict], list[dict]]:
    """Rows of the three tables from the nats of every token of all sets, and of the ends of documents."""
    sizes = [item.n_tokens for item in sets]
    parts = _split(nll, sizes)
    described = [_documents(item) for item in sets]
    totals = [sum_by_document(part, item.n_tokens) for part, item in zip(parts, described, strict=True)]
    last = _split(ends, [len(item) for item in sets])
    docs = [
        row
        for item, known, total, end in zip(sets, described, totals, last, strict=True)
        for row in _doc_rows(item, known, total, end)
    ]
    level = Level(job.loss.seed, job.loss.bootstrap, job.loss.confidence)
    if each.boundary != "document":  # there, a position is no number of tokens since a reset
        return docs, [], domain_rows(described, totals, level)
    place = _split(positions(each.windows, len(nll)), sizes)
    whole = _split(complete(each.windows, len(nll), each.width), sizes)
    length, bucket = job.train.sequence_length, job.loss.position_bucket
    buckets = position_rows(described, parts, place, whole, length, bucket)
    return docs, buckets, domain_rows(described, totals, level)


def _split(values: NDArray, sizes: Iterable[int]) -> list[NDArray]:
    return np.split(values, np.cumsum(list(sizes))[:-1])


def _documents(item: EvaluationSet) -> Documents:
    known = list(item)
    return Documents(
        domain=item.domain,
        role=item.role,
        n_tokens=np.diff(item.offsets),
        n_bytes=np.array([each.n_bytes for each in known], dtype=np.int64),
        roundtrip_ok=np.array([each.roundtrip_ok for each in known], dtype=bool),
        set_sha256=item.sha256,
    )


def _doc_rows(
    item: EvaluationSet, known: Documents, totals: NDArray[np.float64], ends: NDArray[np.float64]
) -> list[dict]:
    return [
        {
            "domain": item.domain,
            "role": ROLE[item.role],
            "doc_id": each.doc_id,
            "doc_sha256": each.text_sha256,
            "n_bytes": each.n_bytes,
            "n_tokens": int(n_tokens),
            "nll_nats": float(total),
            "eos_nll": None if np.isnan(end) else float(end),
            "roundtrip_ok": each.roundtrip_ok,
            "eval_set_sha256": item.sha256,
            "dataset_key": item.sha256,
        }
        for each, n_tokens, total, end in zip(item, known.n_tokens, totals, ends, strict=True)
    ]
