"""Paper A's figures: which pairs they show, and that what they show is the table."""

import importlib

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from seqarch.figures.errors import FigureError
from seqarch.figures.render import csv_text, read_csv, render
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import ordered, seeds_words, styles

MIXERS = {
    "transformer": ("attention",),
    "window-32": ("attention",),
    "retnet": ("retnet",),
    "gla": ("gla",),
    "gla-no-decay": ("gla",),
    "hybrid": ("attention", "mamba2"),
    "chunks": ("top1_chunk",),
}
LOOK = styles(MIXERS)
NAMES = ("limited_mixed", "stateful", "minor_factors", "major_factors", "top1")


def module(name):
    return importlib.import_module(f"seqarch.figures.{name}")


@pytest.fixture
def table():
    """Rows of equal_loss for two studies; every effect is another number."""
    generator = np.random.default_rng(0)
    rows = []
    pairs = [("one", arch, "transformer") for arch in ("window-32", "retnet", "gla", "hybrid", "chunks")]
    for study, arch, ref in [*pairs, ("two", "gla-no-decay", "gla")]:
        for setting in ("limited", "mixed"):
            for domain in ("code", "manual", "macro_ood"):
                deltas = generator.normal(0.03, 0.02, 3)
                row = {"study": study, "setting": setting, "length": 64, "arch": arch, "ref": ref}
                row |= {"domain": domain, "is_primary": True, "x0": 4.0, "margin": 0.02, "n_docs": 40}
                row |= {"n_seeds": 3, "confidence": 0.95, "phase": "annealed", "interval": "seeds"}
                rows += [row | {"kind": "seed", "seed": i, "delta": d} for i, d in enumerate(deltas)]
                mean = deltas.mean()
                row |= {"kind": "summary", "mean": mean, "ci_lo": mean - 0.03, "ci_hi": mean + 0.03}
                rows.append(row | {"domain_ci_lo": None, "domain_ci_hi": None, "verdict": "inconclusive"})
    frame = pd.DataFrame(rows)
    return frame.astype({"domain_ci_lo": float, "domain_ci_hi": float})


def job(name, **changes):
    values = {"figure": name, "studies": ["one"], "architectures": MIXERS}
    if name.endswith("factors"):
        values |= {"studies": ["one", "two"]}
        values |= {"factors": {"window-32": ["window"], "gla-no-decay": ["decay"], "chunks": ["mixer"]}}
    return FigureJob.model_validate(values | changes)


def frame_of(name, table, **changes):
    return module(name).plotted({"equal_loss": table}, job(name, **changes))


@pytest.fixture
def draw():
    from seqarch.figures.style import RC

    with plt.rc_context(RC):
        yield lambda name, frame: module(name).draw(frame, LOOK)
    plt.close("all")


def texts(axes):
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("name", NAMES)
def test_the_csv_redraws_the_figure_and_empty_tables_are_errors(name, table, tmp_path):
    frame = frame_of(name, table)
    first = render(module(name).draw, frame, LOOK)
    (tmp_path / "f.csv").write_text(csv_text(frame))
    assert render(module(name).draw, read_csv(tmp_path / "f.csv"), LOOK) == first
    shuffled = frame_of(name, table.sample(frac=1, random_state=1))
    pd.testing.assert_frame_equal(shuffled, frame)
    with pytest.raises(FigureError, match="nothing to draw"):
        render(module(name).draw, frame.iloc[:0], LOOK)


def test_each_figure_shows_its_own_pairs(table):
    shown = {name: frame_of(name, table) for name in NAMES}
    assert set(shown["limited_mixed"]["arch"]) == {"window-32", "retnet", "gla", "hybrid", "chunks"}
    stateful = shown["stateful"].groupby("group")["arch"].unique().map(set).to_dict()
    assert stateful == {"hybrid": {"hybrid"}, "recurrent": {"retnet", "gla"}}
    assert set(shown["top1"]["group"]) == {"Top-1 chunk"}
    groups = shown["minor_factors"].drop_duplicates("arch").set_index("arch")["group"]
    assert groups["gla-no-decay"] == "data-dependent decay"
    assert groups["window-32"] == "visibility (window)"
    assert groups["retnet"] == "other"
    with pytest.raises(FigureError, match="several of the studies"):
        frame_of("limited_mixed", pd.concat([table, table.assign(study="three")]), studies=["one", "three"])
    with pytest.raises(FigureError, match="no rows of the studies three"):
        frame_of("stateful", table, studies=["three"])


