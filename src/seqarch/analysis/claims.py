"""Verdicts on claims: supported, contradicted, inconclusive, not run.

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
import pandas as pd
from statsmodels.stats.multitest import multipletests

from seqarch.analysis.claims_binding import Pair, bind
from seqarch.analysis.claims_evidence import (
    Deltas,
    Evidence,
    Losses,
    difference,
    interaction,
)
from seqarch.analysis.claims_scores import PUBLISHED, Scores
from seqarch.analysis.claims_spec import Claim, ClaimsJob
from seqarch.analysis.curves import MACRO_OOD
from seqarch.analysis.equal_loss import NO_OVERLAP, verdict
from seqarch.analysis.errors import ComparisonError
from seqarch.analysis.intervals import Cautious, largest_sd_for_equivalence
from seqarch.analysis.spec import StatisticsSpec
from seqarch.evaluation.loss_tables import LOW_N

SUPPORTED, CONTRADICTED, INCONCLUSIVE, NOT_RUN = "supported", "contradicted", "inconclusive", "not run"
COLUMNS = [
    *("experiment", "claim", "level", "text", "source", "kind", "measure", "unit", "setting", "against"),
    *("arch", "ref", "domain", "seed", "verdict", "effect", "lo", "hi", "interval", "confidence", "sign"),
    *("margin", "mde", "p", "p_holm", "tost_p", "tost_p_holm", "result", "effect_setting", "effect_against"),
    *("n_seeds", "n_docs", "sd_seeds", "max_sd_equivalence", "n_pairs", "x0", "length", "phase"),
    *("domains", "stand_in", "rows", "note"),
]
TEXT = (
    *("experiment", "claim", "level", "text", "source", "kind", "measure", "unit", "setting", "against"),
    *("arch", "ref", "domain", "verdict", "interval", "sign", "result", "phase", "domains", "rows", "note"),
    "stand_in",
)


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


def evaluate(job: ClaimsJob, docs: pd.DataFrame, scores: pd.DataFrame | None = None) -> pd.DataFrame:
    """The table `claims`: rows of level claim, pair, domain (descriptive) and seed.

    Args:
        docs: document losses of all runs.
        scores: rows of the tables `ruler`, `needle` and `recall`: the common columns and `train_length`.
    """
    losses, measured = Losses(docs, job.domains, job.statistics), Scores(scores)
    rows: list[dict[str, Any]] = []
    for claim in job.claims:
        places, reason = _places(claim, job, measured)
        findings = [_finding(claim, each, losses, measured, job.statistics) for each in places]
        margin = claim.margin or job.statistics.margin
        judge(claim, findings, job.statistics, margin)
        common = _common(claim, job, losses, margin)
        rows += [common | row for row in _rows(claim, findings, reason, job.statistics, margin)]
    table = pd.DataFrame(rows).reindex(columns=COLUMNS)
    return table.astype(dict.fromkeys(TEXT, "string") | {"seed": "Int64"})


def _common(claim: Claim, job: ClaimsJob, losses: Losses, margin: float) -> dict[str, Any]:
    row = {
        "experiment": job.experiment,
        "claim": claim.id,
        "text": claim.text,
        "source": claim.source,
        "kind": claim.kind,
        "measure": claim.measure,
        "unit": "nats per token" if claim.measure == "ood_loss" else "score",
        "setting": claim.setting,
        "against": claim.against,
        "sign": claim.sign,
        "margin": margin,
        "confidence": job.statistics.confidence,
    }
    if claim.measure == "ood_loss":
        outside = losses.outside(claim.domains)
        row |= {"domains": " ".join(outside), "stand_in": _stand_in(claim.domains, outside)}
    return row


def _stand_in(named: Sequence[str], used: Sequence[str]) -> str | None:
    """How the out-of-domain sets that were used differ from those that the claim names."""
    missing = [domain for domain in named if domain not in used]
    if not missing:
        return None
    return f"{'in place of' if len(missing) == len(named) else 'without'} {' '.join(missing)}"


# --- evidence -----------------------------------------------------------------------------------------


def _places(claim: Claim, job: ClaimsJob, scores: Scores) -> tuple[list[tuple[Pair, str | None]], str]:
    """The claim's pairs and, for scores, each population that has them; if there are none, why."""
    if claim.measure == "ood_loss":
        pairs, reason = bind(claim, job.architectures)
        return [(pair, None) for pair in pairs], reason
    found: list[tuple[Pair, str | None]] = []
    populations = [name for name in scores.populations(claim.measure) if claim.setting in (None, name)]
    reasons = []
    for population in populations:
        entries = job.published if population == PUBLISHED else {**job.architectures, **job.learners}
        scored = scores.entries(population)
        pairs, reason = bind(claim, {name: entry for name, entry in entries.items() if name in scored})
        found += [(pair, population) for pair in pairs]
        reasons.append(reason)
    if not populations:
        pairs, reason = bind(claim, {**job.architectures, **job.learners, **job.published})
        return [(pair, claim.setting) for pair in pairs], reason
    return found, "; ".join(dict.fromkeys(filter(None, reasons)))


def _finding(
    claim: Claim, place: tuple[Pair, str | None], losses: Losses, scores: Scores, spec: StatisticsSpec
) -> Finding:
    """What the run says about one pair; without evidence, with the reason, where it says nothing."""
    pair, population = place
    finding = Finding(*pair, population=population)
    try:
        if claim.measure == "ood_loss":
            _loss(finding, claim, losses, spec)
        else:
            _score(finding, claim, scores)
    except ComparisonError as error:
        finding.evidence = None
        finding.notes.append(str(error))
    return finding


