"""What the pairs of a claim say, and what they come to: supported, contradicted, inconclusive, not run.

A claim is about every pair of entries that realises it. Each pair is tested for difference and for
equivalence (analysis/equal_loss.py; here in the pair's own common range of in-domain losses), with Holm's
correction over the claim's pairs for both tests:

- difference: different with the claimed sign is support; equivalent, or different with the other sign, is
  contradiction. A difference within the margin, with the claimed sign, decides nothing.
- equivalence: equivalent is support, also where a difference smaller than the margin shows; different is
  contradiction.
- interaction: of the pairs that differ in `setting`, the difference is smaller in `against` (support), or
  equivalent or larger (contradiction). Smaller means closer to zero: with a difference h > 0 in `setting` and
  g in `against`, both h - g > 0 and h + g > 0 are to be shown. Pairs that do not differ have nothing to hide
  and do not count; if all are equivalent, that contradicts the claim.

One contradicted pair contradicts the claim; else one that could not be evaluated makes it "not run"; it is
supported if all pairs are. Missing or incomparable rows are "not run", never support.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from statsmodels.stats.multitest import multipletests

from seqarch.analysis.claims_evidence import Evidence
from seqarch.analysis.claims_spec import Claim
from seqarch.analysis.equal_loss import NO_OVERLAP, verdict
from seqarch.analysis.intervals import UNKNOWN
from seqarch.analysis.spec import StatisticsSpec
from seqarch.evaluation.loss_tables import LOW_N

SUPPORTED, CONTRADICTED, INCONCLUSIVE, NOT_RUN = "supported", "contradicted", "inconclusive", "not run"
_ORDER = (CONTRADICTED, NOT_RUN, INCONCLUSIVE, SUPPORTED)  # the first that occurs is the claim's


@dataclass
class Finding:
    """One pair: what was measured, and what it says."""

    arch: str
    ref: str | None
    evidence: Evidence | None = None  # None: could not be evaluated
    base: Evidence | None = None  # interaction: the difference in `setting`
    total: Evidence | None = None  # interaction: the sum of the differences in both settings
    about: dict[str, Any] = field(default_factory=dict)  # columns
    parts: dict[str, Evidence] = field(default_factory=dict)  # out-of-domain set -> its difference
    p_holm: float | None = None
    tost_p: float | None = None  # Holm's
    result: str = INCONCLUSIVE  # different, equivalent, …
    base_result: str = INCONCLUSIVE
    total_result: str = INCONCLUSIVE
    verdict: str = NOT_RUN
    counts: bool = True
    notes: list[str] = field(default_factory=list)
    population: str | None = None  # of scores: whose runs, or the published models

    def strength(self) -> float:
        """The p behind the result."""
        return min(1.0 if p is None else p for p in (self.p_holm, self.tost_p))


def judge(claim: Claim, findings: Sequence[Finding], spec: StatisticsSpec, margin: float) -> None:
    """Results and verdicts of all pairs of a claim."""
    alpha = 1 - spec.confidence
    tested = [each for each in findings if each.evidence is not None]
    for each, different, equivalent in _tests(tested, lambda finding: finding.evidence, margin):
        each.p_holm, each.tost_p = different, equivalent
        each.result = verdict(different, equivalent, alpha)
    for each, different, equivalent in _tests(tested, lambda finding: finding.base, margin):
        each.base_result = verdict(different, equivalent, alpha)
    for each, different, equivalent in _tests(tested, lambda finding: finding.total, margin):
        each.total_result = verdict(different, equivalent, alpha)
    for each in tested:
        assert each.evidence is not None
        if np.isnan(each.evidence.mean):
            each.result, each.verdict, each.counts = NO_OVERLAP, INCONCLUSIVE, claim.kind != "interaction"
            each.notes.append("the runs have no common in-domain loss")
            continue
        if each.parts and each.evidence.n_docs < LOW_N:
            each.notes.append(f"few documents: {each.evidence.n_docs} in the smallest set")
        if len(each.evidence.values) == 1:
            each.notes.append("one seed: no interval")
        elif not each.evidence.estimate().known:
            each.notes.append(UNKNOWN)
        each.verdict = _VERDICTS[claim.kind](claim, each)


def _tests(
    findings: Sequence[Finding],
    of: Callable[[Finding], Evidence | None],
    margin: float,
) -> list[tuple[Finding, float, float]]:
    """Holm's p of difference and of equivalence of each finding that has an interval."""
    estimates = {}
    for i, finding in enumerate(findings):
        if (evidence := of(finding)) is not None:
            estimate = evidence.estimate()
            if estimate.known:
                estimates[i] = estimate
    if not estimates:
        return []
    different = multipletests([each.p_different() for each in estimates.values()], method="holm")[1]
    equivalent = multipletests([each.p_equivalent(margin) for each in estimates.values()], method="holm")[1]
    return [
        (findings[i], float(p), float(q)) for i, p, q in zip(estimates, different, equivalent, strict=True)
    ]


