"""Out-of-domain loss at equal in-domain loss.

A curve is one run's checkpoints as points (x, y): x = in-domain loss, y = out-of-domain loss, in nats per
token. For each seed, y of an architecture and of the reference are interpolated at the same x0, inside the
range that all curves share, and subtracted: delta(x0) = y_arch(x0) − y_ref(x0). A positive delta says that
the architecture pays more out of domain than the reference does at the same in-domain loss.

The seed is the unit of replication. Two errors are reported: over seeds (about these documents), and over
seeds and documents (about the domains; hierarchical bootstrap with the same documents drawn for every run).
The verdict uses, at each level that it asks, the wider of the two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from statsmodels.stats.multitest import multipletests

from seqarch.analysis.curves import MACRO_OOD, CurveSet, Draws, curve_set
from seqarch.analysis.errors import ComparisonError
from seqarch.analysis.interpolate import Floats, decreasing, interpolate
from seqarch.analysis.intervals import (
    UNKNOWN,
    Cautious,
    Estimate,
    largest_sd_for_equivalence,
    over_seeds,
    over_seeds_and_documents,
    welch_p,
)
from seqarch.analysis.spec import StatisticsSpec, StudySpec
from seqarch.evaluation.bootstrap import draws

NO_OVERLAP = "no overlap"
COLUMNS = [
    *("study", "setting", "length", "kind", "arch", "ref", "domain", "x0", "is_primary", "seed", "delta"),
    *("loss_arch", "loss_ref", "mean", "ci_lo", "ci_hi", "domain_ci_lo", "domain_ci_hi", "interval"),
    *("ci90_lo", "ci90_hi", "confidence", "p", "p_holm", "tost_p", "welch_p", "margin", "mde", "sd_seeds"),
    *("max_sd_equivalence", "verdict", "note", "n_seeds", "n_docs", "interp", "phase"),
    *("overlap_lo", "overlap_hi"),
]


@dataclass(frozen=True)
class Comparison:
    """One architecture against the reference: T targets, B draws (1: the estimate), S seeds, G points."""

    seeds: tuple[int, ...]
    x0: Floats  # [B, G]
    overlap: Floats  # [B, 2]
    arch: Floats  # [T, B, S, G] interpolated losses; NaN without overlap
    ref: Floats  # [T, B, S, G]
    pooled: bool  # some curve of the two needed isotonic x

    @property
    def delta(self) -> Floats:
        return self.arch - self.ref


def equal_loss(docs: pd.DataFrame, studies: Mapping[str, StudySpec], spec: StatisticsSpec) -> pd.DataFrame:
    """The table `equal_loss` for every study, setting and window length in the document rows.

    Rows of kind "seed" hold one seed's delta; rows of kind "summary" its mean over seeds, intervals and
    tests, and at the primary x0 a verdict: different, equivalent, different_within_margin, inconclusive, or
    "no overlap".

    Raises:
        ComparisonError: see `curve_set`; no rows of the configured phases; several phases without
        `exploratory`.
    """
    chosen = docs[docs["phase"].isin(spec.phases)]
    if chosen.empty:
        found = sorted(docs["phase"].unique())
        raise ComparisonError(
            f"no checkpoints in phase {list(spec.phases)}; found {found}: see statistics.phases"
        )
    rows = []
    for name, study in studies.items():
        for (setting, length), part in chosen.groupby(["setting", "length"]):
            curves = curve_set(part, study.architectures)
            place = {"study": name, "setting": setting, "length": length}
            rows += [place | row for row in _study_rows(curves, study, spec)]
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


def _study_rows(curves: CurveSet, study: StudySpec, spec: StatisticsSpec) -> list[dict]:
    phase = phase_label(curves, spec)
    once = compare(curves, study, spec, curves.once())
    many = {domain: draws(domain, len(n), spec.seed, spec.bootstrap) for domain, n in curves.n_tokens.items()}
    bootstrap = compare(curves, study, spec, many)
    rows = []
    for arch in study.compare:
        common = {"arch": arch, "ref": study.reference, "phase": phase}
        rows += [common | row for row in _rows(curves, once[arch], bootstrap[arch], spec)]
    _judge(rows, spec)
    return rows


def phase_label(curves: CurveSet, spec: StatisticsSpec) -> str:
    """The phase of all points. Mid-cosine checkpoints, or several phases together, are exploratory."""
    phases = sorted({phase for curve in curves.curves.values() for phase in curve.phases})
    if len(phases) > 1 and not spec.exploratory:
        raise ComparisonError(
            f"checkpoints of different schedule phases in one comparison: {phases}; choose one in "
            "statistics.phases, or set statistics.exploratory, which the table will say"
        )
    label = "+".join(phases)
    return f"{label} (exploratory)" if len(phases) > 1 or phases == ["mid_cosine"] else label


# --- interpolation ------------------------------------------------------------------------------------


def compare(curves: CurveSet, study: StudySpec, spec: StatisticsSpec, counts: Draws) -> dict[str, Comparison]:
    """Each architecture's losses and the reference's at equal x0 under each draw of documents."""
    lines = {}
    for run, curve in curves.curves.items():
        lines[run] = decreasing(*curves.losses(curve, counts))
    result = {}
    for arch in study.compare:
        pair = (arch, study.reference)
        among = study.architectures if spec.common == "study" else pair
        overlap = _overlap([lines[run][0] for run in lines if run[0] in among])
        x0 = _grid(overlap, spec)
        seeds = tuple(sorted(set(curves.seeds(arch)) & set(curves.seeds(study.reference))))
        if not seeds:
            raise ComparisonError(
                f"{arch} and {study.reference} share no seed: train both with the same seeds"
            )
        ours, theirs = (_at(x0, [lines[name, seed] for seed in seeds], spec) for name in pair)
        pooled = any(lines[name, seed][2].any() for name in pair for seed in seeds)
        result[arch] = Comparison(seeds, x0, overlap, ours, theirs, pooled)
    return result


def _overlap(xs: Sequence[Floats]) -> Floats:
    """The range of x that all curves cover under each draw [B, 2]; NaN where there is none."""
    low = np.max([x[:, 0] for x in xs], axis=0)
    high = np.min([x[:, -1] for x in xs], axis=0)
    return np.where((low <= high)[:, None], np.stack([low, high], axis=1), np.nan)


def _grid(overlap: Floats, spec: StatisticsSpec) -> Floats:
    """Equally spaced x0 in the common range [B, G]; a primary x0 given in nats comes last, NaN if outside."""
    low, high = overlap[:, :1], overlap[:, 1:]
    grid = np.clip(low + np.linspace(0, 1, spec.grid) * (high - low), low, high)
    if isinstance(spec.x0, float):
        grid = np.concatenate([grid, np.where((low <= spec.x0) & (spec.x0 <= high), spec.x0, np.nan)], axis=1)
    return grid


def primary(spec: StatisticsSpec) -> int:
    """The index of the pre-registered x0 in the grid."""
    if isinstance(spec.x0, float):
        return spec.grid
    return {"lowest": 0, "middle": spec.grid // 2, "highest": spec.grid - 1}[spec.x0]


def _at(x0: Floats, lines: Sequence[tuple[Floats, Floats, np.ndarray]], spec: StatisticsSpec) -> Floats:
    """Losses of each seed's curve at x0: [T, B, S, G]."""
    per_seed = [
        np.stack([interpolate(x, target, x0, spec.interpolation) for target in y]) for x, y, _ in lines
    ]
    return np.stack(per_seed, axis=2)


