"""Variable tracking: one chain of assignments among noise, after a solved example.

The wording is RULER's, verbatim (Apache-2.0, NVIDIA/RULER at c3f5e3b).
"""

import itertools
import random
import string
from collections.abc import Iterator, Sequence

from seqarch.evaluation.ruler.errors import ResourceError
from seqarch.evaluation.ruler.fitting import largest
from seqarch.evaluation.ruler.niah import NOISE
from seqarch.evaluation.ruler.prompt import Prompt, Sample, Setup, Spot, fill
from seqarch.evaluation.ruler.streams import sample_seed, stream

TEMPLATE = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {query} in the text above."
)
PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {num_v} variables are "
    "assigned the value {query}, they are: "
)
HOPS = 4
N_NAMES = HOPS + 1
NAME_LENGTH, EXAMPLE_NAME_LENGTH = 5, 3
EXAMPLE_VALUE = "12345"
EXAMPLE_TOKENS = 500
MIN_LINES = 5


class Vt:
    """The task, set up (`seqarch.evaluation.ruler.prompt.Task`).

    Args:
        alphabet: of the names.

    Raises ResourceError if the alphabet makes too few names.
    """

    tokens_to_generate = 30
    least_length = 0

    def __init__(self, setup: Setup, alphabet: str = string.ascii_uppercase) -> None:
        if len(alphabet) ** EXAMPLE_NAME_LENGTH <= N_NAMES:
            raise ResourceError(f"vt: {alphabet!r} makes too few names of {EXAMPLE_NAME_LENGTH} letters")
        self.setup, self.alphabet = setup, alphabet
        self.prefix = PREFIX.rstrip() if setup.fixed else PREFIX  # D8
        self.template = f"{TEMPLATE}\0{self.prefix}\0{NOISE}"
        self.unit_tokens = float(setup.encoder.count([NOISE, "\n", NOISE]) - setup.encoder.count([NOISE]))
        self.file_seed = sample_seed(setup.seed, "vt-example", 0)
        self.example_lines = self._example_lines()

    def _example_lines(self) -> int:
        """Noise lines of the example, most that its budget allows (D5)."""
        names = self.names(stream(self.file_seed, "names"), EXAMPLE_NAME_LENGTH, set())
        limit = min(EXAMPLE_TOKENS, self.setup.length // 4) if self.setup.fixed else EXAMPLE_TOKENS
        least = self.least_example_lines

        def cost(step: int) -> int:
            context = self.context(names, EXAMPLE_VALUE, least + step, stream(self.file_seed, "lines", step))
            return self.setup.encoder.count(self.question(context[0], EXAMPLE_VALUE))

        return least + (largest(cost, limit, None, self.unit_tokens) or 0)

    @property
    def least_example_lines(self) -> int:
        return 0 if self.setup.fixed else MIN_LINES

    def names(self, rng: random.Random, length: int, used: set[str]) -> list[str]:
        """Distinct names (D4): upstream keeps a collision and breaks the chain. `VAR` would be a keyword."""
        found: list[str] = []
        while len(found) < N_NAMES:
            name = "".join(rng.choices(self.alphabet, k=length))
            if name not in found and not (self.setup.fixed and (name in used or name == "VAR")):
                found.append(name)
        return found

    def context(
        self, names: Sequence[str], value: str, n: int, rng: random.Random
    ) -> tuple[list[str], list[int]]:
        """n noise lines with the chain in between, in order; where its lines are."""
        first = f"VAR {names[0]} = {value}"
        chain = [first, *(f"VAR {b} = VAR {a} " for a, b in itertools.pairwise(names))]
        if n >= len(chain):
            places = sorted(rng.sample(range(n), len(chain)))
        else:
            places = sorted(rng.choices(range(n + 1), k=len(chain)))
        pieces: list[str] = []
        marks: list[int] = []
        for number in range(n + 1):
            while len(marks) < len(chain) and places[len(marks)] == number:
                line = chain[len(marks)]
                marks.append(len(pieces))
                pieces.append(f"\n{line}")
            if number < n:
                pieces.append(f"\n{NOISE}")
        pieces[0] = pieces[0].removeprefix("\n")
        return pieces, marks

    def question(self, context: list[str], value: str) -> list[str]:
        """The task's text with its prefix, no wrapper."""
        before, after = (fill(part, query=value) for part in TEMPLATE.split("{context}"))
        return [before, *context, after, self.answer_prefix(value)]

    def answer_prefix(self, value: str) -> str:
        return fill(self.prefix, query=value, num_v=str(N_NAMES))

    def variants(self, index: int) -> Iterator[Sample]:
        seed = sample_seed(self.setup.seed, self.setup.task, index)
        for lines in range(self.example_lines, self.least_example_lines - 1, -1):
            yield VtSample(self, seed, lines)


class VtSample:
    """Names, values and the solved example."""

    n_max = None

    def __init__(self, vt: Vt, seed: str, example_lines: int) -> None:
        self.vt, self.seed, self.example_lines = vt, seed, example_lines
        example_names = vt.names(stream(seed, "example"), EXAMPLE_NAME_LENGTH, set())
        self.names = vt.names(stream(seed, "names"), NAME_LENGTH, set(example_names))
        values = stream(seed, "values")
        self.value = str(values.randrange(10_000, 99_999))
        example_value = str(values.randrange(10_000, 99_999))
        while vt.setup.fixed and example_value == self.value:
            example_value = str(values.randrange(10_000, 99_999))
        # One layout for the file, as upstream; names and value are the sample's own.
        layout = stream(vt.file_seed, "lines", example_lines - vt.least_example_lines)
        context, _ = vt.context(example_names, example_value, example_lines, layout)
        self.example = [*vt.question(context, example_value), f" {' '.join(example_names)}\n", "\n"]

    def build(self, step: int) -> Prompt:
        vt, n = self.vt, MIN_LINES + step
        context, marks = vt.context(self.names, self.value, n, stream(self.seed, "positions", n))
        before, *rest, after, prefix = vt.question(context, self.value)
        wrapper = vt.setup.wrapper
        head = [*filter(None, [wrapper.before]), *self.example, before]
        pieces = [*head, *rest, after, *filter(None, [wrapper.after])]
        spots = []
        for place, name in zip(marks, self.names, strict=True):
            piece = context[place]
            start = piece.index("VAR")
            end = len(piece.rstrip())
            spots.append(Spot(len(head) + place, (start, end), (start + 4, start + 4 + len(name))))
        notes = (("example_lines", self.example_lines),)
        return Prompt(pieces, prefix, list(self.names), n, tuple(spots), 0, notes=notes)
