"""Ops and whole mixers on a CPU, forward + backward, against what a user without a GPU would otherwise run.

Peers: torch's attention, fla's naive functions, the PyTorch paths of transformers. Shapes: B = 2, T = 1024,
and H = 4, K = V = 64 for ops, d = 256 for layers; float32. Both sides of a row get the same inputs and are
timed in turn.
"""

import inspect
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqarch.mixers import registry
from seqarch.ops.delta_rule.op import delta_rule
from seqarch.ops.diag_scan.op import diag_scan
from seqarch.ops.dplr_rule.op import dplr_rule
from seqarch.ops.linear_attention.op import linear_attention
from seqarch.ops.softmax_attention import softmax_attention

B, T, H, D, D_MODEL = 2, 1024, 4, 64, 256
REPEATS = 7
NO_SLOWER = 0.95
Call = Callable[..., Tensor]


def rows() -> Iterator[dict[str, Any]]:
    threads_before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for row in (*_ops(), *_layers(), *_cost()):
                goal = row.pop("goal_at_2", NO_SLOWER) if threads == 2 else NO_SLOWER
                row.pop("goal_at_2", None)
                yield {"goal": goal, "threads": threads, **row}
    finally:
        torch.set_num_threads(threads_before)


# --- timing -------------------------------------------------------------------------------------------


def seconds(calls: list[Callable[[], None]], repeats: int | None = None) -> list[float]:
    """Median time of each call; the calls take turns, so that a slow moment hits all of them."""
    taken: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(repeats or REPEATS):
        for each, times in zip(calls, taken, strict=True):
            start = time.perf_counter()
            each()
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in taken]


def train_step(function: Call, inputs: list[Tensor]) -> Callable[[], None]:
    """Forward and backward of `function(*inputs)` for all inputs that take gradients."""
    weight: list[Tensor] = []

    def call() -> None:
        o = function(*inputs)
        if not weight:
            weight.append(torch.randn_like(o))
        o.backward(weight[0])
        for x in inputs:
            x.grad = None

    return call


def layer_step(layer: nn.Module, x: Tensor, call: Callable[[Tensor], Tensor]) -> Callable[[], None]:
    step = train_step(call, [x])

    def run() -> None:
        step()
        layer.zero_grad(set_to_none=True)

    return run


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def pair(
    benchmark: str,
    ours: Call,
    peer_name: str,
    peer: Call,
    inputs: list[Tensor],
    shape: str = "",
    **extra: Any,
) -> dict[str, Any]:
    mine, theirs = seconds([train_step(ours, inputs), train_step(peer, inputs)])
    return {
        "benchmark": benchmark,
        "shape": shape or f"B{B} T{T} H{H} K{D} V{D}",
        "ours": "reference",
        "peer": peer_name,
        "ours_seconds": mine,
        "peer_seconds": theirs,
        **extra,
    }


# --- ops ----------------------------------------------------------------------------------------------