# --- rows ---------------------------------------------------------------------------------------------


def _rows(curves: CurveSet, once: Comparison, many: Comparison, spec: StatisticsSpec) -> list[dict]:
    """The rows of one architecture; `p_holm` and `verdict` follow when all architectures are known."""
    rows = []
    means = resampled(many.delta, spec)  # [T, B, G]
    for t, target in enumerate(curves.targets()):
        outside = curves.domains("ood") if target == MACRO_OOD else [target]
        n_docs = min(len(curves.n_tokens[domain]) for domain in [*curves.domains("id"), *outside])
        for g in range(once.x0.shape[1]):
            place = {
                "domain": target,
                "x0": once.x0[0, g],
                "is_primary": g == primary(spec),
                "margin": spec.margin,
                "confidence": spec.confidence,
                "n_seeds": len(once.seeds),
                "n_docs": n_docs,
                "interp": spec.interpolation + (", isotonic x" if once.pooled else ""),
                "overlap_lo": once.overlap[0, 0],
                "overlap_hi": once.overlap[0, 1],
            }
            arch, ref = once.arch[t, 0, :, g], once.ref[t, 0, :, g]
            if np.isnan(arch - ref).any():
                rows.append(
                    place | {"kind": "summary", "verdict": NO_OVERLAP, "note": _no_overlap(once, spec)}
                )
                continue
            rows += [
                place | {"kind": "seed", "seed": seed, "delta": a - r, "loss_arch": a, "loss_ref": r}
                for seed, a, r in zip(once.seeds, arch, ref, strict=True)
            ]
            rows.append(place | {"kind": "summary"} | _summary(arch, ref, means[t, :, g], n_docs, spec))
    return rows


