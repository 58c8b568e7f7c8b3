"""Ops on a CPU, forward + backward, against what a user without a GPU would otherwise run (`peers.py`).

B = 2, T = 1024, H = 4, K = V = 64, float32, at one and two threads. No op may be slower than its fastest
peer; at two threads some must be faster by a factor.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import peers
import torch
import torch.nn.functional as F
from timing import NO_SLOWER, Call, against, first, tensors, train_step
from torch import Tensor

from seqarch.ops.causal_conv1d import causal_conv1d
from seqarch.ops.delta_rule.op import delta_rule
from seqarch.ops.diag_scan.op import diag_scan
from seqarch.ops.dplr_rule.op import dplr_rule
from seqarch.ops.linear_attention.op import linear_attention
from seqarch.ops.softmax_attention import softmax_attention

B, T, H, D, CHANNELS = 2, 1024, 4, 64, 256
HEADS = f"B{B} T{T} H{H} K{D} V{D}"


class Case(NamedTuple):
    """One row: ours against a peer on the same inputs; `goal_at_2`: the ratio asked for at two threads."""

    benchmark: str
    ours: Call
    peer_name: str
    peer: Call
    inputs: list[Tensor]
    shape: str = HEADS
    goal_at_2: float = NO_SLOWER


def rows() -> Iterator[dict[str, Any]]:
    threads_before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for case in (*_attention(), *_linear(), *_delta(), *_elementwise()):
                ours, peer = (train_step(call, case.inputs) for call in (case.ours, case.peer))
                goal = case.goal_at_2 if threads == 2 else NO_SLOWER
                yield against(case.benchmark, case.shape, ("reference", ours), (case.peer_name, peer), goal)
    finally:
        torch.set_num_threads(threads_before)


def _attention() -> Iterator[Case]:
    inputs = tensors(*[(B, T, H, D)] * 3)
    yield Case("softmax_attention", lambda *x: softmax_attention(*x)[0], "torch SDPA", peers.sdpa, inputs)
    yield Case(
        "softmax_attention, window 64",
        lambda *x: softmax_attention(*x, window=64)[0],
        "torch SDPA with a mask",
        lambda *x: peers.sdpa_window(*x, window=64),
        inputs,
    )


def _linear() -> Iterator[Case]:
    head, log = (B, T, H, D), F.logsigmoid
    q, k, v, vector = tensors(head, head, head, head)
    scalar, u = tensors((B, T, H), (H, D))
    yield Case(
        "linear_attention, no decay",
        lambda *x: linear_attention(*x)[0],
        "fla naive_chunk_linear_attn",
        peers.linear_attention,
        [q, k, v],
    )
    gamma = torch.log1p(-(2.0 ** (-5.0 - torch.arange(H))))
    yield Case(
        "linear_attention, constant decay",
        lambda *x: linear_attention(*x, gamma)[0],
        "fla naive_retention",
        peers.retention,
        [q, k, v],
    )
    yield Case(
        "linear_attention, scalar decay",
        lambda q, k, v, x: linear_attention(q, k, v, log(x))[0],
        "fla naive_chunk_simple_gla",
        lambda q, k, v, x: peers.simple_gla(q, k, v, log(x)),
        [q, k, v, scalar],
        goal_at_2=2.0,
    )
    yield _mamba2()
    for name, sharpness in (("mild", 1 / 16), ("strong", 1.0), ("extreme", 40.0)):
        yield Case(
            f"linear_attention, vector decay, {name}",
            lambda q, k, v, x, s=sharpness: linear_attention(q, k, v, s * log(x))[0],
            "fla naive_recurrent_gla",
            lambda q, k, v, x, s=sharpness: peers.gla(q, k, v, s * log(x)),
            [q, k, v, vector],
            goal_at_2=3.0,
        )
    yield Case(
        "linear_attention, vector decay, bonus",
        lambda q, k, v, x, u: linear_attention(q, k, v, log(x), bonus=u, scale=1.0)[0],
        "fla naive_recurrent_rwkv6",
        lambda q, k, v, x, u: peers.rwkv6(q, k, v, log(x), u),
        [q, k, v, vector, u],
        goal_at_2=3.0,
    )


def _mamba2() -> Case:
    heads, width, states = 8, 64, 128
    q, k, x, dt, A = tensors(
        (B, T, 1, states), (B, T, 1, states), (B, T, heads, width), (B, T, heads), (heads,)
    )

    def step(dt: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
        return 0.1 * F.softplus(dt), -A.exp()

    def ours(q: Tensor, k: Tensor, x: Tensor, dt: Tensor, A: Tensor) -> Tensor:
        dt, A = step(dt, A)
        return linear_attention(q, k, x * dt.unsqueeze(-1), A * dt, scale=1.0)[0]

    return Case(
        "linear_attention, scalar decay, shared q and k",
        ours,
        "transformers mamba2_chunk_scan",
        lambda q, k, x, dt, A: peers.mamba2_scan(q, k, x, *step(dt, A)),
        [q, k, x, dt, A],
        shape=f"B{B} T{T} H{heads} K{states} V{width}",
        goal_at_2=2.0,
    )


def _unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


def _delta() -> Iterator[Case]:
    head, log = (B, T, H, D), F.logsigmoid
    q, k, v, vector = tensors(head, head, head, head)
    scalar, beta = tensors((B, T, H), (B, T, H))
    yield Case(
        "delta_rule",
        lambda q, k, v, b: delta_rule(q, _unit(k), v, b.sigmoid())[0],
        "fla delta_rule_chunkwise",
        lambda q, k, v, b: peers.delta_rule(q, _unit(k), v, b.sigmoid()),
        [q, k, v, beta],
    )
    for peer_name, peer, goal in (
        ("transformers torch_chunk_gated_delta_rule", peers.gated_delta_transformers, 1.5),
        ("fla naive_chunk_gated_delta_rule", peers.gated_delta_fla, NO_SLOWER),
    ):
        yield Case(
            "delta_rule, gated",
            lambda q, k, v, b, x: delta_rule(q, _unit(k), v, b.sigmoid(), log(x))[0],
            peer_name,
            lambda q, k, v, b, x, f=peer: f(q, _unit(k), v, b.sigmoid(), log(x)),
            [q, k, v, beta, scalar],
            goal_at_2=goal,
        )

    def removal(k: Tensor) -> tuple[Tensor, Tensor]:  # RWKV-7's (a, b) = (-kk, kk / 2)
        return -_unit(k), 0.5 * _unit(k)

    yield Case(
        "dplr_rule",
        lambda q, k, v, x: dplr_rule(q, k, v, *removal(k), 0.6 * log(x))[0],
        "fla dplr_chunkwise",
        lambda q, k, v, x: peers.dplr(q, k, v, *removal(k), 0.6 * log(x)),
        [q, k, v, vector],
        goal_at_2=3.0,
    )


def _elementwise() -> Iterator[Case]:
    a, x = tensors((B, T, CHANNELS), (B, T, CHANNELS))
    yield Case(
        "diag_scan",
        lambda a, x: first(diag_scan(a.sigmoid(), x)),
        "fla naive_recurrent_hgrn",
        lambda a, x: peers.hgrn(F.logsigmoid(a), x),
        [a, x],
        shape=f"B{B} T{T} D{CHANNELS}",
        goal_at_2=3.0,
    )
    y, weight = tensors((B, T, 2 * CHANNELS), (4, 2 * CHANNELS))
    yield Case(
        "causal_conv1d",
        lambda y, w: causal_conv1d(y, w)[0],
        "torch conv1d with groups",
        peers.conv1d,
        [y, weight],
        shape=f"B{B} T{T} D{2 * CHANNELS} W4",
    )


if __name__ == "__main__":
    for row in rows():
        print(row)
