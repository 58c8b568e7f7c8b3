"""What an op costs with the length: time at 8192 steps against 1024, and the peak memory of a training step.

B = 1, H = 4, K = V = 64, float32, forward + backward. Time: at most 10 times as much for 8 times the length.
Memory: the peak of live tensors (inputs and their gradients aside) per step of time, against the one state a
step that a recurrence under autograd keeps; it must not grow with the length by more than the length does.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from bench_layers import growth
from peak_memory import PeakMemory
from timing import Call, first, seconds, tensors, train_step
from torch import Tensor

from seqarch.ops.delta_rule.op import delta_rule
from seqarch.ops.diag_scan.op import diag_scan
from seqarch.ops.dplr_rule.op import dplr_rule
from seqarch.ops.linear_attention.op import linear_attention
from seqarch.ops.selective_scan.op import selective_scan
from seqarch.ops.softmax_attention import softmax_attention

T, H, D, CHANNELS, STATES = 1024, 4, 64, 512, 16
LINEAR = 1.1  # memory at 8 T against 8 times that at T
Case = tuple[str, Call, Any, int]


def rows() -> Iterator[dict[str, Any]]:
    threads_before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for name, op, make, state in _cases():
            long, short = make(8 * T), make(T)
            measured = seconds([train_step(op, long), train_step(op, short)], 5)
            shape = f"B1 T{8 * T} " + (f"D{CHANNELS}" if long[0].dim() == 3 else f"H{H} K{D} V{D}")
            yield growth(f"linear cost of {name}", shape, name, measured)
            if state:
                yield _memory(name, shape, op, long, short, state)
    finally:
        torch.set_num_threads(threads_before)


def _memory(
    name: str, shape: str, op: Call, long: list[Tensor], short: list[Tensor], state: int
) -> dict[str, Any]:
    """Bytes in the columns of seconds."""
    peak, at_short = _peak(op, long), _peak(op, short)
    return {
        "benchmark": f"peak memory of {name} (bytes, not seconds)",
        "shape": shape,
        "threads": torch.get_num_threads(),
        "ours": f"{peak / 2**20:.0f} MB, {peak / at_short:.1f} times T{T}'s",
        "peer": "a state a step",
        "ours_seconds": peak,
        "peer_seconds": 4 * state * 8 * T,
        "goal": 1.0,
        "pass": peak <= 4 * state * 8 * T and peak <= LINEAR * 8 * at_short,
    }


def _peak(op: Call, inputs: list[Tensor]) -> int:
    """Peak bytes of forward + backward beside the inputs and their gradients."""
    step = train_step(op, inputs)
    step()
    with PeakMemory() as memory:
        step()
    return memory.peak - sum(x.numel() * x.element_size() for x in inputs)


def _cases() -> Iterator[Case]:
    log = F.logsigmoid
    state = H * D * D

    def unit(x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)

    def heads(*shapes: int) -> Any:
        return lambda T: tensors(*((1, T, H, n) if n else (1, T, H) for n in shapes))

    yield (
        "softmax_attention, window 64",
        lambda q, k, v: softmax_attention(q, k, v, window=64)[0],
        heads(D, D, D),
        0,
    )
    yield "linear_attention, no decay", lambda q, k, v: linear_attention(q, k, v)[0], heads(D, D, D), state
    yield (
        "linear_attention, scalar decay",
        lambda q, k, v, x: linear_attention(q, k, v, log(x))[0],
        heads(D, D, D, 0),
        state,
    )
    for name, sharpness in (("mild", 1 / 16), ("extreme", 40.0)):
        yield (
            f"linear_attention, vector decay, {name}",
            lambda q, k, v, x, s=sharpness: linear_attention(q, k, v, s * log(x))[0],
            heads(D, D, D, D),
            state,
        )
    yield (
        "delta_rule, gated",
        lambda q, k, v, b, x: delta_rule(q, unit(k), v, b.sigmoid(), log(x))[0],
        heads(D, D, D, 0, 0),
        state,
    )
    yield (
        "dplr_rule",
        lambda q, k, v, x: dplr_rule(q, k, v, -unit(k), 0.5 * unit(k), 0.6 * log(x))[0],
        heads(D, D, D, D),
        state,
    )
    yield (
        "diag_scan",
        lambda a, x: first(diag_scan(a.sigmoid(), x)),
        lambda T: tensors((1, T, CHANNELS), (1, T, CHANNELS)),
        0,
    )
    yield (
        "selective_scan",
        lambda u, d, A, B, C: selective_scan(u, 0.1 * F.softplus(d), -A.exp(), B, C)[0],
        lambda T: tensors(
            *((1, T, CHANNELS), (1, T, CHANNELS), (CHANNELS, STATES), (1, T, STATES), (1, T, STATES))
        ),
        CHANNELS * STATES,
    )


if __name__ == "__main__":
    for row in rows():
        print(row)
