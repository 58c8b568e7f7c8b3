"""The primary comparison made again in other ways: do they say the same?

Every method estimates delta = y_arch(x0) − y_ref(x0) at the primary x0, in nats per token, with an interval
over seeds on these documents:

- primary: that of the table equal_loss, for reading side by side;
- mix_weighted_x: in-domain sets count in x by their share of the training mix, not alike;
- welch: the seeds are not paired;
- deming: a straight line through each run's points that allows for noise in x, too;
- clustered_lines: y = a + b·(x − x̄) + offset + slope·(x − x̄), offset and slope for the architecture, least
  squares, standard errors clustered by curve;
- mixed_lines: that line with a random intercept for each curve, by restricted maximum likelihood;
- power_law: y = K·(x − E0)^k + E1 (loss-to-loss prediction, arXiv 2411.12925) through all points of an
  architecture, interval by the jackknife over seeds.

They may support a verdict, never replace it: none of them is used for one.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import statsmodels.api as sm

from seqarch.analysis.curves import MACRO_OOD, CurveSet, curve_set
from seqarch.analysis.equal_loss import Comparison, compare, phase_label, primary
from seqarch.analysis.errors import ComparisonError
from seqarch.analysis.interpolate import Floats
from seqarch.analysis.intervals import Estimate, over_seeds, welch
from seqarch.analysis.power_law import PARAMETERS, PowerLaw, fit, value
from seqarch.analysis.spec import SensitivityJob, StatisticsSpec, StudySpec

PRIMARY = "primary"
COLUMNS = [
    *("study", "setting", "length", "arch", "ref", "domain", "method", "x0", "effect", "ci_lo", "ci_hi"),
    *("confidence", "p", "interval", "agreement", "n_seeds", "n_points", "phase", "note"),
]
NOTHING = Estimate(float("nan"), float("nan"), 1, "seeds")


@dataclass(frozen=True)
class Pair:
    """The points of an architecture and of its reference on one target: a row a seed, x and y [K].

    Attributes:
        noise: error variance of y over that of x, from the spread over documents; inf: x is exact.
    """

    arch: Sequence[tuple[Floats, Floats]]
    ref: Sequence[tuple[Floats, Floats]]
    noise: float

    @property
    def n_points(self) -> int:
        return sum(len(x) for x, _ in (*self.arch, *self.ref))


class NoAnswer(Exception):
    """A method says nothing about these points, and why."""


def sensitivity(docs: pd.DataFrame, job: SensitivityJob, tokens: Mapping[str, int]) -> pd.DataFrame:
    """The table `equal_loss_sensitivity`: a row per study, setting, window, architecture, target and method.

    Args:
        docs: document losses of all runs, as for `equal_loss`.
        tokens: training tokens of each in-domain set, for settings that weight domains by them.

    Raises ComparisonError as `equal_loss` does.
    """
    chosen = docs[docs["phase"].isin(job.statistics.phases)]
    rows: list[dict[str, Any]] = []
    for name, study in job.studies.items():
        for (setting, length), part in chosen.groupby(["setting", "length"]):
            curves = curve_set(part, study.architectures)
            place = {"study": name, "setting": setting, "length": length}
            place["phase"] = phase_label(curves, job.statistics)
            shares = mix(job.settings.get(str(setting), {}), curves.domains("id"), tokens)
            rows += [place | row for row in _rows(curves, study, job.statistics, shares)]
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


def mix(
    weights: Mapping[str, float | None], inside: Sequence[str], tokens: Mapping[str, int]
) -> dict[str, float] | None:
    """Shares of the in-domain sets in a setting's training mix; None if it holds no in-domain text."""
    found = {domain: weights.get(domain, 0.0) for domain in inside}
    if missing := sorted(domain for domain, w in found.items() if w is None and domain not in tokens):
        raise ComparisonError(
            f"the mix weights {', '.join(missing)} by tokens: give the training manifest of each"
        )
    sizes = {domain: float(tokens[domain] if w is None else w) for domain, w in found.items()}
    total = sum(sizes.values())
    return {domain: size / total for domain, size in sizes.items()} if total else None


