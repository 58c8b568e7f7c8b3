"""Delta rules and scans beyond `bench_ops.py`: their overhead at the demo's size, and the memory of training.

Small: d = 64, T = 128, 8 sequences, one thread, against the fastest peer. Memory: bytes that the forward
pass leaves for the backward one, against what a recurrence that keeps every state would need; no times.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from bench_ops import NO_SLOWER, seconds, tensors, train_step
from torch import Tensor

from seqarch.ops.delta_rule.op import delta_rule
from seqarch.ops.diag_scan.op import diag_scan
from seqarch.ops.dplr_rule.op import dplr_rule
from seqarch.ops.selective_scan.op import selective_scan

SMALL = (8, 128, 2, 32, 32)  # B, T, H, K, V
LONG = (1, 1024, 4, 64, 64)
CHANNELS, STATES = 128, 16
Call = Callable[..., Tensor]


def rows() -> Iterator[dict[str, Any]]:
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from _small()
        yield from _memory()
    finally:
        torch.set_num_threads(threads_before)


def _unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


def _heads(B: int, T: int, H: int, K: int, V: int) -> list[Tensor]:
    """q, k, v, beta, g, and DPLR's a, b, g."""
    q, k, v, beta, x, y, z = tensors(
        (B, T, H, K), (B, T, H, K), (B, T, H, V), (B, T, H), (B, T, H), (B, T, H, K), (B, T, H, K)
    )
    inputs = [
        q,
        _unit(k),
        v,
        beta.sigmoid(),
        F.logsigmoid(x),
        -_unit(y),
        0.5 * _unit(y),
        0.6 * F.logsigmoid(z),
    ]
    return [i.detach().requires_grad_() for i in inputs]


def _channels(B: int, T: int) -> list[Tensor]:
    """u, delta, A, B, C of the selective scan."""
    u, delta, A, maps = tensors((B, T, CHANNELS), (B, T, CHANNELS), (CHANNELS, STATES), (2, B, T, STATES))
    inputs = [u, 0.1 * F.softplus(delta), -A.exp(), *maps.unbind(0)]
    return [i.detach().requires_grad_() for i in inputs]


def _small() -> Iterator[dict[str, Any]]:
    from fla.ops.delta_rule.naive import delta_rule_chunkwise
    from fla.ops.generalized_delta_rule.dplr.naive import dplr_chunkwise
    from fla.ops.hgrn.naive import naive_recurrent_hgrn
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    chunk_gated = inspect.unwrap(torch_chunk_gated_delta_rule)  # the name dispatches to fla's GPU kernel
    q, k, v, beta, g, a, b, w = _heads(*SMALL)
    u, delta, A, B, C = _channels(*SMALL[:2])
    decay = torch.sigmoid(delta).detach().requires_grad_()

    def mamba(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        return _output(inspect.unwrap(mamba_selective_scan))(u.mT, delta.mT, A, B.mT, C.mT).mT

    def head_first(function: Call) -> Call:
        return lambda *xs: function(*(x.transpose(1, 2) for x in xs))[0].transpose(1, 2)

    cases: list[tuple[str, Call, str, Call, list[Tensor]]] = [
        (
            "delta_rule",
            delta_rule,
            "fla delta_rule_chunkwise",
            head_first(delta_rule_chunkwise),
            [q, k, v, beta],
        ),
        (
            "delta_rule gated",
            delta_rule,
            "transformers torch_chunk_gated_delta_rule",
            lambda q, k, v, beta, g: chunk_gated(q, k, v, g, beta),
            [q, k, v, beta, g],
        ),
        ("dplr_rule", dplr_rule, "fla dplr_chunkwise", head_first(dplr_chunkwise), [q, k, v, a, b, w]),
        (
            "diag_scan",
            diag_scan,
            "fla naive_recurrent_hgrn",
            lambda a, x: naive_recurrent_hgrn(x, a.log()),
            [decay, u],
        ),
        ("selective_scan", selective_scan, "transformers mamba_selective_scan", mamba, [u, delta, A, B, C]),
    ]
    for name, ours, peer_name, peer, inputs in cases:
        calls = [train_step(_output(function), inputs) for function in (ours, peer)]
        mine, theirs = seconds(calls)
        yield {
            "benchmark": f"small {name}",
            "shape": "x".join(str(n) for n in inputs[0].shape),
            "threads": 1,
            "ours": "reference",
            "peer": peer_name,
            "ours_seconds": mine,
            "peer_seconds": theirs,
            "goal": NO_SLOWER,
        }


def _output(function: Call) -> Call:
    def call(*inputs: Tensor) -> Tensor:
        result = function(*inputs)
        return result[0] if isinstance(result, tuple) else result

    return call


def _memory() -> Iterator[dict[str, Any]]:
    """Kept bytes in place of seconds; the peer is T states (one for each step)."""
    q, k, v, beta, g, a, b, w = _heads(*LONG)
    scan = _channels(1, LONG[1])
    _, T, H, K, V = LONG
    cases: list[tuple[str, Call, list[Tensor], int]] = [
        ("delta_rule gated", delta_rule, [q, k, v, beta, g], T * H * K * V),
        ("dplr_rule", dplr_rule, [q, k, v, a, b, w], T * H * K * V),
        ("selective_scan", selective_scan, scan, T * CHANNELS * STATES),
    ]
    for name, function, inputs, every_state in cases:
        kept, states = kept_bytes(_output(function), inputs), 4 * every_state
        yield {
            "benchmark": f"memory {name} (bytes, not seconds)",
            "shape": "x".join(str(n) for n in inputs[0].shape),
            "threads": 1,
            "ours": "reference",
            "peer": "a state a step",
            "ours_seconds": kept,
            "peer_seconds": states,
            "goal": 2.0,
        }


def kept_bytes(function: Call, inputs: list[Tensor]) -> int:
    """Bytes of distinct memory that autograd keeps from the forward pass."""
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = function(*inputs)
    del result
    return sum(kept.values())
