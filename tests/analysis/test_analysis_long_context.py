"""Tables over models: intervals, means over tasks and formats, published figures beside ours."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from seqarch.analysis.errors import ComparisonError
from seqarch.analysis.long_context import needle_table, ruler_table
from seqarch.analysis.published import Published, beside
from seqarch.evaluation.columns import result_table
from seqarch.evaluation.long_context_spec import LongContextTable
from seqarch.evaluation.ruler.metrics import wilson
from seqarch.evaluation.ruler.score_tables import EXTRA
from seqarch.evaluation.ruler.spec import TASKS
from seqarch.files import write_parquet

PUBLISHED = sorted((Path(__file__).parents[2] / "config/published").glob("huang2025_*.csv"))
N = 200
GRADED = {"vt": 5, "cwe": 10, "fwe": 3, "niah_multivalue": 4, "niah_multiquery": 4}
SPEC = LongContextTable(
    kind="ruler",
    experiment="x",
    models={
        "mamba2-2.7b": {"training_length": 2048, "training_length_source": "a paper", "published": "Mamba2"},
        "gla": {"training_length": 1024},
    },
    published_sha256={},
    bootstrap=500,
    confidence=0.95,
    seed=0,
)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A score file as `cli.ruler_score` writes it, and its samples beside it."""

    def file(rows: list[dict[str, Any]], scores: list[float], **who: Any) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.parquet"
        constant = {"experiment": "x", "profile": "fixed", "comparable": "RULER-style", **who}
        write_parquet(path, result_table(rows, EXTRA, **constant), {})
        samples = pa.table({"score": pa.array(scores, pa.float64())})
        write_parquet(path.with_name(f"{path.stem}.samples.parquet"), samples, {})
        return path

    return file


def task_rows(task: str, length: int, seed: int) -> tuple[list[dict[str, Any]], list[float]]:
    rng = np.random.default_rng(seed)
    per = GRADED.get(task, 1)
    scores = (rng.binomial(per, 0.6, N) / per).tolist()
    low, high = wilson(int(sum(scores)), N) if per == 1 else (None, None)
    row = {
        "task": task,
        "length": length,
        "n": N,
        "score": float(np.mean(scores)),
        "ci_lo": low,
        "ci_hi": high,
    }
    return [row], scores


@pytest.fixture
def ruler(write: Callable[..., Path]) -> pd.DataFrame:
    paths = []
    for arch, tasks in (("mamba2-2.7b", TASKS), ("gla", ("vt", "niah_single_1"))):
        who = {"arch": arch, "model": arch} | ({"setting": "limited", "seed": 1} if arch == "gla" else {})
        for length in (1024, 2048):
            for i, task in enumerate(tasks):
                paths.append(write(*task_rows(task, length, 100 * length + i), **who))
    return ruler_table(paths, SPEC, Published(PUBLISHED)).to_pandas()


def cell(table: pd.DataFrame, **where: Any) -> pd.Series:
    for name, value in where.items():
        table = table[table[name] == value]
    assert len(table) == 1
    return table.iloc[0]


def test_means_over_tasks_say_whether_they_are_whole(ruler: pd.DataFrame) -> None:
    whole = ruler[(ruler["arch"] == "mamba2-2.7b") & (ruler["length"] == 1024)]
    mean = cell(whole, task="mean")
    assert mean["score"] == pytest.approx(whole[whole["task"].isin(TASKS)]["score"].mean(), abs=1e-12)
    assert mean["ci_lo"] < mean["score"] < mean["ci_hi"]
    assert mean["ci_hi"] - mean["ci_lo"] < 0.05  # 13 tasks of 200 samples
    part = ruler[ruler["arch"] == "gla"]
    assert set(part["task"]) == {"vt", "niah_single_1", "partial_mean"}
    assert cell(part, task="partial_mean", length=2048)["tasks"] == "niah_single_1 vt"
    averages = ruler[ruler["length"].isna()]
    assert set(averages["task"]) == {"avg", "wavg_inc", "wavg_dec"}
    assert set(averages["arch"]) == {"mamba2-2.7b"}
    means = [cell(ruler, arch="mamba2-2.7b", task="mean", length=each)["score"] for each in (1024, 2048)]
    assert cell(averages, task="wavg_inc")["score"] == pytest.approx((means[0] + 2 * means[1]) / 3)


def test_graded_scores_get_an_interval_over_samples(ruler: pd.DataFrame) -> None:
    for task, per in GRADED.items():
        row = cell(ruler, arch="mamba2-2.7b", task=task, length=1024)
        half = 1.96 * math.sqrt(0.6 * 0.4 / per / N)
        assert (row["ci_hi"] - row["ci_lo"]) / 2 == pytest.approx(half, rel=0.25)
    binary = cell(ruler, arch="mamba2-2.7b", task="qa_1", length=1024)
    assert (binary["ci_lo"], binary["ci_hi"]) == pytest.approx(wilson(round(binary["score"] * N), N))


