"""Generation: what a prompt gets depends on nothing but the prompt; stops; every kind of bad model."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from seqarch.architecture import resolve
from seqarch.evaluation.generation import (
    Answer,
    ContextTooLong,
    GenerationError,
    NotANumber,
    OwnModel,
    Stops,
    batches,
    generate,
    own_storage,
)
from seqarch.mixers import registry
from seqarch.model import Decoder

VOCAB = 40


def model_of(entry: dict[str, Any], *, dtype: torch.dtype = torch.float64, length: int = 64) -> Decoder:
    """Away from its initial values: zeros would hide errors, and every logit would be the same."""
    spec = {"d_model": 64, "n_layers": 2, "tie_embeddings": False}
    model = Decoder(resolve("x", {"x": {"hidden": 16, "layers": 2, **entry}}, spec, VOCAB, length)).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator).to(dtype))
    return model


def spell(ids: Sequence[int]) -> str:
    return "".join(chr(ord("A") + token) for token in ids)


def prompts_of(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(length)] for length in lengths]


def run(model: Any, prompts: Sequence[Sequence[int]], n: int, **options: Any) -> list[Answer]:
    return [each for _, each in sorted(generate(model, prompts, spell, n, **options))]


@pytest.mark.parametrize("mixer", registry.names())
def test_a_batch_is_its_prompts_one_by_one_and_the_whole_forward_pass(mixer: str) -> None:
    """Fault 32. Three ways to the same ids: in batches, alone, and by the parallel form over the growing
    sequence."""
    model = model_of({"mixer": mixer})
    own, prompts, n = OwnModel(model), prompts_of([9, 1, 33, 9, 9, 33, 2]), 8
    together = run(own, prompts, n)
    alone = [run(own, [prompt], n)[0] for prompt in prompts]
    assert together == alone
    for prompt, found in zip(prompts, together, strict=True):
        ids = list(prompt)
        with torch.no_grad():
            for _ in range(n):
                logits, _ = model(torch.tensor([ids]))
                ids.append(int(logits[0, -1].argmax()))
        assert list(found.ids) == ids[len(prompt) :]
    assert len({each.ids for each in together}) > 1


@pytest.mark.parametrize("mixer", registry.names())
def test_what_decoding_keeps_grows_for_caches_only(mixer: str) -> None:
    """After 8 and after 40 steps: the same bytes, or the bytes of 32 more keys; and nothing of the prompt's
    activations is kept alive by a slice of them."""
    model = model_of({"mixer": mixer}, dtype=torch.float32)

    def kept(state: Any) -> int:
        if isinstance(state, Tensor):
            return state.untyped_storage().nbytes()
        parts = (
            state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else []
        )
        return sum(kept(each) for each in parts)

    with torch.inference_mode():
        _, state = model.hidden(torch.randint(VOCAB, (2, 200)), return_state=True)
        after = []
        state = own_storage(state)
        for step in range(40):
            _, state = model.step(torch.tensor([1, 2]), state)
            if step in (7, 39):
                after.append(kept(state))
    grows = mixer in ("attention", "top1_element", "top1_chunk")
    assert (after[1] > after[0]) == grows
    assert after[1] <= after[0] * 240 / 200


class Scripted:
    """A model that says one thing, whatever it is asked."""

    max_batch = None

    def __init__(self, says: Sequence[int], context: int | None = None) -> None:
        self.says, self.context, self.device = list(says), context, torch.device("cpu")
        self.steps = 0

    def greedy(self, prompts: Tensor, n: int, ended: Callable[[Tensor], Tensor]) -> Tensor:
        row = [self.says[t % len(self.says)] for t in range(n)]
        new = torch.tensor([row] * len(prompts))
        for t in range(n):
            self.steps = t + 1
            if bool(ended(new[:, : t + 1]).all()):
                return new[:, : t + 1]
        return new


def test_a_model_that_emits_nothing() -> None:
    found = run(Scripted([3]), [[1, 2]], 10, stops=Stops(ids=frozenset({3})))
    assert found == [Answer((), "", "id")]


def test_endless_text_ends_at_its_greatest_length() -> None:
    endless = Scripted([5, 6])
    assert run(endless, [[1, 2]], 7, stops=Stops(ids=frozenset({3}))) == [
        Answer((5, 6, 5, 6, 5, 6, 5), spell([5, 6, 5, 6, 5, 6, 5]), "length")
    ]


def test_a_stop_string_ends_the_answer_before_it() -> None:
    """It may span ids; what the id that completed it says beyond is no part of the text."""
    model = Scripted([5, 6, 7, 8, 9])
    (found,) = run(model, [[1]], 50, stops=Stops(strings=("Z", spell([6, 7]))))
    assert found == Answer((5, 6, 7), spell([5]), "string")
    assert model.steps == 3


def test_rows_of_a_batch_end_each_at_its_own_stop() -> None:
    class Two(Scripted):
        def greedy(self, prompts: Tensor, n: int, ended: Callable[[Tensor], Tensor]) -> Tensor:
            rows = torch.tensor([[5, 3, 9, 9, 9, 9], [5, 6, 6, 6, 3, 9]])
            for t in range(n):
                self.steps = t + 1
                if bool(ended(rows[:, : t + 1]).all()):
                    return rows[:, : t + 1]
            return rows

    model = Two([0])
    found = run(model, [[1, 2], [3, 4]], 6, stops=Stops(ids=frozenset({3})))
    assert [each.ids for each in found] == [(5,), (5, 6, 6, 6)]
    assert model.steps == 5  # not longer than the slowest needs


def test_only_new_ids_are_decoded() -> None:
    """A model that repeats its prompt says it as its answer, and a decoder never sees the prompt."""
    seen: list[list[int]] = []

    def decode(ids: list[int]) -> str:
        seen.append(ids)
        return spell(ids)

    list(generate(Scripted([5, 6]), [[1, 2, 3]], decode, 2))
    assert seen
    assert all(1 not in ids and 3 not in ids for ids in seen)


def test_a_prompt_over_the_model_s_context_is_an_error_before_anything_is_generated() -> None:
    model = Scripted([5], context=10)
    assert run(model, [[1] * 6], 5)[0].end == "length"  # the last new id is not read
    with pytest.raises(ContextTooLong, match=r"1 of 2 prompts.* 7 tokens.* up to 5.* reads 10"):
        run(model, [[1] * 6, [1] * 7], 5)
    assert model.steps == 5


def test_learned_positions_limit_the_context() -> None:
    model = model_of({"mixer": "attention", "position": "learned"}, length=16)
    assert OwnModel(model).context == 16
    assert len(run(OwnModel(model), [[1] * 12], 5)[0].ids) == 5
    with pytest.raises(ContextTooLong):
        run(OwnModel(model), [[1] * 13], 5)


def test_an_empty_prompt_is_an_error() -> None:
    with pytest.raises(GenerationError, match="prompt 1 has no tokens"):
        run(Scripted([1]), [[1], []], 5)
    with pytest.raises(GenerationError, match="max_new_tokens"):
        run(Scripted([1]), [[1]], 0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_an_error(value: float) -> None:
    model = model_of({"mixer": "attention"})
    assert model.head is not None
    with torch.no_grad():
        model.head.weight[7] = value
    with pytest.raises(NotANumber, match="not finite"):
        run(OwnModel(model), [[1, 2, 3]], 4)


def test_batches_hold_equal_lengths_and_no_more_than_they_may() -> None:
    lengths = [5, 9, 5, 5, 9, 30]
    found = list(batches(lengths, 5, 20))
    assert found == [[0, 2], [3], [1], [4], [5]]
    assert sorted(i for batch in found for i in batch) == list(range(6))
    assert list(batches([5, 5, 5], 5, 100, max_batch=2)) == [[0, 1], [2]]


def test_float32_answers_agree_wherever_the_choice_is_clear() -> None:
    """In a batch and alone, where the two best logits differ by more than 1e-4."""
    model = model_of({"mixer": "mamba2"}, dtype=torch.float32)
    own, prompts = OwnModel(model), prompts_of([40] * 8, seed=3)
    together = run(own, prompts, 16)
    for prompt, found in zip(prompts, together, strict=True):
        alone = run(own, [prompt], 16)[0]
        for t, (a, b) in enumerate(zip(found.ids, alone.ids, strict=True)):
            with torch.no_grad():
                logits, _ = model(torch.tensor([[*prompt, *found.ids[:t]]]))
            best = logits[0, -1].topk(2).values
            if best[0] - best[1] < 1e-4:
                break
            assert a == b
