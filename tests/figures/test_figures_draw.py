"""What is drawn is what the table says; equal tables give equal bytes; gaps are shown."""

import importlib
import json

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from seqarch.cli import figure as cli
from seqarch.figures.errors import FigureError
from seqarch.figures.render import csv_text, read_csv, render
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import RC, styles

NAMES = ("corpus", "training", "ood_vs_id", "equal_loss", "loss_by_position", "learning_rates")
ARCHITECTURES = {  # of conftest's tables
    "transformer": ("attention",),
    "window-32": ("attention",),
    "retnet": ("retnet",),
    "gla": ("gla",),
    "mamba2": ("mamba2",),
}
SETTINGS, SEEDS, STEPS = ("limited", "mixed"), (0, 1, 2), (98, 195, 293)
OUT = ["code", "manual", "mathematics", "scripture"]
LOOK = styles(ARCHITECTURES)


def module(name):
    return importlib.import_module(f"seqarch.figures.{name}")


def plotted(name, tables):
    return module(name).plotted(tables, FigureJob(figure=name))


@pytest.fixture
def draw():
    """Draw with the project's settings; close afterwards."""
    with plt.rc_context(RC):
        yield lambda name, frame: module(name).draw(frame, LOOK)
    plt.close("all")


def panels(figure):
    return [axes for axes in figure.axes if axes.get_subplotspec() is not None]


