"""The switches of Top-1 chunk selection, and what one call is given."""

import dataclasses
from typing import NamedTuple

from torch import Tensor

from seqarch.ops.top1_element.checks import Top1InputError, check_choice, check_positive

OP = "top1_chunk"
CHOICES = {
    "own_chunk": ("always", "candidate", "never"),
    "router": ("approx", "exact"),
    "router_grad": ("gate", "scaled", "dense", "none"),
    "summary": ("mean", "max", "learned"),
    "inner": ("softmax", "top1"),
    "selection": ("one_chunk", "one_element_per_chunk"),
    "granularity": ("query_head", "query_block", "query_shared"),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """The switches of Top-1 chunk selection, defaults first.

    Attributes:
        chunk_size: C.
        own_chunk: the own chunk is `always` attended to; is a `candidate`, by the summary of its keys so far;
            `never` is attended to (but by queries without an earlier chunk).
        router: `approx` scores a chunk by its summary, `exact` by its attention mass (T² work).
        router_grad: how the choice is trained: `gate`, `scaled`, `dense` (T² work and memory), `none`.
        summary: `mean`, `max`, `learned` (weights by place in the chunk).
        inner: `softmax` over the chosen keys, or the best of them (`top1`, T² memory here).
        selection: `one_chunk`, or `one_element_per_chunk`: the best key of every earlier chunk (T² memory).
        granularity: a choice per query and head; `query_block`: by the mean score of the chunk's queries up
            to this one (causal: a mean over the whole block would let later queries choose for earlier ones);
            `query_shared`: one for all heads, by the sum of their scores.
        tau_r, tau: temperatures of the router and of the inner softmax.
    """

    chunk_size: int = 128
    own_chunk: str = "always"
    router: str = "approx"
    router_grad: str = "gate"
    summary: str = "mean"
    inner: str = "softmax"
    selection: str = "one_chunk"
    granularity: str = "query_head"
    tau_r: float = 1.0
    tau: float = 1.0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if name in CHOICES:
                check_choice(OP, name, value, CHOICES[name])
            else:
                check_positive(OP, name, value)
        if self.router == "exact" and self.granularity == "query_block":
            raise Top1InputError(
                f"{OP}: query_block averages scores that are linear in the query: use router='approx'"
            )

    @property
    def needs_dense(self) -> str | None:
        """The switch that only dense masks compute."""
        if self.router_grad == "dense":
            return "router_grad='dense'"
        if self.inner == "top1":
            return "inner='top1'"
        return "selection='one_element_per_chunk'" if self.selection != "one_chunk" else None


class Call(NamedTuple):
    """Inputs of one call, as `op.top1_chunk` explains them; `table` is the summary's."""

    q: Tensor
    k: Tensor
    v: Tensor
    q_router: Tensor | None
    k_router: Tensor | None
    table: Tensor | None
    segment_ids: Tensor | None
    state: dict[str, Tensor] | None

    @property
    def router_queries(self) -> Tensor:
        return self.q if self.q_router is None else self.q_router

    @property
    def router_keys(self) -> Tensor:
        return self.k if self.k_router is None else self.k_router
