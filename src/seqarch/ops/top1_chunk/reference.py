"""Top-1 chunk selection by dense masks: our definition, every switch, differentiated by autograd.

With chunks of C keys, c(i) the chunk of query i, and r_ic the router's score of chunk c:

    approx:  r_ic = scale <q_i, kbar_c> / tau_r          kbar_c: mean (or max, learned mean) of the keys of
        chunk c
    exact:   r_ic = log sum_{j in c} exp(scale <q_i, k_j>) / tau_r
    rp_i  = softmax_c(r_ic) over the candidates;         c*_i = the LOWEST candidate that attains the maximum

    always:     candidates c < c(i) of the same document; one softmax over own chunk (causal) and chunk c*
    candidate:  own chunk competes with the summary of its keys up to i; softmax over the chosen chunk alone
    never:      candidates c < c(i); softmax over the chosen chunk alone

    router_grad = gate:    the chosen chunk's part of o times (1 + rp_{c*} - stopgrad(rp_{c*}))
                  scaled:  times rp_{c*} / stopgrad(rp_{c*})
                  dense:   o = sum_c (onehot_c + rp_c - stopgrad(rp_c)) o^(c), o^(c) as if chunk c had been
                      chosen
                  none:    no gradient to the router

A query without candidates attends to its own chunk causally. The forward pass does not depend on
`router_grad`. Time and memory are O(T²): this is the definition, `grouped.py` the way to compute it.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from seqarch.ops.top1_chunk.layout import Grid
from seqarch.ops.top1_element.reference import first_argmax


class Rule(NamedTuple):
    """The switches; `op.top1_chunk` explains them."""

    scale: float
    own_chunk: str = "always"
    router: str = "approx"
    router_grad: str = "gate"
    inner: str = "softmax"
    selection: str = "one_chunk"
    shared: bool = False
    tau_r: float = 1.0
    tau: float = 1.0


class Inputs(NamedTuple):
    """Queries of T tokens, keys on the whole grid.

    Attributes:
        q: [B, T, H, K]; k: [B, N C, H, K]; v: [B, N C, H, V].
        q_router, k_router: what the router scores: as q and k.
        summary: [B, N, H, K] of the chunks, for `approx`.
        own_summary: [B, T, H, K] of the query's own chunk up to it, for `approx` with own_chunk = candidate.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    q_router: Tensor
    k_router: Tensor
    summary: Tensor
    own_summary: Tensor | None


class Masks(NamedTuple):
    """bool; `own` [B, 1, T, N], `past` [B, 1, T, N] (earlier chunks of the document), `causal` [B, 1, T, N
    C].
    """

    own: Tensor
    past: Tensor
    causal: Tensor


