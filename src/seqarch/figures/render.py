"""From a figure to files whose bytes depend on the plotted rows and the libraries' versions alone."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from seqarch.figures.errors import FigureError
from seqarch.figures.style import RC, Style
from seqarch.files import sha256_text, write_bytes, write_json

Look = Mapping[str, Style]
METADATA: dict[str, dict[str, Any]] = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}


def render(
    draw: Callable[[pd.DataFrame, Look], Figure],
    frame: pd.DataFrame,
    look: Look,
    formats: tuple[str, ...] = ("svg",),
    dpi: int = 200,
) -> dict[str, bytes]:
    """The figure of `frame` in each format. Raises FigureError for an empty frame."""
    if frame.empty:
        raise FigureError(
            "nothing to draw: the table has no rows for this figure; see the steps that fill it"
        )
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's matplotlibrc says
        matplotlib.rcParams.update(RC)  # type: ignore[arg-type]  # its stub lists every key
        figure = draw(frame, look)
        try:
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # laid out once, the same in every format
            return {ending: _bytes(figure, ending, dpi) for ending in formats}
        finally:
            plt.close(figure)


def _bytes(figure: Figure, ending: str, dpi: int) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=ending, dpi=dpi, metadata=METADATA[ending])
    return buffer.getvalue()


def csv_text(frame: pd.DataFrame) -> str:
    """The plotted rows; numbers in full, so that they read back as what they were."""
    return frame.to_csv(index=False, lineterminator="\n")


def read_csv(path: Path) -> pd.DataFrame:
    """A figure's csv as the frame that drew it."""
    return pd.read_csv(path)


def save(
    out: Path, images: Mapping[str, bytes], frame: pd.DataFrame, provenance: Mapping[str, Any], title: str
) -> None:
    """`out`.svg, .png, .csv, and last .json, which says where they are from."""
    for ending, data in images.items():
        write_bytes(out.with_name(f"{out.name}.{ending}"), data)
    text = csv_text(frame)
    write_bytes(out.with_name(f"{out.name}.csv"), text.encode())
    about = {
        "figure": title,
        "rows": len(frame),
        "csv_sha256": sha256_text(text),
        "provenance": dict(provenance),
    }
    write_json(out.with_name(f"{out.name}.json"), about)