def _ops() -> Iterator[dict[str, Any]]:
    from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule
    from fla.ops.generalized_delta_rule.dplr.naive import dplr_chunkwise
    from fla.ops.gla.naive import naive_recurrent_gla
    from fla.ops.hgrn.naive import naive_recurrent_hgrn
    from fla.ops.linear_attn.naive import naive_chunk_linear_attn
    from fla.ops.retention.naive import naive_retention
    from fla.ops.rwkv6.recurrent_naive import naive_recurrent_rwkv6
    from fla.ops.simple_gla.naive import naive_chunk_simple_gla
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    head = (B, T, H, D)
    q, k, v, vector = tensors(head, head, head, head)
    scalar, beta = tensors((B, T, H), (B, T, H))
    (u,) = tensors((H, D))
    gamma = torch.log1p(-(2.0 ** (-5.0 - torch.arange(H))))
    log = F.logsigmoid

    def head_first(function: Call) -> Call:
        return lambda *xs: function(*(x.transpose(1, 2) for x in xs)).transpose(1, 2)

    yield pair(
        "softmax_attention", lambda *x: softmax_attention(*x)[0], "torch SDPA", head_first(_sdpa()), [q, k, v]
    )
    yield pair(
        "softmax_attention window 64",
        lambda *x: softmax_attention(*x, window=64)[0],
        "torch SDPA with a mask",
        head_first(_sdpa(window=64)),
        [q, k, v],
    )
    yield pair(
        "linear_attention no decay",
        lambda *x: linear_attention(*x)[0],
        "fla naive_chunk_linear_attn",
        lambda *x: _first(naive_chunk_linear_attn(*x, normalize=False)),
        [q, k, v],
    )
    yield pair(
        "linear_attention constant decay",
        lambda *x: linear_attention(*x, gamma)[0],
        "fla naive_retention",
        head_first(naive_retention),
        [q, k, v],
    )
    yield pair(
        "linear_attention scalar decay",
        lambda q, k, v, x: linear_attention(q, k, v, log(x))[0],
        "fla naive_chunk_simple_gla",
        lambda q, k, v, x: _first(naive_chunk_simple_gla(q, k, v, log(x), chunk_size=64)),
        [q, k, v, scalar],
        goal_at_2=2.0,
    )
    for name, sharpness in (("mild", 1 / 16), ("strong", 1.0), ("extreme", 40.0)):
        yield pair(
            f"linear_attention vector decay, {name}",
            lambda q, k, v, x, s=sharpness: linear_attention(q, k, v, s * log(x))[0],
            "fla naive_recurrent_gla",
            lambda q, k, v, x, s=sharpness: _first(naive_recurrent_gla(q, k, v, s * log(x))),
            [q, k, v, vector],
            goal_at_2=3.0,
        )
    yield pair(
        "linear_attention bonus",
        lambda q, k, v, x, u: linear_attention(q, k, v, log(x), bonus=u, scale=1.0)[0],
        "fla naive_recurrent_rwkv6",
        lambda q, k, v, x, u: _first(
            naive_recurrent_rwkv6(*(y.transpose(1, 2) for y in (q, k, v, log(x))), u, scale=1.0)
        ).transpose(1, 2),
        [q, k, v, vector, u],
        goal_at_2=3.0,
    )

    def unit(x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)

    chunk_gated = inspect.unwrap(torch_chunk_gated_delta_rule)  # the name dispatches to fla's GPU kernel
    yield pair(
        "delta_rule gated",
        lambda q, k, v, x, b: delta_rule(q, unit(k), v, b.sigmoid(), log(x))[0],
        "transformers torch_chunk_gated_delta_rule",
        lambda q, k, v, x, b: _first(chunk_gated(q, unit(k), v, g=log(x), beta=b.sigmoid())),
        [q, k, v, scalar, beta],
        goal_at_2=1.5,
    )
    yield pair(
        "delta_rule gated",
        lambda q, k, v, x, b: delta_rule(q, unit(k), v, b.sigmoid(), log(x))[0],
        "fla naive_chunk_gated_delta_rule",
        lambda q, k, v, x, b: _first(naive_chunk_gated_delta_rule(q, unit(k), v, log(x), b.sigmoid())),
        [q, k, v, scalar, beta],
    )
    yield from _delta(q, k, v, beta)

    def removal(k: Tensor) -> tuple[Tensor, Tensor]:  # RWKV-7's (a, b) = (-kk, kk / 2)
        return -unit(k), 0.5 * unit(k)

    yield pair(
        "dplr_rule",
        lambda q, k, v, x: dplr_rule(q, k, v, *removal(k), 0.6 * log(x))[0],
        "fla dplr_chunkwise",
        lambda q, k, v, x: _first(
            dplr_chunkwise(*(y.transpose(1, 2) for y in (q, k, v, *removal(k), 0.6 * log(x))))
        ).transpose(1, 2),
        [q, k, v, vector],
        goal_at_2=3.0,
    )
    a, x = tensors((B, T, D_MODEL), (B, T, D_MODEL))
    yield pair(
        "diag_scan",
        lambda a, x: diag_scan(a.sigmoid(), x)[0],
        "fla naive_recurrent_hgrn",
        lambda a, x: _first(naive_recurrent_hgrn(x, log(a))),
        [a, x],
        shape=f"B{B} T{T} D{D_MODEL}",
        goal_at_2=3.0,
    )


