"""The figure of time and memory against length."""

from pathlib import Path

import pandas as pd
import pyarrow as pa

from seqarch.cli.figure import main
from seqarch.figures import speed
from seqarch.figures.spec import FigureJob
from seqarch.files import write_parquet


def table() -> pd.DataFrame:
    rows = [
        {"device": "CPU", "arch": arch, "work": "forward + backward", "length": T, "seconds": T**power / 1e6}
        for arch, power in (("top1-chunk", 1), ("transformer", 2))
        for T in (1024, 2048, 4096)
    ]
    frame = pd.DataFrame(rows).assign(peak_bytes=5e6)
    missing = {"device": "CPU", "arch": "attention (fla)", "work": "forward", "length": 1024}
    return pd.concat([frame, pd.DataFrame([missing])], ignore_index=True)  # could not run: no time


def test_rows_that_were_not_measured_are_not_drawn() -> None:
    frame = speed.plotted({"top1": table()}, FigureJob(figure="speed"))
    assert len(frame) == 6
    assert set(frame["arch"]) == {"top1-chunk", "transformer"}
    assert frame["megabytes"].eq(5).all()


def test_the_command_draws_it(tmp_path: Path) -> None:
    source = tmp_path / "top1.parquet"
    write_parquet(source, pa.Table.from_pandas(table(), preserve_index=False), {})
    arguments = ["--spec", '{"figure": "speed"}', "--table", str(source), "--out", str(tmp_path / "speed")]
    assert main(arguments) == 0
    assert len(pd.read_csv(tmp_path / "speed.csv")) == 6
    assert (tmp_path / "speed.png").stat().st_size > 10_000
