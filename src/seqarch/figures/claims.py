"""The claims and their verdicts: effects in units of what matters, and the words beside them."""

import textwrap
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation, Transform

from seqarch.figures.errors import FigureError
from seqarch.figures.render import Look
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import BAND, INK, QUIET

TABLES = ("claims",)
COLUMNS = [
    *("claim", "level", "text", "source", "kind", "setting", "against", "arch", "ref", "verdict", "sign"),
    *("effect", "lo", "hi", "margin", "unit", "mde", "confidence", "n_seeds", "n_pairs", "domains"),
    *("stand_in", "note"),
]
# verdict -> colour, marker, whether it is filled: told apart without colours, too
MARKS: dict[str, tuple[str, str, bool]] = {
    "supported": ("#0072b2", "o", True),
    "contradicted": ("#d55e00", "X", True),
    "inconclusive": ("#6f6f6f", "D", False),
    "not run": ("#a8a8a8", "_", False),
}
PITCH = 0.13  # inches of one pair in a row
LINE = 0.14  # inches of one line of text
TOP, BOTTOM = 0.4, 0.75  # inches of the legend and of the axis' label
WIDE, LEFT = 13.0, 4.07  # inches of the figure, and of the statements at its left
SMALL = 5.5  # points of a pair's name
WIDTH, SHORT = 58, 66  # letters of a line of a claim that was tested, and of one that was not


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """Claims in the table's order, those that were not run last; each is followed by its pairs."""
    frame = tables["claims"]
    rows = frame[frame["level"].isin(["claim", "pair"])]
    order = {claim: i for i, claim in enumerate(dict.fromkeys(frame["claim"]))}
    missing = set(rows.loc[(rows["level"] == "claim") & (rows["verdict"] == "not run"), "claim"])
    key = rows.assign(
        run=rows["claim"].isin(missing),
        order=rows["claim"].map(order),
        second=rows["level"] != "claim",
        arch=rows["arch"].fillna(""),
    )
    place = key.sort_values(["run", "order", "second", "arch", "ref"], kind="stable").index
    return rows.loc[place].reindex(columns=COLUMNS).reset_index(drop=True)


def draw(frame: pd.DataFrame, look: Look) -> Figure:
    """One row a claim: the statement, its pairs' effects, the verdict with its numbers."""
    claims = frame[frame["level"] == "claim"]
    if claims["claim"].duplicated().any():
        raise FigureError("two rows of level claim for one claim: draw the table of one experiment")
    pairs = dict(list(frame[frame["level"] == "pair"].groupby("claim")))
    heights = [_height(claim, len(pairs.get(claim["claim"], ()))) for _, claim in claims.iterrows()]
    bottoms = np.cumsum(heights)
    tall = bottoms[-1] + TOP + BOTTOM
    figure = plt.figure(figsize=(WIDE, tall))
    figure.set_layout_engine("none")  # the words beside the axes have columns of their own
    axes = figure.add_axes((LEFT / WIDE, BOTTOM / tall, 3.25 / WIDE, 1 - (TOP + BOTTOM) / tall))
    _scale(axes, frame, bottoms)
    for (_, claim), bottom, height in zip(claims.iterrows(), bottoms, heights, strict=True):
        axes.axhline(bottom, color="#e6e6e6", linewidth=0.6, zorder=0)
        _words(axes, claim, bottom - height / 2)
        if claim["claim"] in pairs:
            _effects(axes, pairs[claim["claim"]], bottom - height / 2)
    _legend(figure, frame)
    return figure


def _height(claim: pd.Series, n_pairs: int) -> float:
    """Inches of a claim's row."""
    if claim["verdict"] == "not run":
        n_pairs = 0
    return max(len(_statement(claim)) * LINE, n_pairs * PITCH) + 0.12


