"""Top-1 chunk selection: attention to the own chunk and the best earlier one. *Our definition* (see
`reference.py`).

arXiv 2505.18522 studies an architecture of this name; its equations were not at hand. A public review of it
names two variants, Exact and Approx, and says that Approx scores a chunk by the product of the query with the
chunk's average
key: `router="approx"` is that. With `own_chunk="always"` and `router_grad="none"` the form equals MoBA
(arXiv 2502.13189) with two blocks.
"""

from functools import partial

import torch
from torch import Tensor

from seqarch.ops.backend import BackendUnavailable, choose
from seqarch.ops.common import outside_autocast
from seqarch.ops.top1_chunk import cache, decode, reference, summary
from seqarch.ops.top1_chunk.functions import ApproxRouter, ChunkAttention, ExactRouter, Parts, PyTorch, Size
from seqarch.ops.top1_chunk.layout import Grid, make_grid
from seqarch.ops.top1_chunk.options import OP, Call, Options
from seqarch.ops.top1_chunk.reference import Inputs, Rule
from seqarch.ops.top1_element.checks import Top1InputError, check_inputs
from seqarch.ops.top1_element.op import MAX_WIDTH
from seqarch.ops.top1_element.op import unsupported as unsupported_heads


@outside_autocast("q", "k", "v")
def top1_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: Options | None = None,
    *,
    scale: float | None = None,
    q_router: Tensor | None = None,
    k_router: Tensor | None = None,
    summary_table: Tensor | None = None,
    initial_state: dict[str, Tensor] | None = None,
    return_state: bool = False,
    segment_ids: Tensor | None = None,
    force_chunk: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, dict[str, Tensor] | None]:
    """Attention of each query to its own chunk and the one earlier chunk that its router prefers.

    Args:
        q, k: [B, T, H, K]; v: [B, T, H, V].
        options: the switches; defaults: chunks of 128, own chunk always, mean keys, gate.
        scale: multiplies the query; default K^-1/2.
        q_router, k_router: [B, T, H, K] for the router instead of q and k (before the rotation, say).
        summary_table: [H, C] for summary = learned.
        initial_state: what an earlier call returned; it belongs to the first document.
        segment_ids: int [B, T], documents: chunks restart at each, candidates stay inside it.
        force_chunk: int64 [B, T, H] chunks of the grid in place of the router's choice (no state).
        backend: "auto", "reference" (PyTorch, sub-quadratic), "triton", or "dense" (masks: the definition).

    Returns:
        o [B, T, H, V] in v's dtype; the state after the last token (see `decode.py`) or None.
        NaN in a query's or in its candidates' router scores gives NaN in its output.

    Raises:
        Top1InputError: shapes, dtypes or options that do not fit. BackendUnavailable: the backend can't serve
            them.
    """
    options = options or Options()
    call = Call(q, k, v, q_router, k_router, summary_table, segment_ids, initial_state)
    _check(call, options, backend)
    rule = Rule(
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        own_chunk=options.own_chunk,
        router=options.router,
        router_grad=options.router_grad,
        inner=options.inner,
        selection=options.selection,
        shared=options.granularity == "query_shared",
        tau_r=options.tau_r,
        tau=options.tau,
    )
    one_token = initial_state is not None and q.shape[1] == 1 and segment_ids is None
    trains_all = options.router_grad == "dense" and torch.is_grad_enabled()
    if one_token and options.selection == "one_chunk" and not trains_all:
        state = cache.append(call, options)
        o = decode.attend(call, state, options, rule)
        return o.to(v.dtype), state if return_state else None
    return _parallel(call, options, rule, backend, force_chunk, return_state)


def _parallel(
    call: Call, options: Options, rule: Rule, backend: str, force_chunk: Tensor | None, return_state: bool
) -> tuple[Tensor, dict[str, Tensor] | None]:
    """All tokens at once, on the grid."""
    q, (B, T), C = call.q, call.q.shape[:2], options.chunk_size
    past = call.state or {}
    grid = make_grid(B, T, C, q.device, call.segment_ids, call.state)
    keys, values = grid.spread(call.k, past.get("k")), grid.spread(call.v, past.get("v"))
    router_keys = keys if call.k_router is None else grid.spread(call.k_router, past.get("k_router"))
    q_router = call.router_queries
    if options.granularity == "query_block":
        q_router = cache.block_means(q_router, grid, past)
    state = cache.after(call, grid, keys, values, router_keys, q_router, options) if return_state else None
    kind = (C, options.summary, call.table)
    inputs = Inputs(q, keys, values, q_router, router_keys, summary.whole(router_keys, *kind), None)
    prefix = None
    if options.own_chunk == "candidate" and options.router == "approx":
        prefix = summary.prefix(router_keys, *kind)
    if backend == "dense" or options.needs_dense is not None:
        own = None if prefix is None else prefix.gather(1, grid.places(q)[..., None, None].expand_as(q))
        o, _ = reference.attend(inputs._replace(own_summary=own), grid, rule, force_chunk)
        return o.to(call.v.dtype), state
    own = None if prefix is None else prefix[:, grid.n_past * C :]
    on_grid = inputs._replace(q=grid.queries(q), q_router=grid.queries(q_router), own_summary=own)
    forced = None if force_chunk is None else (grid.queries(force_chunk + 1) - 1).transpose(1, 2)
    o, _ = fast(on_grid, grid, rule, _parts(backend, call, options), forced)
    return grid.collect(o, T), state


