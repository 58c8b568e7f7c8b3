"""The recall figure and the needle heat map: they draw what the table says, and show what has no signal."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from scipy.stats import t as student

from seqarch.figures import needle_heatmap, recall
from seqarch.figures.errors import FigureError
from seqarch.figures.render import csv_text, read_csv, render
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import RC, styles

ARCHITECTURES = {"transformer": ("attention",), "window-32": ("attention",), "retnet": ("retnet",)}
ARCHITECTURES |= {"gla": ("gla",), "mamba2": ("mamba2",)}
LOOK = styles(ARCHITECTURES)
MODULES = {"recall": recall, "needle_heatmap": needle_heatmap}


def plotted(name, tables):
    return MODULES[name].plotted(tables, FigureJob(figure=name))


@pytest.fixture
def draw():
    """Draw with the project's settings; close afterwards."""
    with plt.rc_context(RC):
        yield lambda name, frame: MODULES[name].draw(frame, LOOK)
    plt.close("all")


def panels(figure):
    return [
        axes
        for axes in figure.axes
        if axes.get_subplotspec() is not None and axes.get_label() != "<colorbar>"
    ]


def legend_texts(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


@pytest.mark.parametrize("name", MODULES)
def test_the_csv_redraws_the_figure_to_the_byte(name, tables, tmp_path):
    frame = plotted(name, tables)
    first = render(MODULES[name].draw, frame, LOOK, ("svg", "png"), 50)
    (tmp_path / "f.csv").write_text(csv_text(frame))
    assert render(MODULES[name].draw, read_csv(tmp_path / "f.csv"), LOOK, ("svg", "png"), 50) == first
    assert csv_text(read_csv(tmp_path / "f.csv")) == csv_text(frame)


@pytest.mark.parametrize("name", MODULES)
def test_an_empty_table_is_a_clear_error_and_other_kinds_are_left_out(name, tables):
    with pytest.raises(FigureError, match="nothing to draw"):
        render(MODULES[name].draw, plotted(name, {"recall": tables["recall"].iloc[:0]}), LOOK)
    other = "mqar" if name == "needle_heatmap" else "needle_lines"
    rows = tables["recall"]
    assert plotted(name, {"recall": rows[rows["kind"] == other]}).empty


@pytest.mark.parametrize("name", MODULES)
def test_rows_in_another_order_draw_the_same_and_one_seed_is_enough(name, tables):
    rows = tables["recall"]
    shuffled = plotted(name, {"recall": rows.sample(frac=1, random_state=1)})
    pd.testing.assert_frame_equal(shuffled, plotted(name, tables), check_exact=False, rtol=1e-12)
    assert render(MODULES[name].draw, plotted(name, {"recall": rows[rows["seed"] == 0]}), LOOK)["svg"]


# --- recall -----------------------------------------------------------------------------------------------


def test_recall_shows_every_mean_and_seed_with_its_interval(tables, draw):
    frame = plotted("recall", tables)
    near, beyond, state = panels(draw("recall", frame))
    rows = tables["recall"].query("kind == 'mqar'")
    for axes, length in ((near, 32), (beyond, 64)):
        part = rows[rows["length"] == length]
        assert axes.get_xscale() == "log"
        assert axes.get_ylim() == pytest.approx((-0.03, 1.04))
        assert [int(tick) for tick in axes.get_xticks()] == sorted(part["n_pairs"].unique())
        assert f"T = {length}" in axes.get_title()
        drawn = {
            (to_hex(line.get_color()), x, round(y, 9))
            for line in axes.get_lines()
            for x, y in line.get_xydata()
        }
        for (arch, pairs), cell in part.groupby(["arch", "n_pairs"]):
            colour = to_hex(LOOK[arch].colour)
            fine = cell if arch == "gla" else cell[cell["signal"] == "ok"]
            assert len(fine) == (2 if arch == "mamba2" else 3)
            assert (colour, pairs, round(fine["score"].mean(), 9)) in drawn
            assert all((colour, pairs, round(score, 9)) in drawn for score in cell["score"])
    cell = rows.query("arch == 'retnet' and length == 64 and n_pairs == 16")["score"]
    mean = frame.query("level == 'mean' and arch == 'retnet' and length == 64 and n_pairs == 16").iloc[0]
    half = student.ppf(0.975, 2) * cell.std() / np.sqrt(3)
    assert (mean["lo"], mean["hi"]) == pytest.approx((cell.mean() - half, cell.mean() + half))
    assert "bytes" in state.get_xlabel()


def test_a_guess_is_marked_and_points_without_signal_are_hollow(tables, draw):
    figure = draw("recall", plotted("recall", tables))
    assert legend_texts(figure)[-2:] == ["no signal", "a guess"]
    near = panels(figure)[0]
    assert any(line.get_linestyle() == ":" and line.get_ydata()[0] == 1 / 32 for line in near.get_lines())
    hollow = {to_hex(line.get_color()) for line in near.get_lines() if line.get_markerfacecolor() == "white"}
    assert hollow == {to_hex(LOOK[name].colour) for name in ("gla", "mamba2")}
    large = {
        to_hex(line.get_color())
        for line in near.get_lines()
        if line.get_markerfacecolor() == "white" and line.get_markersize() > 3 and len(line.get_xdata())
    }
    assert large == {to_hex(LOOK["gla"].colour)}, "of mamba2 two seeds have signal: their mean has"


def test_the_state_of_attention_grows_and_a_fixed_one_does_not(tables, draw):
    state = panels(draw("recall", plotted("recall", tables)))[2]
    spread = {}
    for line in state.get_lines():
        if len(line.get_xdata()) == 2 and line.get_linestyle() != ":":
            spread[to_hex(line.get_color())] = float(np.ptp(line.get_xdata()))
    assert spread[to_hex(LOOK["transformer"].colour)] == 512 * 32
    assert spread[to_hex(LOOK["mamba2"].colour)] == 0


def test_a_task_that_is_not_tested_beyond_its_training_length(tables, draw):
    rows = tables["recall"]
    frame = plotted("recall", {"recall": rows[(rows["kind"] != "mqar") | (rows["length"] == 32)]})
    beyond = panels(draw("recall", frame))[1]
    assert [text.get_text() for text in beyond.texts] == ["not tested"]


# --- needle heat map --------------------------------------------------------------------------------------


def cells(axes):
    """(column, row) -> the rectangle there."""
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return {(round(box.get_x() + 0.5), round(box.get_y() + 0.5, 2)): box for box in boxes}


def test_the_heat_map_has_every_cell_in_its_place(tables, draw):
    frame = plotted("needle_heatmap", tables)
    figure = draw("needle_heatmap", frame)
    grid = panels(figure)
    assert [axes.get_title() for axes in grid] == ["transformer", "gla", "mamba2", "retnet", "window-32"]
    first = grid[0]
    names = [label.get_text() for label in first.get_yticklabels()]
    assert names == ["0", "50", "100", "adjacent", "no needle"]
    low, high = first.get_ylim()
    assert low > high, "depth 0 is at the top"
    assert [label.get_text() for label in first.get_xticklabels()] == ["100", "200"]
    for axes in grid:
        found = cells(axes)
        assert len(found) == 2 * (3 + 2)
        (image,) = axes.get_images()
        assert image.get_clim() == (0, 1)
        data = np.asarray(image.get_array().filled(np.nan))
        mine = frame[(frame["arch"] == axes.get_title()) & (frame["row"] == "depth")]
        for i, depth in enumerate((0, 50, 100)):
            for j, length in enumerate((100, 200)):
                score = mine[(mine["depth"] == depth) & (mine["length"] == length)]["score"].iloc[0]
                assert (np.isnan(score) and np.isnan(data[i, j])) or data[i, j] == pytest.approx(score)
        line = [line for line in axes.get_lines() if len(set(line.get_xdata())) == 1]
        assert line[0].get_xdata()[0] == 0.5, "the training length, after the first column"
    bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    assert len(bars) == 1


def test_what_has_no_signal_is_hatched_and_enters_no_mean(tables, draw):
    frame = plotted("needle_heatmap", tables)
    figure = draw("needle_heatmap", frame)
    hatched = {
        axes.get_title(): sum(bool(box.get_hatch()) for box in cells(axes).values())
        for axes in panels(figure)
    }
    assert hatched == {"transformer": 0, "gla": 6, "mamba2": 0, "retnet": 0, "window-32": 0}
    mamba = frame[(frame["arch"] == "mamba2") & (frame["row"] == "depth") & (frame["length"] == 100)]
    assert mamba["score"].tolist() == [1.0] * 3, "the seed without signal is left out"
    assert (mamba["n_signal"].tolist(), mamba["n_seeds"].tolist()) == ([2] * 3, [3] * 3)
    control = frame[(frame["arch"] == "mamba2") & (frame["row"] == "adjacent")]
    assert control["score"].tolist() == pytest.approx([0.7, 0.7]), "controls show all seeds"


def test_missing_cells_are_hatched_and_a_constant_matrix_keeps_its_colour(tables, draw):
    rows = tables["recall"].query("arch == 'transformer' and kind == 'needle_lines'")
    gap = rows[~((rows["length"] == 200) & (rows["depth"] == 50.0))].assign(score=0.5)
    (axes,) = panels(draw("needle_heatmap", plotted("needle_heatmap", {"recall": gap})))
    found = cells(axes)
    assert [place for place, box in found.items() if box.get_hatch()] == [(1, 1.0)]
    middle = plt.get_cmap(needle_heatmap.MAP)(0.5)
    assert to_hex(found[0, 0.0].get_facecolor()) == to_hex(middle)