def _no_overlap(once: Comparison, spec: StatisticsSpec) -> str:
    if np.isnan(once.overlap).any():
        return "the in-domain losses of the compared runs have no common range"
    return f"x0 = {spec.x0} lies outside the common range of in-domain losses"


def resampled(delta: Floats, spec: StatisticsSpec) -> Floats:
    """Means over seeds drawn with replacement, in each replicate: [T, B, S, G] -> [T, B, G]."""
    _, replicates, n_seeds, _ = delta.shape
    counts = draws("seeds", n_seeds, spec.seed, replicates)
    # A seed that was not drawn may have no value in this replicate; one that was drawn makes the mean NaN.
    used = np.where(counts[None, :, :, None] > 0, delta, 0.0)
    return np.einsum("bs,tbsg->tbg", counts / n_seeds, used)


def _summary(arch: Floats, ref: Floats, replicates: Floats, n_docs: int, spec: StatisticsSpec) -> dict:
    seeds = over_seeds(arch - ref)
    domain = over_seeds_and_documents(seeds.mean, replicates, n_docs)
    one_seed = len(arch) == 1
    used = Cautious((seeds,) if one_seed else (seeds, domain))
    row = {
        "loss_arch": arch.mean(),
        "loss_ref": ref.mean(),
        "mean": seeds.mean,
        "sd_seeds": np.std(arch - ref, ddof=1) if len(arch) > 1 else np.nan,
        "max_sd_equivalence": largest_sd_for_equivalence(spec.margin, len(arch), spec.confidence),
        "welch_p": welch_p(arch, ref),
        "interval": used.about(spec.confidence) if used.known else None,
        "note": None if used.known else "one seed: no interval" if one_seed else UNKNOWN,
    }
    row |= _bounds("ci", seeds, spec.confidence)
    row |= _bounds("domain_ci", Estimate(domain.mean, np.nan, 1, "") if one_seed else domain, spec.confidence)
    row |= _bounds("ci90", used, 2 * spec.confidence - 1)
    if used.known:
        row |= {"p": used.p_different(), "tost_p": used.p_equivalent(spec.margin)}
        row |= {"mde": used.smallest_detectable(spec.confidence)}
    return row


def _bounds(name: str, estimate: Estimate | Cautious, confidence: float) -> dict[str, float]:
    low, high = estimate.interval(confidence)
    return {f"{name}_lo": low, f"{name}_hi": high}


# --- verdicts -----------------------------------------------------------------------------------------


def _judge(rows: list[dict], spec: StatisticsSpec) -> None:
    """Holm's correction and verdicts at the primary x0; other grid points are descriptive.

    One family holds all architectures × out-of-domain sets; the macro average, a secondary summary of the
    same sets, is a family of its own over architectures.
    """
    at_primary = [row for row in rows if row["kind"] == "summary" and row["is_primary"]]
    for is_macro in (False, True):
        family = [row for row in at_primary if (row["domain"] == MACRO_OOD) == is_macro and "p" in row]
        if family:
            adjusted = multipletests([row["p"] for row in family], method="holm")[1]
            for row, p in zip(family, adjusted, strict=True):
                row["p_holm"] = float(p)
    for row in at_primary:
        row.setdefault("verdict", verdict(row.get("p_holm"), row.get("tost_p"), 1 - spec.confidence))


def verdict(p_holm: float | None, tost_p: float | None, alpha: float) -> str:
    """different (Holm p < alpha), equivalent (TOST p < alpha), both (within the margin), or inconclusive."""
    different = p_holm is not None and p_holm < alpha
    equivalent = tost_p is not None and tost_p < alpha
    if different and equivalent:
        return "different_within_margin"
    if different:
        return "different"
    return "equivalent" if equivalent else "inconclusive"