def _rows(
    curves: CurveSet, study: StudySpec, spec: StatisticsSpec, shares: Mapping[str, float] | None
) -> Iterator[dict[str, Any]]:
    alike = compare(curves, study, spec, curves.once())
    weighted = compare(replace(curves, shares=shares), study, spec, curves.once()) if shares else {}
    points = {run: curves.losses(curve, curves.once()) for run, curve in curves.curves.items()}
    at = primary(spec)
    for arch in study.compare:
        once = alike[arch]
        x0 = float(once.x0[0, at])
        for t, target in enumerate(curves.targets()):
            sides = {
                name: [(points[name, seed][0][0], points[name, seed][1][t, 0]) for seed in once.seeds]
                for name in (arch, study.reference)
            }
            noise = _noise(curves, arch, study.reference, target)
            pair = Pair(sides[arch], sides[study.reference], noise)
            ours, theirs = once.arch[t, 0, :, at], once.ref[t, 0, :, at]
            answers = {
                PRIMARY: _answer(x0, partial(over_seeds, ours - theirs)),
                "mix_weighted_x": _mix_weighted(weighted.get(arch), t, at),
                "welch": _answer(x0, partial(welch, ours, theirs)),
                **{name: _answer(x0, partial(method, pair, x0)) for name, method in METHODS.items()},
            }
            place = {"arch": arch, "ref": study.reference, "domain": target, "confidence": spec.confidence}
            place |= {"n_seeds": len(once.seeds), "n_points": pair.n_points}
            for name, answer in answers.items():
                agrees = agreement(answers[PRIMARY].estimate, answer.estimate, spec.confidence)
                row = {"method": name, "x0": answer.x0, "agreement": agrees, "note": answer.note or None}
                yield place | row | _numbers(answer.estimate, spec.confidence)


class Answer(NamedTuple):
    estimate: Estimate
    x0: float
    note: str = ""


def _mix_weighted(once: Comparison | None, target: int, at: int) -> Answer:
    """The primary method with another x, hence at another x0."""
    if once is None:
        return Answer(NOTHING, float("nan"), "the setting's training mix has no in-domain text")
    return _answer(float(once.x0[0, at]), partial(over_seeds, once.delta[target, 0, :, at]))


def _answer(x0: float, method: Callable[[], Estimate]) -> Answer:
    if np.isnan(x0):
        return Answer(NOTHING, x0, "no overlap: no in-domain loss that all runs reach")
    try:
        estimate = method()
    except NoAnswer as error:
        return Answer(NOTHING, x0, str(error))
    return Answer(estimate, x0, "one seed: no interval" if np.isnan(estimate.se) else "")


def _numbers(estimate: Estimate, confidence: float) -> dict[str, Any]:
    if np.isnan(estimate.mean):
        return {}
    row: dict[str, Any] = {"effect": estimate.mean}
    if np.isfinite(estimate.se):
        low, high = estimate.interval(confidence)
        row |= {"ci_lo": low, "ci_hi": high, "p": estimate.p_different(), "interval": estimate.about}
    return row


def agreement(primary: Estimate, other: Estimate, confidence: float) -> str | None:
    """`agrees` if both intervals hold zero, or both exclude it on one side; else `differs`. Empty where one
    of them has no interval."""
    sides = []
    for estimate in (primary, other):
        low, high = estimate.interval(confidence)
        if not np.isfinite(high - low):
            return None
        sides.append(int(low > 0) - int(high < 0))
    return "agrees" if sides[0] == sides[1] else "differs"


# --- methods ------------------------------------------------------------------------------------------


def _noise(curves: CurveSet, arch: str, ref: str, target: str) -> float:
    """Error variance of y over that of x, from documents (the ratio estimator's linearised variance)."""
    outside = curves.domains("ood") if target == MACRO_OOD else [target]
    totals = {"id": 0.0, "ood": 0.0}
    for name in (arch, ref):
        for seed in curves.seeds(name):
            nll = curves.curves[name, seed].nll
            for role, domains in (("id", curves.domains("id")), ("ood", outside)):
                each = [_rate_variance(nll[domain], curves.n_tokens[domain]) for domain in domains]
                totals[role] += sum(each) / len(domains) ** 2
    return totals["ood"] / totals["id"] if totals["id"] > 0 else float("inf")


def _rate_variance(nll: Floats, n_tokens: Floats) -> float:
    """Of Σ nll / Σ n_tokens over documents, mean over checkpoints. nll [K, docs], n_tokens [docs]."""
    n = len(n_tokens)
    if n < 2:
        return 0.0
    residual = nll - (nll.sum(1) / n_tokens.sum())[:, None] * n_tokens
    return float((residual**2).sum(1).mean() * n / (n - 1) / n_tokens.sum() ** 2)


def deming(pair: Pair, x0: float) -> Estimate:
    """Per seed, the difference of two Deming lines at x0; then as the primary (York 1966, Deming 1943)."""
    sides = [[_deming_at(x, y, pair.noise, x0) for x, y in side] for side in (pair.arch, pair.ref)]
    return over_seeds(np.array(sides[0]) - np.array(sides[1]))


def _deming_at(x: Floats, y: Floats, noise: float, x0: float) -> float:
    if np.ptp(x) == 0:
        raise NoAnswer("a run has one point: no line")
    xx, yy, xy = np.var(x), np.var(y), np.mean((x - x.mean()) * (y - y.mean()))
    if np.isinf(noise) or xy == 0:
        slope = xy / xx
    else:
        gap = yy - noise * xx
        slope = (gap + np.sqrt(gap**2 + 4 * noise * xy**2)) / (2 * xy)
    return float(y.mean() + slope * (x0 - x.mean()))