def test_rows_of_effects_are_the_tables(table, draw):
    frame = frame_of("minor_factors", table, studies=["two"])
    figure = draw("minor_factors", frame)
    limited, mixed = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["trained on: limited", "trained on: mixed"]
    assert "data-dependent decay" in texts(limited)
    row = frame.query("kind == 'summary' and setting == 'limited'").iloc[0]
    number = f"{row['mean']:+.3f} [{row['lo']:+.3f}, {row['hi']:+.3f}]".replace("-", "−")
    assert number in texts(limited)
    assert number not in texts(mixed)
    colour = LOOK["gla-no-decay"].colour
    mine = [line for line in limited.get_lines() if to_hex(line.get_color()) == colour]
    assert sorted(len(line.get_xdata()) for line in mine) == [1, 2, 3]  # mean, interval, seeds
    assert limited.get_xlim() == mixed.get_xlim()


def test_one_seed_and_no_overlap_are_said(table, draw):
    one = table.assign(n_seeds=1, ci_lo=np.nan, ci_hi=np.nan)
    one = one[(one["kind"] == "summary") | (one["seed"] == 0)]
    one.loc[(one["arch"] == "retnet") & (one["kind"] == "summary"), "mean"] = np.nan
    figure = draw("stateful", frame_of("stateful", one))
    said = texts(figure.axes[0])
    assert "no overlap" in said
    assert sum(text.endswith("n = 1") for text in said) == 2
    figure = draw("limited_mixed", frame_of("limited_mixed", one))
    said = [text for axes in figure.axes for text in texts(axes)]
    assert said.count("n = 1") == 4 * 2 * 3
    assert said.count("limited: no overlap") == 3


def test_settings_stand_side_by_side_in_one_row(table, draw):
    frame = frame_of("limited_mixed", table)
    figure = draw("limited_mixed", frame)
    assert [axes.get_title() for axes in figure.axes] == ["code", "manual", "out-of-domain mean"]
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    place = names.index("gla")
    gla = [line for line in figure.axes[2].get_lines() if to_hex(line.get_color()) == LOOK["gla"].colour]
    means = [line for line in gla if len(line.get_xdata()) == 1]
    expected = frame.query("kind == 'summary' and arch == 'gla' and domain == 'macro_ood'")
    drawn = {line.get_ydata()[0] < place: line.get_xdata()[0] for line in means}
    by_setting = expected.set_index("setting")["mean"]
    assert drawn == {True: by_setting["limited"], False: by_setting["mixed"]}
    white = [line for line in means if to_hex(line.get_markerfacecolor()) == "#ffffff"]
    assert [line.get_xdata()[0] for line in white] == [by_setting["mixed"]]


def test_names_with_decimals_are_in_order_and_seeds_are_counted():
    names = ["temperature-2", "temperature-0.5", "temperature-0.25", "window-128", "window-16"]
    assert ordered(names) == [
        "temperature-0.25",
        "temperature-0.5",
        "temperature-2",
        "window-16",
        "window-128",
    ]
    assert [seeds_words(each) for each in ([3, 3], [1], [2, 3.0, np.nan], [])] == [
        "n = 3 seeds",
        "n = 1 seed",
        "n = 2 to 3 seeds",
        "",
    ]


@pytest.mark.parametrize("name", ["stateful", "minor_factors"])
def test_no_words_are_cut_off(name, table, draw):
    figure = draw(name, frame_of(name, table[table["arch"].isin(["gla", "gla-no-decay"])]))
    figure.draw_without_rendering()
    for axes in figure.axes:
        for text in axes.texts:
            box = text.get_window_extent()
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.x1
