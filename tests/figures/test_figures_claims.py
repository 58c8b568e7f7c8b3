"""The table of verdicts as a figure: every number that is drawn is the table's, and nothing hides."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from seqarch.analysis.claims import evaluate
from seqarch.analysis.claims_spec import ClaimsJob
from seqarch.figures import claims
from seqarch.figures.errors import FigureError
from seqarch.figures.render import csv_text, read_csv, render
from seqarch.figures.spec import FigureJob

ROLES = {
    "encyclopedia": "in",
    "news": "in",
    "scripture": "out",
    "manual": "out",
    "mathematics": "out",
    "code": "out",
}
OF_ATTENTION = {"mixer": "attention"}
CLAIMS = [
    {"id": "gla", "kind": "equivalence", "compare": {"mixer": "gla"}},
    {"id": "mamba", "kind": "difference", "sign": "+", "compare": {"mixer": "mamba2"}},
    {"id": "rwkv", "kind": "difference", "sign": "+", "compare": {"mixer": "rwkv6"}},
    {"id": "hides", "kind": "interaction", "against": "mixed", "compare": {"mixer": "any"}},
]


def table(docs):
    shared = {"measure": "ood_loss", "setting": "limited", "reference": OF_ATTENTION, "source": "this test"}
    mixers = {"transformer": "attention", "retnet": "retnet", "gla": "gla", "mamba2": "mamba2"}
    job = ClaimsJob.model_validate(
        {
            "claims": [
                shared | {"text": f"What is said of {one['id']}", "domains": ["arxiv"]} | one
                for one in CLAIMS
            ],
            "experiment": "demo",
            "architectures": {name: {"mixers": [mixer]} for name, mixer in mixers.items()},
            "domains": ROLES,
            "statistics": {"bootstrap": 100},
        }
    )
    return evaluate(job, docs)


@pytest.fixture(scope="session")
def verdicts(docs):
    return table(docs)


def plotted(frame):
    return claims.plotted({"claims": frame}, FigureJob(figure="claims"))


def drawn(frame):
    """The axes of the figure, as it is saved."""
    kept = []

    def draw(rows, look):
        kept.append(claims.draw(rows, look))
        return kept[0]

    render(draw, frame, {})
    return kept[0].axes[0]


def test_claims_come_in_order_those_not_run_last_each_with_its_pairs(verdicts):
    frame = plotted(verdicts)
    heads = frame[frame["level"] == "claim"]
    assert list(heads["claim"]) == ["gla", "mamba", "hides", "rwkv"]
    assert list(frame[frame["claim"] == "hides"]["arch"])[1:] == ["gla", "mamba2", "retnet"]
    assert list(heads["verdict"])[-1] == "not run"


def test_every_pair_shows_its_effect_and_interval_in_margins(verdicts):
    frame = plotted(verdicts)
    axes = drawn(frame)
    pairs = frame[(frame["level"] == "pair") & frame["effect"].notna()]
    intervals = [
        line.get_xdata()
        for line in axes.get_lines()
        if len(line.get_xdata()) == 2 and line.get_linewidth() == pytest.approx(1.2)
    ]
    expected = pairs[["lo", "hi"]].div(pairs["margin"], axis=0).to_numpy(dtype=float)
    np.testing.assert_allclose(intervals, expected)
    marks = [
        line
        for line in axes.get_lines()
        if line.get_transform() == axes.transData and line.get_marker() != "None"
    ]
    np.testing.assert_allclose(
        [line.get_xdata()[0] for line in marks], (pairs["effect"] / pairs["margin"]).to_numpy(dtype=float)
    )
    assert [to_hex(line.get_color()) for line in marks] == [
        claims.MARKS[word][0] for word in pairs["verdict"]
    ]
    assert [line.get_marker() for line in marks] == [claims.MARKS[word][1] for word in pairs["verdict"]]
    low, high = axes.get_xlim()
    assert low == -high
    assert high > np.abs(expected).max()


def test_the_words_say_verdict_numbers_and_what_stands_in(verdicts):
    frame = plotted(verdicts)
    axes = drawn(frame)
    words = " ".join(text.get_text().replace("\n", " ") for text in axes.texts)
    for row in frame[frame["level"] == "claim"].itertuples():
        assert row.text in words
        if row.verdict != "not run":
            assert row.verdict in words
            assert f"{row.effect:+.3f} [{row.lo:+.3f}, {row.hi:+.3f}] nats, 3 seeds" in words
    assert "no architecture of this run is rwkv6 as published" in words
    assert "claimed: more than 0" in words
    assert "claimed: within the margin" in words
    label = axes.get_xlabel()
    assert "units of the claim's margin" in label
    assert "scripture manual mathematics code in place of arxiv" in label
    legend = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert legend[-2:] == ["95 % interval of one pair", "within the margin"]
    assert set(frame["verdict"].dropna()) == set(legend[:-2])


def test_marks_differ_without_colour():
    shapes = {(marker, filled) for _, marker, filled in claims.MARKS.values()}
    assert len(shapes) == len(claims.MARKS)


def test_no_text_is_cut_off(verdicts):
    frame = plotted(verdicts)
    axes = drawn(frame)
    figure = axes.figure
    for text in axes.texts:
        box = text.get_window_extent()
        assert box.x0 >= 0, text.get_text()
        assert box.x1 <= figure.bbox.x1, text.get_text()


def test_one_seed_says_so(docs):
    frame = plotted(table(docs[docs["seed"] == 0]))
    words = " ".join(text.get_text() for text in drawn(frame).texts)
    assert "n = 1" in words
    assert "supported" not in words


def test_the_csv_redraws_it_and_order_does_not_matter(verdicts, tmp_path):
    frame = plotted(verdicts)
    first = render(claims.draw, frame, {}, ("svg",))
    (tmp_path / "claims.csv").write_text(csv_text(frame))
    assert render(claims.draw, read_csv(tmp_path / "claims.csv"), {}, ("svg",)) == first
    with pytest.raises(FigureError, match="nothing to draw"):
        render(claims.draw, plotted(verdicts.iloc[:0]), {})
    twice = pd.concat([frame, frame[frame["level"] == "claim"]])
    with pytest.raises(FigureError, match="one experiment"):
        render(claims.draw, twice, {})
