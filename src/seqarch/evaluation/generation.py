"""Greedy continuation of prompts: one parallel pass over each prompt, then a token at a time.

Prompts of equal length make a batch. There is no padding: a recurrent state would take it in, and an
attention mask that hides it is one more thing to be wrong. So what a prompt gets does not depend on its
neighbours.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from seqarch.errors import SeqarchError
from seqarch.model import Decoder

Ended = Callable[[Tensor], Tensor]


class GenerationError(SeqarchError):
    """A prompt cannot be continued."""


class ContextTooLong(GenerationError):
    """A prompt and its answer are longer than what the model can read. Nothing is ever cut off."""


class NotANumber(GenerationError):
    """The model's logits are not finite."""


class CausalModel(Protocol):
    """What generation needs of a model.

    Attributes:
        context: the longest sequence it reads, prompt and answer; None: no limit of its own.
        max_batch: the most prompts it continues at once; None: any number.
        device: where it is.
    """

    context: int | None
    max_batch: int | None
    device: torch.device

    def greedy(self, prompts: Tensor, n: int, ended: Ended) -> Tensor:
        """The most probable next ids int [B, m] after `prompts` int [B, T], m <= n.

        Args:
            ended: of the new ids int [B, t] so far -> bool [B], the rows that need no more. Generation stops
                when all have ended; what a row got after its end is of no meaning.

        Raises NotANumber if the logits are not finite.
        """


