"""Top-1 element selection in PyTorch: our definition, its straight-through gradient, row block by row block.

    s_ij = scale <q_i, k_j> - slope_h (i - j)       over the visible keys lo_i <= j <= hi_i
    j*_i = the LOWEST j that attains max_j s_ij;    o_i = v_{j*}
    p_i  = softmax_j(s_ij / tau)                    the surrogate, in the backward pass only

Backward, with a_ij = dO_i . v_j and h_ij = [j = j*_i]:

    st = softmax:  g_ij = a_ij                      A = H + p - stopgrad(p): dense straight-through weights
    st = gate:     g_ij = h_ij a_ij                 o = (1 + p_{j*} - stopgrad(p_{j*})) v_{j*}
    st = scaled:   g_ij = h_ij a_ij / p_{ij*}       o = p_{j*} / stopgrad(p_{j*}) v_{j*}
    st = none:     g_ij = 0
    dS = p * (g - sum_j p_ij g_ij) / tau;   dQ = scale dS K;   dK = scale dS^T Q;   dV = H^T dO, or p^T dO

For `softmax` the subtracted term is dO_i . (sum_j p_ij v_j): it comes from the SOFT output. The usual
identity of flash attention, dO_i . o_i, holds for the softmax's own output and is wrong for the selected one.
`torch.argmax` promises no tie rule, so the choice is spelled out.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqarch.ops.common import accumulation_dtype

ROWS = 256  # queries at once: memory is [B, H, 256, T]


class Rule(NamedTuple):
    """The switches that the computation needs."""

    scale: float
    tau: float = 1.0
    st: str = "softmax"
    st_site: str = "weights"


class Visible(NamedTuple):
    """Which keys a query sees, and how far they are: `lo`, `hi` int64 [B, T], inclusive; query t is key
    offset + t.
    """

    lo: Tensor
    hi: Tensor
    offset: int


def select(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Visible,
    rule: Rule,
    slopes: Tensor | None = None,
    force_index: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """q [B, T, H, K], k [B, S, H, K], v [B, S, H, V] -> o [B, T, H, V], index int64 [B, T, H].

    Args:
        slopes: [H], ALiBi; not trained.
        force_index: int64 [B, T, H], taken in place of the best key, to compare two implementations.
    """
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    forced = None if force_index is None else force_index.transpose(1, 2)
    o, index = _Top1Element.apply(*heads_first, visible, rule, slopes, forced)
    return o.transpose(1, 2), index.transpose(1, 2)


def first_argmax(s: Tensor) -> Tensor:
    """The lowest index that attains the maximum over the last dimension; for a NaN maximum the last index."""
    place = torch.arange(s.shape[-1], device=s.device)
    best = torch.where(s == s.amax(-1, keepdim=True), place, s.shape[-1]).amin(-1)
    return best.clamp(max=s.shape[-1] - 1)


def _blocks(T: int, visible: Visible) -> list[tuple[slice, int]]:
    """(rows, number of keys that any of them can see)."""
    return [(slice(a, min(a + ROWS, T)), visible.offset + min(a + ROWS, T)) for a in range(0, T, ROWS)]


def _scores(
    q: Tensor, k: Tensor, visible: Visible, rows: slice, scale: float, slopes: Tensor | None
) -> Tensor:
    """s [B, H, R, J], -inf where key j is not visible."""
    place = torch.arange(k.shape[2], device=k.device)
    s = q @ k.transpose(-1, -2) * scale
    if slopes is not None:
        row = torch.arange(rows.start, rows.stop, device=k.device) + visible.offset
        s = s - slopes.to(s)[:, None, None] * (row[:, None] - place)
    lo, hi = (x[:, None, rows, None] for x in (visible.lo, visible.hi))
    return s.masked_fill((place < lo) | (place > hi), -torch.inf)


class _Top1Element(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible: Visible,
        rule: Rule,
        slopes: Tensor | None,
        forced: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        acc = accumulation_dtype(q, k, v)
        index = torch.empty(q.shape[:3], dtype=torch.int64, device=q.device)
        o = v.new_empty(*q.shape[:3], v.shape[3])
        for rows, J in _blocks(q.shape[2], visible):
            s = _scores(q[:, :, rows].to(acc), k[:, :, :J].to(acc), visible, rows, rule.scale, slopes)
            chosen = first_argmax(s) if forced is None else forced[:, :, rows]
            index[:, :, rows] = chosen
            hard = v.gather(2, chosen.unsqueeze(-1).expand(-1, -1, -1, v.shape[3]))
            o[:, :, rows] = hard.masked_fill(s.amax(-1, keepdim=True).isnan(), torch.nan)  # NaN in, NaN out
        ctx.save_for_backward(q, k, v, index, visible.lo, visible.hi, slopes)
        ctx.rule, ctx.offset = rule, visible.offset
        ctx.mark_non_differentiable(index)
        return o, index

    @staticmethod
    def backward(ctx: Any, do: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, index, lo, hi, slopes = ctx.saved_tensors
        rule, visible = ctx.rule, Visible(lo, hi, ctx.offset)
        acc = accumulation_dtype(q, k, v)
        dq, dk, dv = (torch.zeros_like(x, dtype=acc) for x in (q, k, v))
        for rows, J in _blocks(q.shape[2], visible):
            q_rows, do_rows = q[:, :, rows].to(acc), do[:, :, rows].to(acc)
            k_seen, v_seen = k[:, :, :J].to(acc), v[:, :, :J].to(acc)
            p = (_scores(q_rows, k_seen, visible, rows, rule.scale, slopes) / rule.tau).softmax(-1)
            hit = torch.arange(J, device=q.device) == index[:, :, rows, None]
            weights = p if rule.st == "softmax" and rule.st_site == "output" else hit.to(acc)
            dv[:, :, :J] += weights.transpose(-1, -2) @ do_rows
            if rule.st == "none":
                continue
            g = do_rows @ v_seen.transpose(-1, -2)
            if rule.st != "softmax":
                g = torch.where(hit, g, 0)
            if rule.st == "scaled":
                g = g / (p * hit).sum(-1, keepdim=True)
            ds = p * (g - (p * g).sum(-1, keepdim=True)) * (rule.scale / rule.tau)
            dq[:, :, rows] = ds @ k_seen
            dk[:, :, :J] += ds.transpose(-1, -2) @ q_rows
        return dq.to(q), dk.to(k), dv.to(v), None, None, None, None
