"""Whole mixers of width 256 on a CPU, forward + backward: against the layers of transformers, against each
other, and against their own cost at an eighth of the length.

B = 2, T = 1024, float32. The slowest mixer may take 6 times as long as attention; a mixer with a state of
constant size must cost at most 10 times as much at 8 times the length.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from timing import NO_SLOWER, Measured, against, first, layer_step, seconds, tensors
from torch import Tensor, nn

from seqarch.mixers import registry

B, T, D_MODEL = 2, 1024, 256
SLOWEST = 6
GROWTH = 10  # for 8 times the length


def rows() -> Iterator[dict[str, Any]]:
    threads_before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            yield from _peers()
        yield from _cost()
    finally:
        torch.set_num_threads(threads_before)


def mixer_layer(name: str, **options: Any) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """A mixer of width 256 with its defaults, and its call."""
    cls = registry.config_class(name)
    config = cls(**(cls.sizes_for(D_MODEL, None) | {"d_model": D_MODEL, "hidden": 8} | options))
    layer = registry.module_class(name)(config)
    layer.init_weights()
    shared = {name: registry.shared_class(name)([config])()} if config.has_shared else {}
    return layer, lambda x: layer(x, shared=dict(shared), return_state=False)[0]


# --- against transformers -----------------------------------------------------------------------------


def _peers() -> Iterator[dict[str, Any]]:
    two = torch.get_num_threads() == 2
    sizes = {"n_heads": 8, "head_dim": 64, "d_state": 128}
    yield _pair("mamba2", "transformers Mamba2Mixer", _mamba2, 2.0 if two else NO_SLOWER, **sizes)
    sizes = {"width": D_MODEL, "block_width": 64}
    yield _pair(
        "rglru",
        "transformers RecurrentGemmaRecurrentBlock",
        _recurrent_gemma,
        3.0 if two else NO_SLOWER,
        **sizes,
    )
    yield _pair("mamba1", "transformers MambaMixer", _mamba1, NO_SLOWER, length=256)
    if two:
        yield _slow_mamba1()


def _pair(
    mixer: str,
    peer_name: str,
    make_peer: Callable[[], nn.Module],
    goal: float,
    length: int = T,
    **options: Any,
) -> dict[str, Any]:
    layer, call = mixer_layer(mixer, **options)
    (x,) = tensors((B, length, D_MODEL))
    made: list[Callable[[], None]] = []

    def theirs() -> None:
        if not made:
            peer = make_peer()
            made.append(layer_step(peer, x, lambda x: first(peer(x))))
        made[0]()

    ours = (mixer, layer_step(layer, x, call))
    return against(f"layer {mixer}", f"B{B} T{length} d{D_MODEL}", ours, (peer_name, theirs), goal, repeats=5)


def _slow_mamba1() -> dict[str, Any]:
    """The backward pass of the peer is quadratic in T: most of a minute, so it runs once, not warmed up."""
    layer, call = mixer_layer("mamba1")
    (x,) = tensors((B, T, D_MODEL))
    row = {
        "benchmark": "layer mamba1",
        "shape": f"B{B} T{T} d{D_MODEL}",
        "threads": 2,
        "ours": "mamba1",
        "peer": "transformers MambaMixer, once",
        "goal": 100.0,
    }
    ours = seconds([layer_step(layer, x, call)])
    try:
        peer = _mamba1()
    except ImportError:
        return {**row, "ours_seconds": ours.times[0], "pass": None, "load": ours.load}
    step = layer_step(peer, x, lambda x: first(peer(x)))
    theirs = seconds([step], repeats=1, warm_up=False, attempts=1)
    load = max(ours.load, theirs.load)
    return {**row, "ours_seconds": ours.times[0], "peer_seconds": theirs.times[0], "load": load}


def _mamba1() -> nn.Module:
    import transformers
    from transformers.models.mamba.modeling_mamba import MambaMixer

    return MambaMixer(transformers.MambaConfig(hidden_size=D_MODEL, state_size=16), layer_idx=0)


def _mamba2() -> nn.Module:
    import transformers
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    config = transformers.Mamba2Config(
        hidden_size=D_MODEL, num_heads=8, head_dim=64, state_size=128, expand=2, n_groups=1
    )
    return Mamba2Mixer(config, layer_idx=0)


def _recurrent_gemma() -> nn.Module:
    import transformers
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

    config = transformers.RecurrentGemmaConfig(
        hidden_size=D_MODEL, lru_width=D_MODEL, num_attention_heads=4, num_hidden_layers=1
    )
    return _Positioned(RecurrentGemmaRecurrentBlock(config, layer_idx=0))


class _Positioned(nn.Module):
    """RecurrentGemma's block wants positions and an attention mask."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1])[None]
        return self.block(x, positions, None, use_cache=False)[0]


# --- among ourselves ----------------------------------------------------------------------------------


def _cost() -> Iterator[dict[str, Any]]:
    """Every mixer: within 6 times attention, and (if its state is constant) linear in T."""
    reference, reference_call = mixer_layer("attention")
    (x,) = tensors((B, T, D_MODEL))
    (long,) = tensors((1, 8 * T, D_MODEL))
    short = long.detach()[:, :T].clone().requires_grad_()
    attention = layer_step(reference, x, reference_call)
    for name in registry.names():
        layer, call = mixer_layer(name)
        yield against(
            f"layer {name}",
            f"B{B} T{T} d{D_MODEL}",
            (name, layer_step(layer, x, call)),
            ("attention", attention),
            goal=1 / SLOWEST,
            repeats=5,
        )
        cls = registry.config_class(name)
        config = cls(**(cls.sizes_for(D_MODEL, None) | {"d_model": D_MODEL}))
        if config.state_bytes(T) == config.state_bytes(8 * T):
            measured = seconds([layer_step(layer, long, call), layer_step(layer, short, call)], 5)
            yield growth(f"linear cost of layer {name}", f"B1 T{8 * T} d{D_MODEL}", name, measured)


def growth(benchmark: str, shape: str, ours: str, measured: Measured) -> dict[str, Any]:
    """The row of (time at 8 T, time at T): it passes below 10 times."""
    long, short = measured.times
    return {
        "benchmark": benchmark,
        "shape": shape,
        "threads": torch.get_num_threads(),
        "ours": ours,
        "peer": f"{GROWTH} times T{T}",
        "ours_seconds": long,
        "peer_seconds": GROWTH * short,
        "goal": 1.0,
        "load": measured.load,
    }


if __name__ == "__main__":
    for row in rows():
        print(row)
