"""The table `claims`: what a run says of each claim, pair by pair; the verdicts are claims_verdicts.py's."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

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
from seqarch.analysis.claims_verdicts import NOT_RUN, Finding, judge, overall
from seqarch.analysis.curves import MACRO_OOD
from seqarch.analysis.errors import ComparisonError
from seqarch.analysis.intervals import Cautious, largest_sd_for_equivalence
from seqarch.analysis.spec import StatisticsSpec

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


# --- rows ---------------------------------------------------------------------------------------------


def _rows(
    claim: Claim, findings: Sequence[Finding], reason: str, spec: StatisticsSpec, margin: float
) -> list[dict[str, Any]]:
    if not findings:
        return [{"level": "claim", "verdict": NOT_RUN, "n_pairs": 0, "note": reason}]
    word, decisive, why = overall(claim, findings)
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
