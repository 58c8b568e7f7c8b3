"""Tables over all models: RULER by task and length, needles by format, length and depth."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from seqarch.analysis.errors import ComparisonError
from seqarch.analysis.published import FORMATS, SAMPLES, Published, beside
from seqarch.evaluation.bootstrap import draws
from seqarch.evaluation.columns import result_table
from seqarch.evaluation.long_context_spec import LongContextTable, TableModel
from seqarch.evaluation.proportions import wilson
from seqarch.evaluation.ruler import metrics
from seqarch.evaluation.ruler.score_tables import EXTRA

BESIDE = [
    *(("train_length", pa.int64()), ("train_length_source", pa.string()), ("tasks", pa.string())),
    *(("published", pa.float64()), ("published_n", pa.int64()), ("difference", pa.float64())),
    *(("difference_lo", pa.float64()), ("difference_hi", pa.float64())),
]
SCHEMA = pa.schema([*EXTRA, *BESIDE])
WHO = ["setting", "model", "arch", "seed", "checkpoint", "run_id", "profile"]  # one model's rows
MEAN = "mean"  # the format of rows over all three formats
Row = dict[str, Any]


def ruler_table(scores: Sequence[Path], spec: LongContextTable, published: Published) -> pa.Table:
    """A row a model, task and length; `mean` (or `partial_mean`) rows over the tasks of a length; `avg`,
    `wavg_inc` and `wavg_dec` rows over lengths, without a length.

    Intervals: Wilson's for scores that are 0 or 1, else a bootstrap over samples; for means over tasks a
    bootstrap over the samples of each task.
    """
    rows, samples = _read(scores)
    table: list[Row] = []
    for who, members in _by_model(rows):
        means: dict[int, float] = {}
        for length in sorted({row["length"] for row in members}):
            here = [row for row in members if row["length"] == length]
            spread = {row["task"]: _means(row["task"], samples[row["file"]], spec) for row in here}
            for row in here:
                if row["ci_lo"] is None:
                    row["ci_lo"], row["ci_hi"] = _interval(spread[row["task"]], spec)
            name, mean, tasks = metrics.length_mean({row["task"]: row["score"] for row in here})
            low, high = _interval(np.mean([spread[task] for task in tasks], axis=0), spec)
            n = sum(row["n"] for row in here)
            whole = {"task": name, "length": length, "score": mean, "ci_lo": low, "ci_hi": high, "n": n}
            whole |= {"tasks": " ".join(tasks), "comparable": _comparable(here)}
            means[length] = mean
            table += [*here, {**who, **whole}]
        names = {row["task"] for row in table if "tasks" in row and row["arch"] == who["arch"]}
        if names == {"mean"} and len(means) > 1:
            table += [{**who, "task": task, "score": mean} for task, mean in metrics.averages(means).items()]
    for row in table:
        model = _model(spec, row)
        row |= {"train_length": model.training_length, "train_length_source": model.training_length_source}
        if row.get("length") is not None:
            printed = published.task(model.published, row["task"], row["length"])
            row |= beside(row["score"], (row["ci_lo"], row["ci_hi"]), printed)
    return _finished(table, spec)


def needle_table(scores: Sequence[Path], spec: LongContextTable, published: Published) -> pa.Table:
    """A row a model, format, length and depth; rows of format `mean` where all three formats were read.

    A cell without signal (its model cannot read a needle that stands right before the question) keeps its
    score for the record, and so does a mean over it.
    """
    rows, _ = _read(scores)
    table: list[Row] = []
    for who, members in _by_model(rows):
        model = _model(spec, who)
        for row in members:
            printed = published.cell(model.published, row["format"], row["length"], row["depth"])
            table.append({**row, **beside(row["score"], (row["ci_lo"], row["ci_hi"]), printed)})
        cells: dict[tuple[int, float], list[Row]] = {}
        for row in members:
            cells.setdefault((row["length"], row["depth"]), []).append(row)
        for (length, depth), cell in cells.items():
            if len({row["format"] for row in cell}) == FORMATS:
                k, n = sum(row["k_correct"] for row in cell), sum(row["n"] for row in cell)
                low, high = wilson(k, n)
                bad = [row["signal"] for row in cell if row["signal"] != "ok"]
                mean = {"format": MEAN, "length": length, "depth": depth, "k_correct": k, "n": n}
                mean |= {"score": k / n, "ci_lo": low, "ci_hi": high, "signal": bad[0] if bad else "ok"}
                printed = published.depth(model.published, length, model.training_length, depth)
                table.append({**who, **mean, **beside(k / n, (low, high), printed, FORMATS * SAMPLES)})
    for row in table:
        model = _model(spec, row)
        row |= {"train_length": model.training_length, "train_length_source": model.training_length_source}
        row["task"] = f"needle {row['format']}"
    return _finished(table, spec)


def _read(paths: Sequence[Path]) -> tuple[list[Row], dict[str, NDArray[np.float64]]]:
    """The rows of all files, with the file they are of, and the sample scores of each file."""
    if not paths:
        raise ComparisonError("no scores: expected at least one file of cli.ruler_score")
    rows, samples = [], {}
    for path in sorted(paths):
        name = str(path)
        rows += [{**row, "file": name} for row in pq.read_table(path).to_pylist()]
        beside_it = path.with_name(f"{path.stem}.samples.parquet")
        scores = pq.read_table(beside_it, columns=["score"])["score"].to_numpy()
        samples[name] = np.asarray(scores, dtype=np.float64)
    return rows, samples


def _by_model(rows: Iterable[Row]) -> Iterable[tuple[Row, list[Row]]]:
    """Rows of one model (or run) at a time, and what names it."""
    groups: dict[str, tuple[Row, list[Row]]] = {}
    for row in rows:
        who = {name: row.get(name) for name in WHO}
        groups.setdefault(str(who), (who, []))[1].append(row)
    return [groups[name] for name in sorted(groups)]


def _means(task: str, scores: NDArray[np.float64], spec: LongContextTable) -> NDArray[np.float64]:
    """Means of bootstrap replicates over samples; all models get the same draws."""
    weights = draws(f"ruler {task}", len(scores), spec.seed, spec.bootstrap)
    return weights @ scores / len(scores)


def _interval(means: NDArray[np.float64], spec: LongContextTable) -> tuple[float, float]:
    tail = (1 - spec.confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def _comparable(rows: Sequence[Mapping[str, Any]]) -> str:
    labels = {row["comparable"] for row in rows}
    return labels.pop() if len(labels) == 1 else "RULER-style"


def _model(spec: LongContextTable, row: Mapping[str, Any]) -> TableModel:
    if row["arch"] not in spec.models:
        raise ComparisonError(f"no model {row['arch']!r} in the configuration: score these files again")
    return spec.models[row["arch"]]


def _finished(rows: Sequence[Row], spec: LongContextTable) -> pa.Table:
    kept = [
        {name: value for name, value in row.items() if name not in ("file", "experiment")} for row in rows
    ]
    table = result_table(kept, SCHEMA, experiment=spec.experiment)
    order = ["arch", "setting", "seed", "task", "length", "depth"]
    frame = table.to_pandas().sort_values(order, kind="stable", na_position="last")
    return table.take(pa.array(frame.index.to_numpy()))
