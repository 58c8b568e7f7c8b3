"""Timing of training steps: both sides of a row get the same inputs and take turns on a quiet machine."""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from quiet import Others
from torch import Tensor, nn

NO_SLOWER = 0.95
REPEATS = 7
ATTEMPTS, PATIENCE = 4, 5.0  # tries for a quiet moment, and seconds between them
Call = Callable[..., Tensor]


class Measured(NamedTuple):
    """Median seconds of each call, and the cores that others used meanwhile."""

    times: list[float]
    load: float


def seconds(
    calls: list[Callable[[], None]], repeats: int = REPEATS, warm_up: bool = True, attempts: int = ATTEMPTS
) -> Measured:
    """Median time of each call; the calls take turns, so that a slow moment hits all of them. Measured again
    when other processes used the cores."""
    if warm_up:
        for call in calls:
            call()
    for attempt in range(attempts):
        taken: list[list[float]] = [[] for _ in calls]
        with Others() as others:
            for _ in range(repeats):
                for each, times in zip(calls, taken, strict=True):
                    start = time.perf_counter()
                    each()
                    times.append(time.perf_counter() - start)
        if others.quiet or attempt == attempts - 1:
            break
        print(f"     others used {others.cores} cores meanwhile: measuring again", file=sys.stderr)
        time.sleep(PATIENCE)
    return Measured([statistics.median(times) for times in taken], others.cores)


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def first(result: Any) -> Tensor:
    """What an op returns without its state."""
    return result[0] if isinstance(result, tuple) else result


def train_step(function: Call, inputs: list[Tensor]) -> Callable[[], None]:
    """Forward and backward of `function(*inputs)` for all inputs that take gradients."""
    weight: list[Tensor] = []

    def call() -> None:
        o = function(*inputs)
        if not weight:
            weight.append(torch.randn_like(o))
        o.backward(weight[0])
        for x in inputs:
            x.grad = None

    return call


def layer_step(layer: nn.Module, x: Tensor, call: Callable[[Tensor], Tensor]) -> Callable[[], None]:
    step = train_step(call, [x])

    def run() -> None:
        step()
        layer.zero_grad(set_to_none=True)

    return run


def against(
    benchmark: str,
    shape: str,
    ours: tuple[str, Callable[[], None]],
    peer: tuple[str, Callable[[], None]],
    goal: float = NO_SLOWER,
    repeats: int = REPEATS,
) -> dict[str, Any]:
    """A row of the summary. Without a verdict where the peer's package is not installed."""
    row = {
        "benchmark": benchmark,
        "shape": shape,
        "threads": torch.get_num_threads(),
        "ours": ours[0],
        "peer": peer[0],
        "goal": goal,
    }
    try:
        peer[1]()
    except ImportError as error:
        measured = seconds([ours[1]], repeats)
        missing = f"{peer[0]} (not there: {error.name})"
        return {**row, "peer": missing, "ours_seconds": measured.times[0], "pass": None} | _load(measured)
    measured = seconds([ours[1], peer[1]], repeats)
    mine, theirs = measured.times
    return {**row, "ours_seconds": mine, "peer_seconds": theirs} | _load(measured)


def _load(measured: Measured) -> dict[str, Any]:
    return {"load": measured.load}