def _design(pair: Pair, x0: float) -> tuple[Floats, Floats, Floats, Floats]:
    """y [N], design [N, 4], curve [N] of the two architectures' lines, and the contrast at x0 [4]."""
    sides = (pair.ref, pair.arch)
    x = np.concatenate([x for side in sides for x, _ in side])
    y = np.concatenate([y for side in sides for _, y in side])
    is_arch = np.concatenate([np.full(len(x), float(i)) for i, side in enumerate(sides) for x, _ in side])
    curve = np.concatenate([np.full(len(x), i) for i, (x, _) in enumerate((*pair.ref, *pair.arch))])
    if any(len(np.unique(x[is_arch == side])) < 2 for side in (0, 1)):
        raise NoAnswer("an architecture has one point: no line")
    centred = x - x.mean()
    design = np.stack([np.ones(len(x)), centred, is_arch, is_arch * centred], axis=1)
    return y, design, curve, np.array([0.0, 0.0, 1.0, x0 - x.mean()])


def _about_curves(pair: Pair, mean: float, variance: float) -> Estimate:
    """With the degrees of freedom of two groups of curves; no interval with one curve in each."""
    df = len(pair.arch) + len(pair.ref) - 2
    return Estimate(mean, float(np.sqrt(max(variance, 0.0))) if df else float("nan"), max(df, 1), "seeds")


def clustered_lines(pair: Pair, x0: float) -> Estimate:
    """Least squares on all points; a curve's points count as one observation in the error."""
    y, design, curve, contrast = _design(pair, x0)
    plain = sm.OLS(y, design).fit()
    if len(pair.arch) < 2:
        return _about_curves(pair, float(contrast @ plain.params), float("nan"))
    clustered = plain.get_robustcov_results("cluster", groups=curve, use_t=True)
    return _about_curves(
        pair, float(contrast @ plain.params), float(contrast @ clustered.cov_params() @ contrast)
    )


def mixed_lines(pair: Pair, x0: float) -> Estimate:
    """The same lines with a random intercept for each curve."""
    y, design, curve, contrast = _design(pair, x0)
    if len(pair.arch) < 2 or len(y) <= design.shape[1] + 1:
        raise NoAnswer("one seed, or too few points: no random intercept")
    span, spread = np.ptp(design[:, 1]), float(np.std(sm.OLS(y, design).fit().resid))
    if spread < 1e-9:
        raise NoAnswer("the points lie on the lines: no mixed model")
    # The optimiser wants variances about one.
    scale = np.array([1, span, 1, span])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # also of an intercept's variance of zero, which is no failure
            found = sm.MixedLM(y / spread, design / scale, groups=curve).fit(reml=True)
    except (np.linalg.LinAlgError, ValueError) as error:
        raise NoAnswer(f"the mixed model could not be fitted: {error}") from error
    contrast = contrast / scale * spread
    variance = float(contrast @ np.asarray(found.cov_params())[:4, :4] @ contrast)
    if not found.converged or not np.isfinite(variance):
        raise NoAnswer("the mixed model did not converge")
    return _about_curves(pair, float(contrast @ found.fe_params), variance)


def power_law(pair: Pair, x0: float) -> Estimate:
    """One power law an architecture through the points of all seeds; seeds left out one at a time."""
    laws = [_power_law(side, x0) for side in (pair.arch, pair.ref)]
    whole = value(laws[0], x0) - value(laws[1], x0)
    n = len(pair.arch)
    if n < 2:
        return Estimate(whole, float("nan"), 1, "seeds")
    without = []
    for left in range(n):
        sides = [[run for i, run in enumerate(side) if i != left] for side in (pair.arch, pair.ref)]
        at = [value(_power_law(side, x0, law), x0) for side, law in zip(sides, laws, strict=True)]
        without.append(at[0] - at[1])
    pseudo = n * whole - (n - 1) * np.array(without)  # Tukey 1958
    return replace(over_seeds(pseudo), mean=whole)


def _power_law(runs: Sequence[tuple[Floats, Floats]], x0: float, near: PowerLaw | None = None) -> PowerLaw:
    x, y = (np.concatenate([run[i] for run in runs]) for i in (0, 1))
    if len(np.unique(x)) <= PARAMETERS:
        raise NoAnswer(f"too few points for the {PARAMETERS} parameters of a power law")
    if not x.min() <= x0 <= x.max():
        raise NoAnswer("without one of the seeds, x0 is outside the points")
    return fit(x, y, near)


METHODS: dict[str, Callable[[Pair, float], Estimate]] = {
    "deming": deming,
    "clustered_lines": clustered_lines,
    "mixed_lines": mixed_lines,
    "power_law": power_law,
}
