"""The columns every result table has: what does not apply is empty, never a sentinel."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

ROLE = {"in": "id", "out": "ood"}  # the configuration's word -> the tables'

COMMON = pa.schema(
    [
        ("experiment", pa.string()),
        ("setting", pa.string()),
        ("model", pa.string()),
        ("arch", pa.string()),
        ("seed", pa.int64()),
        ("checkpoint", pa.string()),
        ("run_id", pa.string()),
        ("task", pa.string()),
        ("split", pa.string()),
        ("length", pa.int64()),
        ("used_tokens", pa.int64()),
        ("depth", pa.float64()),
        ("fill", pa.float64()),
        ("n", pa.int64()),
        ("k_correct", pa.int64()),
        ("score", pa.float64()),
        ("ci_lo", pa.float64()),
        ("ci_hi", pa.float64()),
        ("tokenizer_sha256", pa.string()),
        ("dataset_key", pa.string()),
        ("spec_sha256", pa.string()),
    ]
)


def result_table(rows: Sequence[Mapping[str, Any]], extra: pa.Schema, **constant: Any) -> pa.Table:
    """Rows as a table of the common columns and `extra`'s; `constant` columns have one value for all rows.

    Raises KeyError for a key that is no column: a misspelt name would otherwise be an empty column.
    """
    schema = pa.schema([*COMMON, *(field for field in extra if field.name not in COMMON.names)])
    unknown = {key for row in [constant, *rows] for key in row} - set(schema.names)
    if unknown:
        raise KeyError(f"not columns of this table: {sorted(unknown)}")
    merged = [{**constant, **row} for row in rows]
    return pa.table([pa.array([row.get(f.name) for row in merged], f.type) for f in schema], schema=schema)