def _difference_verdict(claim: Claim, finding: Finding) -> str:
    assert finding.evidence is not None
    claimed = claim.sign == "any" or (finding.evidence.mean > 0) == (claim.sign == "+")
    if finding.result == "different":
        return SUPPORTED if claimed else CONTRADICTED
    if finding.result == "equivalent":
        return CONTRADICTED
    if finding.result == "different_within_margin":
        if not claimed:
            return CONTRADICTED
        finding.notes.append("different as claimed, but by less than the margin")
    return INCONCLUSIVE


def _equivalence_verdict(claim: Claim, finding: Finding) -> str:
    if finding.result == "different_within_margin":
        finding.notes.append("equivalent: the difference that shows is smaller than the margin")
    return {
        "equivalent": SUPPORTED,
        "different_within_margin": SUPPORTED,
        "different": CONTRADICTED,
    }.get(finding.result, INCONCLUSIVE)


def _interaction_verdict(claim: Claim, finding: Finding) -> str:
    assert finding.evidence is not None
    assert finding.base is not None
    if finding.base_result != "different":
        finding.counts = False
        finding.notes.append(
            f"no difference shown in {claim.setting} ({finding.base_result}): nothing to hide"
        )
        return INCONCLUSIVE
    assert finding.total is not None
    side = np.sign(finding.base.mean)
    nearer = _reduction(finding.result, np.sign(finding.evidence.mean) == side)
    not_beyond = _reduction(finding.total_result, np.sign(finding.total.mean) == side)
    if not_beyond != SUPPORTED:
        is_or_may = "is" if not_beyond == CONTRADICTED else "may be"
        finding.notes.append(f"in {claim.against} the difference {is_or_may} as large, with the other sign")
    return next(word for word in _ORDER if word in (nearer, not_beyond))


def _reduction(result: str, positive: bool) -> str:
    """What a result says of "the difference shrinks", where `positive` means that it does."""
    if result == "different":
        return SUPPORTED if positive else CONTRADICTED
    if result == "equivalent" or (result == "different_within_margin" and not positive):
        return CONTRADICTED
    return INCONCLUSIVE


_VERDICTS: Mapping[str, Callable[[Claim, Finding], str]] = {
    "difference": _difference_verdict,
    "equivalence": _equivalence_verdict,
    "interaction": _interaction_verdict,
}


def overall(claim: Claim, findings: Sequence[Finding]) -> tuple[str, Finding, str]:
    """The claim's verdict, the pair that decides it, and why."""
    counted = [each for each in findings if each.counts or each.verdict == NOT_RUN]
    if not counted:
        equal = ("equivalent", "different_within_margin")
        if all(each.base_result in equal for each in findings):
            return CONTRADICTED, findings[0], f"no pair differs in {claim.setting}: there is nothing to hide"
        return INCONCLUSIVE, findings[0], f"no pair is shown to differ in {claim.setting}"
    by_verdict = {word: [each for each in counted if each.verdict == word] for word in _ORDER}
    word = next(word for word in _ORDER if by_verdict[word])
    choose = max if word == SUPPORTED else min
    decisive = choose(by_verdict[word], key=Finding.strength)
    if len(findings) == 1:
        return word, decisive, ""
    tally = ", ".join(f"{len(each)} {name}" for name, each in by_verdict.items() if each)
    left_out = len(findings) - len(counted)
    without = f", {left_out} without a difference in {claim.setting} left out" if left_out else ""
    shown = "; shown is the weakest" if word == SUPPORTED and len(counted) > 1 else ""
    return word, decisive, f"pairs: {tally}{without}{shown}"