def _loss(finding: Finding, claim: Claim, losses: Losses, spec: StatisticsSpec) -> None:
    assert finding.ref is not None
    assert claim.setting is not None
    outside = losses.outside(claim.domains)
    here = losses.deltas(finding.arch, finding.ref, claim.setting, outside)
    finding.about = {"x0": here.x0, "length": here.length, "phase": here.phase}
    finding.about["rows"] = _docs_rows(finding, claim, here, outside)
    if "exploratory" in here.phase:
        finding.notes.append("exploratory: the checkpoints are not annealed alike")
    finding.evidence = difference(here, spec)
    each = here.targets[:-1]
    finding.parts = {target: difference(here, spec, target) for target in each}
    if claim.against is not None:
        there = losses.deltas(finding.arch, finding.ref, claim.against, outside)
        finding.base, finding.evidence = finding.evidence, interaction(here, there, spec)
        finding.total = interaction(here, there, spec, sign=1)
        finding.parts = {target: interaction(here, there, spec, target) for target in each}
        finding.about["effect_setting"] = finding.base.mean
        finding.about["effect_against"] = difference(there, spec).mean


def _docs_rows(finding: Finding, claim: Claim, here: Deltas, outside: Sequence[str]) -> str:
    """The rows of the runs' docs.parquet that the effect is made from."""
    settings = "|".join(filter(None, (claim.setting, claim.against)))
    seeds = "|".join(map(str, here.seeds))
    return (
        f"docs: setting={settings} arch={finding.arch}|{finding.ref} seed={seeds} length={here.length} "
        f"phase={here.phase.split(' ')[0]} role=id, domain={'|'.join(outside)}"
    )


def _score(finding: Finding, claim: Claim, scores: Scores) -> None:
    population = finding.population or ""
    finding.about = {"setting": population or None}
    finding.evidence = scores.contrast(claim.measure, finding.arch, finding.ref, population, claim.tasks)
    names = "|".join(filter(None, (finding.arch, finding.ref)))
    seeds = "|".join(map(str, finding.evidence.values)) or "none"
    tasks = "|".join(claim.tasks) or "all"
    finding.about["rows"] = f"scores: setting={population} arch={names} seed={seeds} task={tasks}"


# --- verdicts -----------------------------------------------------------------------------------------


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
        finding.notes.append(f"in {claim.against} the difference may be as large, with the other sign")
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


def _overall(claim: Claim, findings: Sequence[Finding]) -> tuple[str, Finding, str]:
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


_ORDER = (CONTRADICTED, NOT_RUN, INCONCLUSIVE, SUPPORTED)  # the first that occurs is the claim's


# --- rows ---------------------------------------------------------------------------------------------


def _rows(
    claim: Claim, findings: Sequence[Finding], reason: str, spec: StatisticsSpec, margin: float
) -> list[dict[str, Any]]:
    if not findings:
        return [{"level": "claim", "verdict": NOT_RUN, "n_pairs": 0, "note": reason}]
    word, decisive, why = _overall(claim, findings)
    pairs = {id(each): _pair_row(each, len(findings), spec, margin) for each in findings}
    note = "; ".join(filter(None, [why, pairs[id(decisive)]["note"]]))
    rows = [pairs[id(decisive)] | {"level": "claim", "verdict": word, "note": note or None}]
    for each in findings:
        rows.append(pairs[id(each)])
        place = {"arch": each.arch, "ref": each.ref} | each.about
        for domain, evidence in each.parts.items():
            estimate = evidence.estimate()
            numbers = _numbers(evidence, estimate, spec) if np.isfinite(estimate.mean) else {}
            rows.append(place | {"level": "domain", "domain": domain} | numbers)
        if each.evidence is not None:
            rows += [
                place | {"level": "seed", "domain": _target(claim), "seed": seed, "effect": value}
                for seed, value in each.evidence.values.items()
                if np.isfinite(value)
            ]
    return rows


def _target(claim: Claim) -> str | None:
    return MACRO_OOD if claim.measure == "ood_loss" else None


def _pair_row(finding: Finding, n_pairs: int, spec: StatisticsSpec, margin: float) -> dict[str, Any]:
    row: dict[str, Any] = {
        "level": "pair",
        "arch": finding.arch,
        "ref": finding.ref,
        "verdict": finding.verdict,
        "n_pairs": n_pairs,
        "note": "; ".join(finding.notes) or None,
        **finding.about,
    }
    if finding.evidence is None or np.isnan(finding.evidence.mean):
        return row
    estimate = finding.evidence.estimate()
    values = list(finding.evidence.values.values())
    row |= {"p_holm": finding.p_holm, "tost_p_holm": finding.tost_p, "result": finding.result}
    row |= {"domain": MACRO_OOD if finding.parts else None} | _numbers(finding.evidence, estimate, spec)
    if estimate.known:
        alpha = (1 - spec.confidence) / n_pairs  # as the strictest of Holm's steps
        row |= {"tost_p": estimate.p_equivalent(margin), "mde": estimate.smallest_detectable(1 - alpha)}
    if estimate.known and len(values) > 1:
        row |= {
            "sd_seeds": float(np.std(values, ddof=1)),
            "max_sd_equivalence": largest_sd_for_equivalence(margin, len(values), spec.confidence),
        }
    return row


def _numbers(evidence: Evidence, estimate: Cautious, spec: StatisticsSpec) -> dict[str, Any]:
    row: dict[str, Any] = {"effect": estimate.mean, "n_seeds": len(evidence.values) or None}
    if evidence.n_docs:
        row["n_docs"] = evidence.n_docs
    if estimate.known:
        low, high = estimate.interval(spec.confidence)
        about = estimate.about(spec.confidence)
        row |= {"lo": low, "hi": high, "interval": about, "p": estimate.p_different()}
    return row