def _scale(axes: Axes, frame: pd.DataFrame, bottoms: np.ndarray) -> None:
    """Effects in margins: linear within one margin, logarithmic beyond; rows from the top."""
    values = (frame[["effect", "lo", "hi"]].div(frame["margin"], axis=0)).abs().to_numpy(dtype=float)
    finite = values[np.isfinite(values)]
    limit = max(10.0, 1.3 * float(finite.max())) if len(finite) else 10.0
    axes.set_xscale("symlog", linthresh=1.0, linscale=0.6)
    axes.set_xlim(-limit, limit)
    steps = [step for step in (1, 3, 10, 30, 100, 300, 1000) if step <= limit]
    axes.xaxis.set_major_locator(FixedLocator([-step for step in reversed(steps)] + [0.0] + list(steps)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))
    axes.set_ylim(bottoms[-1], 0)
    axes.set_yticks([])
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.axvspan(-1, 1, color=BAND, linewidth=0, zorder=0)
    axes.axvline(0, color=INK, linewidth=0.8, zorder=1)
    lines = ["effect in units of the claim's margin (linear within it, logarithmic beyond)"]
    for words, rows in frame[frame["stand_in"].notna()].groupby("stand_in"):
        lines += textwrap.wrap(f"out-of-domain sets: {rows['domains'].iloc[0]} {words}", 110)
    axes.set_xlabel("\n".join(lines))


def _words(axes: Axes, claim: pd.Series, middle: float) -> None:
    """The statement at the left, the verdict and its numbers at the right."""
    verdict = claim["verdict"]
    colour = QUIET if verdict == "not run" else INK
    left: dict[str, Any] = {"transform": _beside(axes, -8), "va": "center", "ha": "right"}
    right: dict[str, Any] = {"transform": _beside(axes, 22), "va": "center"}
    axes.text(0, middle, "\n".join(_statement(claim)), fontsize=7.5, color=colour, **left)
    _mark(axes, verdict, (1, middle), _beside(axes, 12), 7)
    loud: dict[str, Any] = {"color": MARKS[verdict][0], "fontsize": 8, "fontweight": "bold"}
    if verdict == "not run":
        reason = textwrap.shorten(_text(claim["note"]), 70, placeholder=" …")
        axes.text(1, middle, reason, color=QUIET, fontsize=6.5, **right)
        return
    axes.text(1, middle - 0.07, verdict, **loud, **right)
    axes.text(1, middle + 0.07, _numbers(claim), color=INK, fontsize=6.5, **right)


def _beside(axes: Axes, points: float) -> Transform:
    """x in widths of the axes, moved by points; y in data."""
    scale = axes.get_figure(root=True).dpi_scale_trans  # type: ignore[union-attr]
    return axes.get_yaxis_transform() + ScaledTranslation(points / 72, 0, scale)


def _statement(claim: pd.Series) -> list[str]:
    """Lines: the claim; and, where it was tested, where it is from and what it says of the effect."""
    if claim["verdict"] == "not run":
        return textwrap.wrap(claim["text"], SHORT)
    where = "" if claim["unit"] == "score" else _text(claim["setting"])  # scores: with the pair's name
    if claim["kind"] == "interaction":
        where = f"{where} against {claim['against']}"
    claimed = {"+": "more than 0", "-": "less than 0", "any": "not 0"}.get(_text(claim["sign"]))
    claimed = claimed or {"interaction": "a smaller difference"}.get(claim["kind"], "within the margin")
    about = "; ".join(filter(None, [claim["source"], where, f"claimed: {claimed}"]))
    return [*textwrap.wrap(claim["text"], WIDTH), *textwrap.wrap(about, WIDTH)]


def _numbers(claim: pd.Series) -> str:
    """The claim's numbers as its row has them."""
    pair = " − ".join(filter(None, [_text(claim["arch"]), _text(claim["ref"])])) + _whose(claim)
    if not np.isfinite(_number(claim["effect"])):
        return f"{pair}: {textwrap.shorten(_text(claim['note']), 60, placeholder=' …')}"
    unit = {"nats per token": "nats"}.get(claim["unit"], claim["unit"])
    words = [f"{pair}: {claim['effect']:+.3f}"]
    if np.isfinite(_number(claim["lo"])):
        n = _number(claim["n_seeds"])
        whose = f"{n:.0f} seeds" if np.isfinite(n) else "over samples"
        words.append(f"[{claim['lo']:+.3f}, {claim['hi']:+.3f}] {unit}, {whose}")
    else:
        words.append(f"{unit}, n = {claim['n_seeds']:.0f}")
    if claim["verdict"] == "inconclusive" and np.isfinite(_number(claim["mde"])):
        words.append(f"(detectable: {claim['mde']:.3f})")
    elif claim["n_pairs"] > 1:
        words.append(f"(one of {claim['n_pairs']:.0f} pairs)")
    return " ".join(words)