def fast(x: Inputs, grid: Grid, rule: Rule, parts: Parts, forced: Tensor | None) -> tuple[Tensor, Tensor]:
    """Router, then attention; o [B, L, H, V] and chosen [B, H, L]. The queries of x lie on the grid's last
    chunks.

    forced: [B, H, L], -1 where the router's choice stands.
    """
    C = grid.chunk_size
    approx = rule.router == "approx"
    size = Size(
        C=C,
        scale=rule.scale / rule.tau,
        router_scale=rule.scale / rule.tau_r if approx else rule.scale,
        tau_r=rule.tau_r,
        always=rule.own_chunk == "always",
        router_grad=rule.router_grad,
        shared=rule.shared,
    )
    forced = forced[:, :1] if forced is not None and rule.shared else forced
    own = _own_score(x, rule, C) if rule.own_chunk == "candidate" else None
    if approx:
        q, chunks = x.q_router, x.summary
        if rule.shared:  # a sum of scores over heads is one product of the concatenated heads
            q, chunks = (y.flatten(2).unsqueeze(2) for y in (q, chunks))
        chosen, rp = ApproxRouter.apply(q, chunks, own, grid.first_chunk, size, parts, forced)
    else:
        chosen, rp = ExactRouter.apply(x.q_router, x.k_router, own, grid.first_chunk, size, parts, forced)
    query_chunk = torch.arange(x.q.shape[1], device=x.q.device) // C + grid.n_past
    other = torch.where(chosen == query_chunk, -1, chosen).expand(-1, x.q.shape[2], -1)
    return ChunkAttention.apply(x.q, x.k, x.v, rp, other, size, parts), chosen.expand_as(other)


def _own_score(x: Inputs, rule: Rule, C: int) -> Tensor:
    """The router's score of each query's own chunk up to the query, [B, H or 1, L]; memory T C for
    `exact`.
    """
    if x.own_summary is not None:
        r = (x.q_router * x.own_summary).sum(-1) * rule.scale
    else:
        q = x.q_router.unflatten(1, (-1, C)).transpose(2, 3)  # [B, N, H, C, K]
        k = x.k_router[:, -x.q_router.shape[1] :].unflatten(1, (-1, C)).transpose(2, 3)
        causal = torch.ones(C, C, dtype=torch.bool, device=q.device).tril()
        s = (q @ k.transpose(-1, -2) * rule.scale).masked_fill(~causal, -torch.inf)
        r = s.logsumexp(-1).transpose(2, 3).flatten(1, 2)
    r = (r.sum(-1, keepdim=True) if rule.shared else r) / rule.tau_r
    return r.transpose(1, 2)


def _parts(backend: str, call: Call, options: Options) -> Parts:
    """Who computes router and attention."""
    reason = partial(unsupported, call, options)
    if choose(OP, call.q, backend=backend, candidates={"triton": reason}) == "reference":
        return PyTorch()
    from seqarch.ops.top1_chunk import launch

    return launch.Kernels()


def unsupported(call: Call, options: Options) -> str | None:
    """Why the kernels can't serve a call, or None."""
    C = options.chunk_size
    if C & (C - 1) or not 16 <= C <= 128:
        return f"chunk_size {C} is no power of two between 16 and 128"
    if options.granularity == "query_shared" and options.router == "exact":
        return "router='exact' with granularity='query_shared' sums over heads"
    width = call.q.shape[2] * call.q.shape[3]
    if options.granularity == "query_shared" and width > MAX_WIDTH:
        return f"granularity='query_shared' with heads of {width} channels together, above {MAX_WIDTH}"
    if call.q.dtype == torch.float32 and max(call.q.shape[3], call.v.shape[3]) > MAX_WIDTH // 2:
        return f"float32 heads of more than {MAX_WIDTH // 2} channels: too many products to unroll"
    return unsupported_heads(call.q, call.v)


def _check(call: Call, options: Options, backend: str) -> None:
    check_inputs(OP, call.q, call.k, call.v, call.segment_ids)
    for name, x in (("q_router", call.q_router), ("k_router", call.k_router)):
        if x is not None and x.shape != call.q.shape:
            raise Top1InputError(f"{OP}: expected {name} {tuple(call.q.shape)}, got {tuple(x.shape)}")
    wanted = (call.q.shape[2], options.chunk_size)
    if options.summary == "learned" and (call.table is None or call.table.shape != wanted):
        given = None if call.table is None else tuple(call.table.shape)
        raise Top1InputError(f"{OP}: summary='learned' needs summary_table {wanted}, got {given}")
    if options.needs_dense is not None and backend == "triton":
        raise BackendUnavailable(f"{OP}: {options.needs_dense} has no kernel; use backend 'auto'")
