"""Top-1 element selection: attention that keeps only the best key. *Our definition* (see `reference.py`).

arXiv 2505.18522 studies an architecture of this name; its equations were not at hand, so what it leaves open
is a named switch here.
"""

import importlib.util
import os

import torch
from torch import Tensor

from seqarch.ops.backend import choose
from seqarch.ops.segments import starts
from seqarch.ops.top1_element import reference
from seqarch.ops.top1_element.checks import Top1InputError, check_choice, check_inputs, check_positive
from seqarch.ops.top1_element.reference import Rule, Visible

OP = "top1_element"
ST = ("softmax", "gate", "scaled", "none")
ST_SITE = ("weights", "output")
GRANULARITY = ("head", "shared")
MIN_WIDTH, MAX_WIDTH = 16, 256  # of a head, in the kernels


def top1_element(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    tau: float = 1.0,
    st: str = "softmax",
    st_site: str = "weights",
    include_self: bool = True,
    granularity: str = "head",
    alibi_slopes: Tensor | None = None,
    initial_state: dict[str, Tensor] | None = None,
    return_state: bool = False,
    segment_ids: Tensor | None = None,
    force_index: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, dict[str, Tensor] | None]:
    """o_i = v of the key that scores best with q_i (ties: the lowest place), with a straight-through
    gradient.

    Args:
        q, k: [B, T, H, K]; v: [B, T, H, V].
        scale: multiplies the query; default K^-1/2.
        tau: temperature of the surrogate softmax of the backward pass; never changes the selection.
        st: `softmax` (dense surrogate), `gate`, `scaled` (the chosen key only), `none` (no gradient to q and
            k).
        st_site: for `softmax`: dV = H^T dO (`weights`) or p^T dO (`output`).
        include_self: False: keys j < i only; a document's first token then selects itself.
        granularity: one choice per `head`, or one `shared` choice per token, from head-summed scores.
        alibi_slopes: [H], non-negative: slope * (i - j) is subtracted from the scores before the selection.
        initial_state: what an earlier call returned; it belongs to the first document.
        segment_ids: int [B, T], documents: keys are those of the query's document.
        force_index: int64 [B, T, H] places among the keys (of the state, then of this call), in place of the
            best.
        backend: "auto", "reference" or "triton".

    Returns:
        o [B, T, H, V] in v's dtype; the state {k, v, start} (keys so far, first visible one [B]) or None.
        NaN in a row's scores gives NaN in its output.

    Raises:
        Top1InputError: shapes, dtypes or options that do not fit. BackendUnavailable: "triton" can't serve
            them.
    """
    check_inputs(OP, q, k, v, segment_ids)
    check_choice(OP, "st", st, ST)
    check_choice(OP, "st_site", st_site, ST_SITE)
    check_choice(OP, "granularity", granularity, GRANULARITY)
    check_positive(OP, "tau", tau)
    if alibi_slopes is not None and alibi_slopes.shape != q.shape[2:3]:
        raise Top1InputError(f"{OP}: expected alibi_slopes [{q.shape[2]}], got {tuple(alibi_slopes.shape)}")
    if initial_state is not None:
        k, v = torch.cat([initial_state["k"], k], dim=1), torch.cat([initial_state["v"], v], dim=1)
    visible = visible_keys(q, k, segment_ids, initial_state, include_self)
    state = {"k": k, "v": v, "start": visible.lo[:, -1]} if return_state else None
    rule = Rule(q.shape[-1] ** -0.5 if scale is None else scale, tau, st, st_site)
    if granularity == "head":
        return _run(backend, q, k, v, visible, rule, alibi_slopes, force_index)[0], state
    # a sum of scores over heads is one product of the concatenated heads
    q, k, wide_v = (x.flatten(2).unsqueeze(2) for x in (q, k, v))
    slopes = None if alibi_slopes is None else alibi_slopes.sum(0, keepdim=True)
    forced = None if force_index is None else force_index[:, :, :1]
    o, _ = _run(backend, q, k, wide_v, visible, rule, slopes, forced)
    return o.reshape(*o.shape[:2], *v.shape[2:]), state


def visible_keys(
    q: Tensor, k: Tensor, segment_ids: Tensor | None, state: dict[str, Tensor] | None, include_self: bool
) -> Visible:
    """The range of keys that each query sees: its document's, up to itself."""
    (B, T), offset = q.shape[:2], k.shape[1] - q.shape[1]
    place = torch.arange(T, device=q.device).expand(B, T)
    first = torch.zeros_like(place)
    if segment_ids is not None:
        first = torch.where(starts(segment_ids), place, 0).cummax(dim=1).values
    start = place.new_zeros(B) if state is None else state["start"]
    lo = torch.where(first == 0, start[:, None], offset + first)
    hi = offset + place
    if not include_self:
        hi = torch.maximum(hi - 1, lo)
    return Visible(lo, hi, offset)


def _run(
    backend: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Visible,
    rule: Rule,
    slopes: Tensor | None,
    force_index: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """o and the chosen places, by the backend that can."""
    if choose(OP, q, backend=backend, candidates={"triton": lambda: unsupported(q, v)}) == "reference":
        return reference.select(q, k, v, visible, rule, slopes, force_index)
    from seqarch.ops.top1_element import launch

    return launch.select(q, k, v, visible, rule, slopes, force_index)


def unsupported(q: Tensor, v: Tensor) -> str | None:
    """Why the kernels can't serve a call, or None."""
    if not triton_can_run(q):
        return f"no Triton on {q.device.type}"
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"dtype {q.dtype}"
    if min(q.shape[3], v.shape[3]) < MIN_WIDTH or max(q.shape[3], v.shape[3]) > MAX_WIDTH:
        return f"head widths {q.shape[3]} and {v.shape[3]} outside {MIN_WIDTH}..{MAX_WIDTH}"
    return None


def triton_can_run(x: Tensor) -> bool:
    """On a GPU; on a CPU only in Triton's interpreter (for tests), which has no bfloat16."""
    if importlib.util.find_spec("triton") is None:
        return False
    if x.device.type == "cuda":
        return True
    return os.environ.get("TRITON_INTERPRET") == "1" and x.dtype != torch.bfloat16
