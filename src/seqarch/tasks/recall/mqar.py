"""Multi-query associative recall (Arora et al., arXiv 2312.04927).

Token 0 is filler, 1 … V/2 - 1 are keys, V/2 … V - 1 values. A sequence of T tokens with K pairs is

    k₁ v₁ k₂ v₂ … k_K v_K, then filler in which each key stands once more

and at the second k_i its value v_i is asked for, at the same place. The filler is filler only: with any token
in the gaps, as Zoology's default has it, keys get contradictory values.

Where the queries stand: `uniform`, anywhere behind the pairs; `power`, at 2K + 2(g_i - 1) with different gaps
g_i of 1 … (T - 2K)//2, drawn in proportion to a g^(a - 1), so that near queries are frequent.
"""

import numpy as np

from seqarch.tasks.recall.draws import Draws, Ints
from seqarch.tasks.recall.examples import ADJACENT, SHUFFLED, Case, Examples, ignored
from seqarch.tasks.recall.spec import Mqar

FILLER = 0


class MqarTask:
    def __init__(self, spec: Mqar) -> None:
        self.spec = spec
        self.half = spec.vocab // 2

    def training(self, step: int) -> Case:
        return Case(self.spec.length, self.spec.pairs[step % len(self.spec.pairs)])

    def cases(self) -> list[Case]:
        """Cells with room for their pairs: 4K ≤ T."""
        return [
            Case(length, pairs)
            for length in self.spec.test_lengths
            for pairs in self.spec.test_pairs
            if 4 * pairs <= length
        ]

    def controls(self, case: Case) -> list[Case]:
        return [Case(case.length, case.pairs, control=SHUFFLED), Case(case.length, 1, control=ADJACENT)]

    def make(self, case: Case, rows: int, draws: Draws) -> Examples:
        k = case.pairs
        assert k is not None
        keys = draws.named("keys").distinct(self.half - 1, k, rows) + 1
        values = draws.named("values").distinct(self.half, k, rows) + self.half
        places = self._places(case, rows, draws.named("places"))
        inputs = np.full((rows, case.length), FILLER, dtype=np.int64)
        targets = ignored(inputs.shape)
        inputs[:, 0 : 2 * k : 2], inputs[:, 1 : 2 * k : 2] = keys, values
        np.put_along_axis(inputs, places, keys, axis=1)
        np.put_along_axis(targets, places, values, axis=1)
        if case.control == SHUFFLED:
            others = draws.named("others").distinct(self.half, k, rows) + self.half
            inputs[:, 1 : 2 * k : 2] = others
        return Examples(inputs, targets)

    def _places(self, case: Case, rows: int, draws: Draws) -> Ints:
        """Of the queries, [rows, K], for the keys in their order."""
        k = case.pairs
        assert k is not None
        if case.control == ADJACENT:
            return np.full((rows, 1), 2, dtype=np.int64)
        if self.spec.placement == "uniform":
            return draws.distinct(case.length - 2 * k, k, rows) + 2 * k
        gaps = np.arange(1, (case.length - 2 * k) // 2 + 1, dtype=np.float64)
        density = self.spec.power * gaps ** (self.spec.power - 1)
        return 2 * k + 2 * draws.weighted(density, k, rows)

    def read(self, inputs: Ints) -> Ints:
        """The value after each key's first place, at its later ones."""
        answers = np.zeros_like(inputs)
        bound: dict[int, int] = {}
        for place, token in enumerate(inputs.tolist()):
            if 0 < token < self.half:
                if token in bound:
                    answers[place] = bound[token]
                elif place + 1 < len(inputs):
                    bound[token] = int(inputs[place + 1])
        return answers