def test_published_figures_stand_beside_the_same_model_task_and_length(ruler: pd.DataFrame) -> None:
    printed = pd.read_csv(next(path for path in PUBLISHED if "ruler_tasks" in path.name))
    row = cell(ruler, arch="mamba2-2.7b", task="niah_single_1", length=2048)
    figure = cell(printed, model="Mamba2", task="niah_single_1", length=2048)["score"] / 100
    assert row["published"] == figure
    assert row["difference"] == pytest.approx(row["score"] - figure)
    assert row["difference_lo"] < row["difference"] < row["difference_hi"]
    average = pd.read_csv(next(path for path in PUBLISHED if "average" in path.name))
    mean = cell(ruler, arch="mamba2-2.7b", task="mean", length=1024)
    assert mean["published"] == cell(average, model="Mamba2", length=1024)["score"] / 100
    assert ruler.loc[ruler["arch"] == "gla", "published"].isna().all()
    assert set(ruler.loc[ruler["arch"] == "mamba2-2.7b", "train_length"]) == {2048}
    assert set(ruler.loc[ruler["arch"] == "mamba2-2.7b", "train_length_source"]) == {"a paper"}


def test_the_interval_of_a_difference_is_newcombe_s() -> None:
    """Newcombe (1998), table II, example (a): 56/70 - 48/80, method 10: 0.0524 to 0.3339."""
    found = beside(56 / 70, wilson(56, 70), 48 / 80, 80)
    assert found["difference"] == pytest.approx(0.2)
    assert found["difference_lo"] == pytest.approx(0.0524, abs=1e-4)
    assert found["difference_hi"] == pytest.approx(0.3339, abs=1e-4)
    assert beside(0.5, (0.4, 0.6), None) == {}


def test_the_difference_s_interval_covers_the_truth() -> None:
    """Two samples of the same accuracy: 95 % of the intervals hold 0."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        p = rng.uniform(0.02, 0.98)
        k, printed = rng.binomial(500, p), rng.binomial(250, p) / 250
        found = beside(k / 500, wilson(k, 500), printed)
        hits += found["difference_lo"] <= 0 <= found["difference_hi"]
    assert 0.935 < hits / 2000 < 0.975


def test_an_unreadable_figure_is_missing_not_zero() -> None:
    published = Published(PUBLISHED)
    assert published.task("SL-IT", "vt", 1024) == pytest.approx(0.9368)
    assert published.task("SL-IT", "vt", 2048) is None
    assert published.task(None, "vt", 1024) is None
    assert published.depth("M2A", 4096, 2048, 100.0) is not None
    assert published.depth("M2A", 1024, 2048, 100.0) is None  # neither the training length nor twice that


def needle_rows(
    form: str, length: int, signal: str, score: float
) -> tuple[list[dict[str, Any]], list[float]]:
    k = round(score * N)
    low, high = wilson(k, N)
    rows = [
        {
            "task": "niah_single_2",
            "format": form,
            "length": length,
            "depth": depth,
            "n": N,
            "k_correct": k,
            "score": k / N,
            "ci_lo": low,
            "ci_hi": high,
            "signal": signal,
        }
        for depth in (0.0, 50.0, 100.0)
    ]
    return rows, [1.0] * N


def test_formats_are_averaged_only_if_all_three_were_read(write: Callable[..., Path]) -> None:
    forms = ("Essay-Word-Num", "Essay-Word-UUID", "Repeat-Word-Num")
    who = {"arch": "mamba2-2.7b", "model": "m"}
    paths = [
        write(*needle_rows(form, 2048, "ok", s), **who)
        for form, s in zip(forms, (0.2, 0.4, 0.9), strict=True)
    ]
    paths += [write(*needle_rows(form, 4096, "no signal", 0.1), **who) for form in forms]
    paths += [write(*needle_rows(forms[0], 1024, "ok", 0.5), **who)]
    table = needle_table(paths, SPEC, Published(PUBLISHED)).to_pandas()
    mean = cell(table, format="mean", length=2048, depth=50.0)
    assert (mean["score"], mean["n"], mean["signal"]) == (pytest.approx(0.5), 3 * N, "ok")
    assert (mean["ci_lo"], mean["ci_hi"]) == pytest.approx(wilson(300, 600))
    assert set(table.loc[table["length"] == 4096, "signal"]) == {"no signal"}
    assert table[(table["format"] == "mean") & (table["length"] == 1024)].empty
    depth = pd.read_csv(next(path for path in PUBLISHED if "niah_depth" in path.name))
    figure = cell(depth, model="Mamba2", context="train", depth=50)["score"] / 100
    assert mean["published"] == figure
    assert mean["published_n"] == 750
    form = pd.read_csv(next(path for path in PUBLISHED if "niah_format" in path.name))
    figure = cell(form, model="Mamba2", length=2048, format=forms[0], depth=0)["score"] / 100
    assert cell(table, format=forms[0], length=2048, depth=0.0)["published"] == figure


def test_rows_of_an_unknown_model_are_refused(write: Callable[..., Path]) -> None:
    path = write(*task_rows("vt", 1024, 0), arch="someone", model="x")
    with pytest.raises(ComparisonError, match="no model 'someone'"):
        ruler_table([path], SPEC, Published([]))
    with pytest.raises(ComparisonError, match="no scores"):
        ruler_table([], SPEC, Published([]))
