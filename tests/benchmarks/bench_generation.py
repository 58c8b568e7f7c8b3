"""Greedy generation: tokens a second against transformers' `generate`, for equal Mamba-2 models with equal
weights; and the whole of a small evaluation, prefill and 128 tokens, in seconds.

Both sides get the same prompts, all of one length, and make the same number of tokens; the first ones must be
equal. The decoding row leaves the prefill out on both sides: the time of 8 + n tokens minus that of 8. What
bounds it stands beside it: the step's own operations, replayed without the model's Python.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from seqarch.architecture import resolve
from seqarch.evaluation.checkpoints import state_spaces
from seqarch.evaluation.checkpoints.weights import Weights
from seqarch.evaluation.generation import OwnModel, Stops, generate
from seqarch.model import Decoder

GOAL = 5.0
VOCAB, D, LAYERS = 1024, 128, 7  # about 0.9 million parameters
HEADS, WIDTH, STATE = 8, 32, 64
BATCH, PROMPT, NEW = 16, 2048, 128
SECONDS = 20.0  # for prefill and 128 tokens, 16 prompts of 2K
REPEATS = 3


def rows() -> Iterator[dict[str, Any]]:
    threads = os.cpu_count() or 1
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield from against_transformers(threads)
        yield from whole(threads)
    finally:
        torch.set_num_threads(before)


def equal_models() -> tuple[Any, Any]:
    """Ours, and transformers' with the same weights."""
    from transformers import Mamba2Config, Mamba2ForCausalLM

    from seqarch.evaluation.transformers_adapter import HubModel

    config = Mamba2Config(
        vocab_size=VOCAB,
        hidden_size=D,
        num_hidden_layers=LAYERS,
        num_heads=HEADS,
        head_dim=WIDTH,
        state_size=STATE,
        n_groups=1,
        tie_word_embeddings=True,
        chunk_size=64,
    )
    torch.manual_seed(0)
    model = Mamba2ForCausalLM(config)
    weights = {name.replace("embeddings.", "embedding."): each for name, each in model.state_dict().items()}
    about = {
        "d_model": D,
        "n_layer": LAYERS,
        "ssm_cfg": {"layer": "Mamba2", "headdim": WIDTH, "d_state": STATE},
    }
    about |= {"rms_norm": True, "tie_embeddings": True}
    ours = OwnModel(state_spaces.load(about, Weights(weights, "random"), torch.float32))
    return ours, HubModel(model)


def against_transformers(threads: int) -> Iterator[dict[str, Any]]:
    ours, theirs = equal_models()
    generator = torch.Generator().manual_seed(1)
    for batch, prompt, new in ((BATCH, 256, 64), (1, 256, 64)):
        ids = torch.randint(VOCAB, (batch, prompt), generator=generator)
        never = lambda new_ids: torch.zeros(len(new_ids), dtype=torch.bool)  # noqa: E731
        # The first steps agree; later ones may not, where two logits are nearly equal.
        assert torch.equal(ours.greedy(ids, 8, never), theirs.greedy(ids, 8, never))

        def run(side: Any, n: int, ids: torch.Tensor = ids, never: Any = never) -> Callable[[], Any]:
            return lambda: side.greedy(ids, n, never)

        short = alternately(run(ours, 8), run(theirs, 8))
        long = alternately(run(ours, 8 + new), run(theirs, 8 + new))
        calls = recorded(ours.model, batch)
        operations = sum(not getattr(func, "is_view", False) for func, _, _ in calls)  # views cost little
        replayed = min(new * replayed_step(calls) for _ in range(REPEATS))
        row = {"threads": threads, "ours": "OwnModel", "peer": "transformers generate", "goal": GOAL}
        shape = f"{batch} x {prompt} + {new}, d {D}, {LAYERS} layers"
        yield {
            **row,
            "benchmark": "generation mamba2, decoding",
            "shape": shape,
            "ours_seconds": long[0] - short[0],
            "peer_seconds": long[1] - short[1],
        }
        yield {
            **row,
            "benchmark": "generation mamba2, decoding, against what bounds it",
            "shape": shape,
            "peer": f"{operations} operations and {len(calls) - operations} views without the model's Python",
            "ours_seconds": long[0] - short[0],
            "peer_seconds": replayed,
            "goal": 0.5,
        }
        yield {
            **row,
            "benchmark": "generation mamba2, with prefill",
            "shape": shape,
            "ours_seconds": long[0],
            "peer_seconds": long[1],
            "goal": 1.0,
        }


class Recording(TorchDispatchMode):
    """Keeps what a step calls: operations with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def recorded(model: Decoder, batch: int) -> list[tuple[Any, Any, Any]]:
    """The operations of one step."""
    with torch.inference_mode(), Recording() as recording:
        _, state = model.hidden(torch.zeros(batch, 4, dtype=torch.long), return_state=True)
        recording.calls.clear()
        model.step(torch.zeros(batch, dtype=torch.long), state)
    return recording.calls


@torch.inference_mode()
def replayed_step(calls: list[tuple[Any, Any, Any]]) -> float:
    """Seconds of a step's operations one after another, without the model's Python between them."""
    start, steps = time.perf_counter(), 20
    for _ in range(steps):
        for func, args, kwargs in calls:
            func(*args, **kwargs)
    return (time.perf_counter() - start) / steps


def whole(threads: int) -> Iterator[dict[str, Any]]:
    """One million parameters, 16 prompts of 2K tokens, 128 new tokens, as `cli.predict` does it."""
    for mixer in ("attention", "mamba2", "gated_deltanet", "rwkv7"):
        spec = {"scale": "tiny"}
        model = Decoder(resolve("x", {"x": {"mixer": mixer}}, spec, VOCAB, PROMPT)).eval()
        ids = torch.randint(VOCAB, (BATCH, PROMPT)).tolist()
        start = time.perf_counter()
        found = list(generate(OwnModel(model), ids, str, NEW, Stops(), batch_tokens=BATCH * (PROMPT + NEW)))
        seconds = time.perf_counter() - start
        assert len(found) == BATCH
        yield {
            "benchmark": f"generation {mixer}, prefill and decoding",
            "shape": f"{BATCH} x {PROMPT} + {NEW}, {model.num_params() / 1e6:.1f}M parameters",
            "threads": threads,
            "ours": f"{BATCH * NEW / seconds:.0f} tokens/s",
            "ours_seconds": seconds,
            "goal": 0,
            "pass": seconds < SECONDS,
        }


def alternately(*calls: Callable[[], Any]) -> list[float]:
    """The best time of each, measured in turn."""
    best = [float("inf")] * len(calls)
    for _ in range(REPEATS):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - start)
    return best
