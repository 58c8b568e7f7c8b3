"""How much text there is: bytes, tokens and documents by domain and split, and how long documents are."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from seqarch.figures.render import Look
from seqarch.figures.spec import FigureJob
from seqarch.figures.style import INK, QUIET, compact, domain_title

TABLES = ("corpus",)
SPLITS = {"train": "#3b5b7a", "validation": "#8fb0c9", "test": "#d99b3a"}
LENGTHS = ["doc_bytes_p05", "doc_bytes_p25", "doc_bytes_p50", "doc_bytes_p75", "doc_bytes_p95"]
COLUMNS = ["domain", "role", "split", "n_docs", "n_bytes", "n_tokens", "low_n", *LENGTHS]


def plotted(tables: Mapping[str, pd.DataFrame], job: FigureJob) -> pd.DataFrame:
    """A row per domain and split: in-domain first, larger domains first, train, validation, test."""
    frame = tables["corpus"][COLUMNS].copy()
    size = frame.groupby("domain")["n_bytes"].transform("sum")
    place = frame["split"].map({name: i for i, name in enumerate(SPLITS)})
    frame = frame.assign(size=-size, place=place).sort_values(["role", "size", "domain", "place"])
    return frame[COLUMNS].reset_index(drop=True)


def draw(frame: pd.DataFrame, look: Look) -> Figure:
    """Three panels that share the domains: bytes, tokens, lengths of documents."""
    domains = list(dict.fromkeys(frame["domain"]))
    figure, panels = plt.subplots(1, 3, figsize=(7.6, 1.35 + 0.34 * len(domains)), sharey=True)
    _stacked(panels[0], frame, "n_bytes", domains)
    panels[0].set_xlabel("text (bytes, UTF-8)")
    _stacked(panels[1], frame, "n_tokens", domains)
    panels[1].set_xlabel("tokens")
    _lengths(panels[2], frame, domains)
    roles = frame.drop_duplicates("domain").set_index("domain")["role"]
    panels[0].set_yticks(range(len(domains)), [domain_title(domain) for domain in domains])
    panels[0].invert_yaxis()
    n_in = int((roles == "in").sum())
    for axes in panels:
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        if 0 < n_in < len(domains):
            axes.axhline(n_in - 0.5, color=QUIET, linewidth=0.7, linestyle=(0, (2, 2)))
    for text, first, last in (("in domain", 0, n_in), ("out of domain", n_in, len(domains))):
        if last > first:
            where = 1 - (first + last) / 2 / len(domains)
            panels[2].text(
                1.03, where, text, transform=panels[2].transAxes, rotation=270, va="center", color=INK
            )
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, title="split")
    return figure


def _stacked(axes: Axes, frame: pd.DataFrame, column: str, domains: list[str]) -> None:
    """Horizontal bars by split; the total of documents or tokens at the end of each."""
    left = pd.Series(0.0, index=domains)
    for split, colour in SPLITS.items():
        part = frame[frame["split"] == split].set_index("domain")[column].reindex(domains).fillna(0)
        axes.barh(range(len(domains)), part, left=left, height=0.66, color=colour, label=split, linewidth=0)
        left = left + part
    docs = frame.groupby("domain")["n_docs"].sum().reindex(domains)
    for i, domain in enumerate(domains):
        note = f"{compact(docs[domain])} docs" if column == "n_bytes" else compact(left[domain])
        axes.annotate(note, (left[domain], i), (3, 0), textcoords="offset points", va="center", fontsize=6.5)
    axes.set_xlim(0, max(left.max(), 1) * 1.3)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    axes.xaxis.set_major_locator(MaxNLocator(4))


def _lengths(axes: Axes, frame: pd.DataFrame, domains: list[str]) -> None:
    """Training documents: 5 to 95 % as a line, 25 to 75 % as a bar, the median as a dot."""
    rows = frame[frame["split"] == "train"].set_index("domain").reindex(domains)
    lengths = rows[LENGTHS].to_numpy(float)
    for i, domain in enumerate(domains):
        p05, p25, p50, p75, p95 = lengths[i]
        axes.plot([p05, p95], [i, i], color=SPLITS["train"], linewidth=1)
        axes.plot([p25, p75], [i, i], color=SPLITS["train"], linewidth=5, solid_capstyle="butt")
        axes.plot(p50, i, "o", color="white", markersize=3.2, markeredgewidth=0)
        if rows["low_n"].fillna(False).astype(bool)[domain]:
            axes.annotate("few docs", (p95, i), (3, 0), textcoords="offset points", va="center", fontsize=6)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    axes.set_xlabel("bytes in a training document\n(median, 25–75 %, 5–95 %)")
