"""The overhead of the ops at the demo's size: 8 sequences of T = 128, two heads of 32 or 128 channels, one
thread, forward + backward, against the fastest peer (`peers.py`).
"""

from collections.abc import Iterator
from typing import Any

import peers
import torch
import torch.nn.functional as F
from timing import Call, against, first, tensors, train_step
from torch import Tensor

from seqarch.ops.delta_rule.op import delta_rule
from seqarch.ops.diag_scan.op import diag_scan
from seqarch.ops.dplr_rule.op import dplr_rule
from seqarch.ops.linear_attention.op import linear_attention
from seqarch.ops.selective_scan.op import selective_scan

B, T, H, D = 8, 128, 2, 32
CHANNELS, STATES = 128, 16


def rows() -> Iterator[dict[str, Any]]:
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, op, peer_name, peer, inputs in _cases():
            ours, theirs = train_step(lambda *x, f=op: first(f(*x)), inputs), train_step(peer, inputs)
            shape = "x".join(str(n) for n in inputs[0].shape)
            yield against(f"small {name}", shape, ("reference", ours), (peer_name, theirs), repeats=15)
    finally:
        torch.set_num_threads(threads_before)


def _cases() -> Iterator[tuple[str, Call, str, Call, list[Tensor]]]:
    head, step = (B, T, H, D), (B, T, H)
    q, k, v, a, b, w = tensors(*[head] * 6)
    beta, g = tensors(step, step)
    unit = F.normalize
    q, k, v, beta, g, a, b, w = (
        x.detach().requires_grad_()
        for x in (
            q,
            unit(k, dim=-1),
            v,
            beta.sigmoid(),
            F.logsigmoid(g),
            -unit(a, dim=-1),
            0.5 * unit(b, dim=-1),
            0.6 * F.logsigmoid(w),
        )
    )
    yield "linear_attention, no decay", linear_attention, "fla", peers.linear_attention, [q, k, v]
    yield "linear_attention, scalar decay", linear_attention, "fla", peers.simple_gla, [q, k, v, g]
    yield "delta_rule", delta_rule, "fla delta_rule_chunkwise", peers.delta_rule, [q, k, v, beta]
    peer = "transformers torch_chunk_gated_delta_rule"
    yield "delta_rule, gated", delta_rule, peer, peers.gated_delta_transformers, [q, k, v, beta, g]
    yield "dplr_rule", dplr_rule, "fla dplr_chunkwise", peers.dplr, [q, k, v, a, b, w]
    u, delta, A, maps = tensors((B, T, CHANNELS), (B, T, CHANNELS), (CHANNELS, STATES), (2, B, T, STATES))
    u, delta, A, B_, C_ = (
        x.detach().requires_grad_() for x in (u, 0.1 * F.softplus(delta), -A.exp(), *maps.unbind(0))
    )
    peer = "fla naive_recurrent_hgrn"
    yield (
        "diag_scan",
        lambda d, x: diag_scan(d.neg().exp(), x),
        peer,
        lambda d, x: peers.hgrn(-d, x),
        [delta, u],
    )
    peer = "transformers mamba_selective_scan"
    yield "selective_scan", selective_scan, peer, peers.selective_scan, [u, delta, A, B_, C_]


if __name__ == "__main__":
    for row in rows():
        print(row)
