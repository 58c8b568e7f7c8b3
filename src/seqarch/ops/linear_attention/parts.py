"""What all gate kinds share in chunk form: the causal product inside chunks, the carry over chunks, [B, H, N,
C, D].
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class _CausalProduct(torch.autograd.Function):
    """o = tril(q kᵀ) v. The mask is set in place, forward and backward: a triangle out of place costs as much
    as a product, and selection (unlike multiplication) also removes the infinities that centred factors may
    make."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, same: Tensor | None, diagonal: int) -> Tensor:
        A = (q @ k.transpose(-1, -2)).tril_(diagonal)
        if same is not None:
            A.mul_(same)
        ctx.save_for_backward(q, k, v, A, same)
        ctx.diagonal = diagonal
        return A @ v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, A, same = ctx.saved_tensors
        dv = A.transpose(-1, -2) @ do
        dA = (do @ v.transpose(-1, -2)).tril_(ctx.diagonal)
        if same is not None:
            dA.mul_(same)
        return dA @ k, dA.transpose(-1, -2) @ q, dv, None, None


def causal_product(q: Tensor, k: Tensor, v: Tensor, same: Tensor | None = None, diagonal: int = 0) -> Tensor:
    """sum_{j <= i + diagonal} <q_i, k_j> v_j inside chunks, where `same` (bool, broadcasts to [.., C, C])
    allows.
    """
    return _CausalProduct.apply(q, k, v, same, diagonal)


def carry(KV: Tensor, decay: Tensor | None, state: Tensor | None) -> tuple[Tensor | None, Tensor]:
    """S_{n+1} = decay_n S_n + KV_n over chunks: the states before each chunk [B, H, N, K, V] and the last
    one.

    The states are None if all are zero (a single chunk without an initial state).
    """
    if KV.shape[2] == 1 and state is None:
        return None, KV[:, :, 0]
    if decay is None and state is None:
        sums = KV.cumsum(2)
        return F.pad(sums[:, :, :-1], (0, 0, 0, 0, 1, 0)), sums[:, :, -1]
    S = torch.zeros_like(KV[:, :, 0]) if state is None else state
    decays = None if decay is None else decay.expand(-1, -1, KV.shape[2], -1, -1).unbind(2)
    states = []
    for n, kv in enumerate(KV.unbind(2)):  # indexing in a loop would make the backward pass quadratic
        states.append(S)
        S = S + kv if decays is None else torch.addcmul(kv, decays[n], S)
    return torch.stack(states, 2), S


def over_time(g: Tensor, T: int, C: int) -> Tensor:
    """A constant gate [H, ...] as [1, time, H, ...]: one chunk stands for all when T is a multiple of C, else
    T steps, because padding must not decay."""
    return g[None, None].expand(1, C if T % C == 0 else T, *g.shape)


def masked(factor: Tensor | None, mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """factor * mask, where either may be absent."""
    if mask is None:
        return factor
    return mask.to(dtype) if factor is None else factor * mask