def _delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Iterator[dict[str, Any]]:
    from fla.ops.delta_rule.naive import delta_rule_chunkwise

    def peer(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
        head_first = (y.transpose(1, 2) for y in (q, F.normalize(k, dim=-1), v, b.sigmoid()))
        return _first(delta_rule_chunkwise(*head_first)).transpose(1, 2)

    yield pair(
        "delta_rule",
        lambda q, k, v, b: delta_rule(q, F.normalize(k, dim=-1), v, b.sigmoid())[0],
        "fla delta_rule_chunkwise",
        peer,
        [q, k, v, beta],
    )


def _sdpa(window: int | None = None) -> Call:
    if window is None:
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    mask = (distance >= 0) & (distance < window)
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _first(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


# --- layers -------------------------------------------------------------------------------------------


def mixer_layer(name: str, **options: Any) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """A mixer of width 256 with its defaults, and its call."""
    cls = registry.config_class(name)
    config = cls(**(cls.sizes_for(D_MODEL, None) | {"d_model": D_MODEL, "hidden": 8} | options))
    layer = registry.module_class(name)(config)
    layer.init_weights()
    shared = {name: registry.shared_class(name)([config])()} if config.has_shared else {}
    return layer, lambda x: layer(x, shared=dict(shared), return_state=False)[0]


def against(
    benchmark: str,
    mixer: str,
    peer_name: str,
    peer: nn.Module,
    length: int = T,
    repeats: int = 3,
    **extra: Any,
) -> dict[str, Any]:
    options = extra.pop("options", {})
    layer, call = mixer_layer(mixer, **options)
    (x,) = tensors((B, length, D_MODEL))
    ours = layer_step(layer, x, call)
    theirs = layer_step(peer, x, lambda x: _first(peer(x)))
    (mine,) = seconds([ours])
    (other,) = seconds([theirs], repeats) if repeats else [_once(theirs)]
    return {
        "benchmark": benchmark,
        "shape": f"B{B} T{length} d{D_MODEL}",
        "ours": mixer,
        "peer": peer_name,
        "ours_seconds": mine,
        "peer_seconds": other,
        **extra,
    }


def _once(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _layers() -> Iterator[dict[str, Any]]:
    import transformers
    from transformers.models.mamba.modeling_mamba import MambaMixer
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

    if "mamba2" in registry.names():
        config = transformers.Mamba2Config(
            hidden_size=D_MODEL, num_heads=8, head_dim=64, state_size=128, expand=2, n_groups=1
        )
        peer = Mamba2Mixer(config, layer_idx=0)
        sizes = {"n_heads": 8, "head_dim": 64, "d_state": 128}
        yield against(
            "layer mamba2", "mamba2", "transformers Mamba2Mixer", peer, options=sizes, goal_at_2=2.0
        )
    if "mamba1" in registry.names():
        peer = MambaMixer(transformers.MambaConfig(hidden_size=D_MODEL, state_size=16), layer_idx=0)
        yield against("layer mamba1", "mamba1", "transformers MambaMixer", peer, length=256)
        if torch.get_num_threads() == 2:  # its backward is quadratic: more than a minute, once
            yield against(
                "layer mamba1", "mamba1", "transformers MambaMixer", peer, repeats=0, goal_at_2=100.0
            )
    if "rglru" in registry.names():
        config = transformers.RecurrentGemmaConfig(
            hidden_size=D_MODEL, lru_width=D_MODEL, num_attention_heads=4, num_hidden_layers=1
        )
        block = RecurrentGemmaRecurrentBlock(config, layer_idx=0)
        yield against(
            "layer rglru",
            "rglru",
            "transformers RecurrentGemmaRecurrentBlock",
            _Positioned(block),
            options={"width": D_MODEL, "block_width": 64},
            goal_at_2=3.0,
        )


class _Positioned(nn.Module):
    """RecurrentGemma's block wants positions and an attention mask."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1])[None]
        return self.block(x, positions, None, use_cache=False)[0]


def _cost() -> Iterator[dict[str, Any]]:
    """Every mixer: within 6 times attention as a layer, and (if its state is constant) linear in T."""
    reference, reference_call = mixer_layer("attention")
    (x,) = tensors((B, T, D_MODEL))
    (long,) = tensors((1, 8 * T, D_MODEL))
    short = long.detach()[:, :T].clone().requires_grad_()
    for name in registry.names():
        layer, call = mixer_layer(name)
        mine, attention = seconds([layer_step(layer, x, call), layer_step(reference, x, reference_call)], 5)
        yield {
            "benchmark": f"layer {name}",
            "shape": f"B{B} T{T} d{D_MODEL}",
            "ours": name,
            "peer": "attention",
            "ours_seconds": mine,
            "peer_seconds": attention,
            "goal": 1 / 6,
        }
        cls = registry.config_class(name)
        config = cls(**(cls.sizes_for(D_MODEL, None) | {"d_model": D_MODEL}))
        if config.state_bytes(T) != config.state_bytes(8 * T):
            continue
        at_8k, at_1k = seconds([layer_step(layer, long, call), layer_step(layer, short, call)], 3)
        yield {
            "benchmark": f"linear cost {name}",
            "shape": f"B1 T{8 * T} d{D_MODEL}",
            "ours": name,
            "peer": f"10 times T{T}",
            "ours_seconds": at_8k,
            "peer_seconds": 10 * at_1k,
            "goal": 1.0,
        }
