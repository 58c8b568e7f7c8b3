"""Long-context figures: what is drawn is what the tables say; intervals, training lengths, no signal."""

import importlib
from collections.abc import Iterator
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from seqarch.evaluation.ruler.metrics import wilson
from seqarch.evaluation.ruler.spec import TASKS
from seqarch.figures.errors import FigureError
from seqarch.figures.render import csv_text, read_csv, render
from seqarch.figures.ruler import FAMILIES
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import RC, styles

MIXERS = {"mamba2-2.7b": ("mamba2",), "mamba2attn-2.7b": ("attention", "mamba2"), "gla": ("gla",)}
LOOK = styles(MIXERS)
LENGTHS = (1024, 2048, 4096)
FORMATS = ("Essay-Word-Num", "Essay-Word-UUID", "Repeat-Word-Num")
NAMES = ("ruler", "published", "needle_formats", "needle_text")


def score_row(task: str, length: int, k: int, n: int, **who: Any) -> dict[str, Any]:
    low, high = wilson(k, n)
    row = {"task": task, "length": length, "n": n, "score": k / n, "ci_lo": low, "ci_hi": high}
    return {"setting": None, "seed": np.nan, "train_length": 2048, "comparable": "RULER-style", **row, **who}


@pytest.fixture
def tables() -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(0)
    rows = []
    for arch in ("mamba2-2.7b", "mamba2attn-2.7b"):
        for length in LENGTHS:
            for task in (*TASKS, "mean"):
                k = int(rng.integers(0, 501))
                row = score_row(task, length, k, 500, arch=arch)
                printed = min(1.0, max(0.0, k / 500 + rng.choice([0.0, 0.3])))
                d = k / 500 - printed
                rows.append(
                    row
                    | {
                        "published": printed,
                        "difference": d,
                        "difference_lo": d - 0.05,
                        "difference_hi": d + 0.05,
                    }
                )
    for seed in range(3):
        for length in LENGTHS[:2]:
            who = {"arch": "gla", "setting": "limited", "seed": seed, "train_length": 1024}
            rows.append(score_row("vt", length, 40 + 20 * seed, 200, **who))
            rows.append(score_row("partial_mean", length, 40 + 20 * seed, 200, **who))
    rows.append(score_row("avg", 0, 1, 2, arch="mamba2-2.7b") | {"length": np.nan})
    needles = []
    for arch in ("mamba2-2.7b", "mamba2attn-2.7b"):
        for form in (*FORMATS, "mean"):
            for length in LENGTHS:
                for depth in (0.0, 50.0, 100.0):
                    bad = arch == "mamba2attn-2.7b" and length == 4096
                    row = score_row("needle", length, int(rng.integers(0, 201)), 200, arch=arch)
                    row |= {"format": form, "depth": depth, "signal": "no signal" if bad else "ok"}
                    row |= {"adjacent": 0.5 if bad else 0.95, "no_needle": 0.0, "run_id": None}
                    needles.append(row | {"published": 0.5 if length == 2048 else np.nan})
    return {"ruler": pd.DataFrame(rows), "needle": pd.DataFrame(needles)}


def module(name: str) -> Any:
    return importlib.import_module(f"seqarch.figures.{name}")