def legend_texts(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


# --- all figures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_csv_redraws_the_figure_to_the_byte(name, tables, tmp_path):
    frame = plotted(name, tables)
    if "setting" in frame:
        frame = frame[frame["setting"] == "limited"]
    formats = ("svg", "png") if name == "corpus" else ("svg",)
    first = render(module(name).draw, frame, LOOK, formats, 50)
    (tmp_path / "f.csv").write_text(csv_text(frame))
    second = render(module(name).draw, read_csv(tmp_path / "f.csv"), LOOK, formats, 50)
    assert first == second
    assert b"<dc:date>" not in first["svg"]
    assert csv_text(read_csv(tmp_path / "f.csv")) == csv_text(frame)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_table_is_a_clear_error(name, tables):
    empty = {key: table.iloc[:0] for key, table in tables.items()}
    with pytest.raises(FigureError, match="nothing to draw"):
        render(module(name).draw, plotted(name, empty), LOOK)


@pytest.mark.parametrize("name", NAMES[1:])
def test_rows_in_another_order_draw_the_same(name, tables):
    shuffled = {key: table.sample(frac=1, random_state=1) for key, table in tables.items()}
    frame, other = plotted(name, tables), plotted(name, shuffled)
    pd.testing.assert_frame_equal(other, frame, check_exact=False, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES[1:])
def test_one_seed_and_one_setting(name, tables, docs):
    from seqarch.analysis.equal_loss import equal_loss
    from seqarch.analysis.spec import StatisticsSpec, StudySpec

    part = docs[(docs["seed"] == 0) & (docs["setting"] == "mixed")]
    study = {"architectures": StudySpec(reference="transformer", compare=("gla", "mamba2"))}
    small = {
        key: table[(table["seed"] == 0) & (table["setting"] == "mixed")]
        for key, table in tables.items()
        if key in ("losses", "training", "positions", "learning_rates")
    }
    small["equal_loss"] = equal_loss(part, study, StatisticsSpec(bootstrap=100))
    assert render(module(name).draw, plotted(name, small), LOOK)["svg"]


def test_the_step_writes_four_files_and_says_where_they_are_from(tables, tmp_path, capsys):
    for name in ("equal_loss", "unigram"):
        tables[name].query("setting == 'limited'").to_parquet(tmp_path / f"{name}.parquet")
    spec = {"figure": "equal_loss", "formats": ["svg", "png"], "dpi": 50, "architectures": ARCHITECTURES}
    paths = [str(tmp_path / f"{name}.parquet") for name in ("equal_loss", "unigram")]
    out = tmp_path / "figures" / "equal_loss"
    assert cli.main(["--spec", json.dumps(spec), "--table", *paths, "--out", str(out)]) == 0
    names = [path.name for path in sorted(out.parent.iterdir())]
    assert names == [f"equal_loss.{ending}" for ending in ("csv", "json", "png", "svg")]
    about = json.loads((out.parent / "equal_loss.json").read_text())
    assert about["provenance"]["step"] == "figure"
    assert set(about["provenance"]["inputs"]) == {"equal_loss", "unigram"}
    assert about["rows"] == len(read_csv(out.with_suffix(".csv")))
    assert str(tmp_path) not in (out.parent / "equal_loss.json").read_text()
    assert cli.main(["--spec", json.dumps(spec), "--table", paths[1], "--out", str(out)]) == 1
    assert "equal_loss.parquet" in capsys.readouterr().err


# --- ood_vs_id ----------------------------------------------------------------------------------------


def test_ood_vs_id_shows_every_mean_and_seed(tables, draw):
    frame = plotted("ood_vs_id", tables)
    figure = draw("ood_vs_id", frame)
    grid = panels(figure)
    assert len(grid) == len(SETTINGS) * (len(OUT) + 1)
    assert [axes.get_title() for axes in grid[:5]] == [*sorted(OUT), "out-of-domain mean"]
    for axes in grid:
        lines = {
            to_hex(line.get_color()): line
            for line in axes.get_lines()
            if line.get_linestyle() != "None" and len(line.get_xdata()) == len(STEPS)
        }
        assert set(lines) == {style.colour for style in LOOK.values()}
        seeds = [line for line in axes.get_lines() if len(line.get_xdata()) == len(STEPS) * len(SEEDS)]
        assert len(seeds) == len(ARCHITECTURES)
    losses = tables["losses"].query("setting == 'limited' and arch == 'gla' and step == 98")
    line = next(
        line
        for line in grid[4].get_lines()
        if to_hex(line.get_color()) == LOOK["gla"].colour and len(line.get_xdata()) == len(STEPS)
    )
    assert line.get_xdata()[0] == pytest.approx(losses.query("domain == 'macro_id'")["nats_per_token"].mean())
    assert line.get_ydata()[0] == pytest.approx(
        losses.query("domain == 'macro_ood'")["nats_per_token"].mean()
    )
    assert "nats per token" in figure._supxlabel.get_text()
    assert "nats per token" in figure._supylabel.get_text()
    assert set(ARCHITECTURES) < set(legend_texts(figure))


def test_ood_vs_id_marks_x0_the_common_range_and_the_unigram_loss(tables, draw):
    frame = plotted("ood_vs_id", tables)
    figure = draw("ood_vs_id", frame)
    primary = tables["equal_loss"].query("is_primary and kind == 'summary' and setting == 'limited'")
    axes = panels(figure)[0]
    vertical = [
        line.get_xdata()[0]
        for line in axes.get_lines()
        if len(set(line.get_xdata())) == 1 and list(line.get_ydata()) == [0, 1]
    ]
    assert vertical == [pytest.approx(primary["x0"].iloc[0])]
    (span,) = [patch for patch in axes.patches if patch.get_width() > 0]
    assert span.get_x() == pytest.approx(primary["overlap_lo"].iloc[0])
    assert span.get_x() + span.get_width() == pytest.approx(primary["overlap_hi"].iloc[0])
    notes = [text.get_text() for text in axes.texts]
    assert any(note.startswith("unigram 6.") for note in notes)
    assert {"at equal in-domain loss", "common range", "unigram entropy"} < set(legend_texts(figure))
    deltas = frame.query("kind == 'delta' and setting == 'limited' and domain == 'code'").set_index("arch")[
        "y"
    ]
    (inset,) = axes.child_axes
    drawn = {to_hex(bar.lines[0].get_color()): bar.lines[0].get_xdata()[0] for bar in inset.containers}
    assert drawn == {LOOK[arch].colour: pytest.approx(value) for arch, value in deltas.items()}


def test_ood_vs_id_without_analysis_or_overlap(tables, docs, draw):
    alone = plotted("ood_vs_id", {"losses": tables["losses"]})
    assert set(alone["kind"]) == {"seed", "mean"}
    draw("ood_vs_id", alone)
    apart = tables["equal_loss"].assign(overlap_lo=np.nan, overlap_hi=np.nan, x0=np.nan, mean=np.nan)
    apart = apart[apart["kind"] == "summary"]
    frame = plotted("ood_vs_id", {"losses": tables["losses"], "equal_loss": apart})
    assert set(frame["kind"]) == {"seed", "mean"}
    draw("ood_vs_id", frame)


# --- equal_loss ---------------------------------------------------------------------------------------


def test_forest_shows_estimates_intervals_seeds_and_verdicts(tables, draw):
    frame = plotted("equal_loss", tables)
    figure = draw("equal_loss", frame)
    grid = panels(figure)
    assert len(grid) == len(SETTINGS) * (len(OUT) + 1)
    names = [label.get_text() for label in grid[0].get_yticklabels()]
    assert names == ["gla", "mamba2", "retnet", "window-32"]
    assert grid[0].get_ylim()[0] > grid[0].get_ylim()[1]  # the first at the top
    summary = frame.query("kind == 'summary' and setting == 'limited' and domain == 'code'").set_index("arch")
    for place, arch in enumerate(names):
        mine = [line for line in grid[0].get_lines() if to_hex(line.get_color()) == LOOK[arch].colour]
        interval = next(line for line in mine if len(line.get_xdata()) == 2 and line.get_marker() == "None")
        assert list(interval.get_xdata()) == [summary.loc[arch, "lo"], summary.loc[arch, "hi"]]
        mean = next(line for line in mine if len(line.get_xdata()) == 1)
        assert (mean.get_xdata()[0], mean.get_ydata()[0]) == (summary.loc[arch, "mean"], place)
        assert len(next(line for line in mine if line.get_marker() == "|").get_xdata()) == len(SEEDS)
    band = grid[0].patches[0]
    assert (band.get_x(), band.get_width()) == (pytest.approx(-0.02), pytest.approx(0.04))
    texts = legend_texts(figure)
    assert "95 % interval" in texts
    assert "margin ±0.02" in texts
    assert {"inconclusive", "different (Holm p < 0.05)"} <= set(texts)
    stricter = legend_texts(draw("equal_loss", frame.assign(confidence=0.99)))
    assert {"different (Holm p < 0.01)", "99 % interval"} <= set(stricter)


def test_names_of_rows_do_not_run_into_each_other(tables, draw):
    frame = plotted("equal_loss", tables)
    frame = frame[frame["arch"].isin(["gla", "transformer"])]
    long = [frame.assign(study=name) for name in ("positions_and_norms", "temperature")]
    figure = draw("equal_loss", pd.concat(long))
    figure.canvas.draw()
    boxes = [axes.yaxis.label.get_window_extent() for axes in figure.axes if axes.get_ylabel()]
    assert len(boxes) == 4
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_forest_says_what_is_missing(tables, draw):
    frame = plotted("equal_loss", tables)
    gone = frame[~((frame["arch"] == "gla") & (frame["domain"] == "code"))].copy()
    apart = (gone["arch"] == "mamba2") & (gone["domain"] == "code")
    gone.loc[apart, ["mean", "lo", "hi", "delta"]] = np.nan
    gone = gone[~(apart & (gone["kind"] == "seed"))]
    figure = draw("equal_loss", gone)
    assert [text.get_text() for text in panels(figure)[0].texts] == ["no data", "no overlap"]


def test_forest_of_one_seed_says_n_is_one(tables, draw):
    frame = plotted("equal_loss", tables)
    one = frame[(frame["kind"] == "summary") | (frame["seed"] == 0)].assign(lo=np.nan, hi=np.nan, n_seeds=1)
    figure = draw("equal_loss", one)
    assert [text.get_text() for text in panels(figure)[0].texts] == ["n = 1"] * 4


def test_studies_are_told_apart(tables, draw):
    two = pd.concat([tables["equal_loss"], tables["equal_loss"].assign(study="other")])
    figure = draw("equal_loss", plotted("equal_loss", {"equal_loss": two}))
    assert len(panels(figure)) == 2 * len(SETTINGS) * 5
    job = FigureJob(figure="equal_loss", study="other")
    assert set(module("equal_loss").plotted({"equal_loss": two}, job)["study"]) == {"other"}
    with pytest.raises(FigureError, match="no study 'nothing'"):
        module("equal_loss").plotted({"equal_loss": two}, FigureJob(figure="equal_loss", study="nothing"))


# --- the others ---------------------------------------------------------------------------------------


def test_training_has_the_unigram_line_and_annealed_models(tables, draw):
    frame = plotted("training", tables)
    figure = draw("training", frame)
    grid = panels(figure)
    assert len(grid) == 2 * len(SETTINGS)
    assert [axes.get_title() for axes in grid[:2]] == [
        "trained on: limited\nn = 3 seeds",
        "trained on: mixed\nn = 3 seeds",
    ]
    assert "nats per token" in grid[0].get_ylabel()
    flat = [
        line for line in grid[2].get_lines() if len(set(line.get_ydata())) == 1 and len(line.get_ydata()) == 2
    ]
    assert [line.get_ydata()[0] for line in flat] == [pytest.approx(5.95)]
    marks = [line for line in grid[2].get_lines() if line.get_markersize() == 4.5]
    assert len(marks) == len(ARCHITECTURES) * len(STEPS)


def test_positions_mark_the_training_length(tables, draw):
    frame = plotted("loss_by_position", tables)
    figure = draw("loss_by_position", frame)
    grid = panels(figure)
    assert len(grid) == len(SETTINGS) * 6
    assert grid[0].get_title() == "encyclopedia\nin domain, n = 7"
    for axes in grid:
        vertical = [
            line
            for line in axes.get_lines()
            if len(set(line.get_xdata())) == 1 and len(line.get_xdata()) == 2
        ]
        assert [line.get_xdata()[0] for line in vertical] == [128]
        assert axes.get_xlim()[0] == 0
    missing = frame[~((frame["domain"] == "code") & (frame["setting"] == "limited"))]
    texts = [text.get_text() for axes in panels(draw("loss_by_position", missing)) for text in axes.texts]
    assert "no long documents" in texts


def test_corpus_bars_are_the_table(tables, draw):
    frame = plotted("corpus", tables)
    figure = draw("corpus", frame)
    bytes_, tokens, lengths = panels(figure)
    assert [label.get_text() for label in bytes_.get_yticklabels()] == [
        "news",
        "encyclopedia",
        "code",
        "mathematics",
        "manual",
        "scripture",
    ]
    assert sum(patch.get_width() for patch in bytes_.patches) == tables["corpus"]["n_bytes"].sum()
    assert sum(patch.get_width() for patch in tokens.patches) == tables["corpus"]["n_tokens"].sum()
    assert lengths.get_xscale() == "log"
    assert "UTF-8" in bytes_.get_xlabel()
    assert legend_texts(figure) == ["train", "validation", "test"]


def test_no_inset_hides_a_point(tables, draw):
    """Also where losses scatter so widely that no corner of a panel is free."""
    noisy = dict(tables)
    generator = np.random.default_rng(0)
    out = noisy["losses"]["role"] == "ood"
    scatter = np.where(out, generator.normal(0, 0.8, len(out)), 0)
    noisy["losses"] = noisy["losses"].assign(nats_per_token=noisy["losses"]["nats_per_token"] + scatter)
    for each in (tables, noisy):
        frame = plotted("ood_vs_id", each)
        figure = draw("ood_vs_id", frame)
        figure.draw_without_rendering()
        for axes in panels(figure):
            (inset,) = axes.child_axes
            box = inset.get_window_extent()
            marked = [line for line in axes.get_lines() if line.get_marker() not in ("None", None)]
            points = np.concatenate([line.get_xydata() for line in marked])
            at = axes.transData.transform(points[np.isfinite(points).all(1)])
            assert not any(box.contains(x, y) for x, y in at)


def test_the_trunk_and_its_decays_are_joined(tables, draw):
    """A decay with validation points of its own still starts on the trunk."""
    training = tables["training"].copy()
    inside = (training["branch"] == "annealed-00000293") & (training["step"] == 260)
    training.loc[inside, "validation_loss"] = 4.9
    frame = plotted("training", {"training": training})
    figure = draw("training", frame)
    for axes in panels(figure):
        dotted = [line for line in axes.get_lines() if line.get_linestyle() == ":"]
        solid = [
            line
            for line in axes.get_lines()
            if line.get_linestyle() not in (":", "None") and len(line.get_xdata()) > 3
        ]
        assert len(dotted) == len(ARCHITECTURES) * 3
        ends = {
            (to_hex(line.get_color()), x, y)
            for line in solid
            for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
        }
        for line in dotted:
            assert (to_hex(line.get_color()), line.get_xdata()[0], line.get_ydata()[0]) in ends
    assert panels(figure)[0].get_title() == "trained on: limited\nn = 3 seeds"
