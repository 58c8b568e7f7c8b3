"""What a run measures: one row a step in metrics.parquet, and its cost in timing.parquet."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import pyarrow as pa
import torch

# Columns of metrics.parquet that differ between rows; arch, setting and seed stand before them.
_METRICS = pa.schema(
    [
        ("branch", pa.string()),  # trunk, or the name of the checkpoint that a decay makes
        ("phase", pa.string()),  # warmup, stable, decay, annealed, mid_cosine
        ("step", pa.int64()),
        ("tokens", pa.int64()),  # seen by the model that the step makes
        ("lr", pa.float64()),
        ("loss", pa.float64()),  # nats per token of the step's batch, before the step
        ("grad_norm", pa.float64()),  # before clipping
        (
            "validation_loss",
            pa.float64(),
        ),  # nats per token after the step, mean over in-domain sets; mostly null
    ]
)

# Dense bf16 peak by a part of the device's name, in FLOP/s (vendors' data sheets, without sparsity).
_PEAK_BF16 = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L4": 121e12,
    "RTX 4090": 165.2e12,
    "RTX 3090": 71e12,
    "MI300X": 1307e12,
}


@dataclass(frozen=True, slots=True)
class Row:
    """One step. `seconds` goes to timing.parquet, the rest to metrics.parquet."""

    branch: str
    phase: str
    step: int
    tokens: int
    lr: float
    loss: float
    grad_norm: float
    validation_loss: float | None
    seconds: float


@dataclass
class History:
    """The rows of a run so far."""

    rows: list[Row] = field(default_factory=list)

    def metrics(self, architecture: str, setting: str, seed: int) -> pa.Table:
        n = len(self.rows)
        run = {
            "arch": pa.array([architecture] * n),
            "setting": pa.array([setting] * n),
            "seed": pa.array([seed] * n),
        }
        columns = {
            item.name: pa.array([getattr(row, item.name) for row in self.rows], item.type)
            for item in _METRICS
        }
        return pa.table(run | columns)

    def timing(self, batch_tokens: int, flops_per_token: float, peak: float | None) -> pa.Table:
        """Per step: seconds (without validation), tokens/s, training FLOP/s, MFU where the peak is known."""
        speeds = [batch_tokens / row.seconds for row in self.rows]
        return pa.table(
            {
                "branch": pa.array([row.branch for row in self.rows], pa.string()),
                "step": pa.array([row.step for row in self.rows], pa.int64()),
                "seconds": pa.array([row.seconds for row in self.rows], pa.float64()),
                "tokens_per_second": pa.array(speeds, pa.float64()),
                "flops_per_second": pa.array([speed * flops_per_token for speed in speeds], pa.float64()),
                "mfu": pa.array([peak and speed * flops_per_token / peak for speed in speeds], pa.float64()),
            }
        )

    def to_bytes(self) -> bytes:
        """All rows, exactly, as an Arrow stream."""
        schema = _METRICS.append(pa.field("seconds", pa.float64()))
        table = pa.Table.from_pylist([asdict(row) for row in self.rows], schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(table)
        return sink.getvalue().to_pybytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "History":
        rows: Iterable[dict] = pa.ipc.open_stream(data).read_all().to_pylist()
        return cls([Row(**row) for row in rows])


def peak_flops(device: torch.device, precision: str) -> float | None:
    """The device's dense peak in FLOP/s at this precision; None where unknown (CPUs, float32)."""
    if device.type != "cuda" or precision != "bfloat16":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAK_BF16.items() if part in name), None)