def plotted(name: str, tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return module(name).plotted(tables, FigureJob(figure=name))


@pytest.fixture
def draw() -> Iterator[Any]:
    with plt.rc_context(RC):
        yield lambda name, frame: module(name).draw(frame, LOOK)
    plt.close("all")


def shown(figure: Any) -> list[Any]:
    return [axes for axes in figure.axes if axes.get_visible()]


@pytest.mark.parametrize("name", NAMES)
def test_the_csv_redraws_the_figure_to_the_byte(name: str, tables: Any, tmp_path: Any) -> None:
    frame = plotted(name, tables)
    first = render(module(name).draw, frame, LOOK, ("svg",), 50)
    (tmp_path / "f.csv").write_text(csv_text(frame))
    assert first == render(module(name).draw, read_csv(tmp_path / "f.csv"), LOOK, ("svg",), 50)
    with pytest.raises(FigureError, match="nothing to draw"):
        render(module(name).draw, frame[:0], LOOK)


def test_every_family_has_its_panel_on_one_scale(tables: Any, draw: Any) -> None:
    figure = draw("ruler", plotted("ruler", tables))
    titles = [axes.get_title() for axes in shown(figure)]
    assert titles == list(FAMILIES)
    for axes in shown(figure):
        assert axes.get_ylim() == (-2, 102)
        assert axes.get_xscale() == "log"
    first, last = figure.axes[0], shown(figure)[-1]  # labels stand below the lowest panels
    assert [text.get_text() for text in last.get_xticklabels()] == ["1K", "2K", "4K"]
    dashed = [line for line in first.lines if list(line.get_xdata()) == [2048, 2048]]
    assert len(dashed) == 1  # the training length


def test_a_family_s_score_is_the_mean_of_its_tasks_and_its_interval_theirs_combined(tables: Any) -> None:
    frame = plotted("ruler", tables)
    rows = tables["ruler"]
    mine = rows[(rows["arch"] == "mamba2-2.7b") & (rows["length"] == 1024)]
    tasks = mine[mine["task"].isin(FAMILIES["one needle"])]
    runs = frame[(frame["kind"] == "run") & (frame["arch"] == "mamba2-2.7b") & (frame["length"] == 1024)]
    found = runs[runs["family"] == "one needle"].iloc[0]
    assert found["percent"] == pytest.approx(100 * tasks["score"].mean())
    half = np.sqrt(((tasks["score"] - tasks["ci_lo"]) ** 2).sum()) / 3
    assert found["lo"] == pytest.approx(max(0, found["percent"] - 100 * half))
    assert found["n"] == 1500
    assert frame["length"].notna().all()


def test_seeds_are_points_and_have_no_band(tables: Any, draw: Any) -> None:
    frame = plotted("ruler", tables)
    mean = frame[
        (frame["kind"] == "mean") & (frame["arch"] == "gla") & (frame["family"] == "variable tracking")
    ]
    assert mean["percent"].tolist() == pytest.approx([30, 30])
    assert mean[["lo", "hi"]].isna().all().all()
    figure = draw("ruler", frame)
    axes = next(each for each in shown(figure) if each.get_title() == "variable tracking")
    points = [line for line in axes.lines if line.get_linestyle() == "None"]
    assert sum(len(line.get_xdata()) for line in points) == 6
    assert len(axes.collections) == 3  # one band a model; the runs' is empty


def test_published_points_are_filled_where_the_interval_leaves_out_zero(tables: Any, draw: Any) -> None:
    frame = plotted("published", tables)
    rows = tables["ruler"].dropna(subset=["published"])
    assert len(frame) == len(rows) == 2 * 3 * 14
    assert (frame["differs"] == (frame["difference"].abs() > 5)).all()
    figure = draw("published", frame)
    assert [axes.get_title() for axes in shown(figure)] == ["mamba2-2.7b", "mamba2attn-2.7b"]
    for axes, (_, part) in zip(shown(figure), frame.groupby("arch"), strict=True):
        points = [each for each in axes.lines if each.get_marker() not in ("None", "", "_", "|")]
        filled = [each for each in points if each.get_markerfacecolor() != "none"]
        assert sum(len(each.get_xdata()) for each in points) == len(part)
        assert sum(len(each.get_xdata()) for each in filled) == part["differs"].sum()
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[0] == "1,024 tokens"


def test_cells_without_signal_are_hollow_and_published_ones_crossed(tables: Any, draw: Any) -> None:
    frame = plotted("needle_formats", tables)
    assert set(frame["format"]) == set(FORMATS)
    figure = draw("needle_formats", frame)
    assert len(shown(figure)) == 9
    grid = np.array(shown(figure)).reshape(3, 3)
    hollow = [line for axes in grid[2] for line in axes.lines if line.get_markerfacecolor() == "none"]
    assert sum(len(line.get_xdata()) for line in hollow) == 9
    crosses = [line for axes in grid.flat for line in axes.lines if line.get_marker() == "x"]
    assert sum(len(line.get_xdata()) for line in crosses) == 2 * 3 * 3
    assert [text.get_text() for text in grid[2, 0].get_xticklabels()] == ["0", "50", "100"]
    assert grid[0, 0].get_ylim() == (-4, 104)


def test_text_needles_are_drawn_as_needle_lines_are(tables: Any, draw: Any) -> None:
    """Means over formats are no panel; a cell without signal has no score; the controls stand below."""
    frame = plotted("needle_text", tables)
    assert set(frame["task"]) == set(FORMATS)
    assert set(frame["row"]) == {"depth", "adjacent", "no_needle"}
    cells = frame[frame["row"] == "depth"]
    missing = cells[cells["score"].isna()]
    assert set(zip(missing["arch"], missing["length"], strict=True)) == {("mamba2attn-2.7b", 4096)}
    needle = tables["needle"]
    one = needle[
        (needle["arch"] == "mamba2-2.7b") & (needle["format"] == FORMATS[0]) & (needle["length"] == 1024)
    ]
    mine = cells[(cells["arch"] == "mamba2-2.7b") & (cells["task"] == FORMATS[0]) & (cells["length"] == 1024)]
    assert mine.sort_values("depth")["score"].tolist() == one.sort_values("depth")["score"].tolist()
    figure = draw("needle_text", frame)
    assert len([axes for axes in figure.axes if axes.get_subplotspec() is not None]) == 2 * 3
    images = [image for axes in figure.axes for image in axes.images]
    assert all(image.get_clim() == (0, 1) for image in images)


def test_hybrids_have_colours_of_their_own() -> None:
    names = {"a": ("attention", "mamba2"), "b": ("attention", "rglru"), "c": ("mamba2",), "d": ("attention",)}
    assert len({style.colour for style in styles(names).values()}) == 4
