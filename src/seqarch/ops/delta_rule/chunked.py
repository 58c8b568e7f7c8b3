"""What the chunk forms of the delta rules share: layout, the triangular solve, the walk over the chunks.

Chunk layout is [N, B, H, C, D]: the N chunks of C steps first, so that one step of the walk reads
contiguous memory.
"""

from typing import Any

import torch
from torch import Tensor

from seqarch.ops.common import pad_time


def split_time(x: Tensor, chunk_size: int) -> Tensor:
    """[B, T, H, ...] -> contiguous [N, B, H, C, ...], padded with zeros, which change no state."""
    x = pad_time(x, chunk_size).unflatten(1, (-1, chunk_size))
    return x.movedim((1, 0, 3, 2), (0, 1, 2, 3)).contiguous()


def join_time(x: Tensor, length: int) -> Tensor:
    """[N, B, H, C, V] -> [B, T, H, V]."""
    return x.movedim((0, 1, 2, 3), (1, 0, 3, 2)).flatten(1, 2)[:, :length]


class SolveUnitLower(torch.autograd.Function):
    """(L, R_1, R_2) -> X_m = (I + L)⁻¹ R_m, R_m [..., C, D_m], for the part of L [..., C, C] below its
    diagonal; what else stands in L is not read.

    The inverse is formed once: applying it to several right sides, and its transpose in the backward pass,
    are matrix products, which run three times as fast as batched triangular solves.

        dR_m = (I + L)⁻ᵀ dX_m ;   dL = -strictly_lower(Σ_m dR_m X_mᵀ)
    """

    @staticmethod
    def forward(ctx: Any, L: Tensor, R_1: Tensor, R_2: Tensor) -> tuple[Tensor, Tensor]:
        identity = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand_as(L)
        inverse = torch.linalg.solve_triangular(L, identity, upper=False, unitriangular=True)
        X_1, X_2 = inverse @ R_1, inverse @ R_2
        ctx.save_for_backward(inverse, X_1, X_2)
        return X_1, X_2

    @staticmethod
    def backward(ctx: Any, dX_1: Tensor, dX_2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inverse, X_1, X_2 = ctx.saved_tensors
        dR_1, dR_2 = inverse.mT @ dX_1, inverse.mT @ dX_2
        dL = (dR_1 @ X_1.mT).add_(dR_2 @ X_2.mT)
        return dL.tril_(-1).neg_(), dR_1, dR_2


class WalkChunks(torch.autograd.Function):
    """The only loop over the chunks of the delta rules:

        Z_n = U_n + X_n S_n ;   S_{n+1} = decay_n S_n + KV_n + Y_nᵀ Z_n

    or, with sign = -1, Z_n = U_n - X_n S_n.

    Args: U [N, B, H, C, V], X and Y [N, B, H, C, K], decay [N, B, H, K or 1, 1] or None (1), KV [N, B, H,
    K, V] or None (0), S_0 [B, H, K, V], sign. Returns Z like U, the states before the chunks S_n [N, B, H, K,
    V], and S_N.

    Backward, with P_n = dL/dS_{n+1} in total:

        dU_n = dZ_n + Y_n P_n ;   P_{n-1} = decay_n P_n ± X_nᵀ dU_n + dS_n
        dX_n = ± dU_n S_nᵀ ;   dY_n = Z_n P_nᵀ ;   dKV_n = P_n ;   ddecay_n = Σ P_n ∘ S_n
    """

    @staticmethod
    def forward(
        ctx: Any,
        U: Tensor,
        X: Tensor,
        Y: Tensor,
        decay: Tensor | None,
        KV: Tensor | None,
        S_0: Tensor,
        sign: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        N, heads = U.shape[0], S_0.shape[:2]
        S = torch.empty(N + 1, S_0[..., 0, 0].numel(), *S_0.shape[2:], dtype=S_0.dtype, device=S_0.device)
        S[0] = S_0.flatten(0, 1)
        Z = torch.empty_like(U.flatten(1, 2))
        U_, X_, Y_ = U.flatten(1, 2), X.flatten(1, 2), Y.flatten(1, 2)
        decay_ = None if decay is None else decay.flatten(1, 2)
        KV_ = None if KV is None else KV.flatten(1, 2)
        for n in range(N):
            torch.baddbmm(U_[n], X_[n], S[n], alpha=sign, out=Z[n])
            carried = S[n] if decay_ is None else torch.mul(S[n], decay_[n], out=S[n + 1])
            if KV_ is not None:
                carried = torch.add(carried, KV_[n], out=S[n + 1])
            torch.baddbmm(carried, Y_[n].mT, Z[n], out=S[n + 1])
        ctx.save_for_backward(X_, Y_, decay_, Z, S)
        ctx.heads, ctx.has_KV, ctx.sign = heads, KV is not None, sign
        return Z.unflatten(1, heads), S[:N].unflatten(1, heads), S[N].unflatten(0, heads).clone()

    @staticmethod
    def backward(ctx: Any, dZ: Tensor, dS: Tensor, dS_N: Tensor) -> tuple[Tensor | None, ...]:
        X, Y, decay, Z, S = ctx.saved_tensors
        N, heads = Z.shape[0], ctx.heads
        dZ, dS = dZ.flatten(1, 2), dS.flatten(1, 2)
        dU = torch.empty_like(Z)
        P = torch.empty_like(S)  # P[n + 1] is P_n
        P[N] = dS_N.flatten(0, 1)
        for n in reversed(range(N)):
            torch.baddbmm(dZ[n], Y[n], P[n + 1], out=dU[n])
            carried = (
                torch.add(dS[n], P[n + 1]) if decay is None else torch.addcmul(dS[n], decay[n], P[n + 1])
            )
            torch.baddbmm(carried, X[n].mT, dU[n], alpha=ctx.sign, out=P[n])
        d_decay = None
        if decay is not None:
            dims = (-1, -2) if decay.shape[-2] == 1 else (-1,)
            d_decay = (P[1:] * S[:N]).sum(dims, keepdim=True).unflatten(1, heads)
        return (
            dU.unflatten(1, heads),
            _signed(torch.matmul(dU, S[:N].mT), ctx.sign).unflatten(1, heads),
            torch.matmul(Z, P[1:].mT).unflatten(1, heads),
            d_decay,
            P[1:].unflatten(1, heads) if ctx.has_KV else None,
            P[0].unflatten(0, heads),
            None,
        )


def _signed(x: Tensor, sign: int) -> Tensor:
    return x if sign > 0 else x.neg_()


def read_chunks(*products: tuple[Tensor, Tensor]) -> Tensor:
    """The sum of M X over the pairs (M, X), each [N, B, H, ., .]."""
    shape = (*products[0][0].shape[:3], -1, products[0][1].shape[-1])
    (M, X), *others = ((M.flatten(0, 2), X.flatten(0, 2)) for M, X in products)
    total = torch.bmm(M, X)
    for M, X in others:
        total = torch.baddbmm(total, M, X)
    return total.view(shape)


def default_chunk_size(T: int, K: int) -> int:
    """Measured on a CPU: 64, or 32 for narrow heads; no longer than the sequence."""
    return min(T, 32 if K <= 32 else 64)