def attend(x: Inputs, grid: Grid, rule: Rule, force_chunk: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """o [B, T, H, V] and the chosen chunk int64 [B, T, H], on the grid; -1 where there is no candidate."""
    C = grid.chunk_size
    q, k, v, q_router, k_router = (y.transpose(1, 2) for y in x[:5])
    masks = _masks(grid, grid.places(x.q))
    s = q @ k.transpose(-1, -2) * (rule.scale / rule.tau)  # [B, H, T, N C]
    if rule.selection == "one_element_per_chunk":
        return _best_of_each(s, v, masks, rule, C).transpose(1, 2), x.q.new_full(
            x.q.shape[:3], -1, dtype=torch.int64
        )
    r = _router_scores(q_router, k_router, x, masks, rule, C)
    candidates = masks.past | masks.own if rule.own_chunk == "candidate" else masks.past
    routed = candidates.any(-1, keepdim=True)  # [B, 1, T, 1]
    r = torch.where(candidates, r, torch.where(routed, -torch.inf, 0.0))
    chosen = first_argmax(r) if force_chunk is None else force_chunk.transpose(1, 2).clamp(min=0)
    rp = r.softmax(-1)
    local = masks.own.repeat_interleave(C, -1) & masks.causal
    if rule.router_grad == "dense":
        o = _straight_through(s, v, rp, chosen, candidates, routed, local, masks, rule, C)
    else:
        visible = _visible(F.one_hot(chosen, grid.n_chunks).bool(), local, masks, rule, C)
        weights = weights_of(s, torch.where(routed, visible, local), rule)
        part = visible & ~local if rule.own_chunk == "always" else visible
        factor = gate(rp.gather(-1, chosen.unsqueeze(-1)), rule.router_grad)
        o = (weights * torch.where(part & routed, factor, 1.0)) @ v
    o = o.masked_fill(rp.isnan().any(-1, keepdim=True), torch.nan)  # no choice between NaNs: NaN in, NaN out
    chosen = chosen.masked_fill(~routed.squeeze(-1), -1).expand(q.shape[:3])
    return o.transpose(1, 2), chosen.transpose(1, 2)


def _masks(grid: Grid, place: Tensor) -> Masks:
    C, N = grid.chunk_size, grid.n_chunks
    own = place // C  # [B, T]
    first = grid.first_chunk.long().gather(1, own)
    chunk = torch.arange(N, device=place.device)
    past = (chunk < own.unsqueeze(-1)) & (chunk >= first.unsqueeze(-1))
    is_own = chunk == own.unsqueeze(-1)
    key = torch.arange(N * C, device=place.device)
    causal = (past | is_own).repeat_interleave(C, -1) & (key <= place.unsqueeze(-1))
    return Masks(is_own.unsqueeze(1), past.unsqueeze(1), causal.unsqueeze(1))


def _router_scores(q: Tensor, k: Tensor, x: Inputs, masks: Masks, rule: Rule, C: int) -> Tensor:
    """r [B, H or 1, T, N]; entries that are no candidates have no meaning."""
    if rule.router == "exact":
        s = (q @ k.transpose(-1, -2) * rule.scale).masked_fill(~masks.causal, -torch.inf)
        s = torch.where(
            (masks.past | masks.own).repeat_interleave(C, -1), s, 0.0
        )  # a finite gradient elsewhere
        r = s.unflatten(-1, (-1, C)).logsumexp(-1)
    else:
        r = q @ x.summary.permute(0, 2, 3, 1) * rule.scale
        if x.own_summary is not None:
            own = (q * x.own_summary.transpose(1, 2)).sum(-1, keepdim=True) * rule.scale
            r = torch.where(masks.own, own, r)
    return (r.sum(1, keepdim=True) if rule.shared else r) / rule.tau_r


def gate(rp: Tensor, router_grad: str) -> Tensor:
    """A factor of value 1 that carries the router's gradient."""
    if router_grad == "gate":
        return 1 + (rp - rp.detach())
    return rp / rp.detach() if router_grad == "scaled" else torch.ones_like(rp)


def _visible(onehot: Tensor, local: Tensor, masks: Masks, rule: Rule, C: int) -> Tensor:
    """Keys of the chosen chunk (causal, if it is the own one), with the own chunk's for own_chunk =
    always.
    """
    visible = onehot.repeat_interleave(C, -1) & masks.causal
    return visible | local if rule.own_chunk == "always" else visible


def weights_of(s: Tensor, visible: Tensor, rule: Rule) -> Tensor:
    """Attention over the visible keys: their softmax, or the best of them with a straight-through
    gradient.
    """
    s = s.masked_fill(~visible, -torch.inf)
    p = s.softmax(-1)
    if rule.inner == "softmax":
        return p
    return F.one_hot(first_argmax(s), s.shape[-1]).to(p) + (p - p.detach())


def _straight_through(
    s: Tensor,
    v: Tensor,
    rp: Tensor,
    chosen: Tensor,
    candidates: Tensor,
    routed: Tensor,
    local: Tensor,
    masks: Masks,
    rule: Rule,
    C: int,
) -> Tensor:
    """router_grad = dense: the outputs of every candidate, weighted by onehot + rp - stopgrad(rp)."""
    N = rp.shape[-1]
    A = F.one_hot(chosen, N).to(rp) + (rp - rp.detach())
    A = torch.where(candidates, A, 0.0)
    o = torch.where(routed, 0.0, weights_of(s, local, rule) @ v)
    for c in range(N):
        onehot = (torch.arange(N, device=s.device) == c).expand_as(candidates)
        visible = _visible(onehot, local, masks, rule, C)
        visible = torch.where(candidates[..., c : c + 1], visible, local)  # no empty softmax; its weight is 0
        o = o + A[..., c : c + 1] * (weights_of(s, visible, rule) @ v)
    return o


def _best_of_each(s: Tensor, v: Tensor, masks: Masks, rule: Rule, C: int) -> Tensor:
    """selection = one_element_per_chunk: attention over the best key of every earlier chunk.

    The own chunk joins whole (always), with its best key so far (candidate), or not at all (never). There is
    no
    router: the softmax itself trains the scores of the selected keys.
    """
    best = first_argmax(s.masked_fill(~masks.causal, -torch.inf).unflatten(-1, (-1, C)))  # [B, H, T, N]
    one_each = F.one_hot(best, C).bool().flatten(-2)
    local = masks.own.repeat_interleave(C, -1) & masks.causal
    past = masks.past.repeat_interleave(C, -1)
    visible = one_each & past
    if rule.own_chunk == "always":
        visible = visible | local
    elif rule.own_chunk == "candidate":
        visible = visible | (one_each & local)
    visible = torch.where(masks.past.any(-1, keepdim=True), visible, local)
    return weights_of(s, visible, rule) @ v
