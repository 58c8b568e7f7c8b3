"""Scores as tables: a row a sample, and a row a file (RULER) or a depth (needle)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from seqarch.evaluation.columns import result_table
from seqarch.evaluation.needle import cells
from seqarch.evaluation.ruler import metrics, records
from seqarch.files import write_parquet, write_table

EXTRA = pa.schema(
    [
        ("profile", pa.string()),
        ("comparable", pa.string()),
        ("score_word", pa.float64()),
        ("n_null", pa.int64()),
        ("n_hit_max_tokens", pa.int64()),
        ("n_yesno_refs", pa.int64()),
        ("n_ambiguous", pa.int64()),
        ("format", pa.string()),
        ("actual_depth", pa.float64()),
        ("signal", pa.string()),
        ("no_needle", pa.float64()),
        ("no_needle_hi", pa.float64()),
        ("adjacent", pa.float64()),
    ]
)
SAMPLES = pa.schema(
    [
        ("dataset_key", pa.string()),
        ("index", pa.int64()),
        ("sample", pa.int64()),
        ("control", pa.string()),
        ("depth", pa.float64()),
        ("score", pa.float64()),
        ("score_word", pa.float64()),
        ("null", pa.bool_()),
        ("yesno", pa.bool_()),
        ("ambiguous", pa.bool_()),
        ("n_new_tokens", pa.int64()),
        ("hit_max_tokens", pa.bool_()),
    ]
)


def score(
    data: Path, predictions: Path, out: Path, constant: Mapping[str, Any], provenance: Mapping[str, Any]
) -> None:
    """Write `out`.parquet and .csv, and `out`.samples.parquet.

    Args:
        data, predictions: JSON lines with their side files.
        out: without suffix.
        constant: columns that say who predicted: experiment, arch, seed, …

    Raises RulerError if the predictions are not those of the samples, one each.
    """
    lines, header = records.read(data)
    said, _ = records.read_predictions(predictions, header)
    rows = metrics.score_file(lines, said)
    same = {name: header[name] for name in ("dataset_key", "profile", "comparable", "tokenizer_sha256")}
    same |= {"length": header["length"], "task": header["task"], "spec_sha256": provenance["spec_sha256"]}
    found = cells(lines, rows) if "format" in header else [metrics.summarise(header["task"], lines, rows)]
    table = [{**row, **same} for row in found]
    write_parquet(
        out.with_name(out.name + ".samples.parquet"), _samples(lines, rows, header["dataset_key"]), provenance
    )
    write_table(out, result_table(table, EXTRA, **constant), provenance)


def _samples(lines: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], key: str) -> pa.Table:
    merged = [
        {
            **row,
            "dataset_key": key,
            "sample": line.get("sample"),
            "control": line.get("control"),
            "depth": line.get("requested_depth"),
        }
        for line, row in zip(lines, rows, strict=True)
    ]
    return pa.Table.from_pylist(merged, schema=SAMPLES)
