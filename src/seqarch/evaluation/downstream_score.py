"""What downstream tasks ask of a model: log-likelihoods of continuations, of texts, and greedy answers.

Alignment: of n context ids and m continuation ids the model reads the first n + m − 1, and its predictions at
the last m places count. Every text starts with the token that starts documents in training. Requests are
batched by length and padded on the right, where a causal model's counted outputs cannot see it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from seqarch.errors import SeqarchError
from seqarch.evaluation.generation import CausalModel, Stops, generate
from seqarch.evaluation.score import LanguageModel

ROWS = 1024  # places whose logits are made at a time


class DownstreamError(SeqarchError):
    """A task cannot be run on this model."""


@dataclass
class Answerer:
    """A model and its tokenizer, asked by a harness.

    Attributes:
        encode: the ids of a text, without BOS.
        max_length: the most ids the model reads at once.
        truncated: how many requests were longer and lost their beginning.
    """

    model: LanguageModel
    generator: CausalModel
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    bos: int
    max_length: int
    batch_tokens: int = 16_384
    device: torch.device | str = "cpu"
    truncated: int = field(default=0, init=False)

    def with_bos(self, text: str) -> list[int]:
        return [self.bos, *self.encode(text)]

    def continuations(self, requests: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        """Of each (context ids, continuation ids): Σ log p of the continuation in nats, and whether greedy
        decoding would have said it. In the order of the requests."""
        windows = []
        for context, continuation in requests:
            if not context:
                raise DownstreamError("an empty context: expected at least the token that starts documents")
            if len(continuation) > self.max_length:
                raise DownstreamError(
                    f"a continuation of {len(continuation)} tokens, and the model reads {self.max_length}: "
                    "leave the task out, or give a larger max_length"
                )
            ids = [*context, *continuation][-(self.max_length + 1) :]
            self.truncated += len(context) + len(continuation) > len(ids)
            windows.append((ids[:-1], continuation))
        return self.windows(windows)

    def windows(self, windows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, bool]]:
        """Of each (inputs, the ids predicted at its last places): Σ log p, and whether all are the best."""
        found: list[tuple[float, bool]] = [(0.0, True)] * len(windows)
        order = sorted(range(len(windows)), key=lambda i: (-len(windows[i][0]), i))
        while order:
            n = max(1, self.batch_tokens // len(windows[order[0]][0]))
            batch, order = order[:n], order[n:]
            for i, answer in zip(batch, self._batch([windows[i] for i in batch]), strict=True):
                found[i] = answer
        return found

    @torch.inference_mode()
    def _batch(self, windows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, bool]]:
        longest = max(len(inputs) for inputs, _ in windows)
        ids = np.full((len(windows), longest), self.bos, dtype=np.int64)
        rows: list[int] = []
        places: list[int] = []
        targets: list[int] = []
        for row, (inputs, predicted) in enumerate(windows):
            ids[row, : len(inputs)] = inputs
            rows += [row] * len(predicted)
            places += range(len(inputs) - len(predicted), len(inputs))
            targets += predicted
        hidden, _ = self.model.hidden(torch.from_numpy(ids).to(self.device))
        chosen = hidden[rows, places]
        wanted = torch.tensor(targets, dtype=torch.int64, device=chosen.device)
        log_p, best = [], []
        for part, target in zip(chosen.split(ROWS), wanted.split(ROWS), strict=True):
            logits = self.model.logits(part)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            log_p.append(-torch.nn.functional.cross_entropy(logits, target, reduction="none").double())
            best.append(logits.argmax(-1) == target)
        ends = np.cumsum([len(predicted) for _, predicted in windows])[:-1]
        sums = [part.sum() for part in np.split(torch.cat(log_p).cpu().numpy(), ends)]
        greedy = [bool(part.all()) for part in np.split(torch.cat(best).cpu().numpy(), ends)]
        return list(zip(map(float, sums), greedy, strict=True))

    def answers(
        self, contexts: Sequence[str], until: Sequence[Sequence[str]], most: Sequence[int]
    ) -> list[str]:
        """The greedy answer to each context, up to the first of its stop strings or `most` tokens."""
        said = [""] * len(contexts)
        kinds: dict[tuple[tuple[str, ...], int], list[int]] = {}
        for i, (stops, n) in enumerate(zip(until, most, strict=True)):
            kinds.setdefault((tuple(stops), n), []).append(i)
        for (strings, n), members in kinds.items():
            room = self.max_length - n
            if room < 1:
                raise DownstreamError(
                    f"answers of {n} tokens, and the model reads {self.max_length}: leave the task out, or "
                    "give a larger max_length"
                )
            prompts = []
            for i in members:
                ids = self.with_bos(contexts[i])
                self.truncated += len(ids) > room
                prompts.append(ids[-room:])
            ends = Stops(frozenset({self.bos}), strings)
            for j, answer in generate(self.generator, prompts, self.decode, n, ends, self.batch_tokens):
                said[members[j]] = answer.text
        return said
