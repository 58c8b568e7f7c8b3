"""Linear attention with one decay a head, or none, whose chunks are short enough to take the decay out of
the products (the first form of `scalar.py`), as one autograd Function.

With V'_j = exp(-G_j) v_j, R_n = exp(G_C) P_{n+1} and P_n = dL/dS_n in total, dO'_i = exp(G_i) dO_i:

    P_n   = exp(G_C) P_{n+1} + sum_i q_i dO'_iᵀ
    dq_i  = sum_{j <= i} <dO'_i, V'_j> k_j + S_n dO'_i
    dk_j  = sum_{i >= j} <dO'_i, V'_j> q_i + R_n V'_j
    dV'_j = sum_{i >= j} <q_i, k_j> dO'_i + R_nᵀ k_j
    dG_i  = <dO_i, o_i> - <dV'_i, V'_i> + [i = C] <P_{n+1}, S_{n+1}>

Chunk layout is [N, B, H, C, D], chunks first: one step of the walk over them reads contiguous memory. Heads
that share q and k (Mamba-2) are one head with values side by side, [N, B, 1, C, H V].
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from seqarch.ops.common import pad_time
from seqarch.ops.segments import ChunkMasks


class _Layout(NamedTuple):
    """Sizes of one call, and the way between time [B, T, H, D] and chunks [N B H', C, D']."""

    B: int
    T: int
    H: int
    C: int
    N: int
    folded: bool

    @property
    def padded(self) -> int:
        return self.N * self.C

    def in_chunks(self, x: Tensor) -> Tensor:
        """A view of x [B, N C, H, D] in the order of the chunks: [N, B, H, C, D]; folded [N, B, C, H, D]."""
        x = x.unflatten(1, (self.N, self.C))
        return x.permute(1, 0, 2, 3, 4) if self.folded else x.permute(1, 0, 3, 2, 4)

    def gate(self, G: Tensor) -> Tensor:
        """A factor for each step [B or 1, N or 1, C, H] beside what `in_chunks` gives: [.., 1]."""
        return (G.permute(1, 0, 2, 3) if self.folded else G.permute(1, 0, 3, 2)).unsqueeze(-1)

    def split(self, x: Tensor, factor: Tensor | float | None = None) -> Tensor:
        """x [B, T, H, D] times the factor -> [N B H', C, D'], in memory of its own."""
        view = self.in_chunks(pad_time(x, self.C))
        out = torch.empty(view.shape, dtype=x.dtype, device=x.device)
        if factor is None:
            out.copy_(view)
        else:
            torch.mul(view, factor, out=out)
        if self.folded:
            return out.view(self.N * self.B, self.C, -1)
        return out.view(-1, self.C, x.shape[-1])

    def join(self, x: Tensor, heads: int, factor: Tensor | float | None = None) -> Tensor:
        """The inverse of `split`: [B, T, heads, D], contiguous where nothing was padded."""
        shape = (self.C, heads) if self.folded else (heads, self.C)
        view = x.view(self.N, self.B, *shape, -1)
        out = torch.empty(self.B, self.padded, heads, view.shape[-1], dtype=x.dtype, device=x.device)
        if factor is None:
            self.in_chunks(out).copy_(view)
        else:
            torch.mul(view, factor, out=self.in_chunks(out))
        return out[:, : self.T]

    def state_in(self, S: Tensor) -> Tensor:
        """[B, H, K, V] -> [B H', K, V']."""
        return S.permute(0, 2, 1, 3).flatten(2) if self.folded else S.flatten(0, 1)

    def state_out(self, S: Tensor) -> Tensor:
        """The inverse of `state_in`."""
        if self.folded:
            return S.unflatten(-1, (self.H, -1)).permute(0, 2, 1, 3).contiguous()
        return S.unflatten(0, (self.B, self.H))

    def over_state(self, x: Tensor, V: int) -> Tensor:
        """A factor for each chunk and head [N, B, H] -> one for the states [N, B H', 1, 1 or H V]."""
        if self.folded:
            return x.repeat_interleave(V, dim=-1).unsqueeze(2)
        return x.flatten(1)[..., None, None]


def factored(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    G: Tensor | None,
    state: Tensor | None,
    masks: ChunkMasks | None,
    C: int,
    scale: float,
    return_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """o [B, T, H, V] and the final state [B, H, K, V] (None if not asked for).

    Args:
        q, k: [B, T, H or 1, K]; v: [B, T, H, V].
        G: sums of the log decays since the chunk's start, [B or 1, N or 1, C, H], not below the dtype's
            range; None: no decay.
        state: [B, H, K, V] or None (zero).
        masks: of documents, or None.
        C: chunk length; T is padded to a multiple.
    """
    B, T, H = v.shape[:3]
    layout = _Layout(B, T, H, C, -(-T // C), folded=q.shape[2] == 1 and H > 1)
    o, S = _Factored.apply(q, k, v, G, state, masks, layout, scale, return_state)
    return o, S if return_state else None


class _Masks(NamedTuple):
    """The masks of documents beside the chunks of `_Layout`: numbers, 0 or 1."""

    same: Tensor  # [N B H', C, C]
    read: Tensor  # [N B H', C, 1]
    write: Tensor  # [N B H', C, 1]
    keep: Tensor  # [N, B H', 1, 1]

    @classmethod
    def of(cls, masks: ChunkMasks, heads: int, like: Tensor) -> "_Masks":
        def spread(x: Tensor) -> Tensor:  # [B, 1, N, ...] -> [N, B H', ...]
            return x.movedim(2, 0).expand(-1, -1, heads, *x.shape[3:]).flatten(1, 2).to(like.dtype)

        read, write = (spread(x).flatten(0, 1).unsqueeze(-1) for x in (masks.read, masks.write))
        return cls(spread(masks.same).flatten(0, 1), read, write, spread(masks.keep)[..., None, None])


class _Factored(torch.autograd.Function):
    """(q, k, v, G, state, masks, layout, scale, return_state) -> o, final state."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        G: Tensor | None,
        state: Tensor | None,
        masks: ChunkMasks | None,
        layout: _Layout,
        scale: float,
        return_state: bool,
    ) -> tuple[Tensor, Tensor | None]:
        m = None if masks is None else _Masks.of(masks, q.shape[2], q)
        grown = None if G is None else layout.gate(G.neg().exp_())
        q, k, v = layout.split(q, scale), layout.split(k), layout.split(v, grown)
        A = torch.bmm(q, k.mT).tril_()
        if m is not None:
            A.mul_(m.same)
        S = decay = None
        if layout.N > 1 or state is not None or return_state:
            last = _last(G, layout, v)
            S, decay = _walk(k if m is None else k * m.write, v, last, m, state, layout)
            o = torch.bmm(q if m is None else q * m.read, S[:-1].flatten(0, 1)).baddbmm_(A, v)
        else:
            o = torch.bmm(A, v)
        o = layout.join(o, layout.H, None if G is None else layout.gate(G.exp()))
        ctx.save_for_backward(q, k, v, A, S, decay, G, None if G is None else o, *(m or ()))
        ctx.layout, ctx.scale, ctx.has_state = layout, scale, state is not None
        return o, None if S is None or not return_state else layout.state_out(S[-1]).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor, dS_N: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, A, S, decay, G, o, *m_ = ctx.saved_tensors
        layout, m = ctx.layout, _Masks(*m_) if m_ else None
        do_time = do
        do = layout.split(do, None if G is None else layout.gate(G.exp()))
        dA = torch.bmm(do, v.mT).tril_()
        if m is not None:
            dA.mul_(m.same)
        dq, dk, dv = torch.bmm(dA, k), torch.bmm(dA.mT, q), torch.bmm(A.mT, do)
        d_state = d_last = None
        if S is not None:
            read, kept = (q, k) if m is None else (q * m.read, k * m.write)
            P = _walk_back(torch.bmm(read.mT, do), decay, dS_N, layout, S)
            d_last = None if G is None else _summed(P[1:] * S[1:], layout)
            d_state = layout.state_out(P[0]) if ctx.has_state else None
            R, last = P[1:], _last(G, layout, v)
            R = (R if last is None else R.mul_(last)).flatten(0, 1)
            _add_product(dq, do, S[:-1].flatten(0, 1).mT, None if m is None else m.read)
            _add_product(dk, v, R.mT, None if m is None else m.write)
            dv.baddbmm_(kept, R)
        dG = None
        if G is not None and ctx.needs_input_grad[3]:
            dG = _gate_gradient(do_time, o, dv, v, d_last, layout).sum_to_size(G.shape)
        heads = 1 if layout.folded else layout.H
        return (
            layout.join(dq, heads, ctx.scale),
            layout.join(dk, heads),
            layout.join(dv, layout.H, None if G is None else layout.gate(G.neg().exp_())),
            dG,
            d_state,
            *(None,) * 4,
        )


def _last(G: Tensor | None, layout: _Layout, v: Tensor) -> Tensor | None:
    """The decay over each chunk, beside the states."""
    if G is None:
        return None
    last = G[:, :, -1].exp().transpose(0, 1).expand(layout.N, layout.B, layout.H)
    return layout.over_state(last, v.shape[-1] // (layout.H if layout.folded else 1))


def _walk(
    k: Tensor, v: Tensor, last: Tensor | None, m: _Masks | None, state: Tensor | None, layout: _Layout
) -> tuple[Tensor, Tensor | None]:
    """The states before each chunk and after the last [N + 1, B H', K, V'], and the decay between them."""
    KV = torch.bmm(k.mT, v).unflatten(0, (layout.N, -1))
    decay = last
    if last is not None:
        KV.mul_(last)
    if m is not None:
        decay = m.keep if last is None else last * m.keep
    S = KV.new_empty(layout.N + 1, *KV.shape[1:])
    S[0] = 0 if state is None else layout.state_in(state)
    for n in range(layout.N):
        if decay is None:
            torch.add(KV[n], S[n], out=S[n + 1])
        else:
            torch.addcmul(KV[n], decay[n], S[n], out=S[n + 1])
    return S, decay


def _walk_back(
    d_read: Tensor, decay: Tensor | None, dS_N: Tensor | None, layout: _Layout, S: Tensor
) -> Tensor:
    """The gradients of all states, like S."""
    P, d_read = torch.empty_like(S), d_read.unflatten(0, (layout.N, -1))
    P[-1] = 0 if dS_N is None else layout.state_in(dS_N)
    for n in reversed(range(layout.N)):
        if decay is None:
            torch.add(d_read[n], P[n + 1], out=P[n])
        else:
            torch.addcmul(d_read[n], decay[n], P[n + 1], out=P[n])
    return P


def _add_product(total: Tensor, x: Tensor, y: Tensor, mask: Tensor | None) -> None:
    """total += (x y) * mask."""
    if mask is None:
        total.baddbmm_(x, y)
    else:
        total.addcmul_(torch.bmm(x, y), mask)


def _summed(x: Tensor, layout: _Layout) -> Tensor:
    """[N, B H', K, V'] -> [B, N, H], summed over each head's state."""
    x = x.sum(-2)
    x = x.view(layout.N, layout.B, layout.H, -1).sum(-1)
    return x.transpose(0, 1)


def _gate_gradient(
    do: Tensor, o: Tensor, dv: Tensor, v: Tensor, d_last: Tensor | None, layout: _Layout
) -> Tensor:
    """dG [B, N, C, H]."""
    shape = (layout.C, layout.H) if layout.folded else (layout.H, layout.C)
    written = (dv * v).view(layout.N, layout.B, *shape, -1).sum(-1)  # [N, B, H, C]; folded [N, B, C, H]
    written = written.transpose(0, 1) if layout.folded else written.permute(1, 0, 3, 2)
    read = F.pad((do * o).sum(-1), (0, 0, 0, layout.padded - layout.T)).unflatten(1, (layout.N, layout.C))
    dG = read - written
    if d_last is not None:
        dG[:, :, -1] += d_last
    return dG