def _effects(axes: Axes, pairs: pd.DataFrame, middle: float) -> None:
    """Each pair's effect, interval and name; the name on the side of the interval where zero is."""
    first = middle - PITCH * (len(pairs) - 1) / 2
    for i, (_, pair) in enumerate(pairs.iterrows()):
        place = first + i * PITCH
        effect, low, high = (_number(pair[name]) / pair["margin"] for name in ("effect", "lo", "hi"))
        if not np.isfinite(effect):
            continue
        if np.isfinite(low):
            axes.plot([low, high], [place, place], color=MARKS[pair["verdict"]][0], linewidth=1.2, zorder=2)
        _mark(axes, pair["verdict"], (effect, place), axes.transData, 4.5)
        words = _text(pair["arch"]) + ("" if np.isfinite(low) else f", n = {pair['n_seeds']:.0f}")
        words += _whose(pair)
        _name(axes, words, place, effect, *(effect if np.isnan(each) else each for each in (low, high)))


def _name(axes: Axes, words: str, place: float, effect: float, low: float, high: float) -> None:
    """A pair's name beside its interval, where zero is if there is room, and never outside the axes."""
    points = axes.get_position().width * axes.get_figure().get_figwidth() * 72  # type: ignore[union-attr]
    shares = axes.transAxes.inverted().transform(axes.transData.transform([(low, 0), (high, 0)]))[:, 0]
    needed = 0.62 * SMALL * len(words) + 7
    room = {"right": shares[0] * points, "left": (1 - shares[1]) * points}  # by the text's own alignment
    sides = ("left", "right") if effect < 0 else ("right", "left")
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": SMALL, "color": QUIET, "zorder": 4}
    for side in sides:
        if room[side] >= needed:
            end, offset = (high, 5) if side == "left" else (low, -5)
            axes.annotate(words, (end, place), (offset, 0), va="center", ha=side, **style)
            return
    # No room: on the interval, in the half of it that the mark leaves free.
    mark = axes.transAxes.inverted().transform(axes.transData.transform((effect, 0)))[0]
    free = (np.clip(shares[1], 0, 1) + mark) / 2 if mark < 0.5 else (np.clip(shares[0], 0, 1) + mark) / 2
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    at: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "center", "ha": "center"}
    at["bbox"] = ground
    axes.annotate(words, (free, place), (0, 0), **at, **style)


def _mark(axes: Axes, verdict: str, place: tuple[float, float], transform: Any, size: float) -> None:
    axes.plot(*([each] for each in place), transform=transform, clip_on=False, **_style(verdict, size))


def _style(verdict: str, size: float) -> dict[str, Any]:
    colour, marker, filled = MARKS[verdict]
    return {
        "color": colour,
        "marker": marker,
        "markersize": size,
        "markerfacecolor": colour if filled else "white",
        "markeredgewidth": 1.1 if marker != "X" else 0.4,
        "linestyle": "none",
        "zorder": 3,
    }


def _legend(figure: Figure, frame: pd.DataFrame) -> None:
    handles: list[Any] = [
        Line2D([], [], label=verdict, **_style(verdict, 6))
        for verdict in MARKS
        if (frame["verdict"] == verdict).any()
    ]
    level = f"{frame['confidence'].max():.0%} interval of one pair".replace("%", " %")
    handles.append(Line2D([], [], color=QUIET, linewidth=1.2, label=level))
    handles.append(Patch(facecolor=BAND, edgecolor="#c9d0da", linewidth=0.5, label="within the margin"))
    figure.legend(handles=handles, loc="upper center", ncols=len(handles), columnspacing=1.4)


def _whose(pair: pd.Series) -> str:
    """Which runs or models scores are of; losses name their setting with the claim."""
    setting = _text(pair["setting"])
    return f" ({setting})" if pair["unit"] == "score" and setting else ""


def _text(value: Any) -> str:
    return "" if pd.isna(value) else str(value)


def _number(value: Any) -> float:
    return float("nan") if pd.isna(value) else float(value)
