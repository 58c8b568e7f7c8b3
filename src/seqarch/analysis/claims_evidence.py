"""What a run says about one pair of entries: one number a seed, and how far it would move if repeated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from seqarch.analysis.curves import MACRO_OOD, curve_set, with_roles
from seqarch.analysis.equal_loss import compare, phase_label, primary, resampled
from seqarch.analysis.errors import ComparisonError
from seqarch.analysis.interpolate import Floats
from seqarch.analysis.intervals import Cautious, Estimate, over_seeds, over_seeds_and_documents
from seqarch.analysis.spec import StatisticsSpec, StudySpec
from seqarch.evaluation.bootstrap import draws


class NotRun(ComparisonError):
    """The run lacks what a claim speaks of."""


@dataclass(frozen=True)
class Deltas:
    """Out-of-domain loss of an entry minus its reference's at the primary x0 of their common range."""

    seeds: tuple[int, ...]
    targets: tuple[str, ...]  # each out-of-domain set, then their mean
    once: Floats  # [T, S]; NaN without overlap
    drawn: Floats  # [T, B, S], documents drawn anew
    n_docs: tuple[int, ...]  # [T] documents of the smallest set involved
    x0: float
    length: int
    phase: str


@dataclass(frozen=True)
class Evidence:
    """One effect: a value for each seed, and how far other documents or samples would move it.

    Attributes:
        values: by seed; empty for a model without seeds.
        replicates: from losses, bootstrap means over seeds and documents [B].
        samples: from scores, the error over the samples that were asked.
    """

    values: Mapping[int, float]
    replicates: Floats | None = None
    n_docs: int = 0
    samples: Estimate | None = None

    @property
    def mean(self) -> float:
        if not self.values and self.samples is not None:
            return self.samples.mean
        return float(np.mean(list(self.values.values())))

    def estimate(self) -> Cautious:
        """Over seeds, and over documents or samples as well; with one seed no error is known."""
        if not self.values and self.samples is not None:
            return Cautious((self.samples,))
        kinds = [over_seeds(np.array(list(self.values.values())))]
        if self.replicates is not None and len(self.values) > 1:
            kinds.append(over_seeds_and_documents(kinds[0].mean, self.replicates, self.n_docs))
        if self.samples is not None:
            kinds.append(self.samples)
        return Cautious(tuple(kinds))


class Losses:
    """The document losses of a run, compared pair by pair; each comparison is made once."""

    def __init__(self, docs: pd.DataFrame, roles: Mapping[str, str], spec: StatisticsSpec) -> None:
        """`roles`: domain -> in | out, as configured."""
        self.roles = roles
        self.spec = spec
        self._parts = dict(list(docs.groupby(["setting", "arch"], sort=False)))
        self._made: dict[tuple, Deltas] = {}

    def outside(self, named: Sequence[str]) -> tuple[str, ...]:
        """The out-of-domain sets that a claim is tested on: those it names, else all."""
        every = tuple(domain for domain, role in self.roles.items() if role == "out")
        return tuple(domain for domain in named if domain in every) or every

    def deltas(self, arch: str, ref: str, setting: str, outside: tuple[str, ...]) -> Deltas:
        """Raises ComparisonError where rows are missing or cannot be compared."""
        key = (arch, ref, setting, outside)
        if key not in self._made:
            self._made[key] = self._deltas(*key)
        return self._made[key]

    def _deltas(self, arch: str, ref: str, setting: str, outside: tuple[str, ...]) -> Deltas:
        for name in (arch, ref):
            if (setting, name) not in self._parts:
                raise NotRun(f"no losses of {name} trained on the setting {setting!r}")
        docs = pd.concat([self._parts[setting, name] for name in (arch, ref)], ignore_index=True)
        docs = docs[docs["phase"].isin(self.spec.phases)]
        roles = {domain: role for domain, role in self.roles.items() if role == "in" or domain in outside}
        docs = with_roles(docs, roles)
        if missing := sorted(set(roles) - set(docs["domain"])):
            raise NotRun(
                f"no losses on {', '.join(missing)} at checkpoints in phase {list(self.spec.phases)}"
            )
        length = int(docs["length"].min())
        curves = curve_set(docs[docs["length"] == length], (arch, ref))
        study = StudySpec(reference=ref, compare=(arch,))
        many = {
            domain: draws(domain, len(n), self.spec.seed, self.spec.bootstrap)
            for domain, n in curves.n_tokens.items()
        }
        once = compare(curves, study, self.spec, curves.once())[arch]
        drawn = compare(curves, study, self.spec, many)[arch]
        at = primary(self.spec)
        inside = [len(curves.n_tokens[domain]) for domain in curves.domains("id")]
        sizes = [len(curves.n_tokens[domain]) for domain in curves.domains("ood")]
        return Deltas(
            seeds=once.seeds,
            targets=tuple(curves.targets()),
            once=once.delta[:, 0, :, at],
            drawn=drawn.delta[:, :, :, at],
            n_docs=tuple(min(*inside, n) for n in [*sizes, min(sizes)]),
            x0=float(once.x0[0, at]),
            length=length,
            phase=phase_label(curves, self.spec),
        )


def difference(deltas: Deltas, spec: StatisticsSpec, target: str = MACRO_OOD) -> Evidence:
    """The difference on one target; on the mean of the out-of-domain sets by default."""
    at = deltas.targets.index(target)
    means = resampled(deltas.drawn[[at], :, :, None], spec)[0, :, 0]
    return Evidence(dict(zip(deltas.seeds, deltas.once[at], strict=True)), means, deltas.n_docs[at])


def interaction(
    here: Deltas, there: Deltas, spec: StatisticsSpec, target: str = MACRO_OOD, sign: int = -1
) -> Evidence:
    """The difference in one setting minus (with sign = 1: plus) that in another: the same seeds and the same
    drawn documents."""
    seeds = tuple(seed for seed in here.seeds if seed in there.seeds)
    if not seeds:
        raise ComparisonError("the two settings share no seed: train both with the same seeds")
    once, drawn = [], []
    for each in (here, there):
        at, chosen = each.targets.index(target), [each.seeds.index(seed) for seed in seeds]
        once.append(each.once[at, chosen])
        drawn.append(each.drawn[at][:, chosen])
    means = resampled((drawn[0] + sign * drawn[1])[None, :, :, None], spec)[0, :, 0]
    n_docs = min(each.n_docs[each.targets.index(target)] for each in (here, there))
    return Evidence(dict(zip(seeds, once[0] + sign * once[1], strict=True)), means, n_docs)
