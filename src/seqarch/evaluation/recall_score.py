"""Scores of a trained model on a recall task: cells, their controls, and what the model costs.

A token counts if it is the most likely one where it is asked for, given all that stands before it, the
right answer's beginning included. An answer is exact if all of its tokens count: then greedy decoding says
the same, as its first wrong token would have been wrong here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from seqarch.architecture import describe, layer_configs
from seqarch.evaluation.proportions import wilson
from seqarch.model import Decoder, PositionOutOfRange
from seqarch.tasks.batch import IGNORE
from seqarch.tasks.recall.examples import ADJACENT, NO_NEEDLE, SHUFFLED, Examples, check_oracle
from seqarch.tasks.recall.streams import TEST, Spec, held_out, open_task

CAN_READ = 0.9  # score with the question next to its answer up to here: the model cannot read at all
LEAK = 0.05  # upper bound of the score without anything to find, from here on: the data leak
SURE = 0.9999  # … and it is above a guess's with this confidence
OK, NO_SIGNAL, LEAKING = "ok", "no signal", "leak"

# Columns beside the common ones.
SCORES = pa.schema(
    [
        ("kind", pa.string()),  # of task
        ("n_pairs", pa.int64()),  # pairs, entries; letters for copying
        ("train_length", pa.int64()),
        ("learning_rate", pa.float64()),  # of the run: the best on validation
        ("accuracy", pa.float64()),  # share of the asked tokens, mean over sequences
        ("exact", pa.float64()),  # share of sequences without a wrong token; one of the two is `score`
        ("chance", pa.float64()),  # the score of a guess
        ("oracle", pa.float64()),  # the score of a reader of the text
        ("adjacent", pa.float64()),  # controls: the question next to the only pair
        ("no_needle", pa.float64()),  # nothing to find
        ("shuffled", pa.float64()),  # other values
        ("signal", pa.string()),  # ok, no signal, leak; empty without controls
        ("position", pa.string()),  # how the architecture tells places apart
        ("state_bytes", pa.float64()),  # kept while decoding one sequence, at its end
        ("state_floats", pa.float64()),
        ("n_params", pa.int64()),
        ("n_params_no_embed", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Outcome:
    """Per sequence, float64 [n]: the share of asked tokens that are right, and whether all are."""

    accuracy: NDArray[np.float64]
    exact: NDArray[np.float64]

    def score(self, spec: Spec) -> NDArray[np.float64]:
        """The task's measure."""
        return self.accuracy if spec.metric == "accuracy" else self.exact


@torch.no_grad()
def outcome(model: Decoder, batches: Iterator[Examples] | Sequence[Examples], batch_tokens: int) -> Outcome:
    """Of a model in evaluation mode, on its device."""
    device = model.embedding.weight.device
    shares: list[NDArray[np.float64]] = []
    for examples in batches:
        rows = max(1, batch_tokens // examples.inputs.shape[1])
        for start in range(0, len(examples.inputs), rows):
            part = slice(start, start + rows)
            inputs = torch.from_numpy(examples.inputs[part]).to(device)
            found = model(inputs)[0].argmax(-1).cpu().numpy()
            targets = examples.targets[part]
            asked = targets != IGNORE
            right = ((found == targets) & asked).sum(axis=1)
            shares.append(right / asked.sum(axis=1))
    accuracy = np.concatenate(shares)
    return Outcome(accuracy, (accuracy == 1).astype(np.float64))


def check_positions(model: Mapping[str, Any], spec: Spec) -> None:
    """Raise PositionOutOfRange for learned positions and a test beyond them, before anything is trained."""
    learned = any(config.learned_positions for config in layer_configs(model)[1])
    if learned and spec.longest > spec.train_length:
        raise PositionOutOfRange(
            f"{spec.kind}: the test has {spec.longest} tokens, the model {spec.train_length} learned "
            "positions: leave out the longer tests, or this architecture (evaluation.recall.architectures)"
        )


def position_scheme(model: Mapping[str, Any]) -> str:
    """The position encodings of the blocks: `none`, `rope`, `learned` …"""
    return " ".join(sorted({layer["config"].get("position", "none") for layer in model["layers"]}))


def state_floats(model: Decoder, length: int) -> int:
    """Numbers that decoding one sequence keeps after `length` tokens: counted in the state itself."""
    ids = torch.zeros(1, length, dtype=torch.int64, device=model.embedding.weight.device)
    with torch.no_grad():
        _, state = model.hidden(ids, return_state=True)
    assert state is not None
    tensors = (
        tensor
        for layer in state["layers"]
        for part in layer
        for tensor in (part or {}).values()
        if isinstance(tensor, torch.Tensor)
    )
    return sum(tensor.numel() for tensor in tensors if tensor.is_floating_point())


class Exam:
    """The test sequences of a task, made and read by the oracle once for all runs.

    Args:
        n: sequences of a cell.
        seed: draws them.
    """

    def __init__(self, spec: Spec, n: int, seed: int) -> None:
        self.spec, self.task = spec, open_task(spec)
        self._cells = {
            case: held_out(self.task, spec.kind, case, n, TEST, seed) for case in self.task.cases()
        }
        for case, examples in self._cells.items():
            check_oracle(self.task, examples, f"{spec.kind}, {case}")
        controls = dict.fromkeys(control for case in self._cells for control in self.task.controls(case))
        self._controls = {
            control: held_out(self.task, spec.kind, control, n, TEST, seed) for control in controls
        }

    def rows(self, model: Decoder, resolved: Mapping[str, Any], batch_tokens: int) -> list[dict[str, Any]]:
        """A row a cell: score with Wilson's interval, controls, what the model keeps in its state."""
        controls = {
            control: float(outcome(model, [examples], batch_tokens).score(self.spec).mean())
            for control, examples in self._controls.items()
        }
        rows = []
        for case, examples in self._cells.items():
            found = outcome(model, [examples], batch_tokens)
            scores = found.score(self.spec)
            n, total = len(scores), float(scores.sum())
            low, high = wilson(total, n)
            own = {control.control: controls[control] for control in self.task.controls(case)}
            sizes = describe(resolved, case.length)
            rows.append(
                {
                    "length": case.length,
                    "used_tokens": case.length,
                    "n_pairs": case.pairs,
                    "depth": case.depth,
                    "n": n,
                    "k_correct": round(total) if self.spec.metric == "exact" else None,
                    "score": total / n,
                    "ci_lo": low,
                    "ci_hi": high,
                    "accuracy": float(found.accuracy.mean()),
                    "exact": float(found.exact.mean()),
                    "oracle": 1.0,
                    **{str(name): score for name, score in own.items()},
                    "signal": signal(own, self.spec.chance, n),
                    "state_bytes": sizes["state_bytes"],
                    "state_floats": state_floats(model, case.length),
                    "n_params": sizes["num_params"],
                    "n_params_no_embed": sizes["num_params_non_embedding"],
                }
            )
        return rows


def signal(controls: Mapping[str | None, float], chance: float, n: int) -> str | None:
    """What the controls of a cell say of it: `ok`, `leak`, `no signal`; None without controls.

    A leak is a score without anything to find that is above a guess's and not small.
    """
    if not controls:
        return None
    for name in (NO_NEEDLE, SHUFFLED):
        if name in controls:
            k = controls[name] * n
            if wilson(k, n, SURE)[0] > chance and wilson(k, n)[1] >= LEAK:
                return LEAKING
    return OK if controls.get(ADJACENT, 1.0) > CAN_READ else NO_SIGNAL