@dataclass(frozen=True)
class Stops:
    """What ends an answer, beside its greatest length. Neither is part of the answer."""

    ids: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What a model said.

    Attributes:
        ids: the new ids; the stop id is not one of them.
        text: the text of these ids alone, up to a stop string.
        end: what ended it.
    """

    ids: tuple[int, ...]
    text: str
    end: Literal["id", "string", "length"]


class OwnModel:
    """A model of this package.

    Args:
        context: its limit where it has one (learned positions).
    """

    max_batch: int | None = None

    def __init__(self, model: Decoder, context: int | None = None) -> None:
        self.model, self.context = model.eval(), context
        if model.position_embedding is not None:
            self.context = min(
                context or model.position_embedding.num_embeddings, len(model.position_embedding.weight)
            )
        self.device = model.embedding.weight.device

    @torch.inference_mode()
    def greedy(self, prompts: Tensor, n: int, ended: Ended) -> Tensor:
        hidden, state = self.model.hidden(prompts, return_state=True)
        assert state is not None
        logits = self.model.logits(hidden[:, -1])
        del hidden
        state = own_storage(state)
        new = prompts.new_empty(len(prompts), n)
        for t in range(n):
            new[:, t] = most_probable(logits)
            if t + 1 == n or bool(ended(new[:, : t + 1]).all()):
                return new[:, : t + 1]
            logits, state = self.model.step(new[:, t], state)
        return new


def most_probable(logits: Tensor) -> Tensor:
    """The ids int [B] of the greatest logits [B, V]. Raises NotANumber if one is no number."""
    values, ids = logits.max(dim=-1)  # a NaN anywhere in the row is its maximum
    if not bool(values.isfinite().all()):
        raise NotANumber(
            "the model's logits are not finite (NaN or infinite): its weights are damaged, its precision is "
            "too low for it (give bfloat16 or float32), or its recurrence overflows at this length"
        )
    return ids


def own_storage(state: Any) -> Any:
    """The same state, in which no tensor keeps a larger one alive, as a slice of activations does."""
    if isinstance(state, Tensor):
        return state.clone() if state.untyped_storage().nbytes() > 2 * state.nbytes else state
    if isinstance(state, dict):
        return {name: own_storage(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(own_storage(value) for value in state)
    return state


def generate(
    model: CausalModel,
    prompts: Sequence[Sequence[int]],
    decode: Callable[[list[int]], str],
    max_new_tokens: int,
    stops: Stops | None = None,
    batch_tokens: int = 32_768,
) -> Iterator[tuple[int, Answer]]:
    """The number and the answer of each prompt, shortest prompts first.

    Args:
        prompts: ids.
        decode: the text of new ids.
        max_new_tokens: of an answer.
        batch_tokens: prompt and answer tokens of a batch, at most; a single longer prompt is a batch.

    Raises:
        GenerationError: an empty prompt.
        ContextTooLong: before anything is generated, if any prompt with its answer is over the model's limit.
        NotANumber: see `CausalModel.greedy`.
    """
    stops = stops or Stops()
    _check(model, prompts, max_new_tokens)
    lengths = [len(prompt) for prompt in prompts]
    for batch in batches(lengths, max_new_tokens, batch_tokens, model.max_batch):
        ids = torch.tensor([list(prompts[i]) for i in batch], dtype=torch.long, device=model.device)
        new = model.greedy(ids, max_new_tokens, _Ended(stops, decode))
        for i, row in zip(batch, new.tolist(), strict=True):
            yield i, answer(row, decode, stops)


def batches(
    lengths: Sequence[int], max_new_tokens: int, batch_tokens: int, max_batch: int | None = None
) -> Iterator[list[int]]:
    """Indices of prompts of equal length, shortest first, in their order."""
    groups: dict[int, list[int]] = {}
    for i, length in enumerate(lengths):
        groups.setdefault(length, []).append(i)
    for length, members in sorted(groups.items()):
        size = max(1, batch_tokens // (length + max_new_tokens))
        size = size if max_batch is None else min(size, max_batch)
        yield from (members[start : start + size] for start in range(0, len(members), size))


def answer(row: Sequence[int], decode: Callable[[list[int]], str], stops: Stops) -> Answer:
    """The answer in a row of new ids, which may go on after its end."""
    end: Literal["id", "string", "length"] = "length"
    kept = list(row)
    for t, token in enumerate(row):
        if token in stops.ids:
            kept, end = kept[:t], "id"
            break
    text = decode(kept)
    if not stops.strings or _found(text, stops.strings) is None:
        return Answer(tuple(kept), text, end)
    while kept and _found(decode(kept[:-1]), stops.strings) is not None:
        kept.pop()  # ids after the one that completed the stop string: a slower row's
    text = decode(kept)
    return Answer(tuple(kept), text[: _found(text, stops.strings)], "string")


def _found(text: str, strings: Iterable[str]) -> int | None:
    """Where the first of the strings begins."""
    return min((text.index(each) for each in strings if each in text), default=None)


class _Ended:
    """Which rows have reached a stop."""

    def __init__(self, stops: Stops, decode: Callable[[list[int]], str]) -> None:
        self.stops, self.decode = stops, decode
        self.over: Tensor | None = None

    def __call__(self, new: Tensor) -> Tensor:
        if self.over is None:
            self.over = torch.zeros(len(new), dtype=torch.bool, device=new.device)
        if self.stops.ids:
            last = new[:, -1]
            for stop in self.stops.ids:
                self.over |= last == stop
        if self.stops.strings:
            for i in (~self.over).nonzero().flatten().tolist():
                self.over[i] = _found(self.decode(new[i].tolist()), self.stops.strings) is not None
        return self.over


def _check(model: CausalModel, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    if max_new_tokens < 1:
        raise GenerationError(f"max_new_tokens: expected at least 1, got {max_new_tokens}")
    lengths = [len(prompt) for prompt in prompts]
    if lengths and min(lengths) == 0:
        raise GenerationError(
            f"prompt {lengths.index(0)} has no tokens: give it at least the token that starts documents"
        )
    # The last new token is never read again.
    longest = max(lengths, default=0) + max_new_tokens - 1
    if model.context is not None and longest > model.context:
        over = sum(length + max_new_tokens - 1 > model.context for length in lengths)
        raise ContextTooLong(
            f"{over} of {len(lengths)} prompts do not fit: the longest has {max(lengths)} tokens, its answer "
            f"up to {max_new_tokens}, and the model reads {model.context}: use shorter samples or another "
            "model; nothing is cut off"
        )
