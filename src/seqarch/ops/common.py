"""What the references of all ops share: accumulation dtype, chunks, safe exponentials.

Layout is [B, T, H, D] outside and [B, H, N, C, D] in chunk form: N chunks of C steps, T padded to N C.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def accumulation_dtype(*tensors: Tensor | None) -> torch.dtype:
    """float64 if any input is float64, else float32: references are exact enough for gradcheck, and never
    below.
    """
    return (
        torch.float64 if any(t is not None and t.dtype == torch.float64 for t in tensors) else torch.float32
    )


def outside_autocast(*inputs: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """An op that chooses its precision itself: within torch.autocast the arguments of these names come in
    autocast's dtype, as to a matrix product, and what it computes with them is not lowered.

    Args:
        inputs: names of the first positional arguments, in their order.

    References sum in float32, which autocast would undo product by product; kernels want inputs of one dtype.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            every: list[Any] = [*args, *kwargs.values()]
            device = next(x.device.type for x in every if isinstance(x, Tensor))
            if not torch.is_autocast_enabled(device):
                return function(*args, **kwargs)
            lowered = [_lowered(x) if i < len(inputs) else x for i, x in enumerate(args)]
            named = {name: _lowered(x) if name in inputs else x for name, x in kwargs.items()}
            with torch.autocast(device, enabled=False):
                return function(*lowered, **named)  # type: ignore[arg-type]

        return call

    return decorate


def _lowered(x: Any) -> Any:
    """A tensor in autocast's dtype, float64 and what is none aside."""
    if not isinstance(x, Tensor) or x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


def clamped_exp(x: Tensor) -> Tensor:
    """exp(min(x, 0)) with finite exponents held above -80 (float32) or -700 (float64).

    Below that the result is 0 to any purpose, but denormal numbers make exp 10 to 40 times slower on a CPU.
    The upper bound keeps entries that a causal mask removes afterwards finite, so that no 0 * inf reaches the
    backward pass.
    """
    return x.clamp(min=-700.0 if x.dtype == torch.float64 else -80.0, max=0.0).exp()


def bounded_decay(g: Tensor) -> Tensor:
    """Log decays held above -100 (float32) or -800 (float64): below, exp is 0 to any purpose, but their sums
    would lose the digits of the weak decays between them, and -inf - -inf is no number.
    """
    return g.clamp(min=-800.0 if g.dtype == torch.float64 else -100.0)


def pad_time(x: Tensor, multiple: int, value: float = 0.0) -> Tensor:
    """Pad dim 1 at its end to a multiple."""
    missing = -x.shape[1] % multiple
    return F.pad(x, (0, 0) * (x.dim() - 2) + (0, missing), value=value) if missing else x


def to_chunks(x: Tensor, chunk_size: int) -> Tensor:
    """[B, T, H, ...] -> [B, H, N, C, ...], padded with zeros (key 0, value 0, log decay 0 leave the state
    alone).
    """
    return pad_time(x, chunk_size).transpose(1, 2).unflatten(2, (-1, chunk_size))


def from_chunks(x: Tensor, length: int) -> Tensor:
    """[B, H, N, C, V] -> [B, T, H, V]."""
    return shortened(x.flatten(2, 3).transpose(1, 2), length)


def shortened(x: Tensor, length: int) -> Tensor:
    """x[:, :length]; x itself where nothing is cut, because the backward of a slice fills a new tensor."""
    return x if x.shape[1] == length else x[:, :length]


def pick_chunk_size(length: int, preferred: int = 64, single_up_to: int = 128) -> int:
    """One chunk for short sequences (no loop, no carried state), else the preferred length."""
    return length if length <= single_up_to else preferred


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """torch.compile runs `function` as it is: a reference of chunk loops whose form depends on the data.

    Traced, the loops would be unrolled: minutes of compilation for products that are library calls anyway.
    Dynamo is imported by the first call, not with this module: it takes longer than the rest of the package.
    """
    disabled: list[Callable[P, R]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **kwargs)

    return call
