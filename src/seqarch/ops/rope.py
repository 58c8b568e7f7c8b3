"""Rotary position embedding (arXiv 2104.09864), half-split pairs: channel i turns with channel i + D/2."""

from typing import Any

import torch
from torch import Tensor


def rope_table(positions: Tensor, width: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and signed sin [..., T, 1, D] for positions [..., T]; angles in float32 at least.

    The sine carries the sign of the half it multiplies: rotation is x cos + swap(x) sin.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    frequency = theta ** (-torch.arange(0, width, 2, device=positions.device, dtype=wide) / width)
    angle = positions.to(wide).unsqueeze(-1) * frequency
    cos, sin = angle.cos(), angle.sin()
    return (
        torch.cat([cos, cos], -1).unsqueeze(-2).to(dtype),
        torch.cat([-sin, sin], -1).unsqueeze(-2).to(dtype),
    )


def cached_rope_table(
    positions: Tensor, width: int, theta: float, dtype: torch.dtype, shared: dict[str, Any] | None
) -> tuple[Tensor, Tensor]:
    """`rope_table`, computed once per forward pass of the model (`shared` is that pass's dictionary)."""
    if shared is None:
        return rope_table(positions, width, theta, dtype)
    key = f"rope/{width}/{theta}/{dtype}"
    if key not in shared:
        shared[key] = rope_table(positions, width, theta, dtype)
    return shared[key]


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """x [B, T, H, D] turned by its position. The first channels turn if the table is narrower than D."""
    cos, sin = table
    width = cos.shape[-1]
    if width < x.shape[-1]:
        turned = rotate(x[..., :width], table)
        return torch.cat([turned, x[..., width:]], dim=-1)
    return torch.addcmul(x * cos, x.roll(width // 2, dims=-1), sin)
