"""Downstream accuracy above chance: the table's numbers, and grey where they say nothing."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from seqarch.figures import downstream
from seqarch.figures.errors import FigureError
from seqarch.figures.render import csv_text, read_csv, render
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import RC, styles

LOOK = styles({"transformer": ("attention",), "gla": ("gla",)})
JOB = FigureJob(figure="downstream")


@pytest.fixture
def table():
    rows = []
    for setting in ("limited", "mixed"):
        for arch, gain in (("transformer", 0.1), ("gla", 0.02)):
            for seed in (0, 1):
                for task, chance in (("sciq", 0.25), ("piqa", 0.5)):
                    score = chance + gain + 0.01 * seed
                    row = {"setting": setting, "arch": arch, "seed": seed, "task": task, "metric": "acc"}
                    row |= {"score": score, "chance": chance, "stderr": 0.02, "n": 500, "n_truncated": 0}
                    rows.append(row | {"at_chance": score - chance < 0.04})
    return pd.DataFrame(rows)


def panels(frame):
    with plt.rc_context(RC):
        figure = downstream.draw(frame, LOOK)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    plt.close(figure)
    return shown


def test_the_csv_redraws_it_and_an_empty_table_is_an_error(table, tmp_path):
    frame = downstream.plotted({"downstream": table}, JOB)
    first = render(downstream.draw, frame, LOOK)
    (tmp_path / "f.csv").write_text(csv_text(frame))
    assert render(downstream.draw, read_csv(tmp_path / "f.csv"), LOOK) == first
    shuffled = downstream.plotted({"downstream": table.sample(frac=1, random_state=0)}, JOB)
    pd.testing.assert_frame_equal(shuffled, frame)
    with pytest.raises(FigureError, match="nothing to draw"):
        render(downstream.draw, frame.iloc[:0], LOOK)


def test_points_are_the_tables_and_chance_is_grey(table):
    frame = downstream.plotted({"downstream": table}, JOB)
    means = frame[frame["kind"] == "mean"].set_index(["setting", "task", "arch"])
    row = means.loc[("limited", "sciq", "transformer")]
    # seeds answer the same documents: their error is not divided by their number
    assert (row["above"], row["lo"], row["hi"]) == tuple(map(pytest.approx, (0.105, 0.065, 0.145)))
    assert not row["at_chance"]
    assert means.loc[("limited", "sciq", "gla"), "at_chance"]
    shown = panels(frame)
    assert [axes.get_title() for axes in shown] == 2 * ["piqa\nacc, n = 500", "sciq\nacc, n = 500"]
    marks = {
        to_hex(line.get_color()): line
        for line in shown[1].get_lines()
        if len(line.get_xdata()) == 1 and line.get_marker() != "|"
    }
    assert set(marks) == {LOOK["transformer"].colour, downstream.GREY}
    assert marks[LOOK["transformer"].colour].get_xdata()[0] == pytest.approx(10.5)
    assert to_hex(marks[downstream.GREY].get_markerfacecolor()) == "#ffffff"


def test_one_seed_and_missing_runs_are_said(table):
    one = table[(table["seed"] == 0) & ~((table["arch"] == "gla") & (table["task"] == "sciq"))]
    one = one.assign(stderr=np.where(one["task"] == "piqa", np.nan, one["stderr"]))
    frame = downstream.plotted({"downstream": one}, JOB)
    assert frame.query("kind == 'mean' and task == 'piqa'")["at_chance"].all()  # no error: no evidence
    said = [text.get_text() for axes in panels(frame) for text in axes.texts]
    assert said.count("no data") == 2
    assert said.count("n = 1") == 6
