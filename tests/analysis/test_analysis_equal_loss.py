"""Curves with a known difference: it is found, with the errors that are promised."""

import json

import numpy as np
import pandas as pd
import pytest

from seqarch.analysis.curves import Curve, CurveSet, curve_set, with_roles
from seqarch.analysis.equal_loss import compare, equal_loss, primary, verdict
from seqarch.analysis.errors import ComparisonError
from seqarch.analysis.intervals import Cautious, over_seeds, over_seeds_and_documents
from seqarch.analysis.spec import StatisticsSpec, StudySpec
from seqarch.cli import equal_loss as cli
from seqarch.files import read_parquet_provenance

STUDY = StudySpec(reference="ref", compare=("new",))
SPEC = StatisticsSpec(bootstrap=200)
STEPS = (100, 200, 300, 400)


def documents(
    *,
    offset=0.0,
    seeds=(0, 1, 2),
    n_docs=40,
    seed_sd=0.0,
    doc_sd=0.0,
    archs=("ref", "new"),
    x_shift=0.0,
    rng=0,
    out=("code", "maths"),
):
    """Document rows: x falls from 4 to 3.4 over the checkpoints, y = 1 + x, plus `offset` for "new"."""
    generator = np.random.default_rng(rng)
    rows = []
    effect = {domain: generator.normal(0, doc_sd, n_docs) for domain in out}
    for arch in archs:
        for seed in seeds:
            shift = generator.normal(0, seed_sd)
            for k, step in enumerate(STEPS):
                x = 4 - 0.2 * k + 0.02 * seed + (x_shift if arch == "new" else 0)
                for domain in ("news", "books", *out):
                    y = np.full(n_docs, x)
                    if domain in out:
                        y = y + 1 + shift + (offset + effect[domain] if arch == "new" else 0)
                    rows.append(frame(arch, seed, step, domain, domain in out, y))
    return pd.concat(rows, ignore_index=True)


def frame(arch, seed, step, domain, is_out, y):
    n = len(y)
    return pd.DataFrame(
        {
            "experiment": "x",
            "setting": "limited",
            "length": 128,
            "arch": arch,
            "seed": seed,
            "step": step,
            "phase": "annealed",
            "domain": domain,
            "role": "ood" if is_out else "id",
            "doc_id": [f"{domain}{i}" for i in range(n)],
            "doc_sha256": [f"{domain}{i}" for i in range(n)],
            "n_tokens": 50,
            "nll_nats": 50 * y,
            "window_mode": "disjoint",
            "stride": 128,
            "boundary_mode": "document",
            "prefix_token": 0,
            "tokenizer_sha256": "t",
            "dtype": "float32",
            "eval_set_sha256": domain,
        }
    )


def table(docs, spec=SPEC, study=STUDY):
    return equal_loss(docs, {"s": study}, spec)


def at_primary(result, kind="summary", domain="code"):
    return result[(result["kind"] == kind) & result["is_primary"] & (result["domain"] == domain)]


def test_a_known_offset_is_recovered():
    result = table(documents(offset=0.1, seed_sd=0.003))
    assert set(result["domain"]) == {"code", "maths", "macro_ood"}
    row = at_primary(result).iloc[0]
    assert row["x0"] == pytest.approx(3.44)  # the lowest that all curves reach: seed 2 is 0.04 behind
    assert (row["overlap_lo"], row["overlap_hi"]) == (pytest.approx(3.44), pytest.approx(4.0))
    assert row["mean"] == pytest.approx(0.1, abs=0.01)
    assert row["ci_lo"] < 0.1 < row["ci_hi"]
    assert row["verdict"] == "different"
    assert row["n_seeds"] == 3
    per_seed = at_primary(result, "seed")
    assert per_seed["delta"].mean() == pytest.approx(row["mean"])
    assert (per_seed["loss_arch"] - per_seed["loss_ref"]).to_numpy() == pytest.approx(
        per_seed["delta"].to_numpy()
    )
    assert len(result.query("kind == 'summary'")) == 3 * 5
    assert result.query("not is_primary")["verdict"].isna().all()


def test_a_negligible_difference_is_equivalent_and_noise_is_inconclusive():
    assert at_primary(table(documents(offset=0.001)))["verdict"].item() == "different_within_margin"
    assert at_primary(table(documents()))["verdict"].item() == "equivalent"
    noisy = at_primary(table(documents(seed_sd=0.2)))
    assert noisy["verdict"].item() == "inconclusive"
    assert noisy["mde"].item() > noisy["margin"].item()


def test_holm_counts_the_domains_and_not_the_macro():
    result = table(documents(offset=0.02, seed_sd=0.01, doc_sd=0.02))
    rows = result.query("is_primary and kind == 'summary'").set_index("domain")
    p = rows.loc[["code", "maths"], "p"].sort_values()
    assert rows.loc[p.index[0], "p_holm"] == pytest.approx(min(1, 2 * p.iloc[0]))
    assert rows.loc["macro_ood", "p_holm"] == pytest.approx(rows.loc["macro_ood", "p"])


@pytest.mark.parametrize(
    ("p", "tost", "expected"),
    [
        (0.01, 0.5, "different"),
        (0.5, 0.01, "equivalent"),
        (0.01, 0.01, "different_within_margin"),
        (0.5, 0.5, "inconclusive"),
        (None, None, "inconclusive"),
    ],
)
def test_verdicts(p, tost, expected):
    assert verdict(p, tost, 0.05) == expected


def test_the_verdict_uses_the_wider_error():
    """Documents vary more than seeds: the t-interval over seeds says nothing about the domain."""
    row = at_primary(table(documents(doc_sd=0.2, seed_sd=0.001, n_docs=20))).iloc[0]
    assert row["interval"] == "seeds and documents"
    assert row["domain_ci_hi"] - row["domain_ci_lo"] > 5 * (row["ci_hi"] - row["ci_lo"])
    assert row["verdict"] == "inconclusive"


def test_an_error_over_documents_that_is_not_known_is_no_small_one():
    """Draws in which the curves do not overlap are those in which the documents matter most."""
    replicates = np.random.default_rng(0).normal(0, 0.01, 200)
    seeds = over_seeds(np.array([0.1, 0.101, 0.102]))
    for missing, known in ((20, True), (21, False), (200, False)):
        some = np.where(np.arange(200) < missing, np.nan, replicates)
        both = Cautious((seeds, over_seeds_and_documents(seeds.mean, some, 50)))
        assert both.known == known
        assert np.isfinite(both.interval(0.95)).all() == known
    row = at_primary(table(documents(n_docs=1))).iloc[0]
    assert row["verdict"] == "inconclusive"
    assert "no error over documents" in row["note"]
    assert row[["p", "tost_p", "interval", "ci90_lo"]].isna().all()


def test_one_seed_is_an_estimate_without_interval():
    row = at_primary(table(documents(offset=0.1, seeds=(0,)))).iloc[0]
    assert row["mean"] == pytest.approx(0.1)
    empty = ["ci_lo", "ci_hi", "domain_ci_lo", "domain_ci_hi", "ci90_lo", "p", "p_holm", "tost_p", "mde"]
    assert row[empty].isna().all()
    assert row["verdict"] == "inconclusive"
    assert "one seed" in row["note"]


def test_no_overlap_is_a_label_and_never_a_number():
    result = table(documents(offset=0.1, x_shift=5.0))
    assert (result["verdict"] == "no overlap").all()
    assert result[["mean", "delta", "loss_arch", "p", "x0"]].isna().all().all()
    outside = table(documents(), spec=SPEC.model_copy(update={"x0": 9.0}))
    assert at_primary(outside)["verdict"].item() == "no overlap"
    assert "outside" in at_primary(outside)["note"].item()
    assert outside.query("not is_primary and kind == 'summary'")["mean"].notna().all()


def test_a_pair_needs_only_its_own_overlap():
    three = documents(archs=("ref", "new")), documents(archs=("far",))
    three[1]["nll_nats"] += 50 * 5
    docs = pd.concat(three)
    study = StudySpec(reference="ref", compare=("new", "far"))
    together = table(docs, study=study).query("is_primary and kind == 'summary'")
    assert (together["verdict"] == "no overlap").all()
    pairs = table(docs, SPEC.model_copy(update={"common": "pair"}), study).query(
        "is_primary and kind == 'summary'"
    )
    assert (pairs.set_index("arch").loc["far", "verdict"] == "no overlap").all()
    assert (pairs.set_index("arch").loc["new", "verdict"] == "equivalent").all()


def test_duplicates_change_nothing():
    docs = documents(offset=0.05, seed_sd=0.01, doc_sd=0.05)
    once = table(docs)
    pd.testing.assert_frame_equal(table(pd.concat([docs, docs])), once)
    # The same checkpoints listed under later step numbers are ties in x: still no new evidence.
    again = docs.assign(step=docs["step"] + 1)
    twice = table(pd.concat([docs, again]))
    numbers = ["mean", "ci_lo", "ci_hi", "domain_ci_lo", "domain_ci_hi", "p", "delta"]
    np.testing.assert_allclose(twice[numbers].to_numpy(float), once[numbers].to_numpy(float), atol=1e-9)


def test_x_that_rises_is_pooled_and_said():
    docs = documents(offset=0.1)
    late = (docs["step"] == 300) & (docs["arch"] == "new")
    docs.loc[late, "nll_nats"] += 50 * 0.3
    result = table(docs)
    assert (result["interp"] == "linear, isotonic x").all()
    assert at_primary(result)["mean"].item() == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("kind", ["linear", "pchip"])
def test_interpolations_agree_on_straight_lines(kind):
    result = table(documents(offset=0.1), SPEC.model_copy(update={"interpolation": kind, "bootstrap": 100}))
    means = result.query("kind == 'summary'")["mean"]
    assert means.to_numpy() == pytest.approx(np.full(len(means), 0.1))


def test_phases():
    docs = documents()
    mixed = docs.copy()
    mixed.loc[mixed["step"] == 100, "phase"] = "stable"
    both = SPEC.model_copy(update={"phases": ("annealed", "stable")})
    with pytest.raises(ComparisonError, match="different schedule phases"):
        table(mixed, both)
    explored = table(mixed, both.model_copy(update={"exploratory": True}))
    assert (explored["phase"] == "annealed+stable (exploratory)").all()
    assert (table(mixed)["phase"] == "annealed").all()
    cosine = table(docs.assign(phase="mid_cosine"), SPEC.model_copy(update={"phases": ("mid_cosine",)}))
    assert (cosine["phase"] == "mid_cosine (exploratory)").all()
    with pytest.raises(ComparisonError, match="no checkpoints in phase"):
        table(docs.assign(phase="stable"))


@pytest.mark.parametrize("column", ["window_mode", "stride", "tokenizer_sha256", "dtype", "prefix_token"])
def test_what_was_scored_differently_is_not_compared(column):
    docs = documents()
    docs.loc[docs["arch"] == "new", column] = (
        7 if docs[column].dtype != object and column in ("stride", "prefix_token") else "z"
    )
    with pytest.raises(ComparisonError, match=column):
        table(docs)


def test_unequal_documents_are_not_compared():
    docs = documents()
    with pytest.raises(ComparisonError, match="lacks documents"):
        table(docs.drop(docs.query("arch == 'new' and doc_id == 'code3'").index))
    with pytest.raises(ComparisonError, match="different documents"):
        table(docs.assign(eval_set_sha256=docs["domain"] + docs["arch"]))
    other = docs.copy()
    other.loc[(docs["arch"] == "new") & (docs["doc_id"] == "code3"), "n_tokens"] = 49
    with pytest.raises(ComparisonError, match="different documents"):
        table(other)
    with pytest.raises(ComparisonError, match="rows of only one of"):
        table(docs.drop(docs.query("arch == 'new' and domain == 'code' and step == 300").index))
    with pytest.raises(ComparisonError, match="no loss rows of new"):
        table(documents(archs=("ref",)))


def test_order_of_rows_does_not_matter():
    docs = documents(offset=0.05, seed_sd=0.01, doc_sd=0.05)
    pd.testing.assert_frame_equal(table(docs.sample(frac=1, random_state=3)), table(docs))


# --- simulations --------------------------------------------------------------------------------------


def simulated(generator, *, offset=0.0, n_docs=1, seed_sd=0.02, doc_sd=0.0):
    """Two architectures' curves, 3 seeds: y = 1 + x, plus offset, seed and document effects for "new".

    `seed_sd` draws one effect a seed, or, with an array [n_docs], another one for each document.
    """
    tokens = {domain: np.full(n_docs, 100) for domain in ("news", "code")}
    effect = generator.normal(0, doc_sd, n_docs)
    curves = {}
    for arch in ("ref", "new"):
        for seed in range(3):
            x = np.array([4.0, 3.8, 3.6, 3.4]) + generator.normal(0, 0.02)
            y = 1 + x[:, None] + np.zeros(n_docs)
            if arch == "new":
                y = y + offset + generator.normal(0, seed_sd) + effect
            nll = {"news": 100 * np.repeat(x[:, None], n_docs, 1), "code": 100 * y}
            curves[arch, seed] = Curve(arch, seed, ("annealed",) * 4, nll)
    return CurveSet(curves, tokens, {"news": "id", "code": "ood"})


def primary_deltas(curves, counts=None):
    result = compare(curves, STUDY, SPEC, counts or curves.once())["new"]
    return result.delta[0, :, :, primary(SPEC)]  # [B, S]


@pytest.fixture(scope="module")
def small_samples():
    """Differences [2000, 3] of simulated experiments with 3 seeds at a true offset of 0.1.

    All in one call: document i is experiment i's only one, and draw i takes it alone.
    """
    n = 2000
    curves = simulated(np.random.default_rng(0), offset=0.1, n_docs=n, seed_sd=np.full(n, 0.02))
    return primary_deltas(curves, dict.fromkeys(curves.n_tokens, np.eye(n)))


def test_the_interval_over_seeds_covers(small_samples):
    covered = [low < 0.1 < high for low, high in (over_seeds(d).interval(0.95) for d in small_samples)]
    assert 0.93 <= np.mean(covered) <= 0.97


def test_false_positives_with_three_seeds(small_samples):
    assert np.mean([over_seeds(d - 0.1).p_different() < 0.05 for d in small_samples]) <= 0.07


def test_equivalence_is_rarely_claimed_at_the_margin(small_samples):
    """A true difference as large as the margin is called equivalent in at most 5 % of experiments."""
    wrong = np.mean([over_seeds(d).p_equivalent(0.1) < 0.05 for d in small_samples])
    assert wrong <= 0.065
    assert np.mean([over_seeds(d - 0.1).p_equivalent(0.2) < 0.05 for d in small_samples]) > 0.95


def test_the_smallest_detectable_effect_is_found_as_often_as_promised():
    """At the true standard error's mde, the power is 80 %."""
    generator = np.random.default_rng(1)
    n, sd = 5, 0.02
    from scipy import stats

    effect = (stats.t.ppf(0.975, n - 1) + stats.t.ppf(0.8, n - 1)) * sd / np.sqrt(n)
    estimates = [over_seeds(generator.normal(effect, sd, n)) for _ in range(2000)]
    assert np.mean([e.p_different() < 0.05 for e in estimates]) == pytest.approx(0.8, abs=0.06)
    assert np.mean([e.smallest_detectable(0.95) for e in estimates]) == pytest.approx(effect, rel=0.1)


@pytest.mark.parametrize("n_docs", [10, 35])
def test_the_wider_interval_covers_the_domain(n_docs):
    """Document SD 0.1, seed SD 0.01: over seeds alone it covers about a half and two thirds of the time."""
    generator = np.random.default_rng(2)
    seeds_only, used = [], []
    for i in range(2000):
        curves = simulated(generator, offset=0.1, n_docs=n_docs, seed_sd=0.01, doc_sd=0.1)
        rng = np.random.default_rng(i)
        weights = np.full(n_docs, 1 / n_docs)
        counts = {domain: rng.multinomial(n_docs, weights, 200) for domain in curves.n_tokens}
        deltas = primary_deltas(curves)[0]
        drawn = primary_deltas(curves, counts)
        picks = rng.multinomial(3, np.full(3, 1 / 3), 200) / 3
        seeds = over_seeds(deltas)
        domain = over_seeds_and_documents(seeds.mean, (drawn * picks).sum(1), n_docs)
        for estimate, hits in ((seeds, seeds_only), (Cautious((seeds, domain)), used)):
            low, high = estimate.interval(0.95)
            hits.append(low < 0.1 < high)
    assert np.mean(seeds_only) < 0.8
    assert 0.93 <= np.mean(used) <= 0.97


def test_hierarchical_bootstrap_has_the_true_spread():
    """Its standard error against the analytic one: seeds (short by sqrt(2/3) with 3) and documents."""
    docs = documents(seeds=range(12), seed_sd=0.05, doc_sd=0.3, n_docs=50, out=("code",))
    result = table(docs, StatisticsSpec(bootstrap=1000))
    row = at_primary(result).iloc[0]
    half = (row["domain_ci_hi"] - row["domain_ci_lo"]) / 2
    deltas = at_primary(result, "seed")["delta"]
    expected = np.sqrt(deltas.var() / 12 + 0.3**2 / 50)
    assert half / 2.01 == pytest.approx(expected, rel=0.2)


# --- the step -----------------------------------------------------------------------------------------


def test_step(tmp_path, capsys):
    docs = documents(offset=0.1, seed_sd=0.005)
    paths = []
    for (arch, seed), part in docs.groupby(["arch", "seed"]):
        paths.append(tmp_path / f"{arch}{seed}.parquet")
        part.to_parquet(paths[-1])
    roles = {"news": "in", "books": "in", "code": "out", "maths": "out"}
    spec = {"studies": {"s": STUDY.model_dump()}, "statistics": SPEC.model_dump(), "domains": roles}
    out = tmp_path / "tables" / "equal_loss"
    arguments = ["--spec", json.dumps(spec), "--docs", *map(str, paths), "--out"]
    assert cli.main([*arguments, str(out)]) == 0
    assert cli.main([*arguments, str(tmp_path / "again")]) == 0
    for suffix in (".parquet", ".csv"):
        assert out.with_suffix(suffix).read_bytes() == (tmp_path / f"again{suffix}").read_bytes()
    result = pd.read_parquet(out.with_suffix(".parquet"))
    assert at_primary(result)["verdict"].item() == "different"
    assert read_parquet_provenance(out.with_suffix(".parquet"))["step"] == "equal_loss"
    # roles are the configuration's: with one domain fewer the others are compared
    spec["domains"] = {"news": "in", "books": "in", "code": "out"}
    arguments[1] = json.dumps(spec)
    assert cli.main([*arguments, str(out)]) == 0
    assert set(pd.read_parquet(out.with_suffix(".parquet"))["domain"]) == {"code", "macro_ood"}
    spec["domains"] = {"news": "in", "books": "out", "code": "out"}
    arguments[1] = json.dumps(spec)
    assert cli.main([*arguments, str(out)]) == 1
    assert "role" in capsys.readouterr().err


def test_packed_documents_are_a_secondary_result_that_no_comparison_uses():
    docs = documents(offset=0.1)
    packed = docs.assign(boundary_mode="packed", nll_nats=docs["nll_nats"] * 2)
    roles = {"news": "in", "books": "in", "code": "out", "maths": "out"}
    both = with_roles(pd.concat([docs, packed]), roles)
    pd.testing.assert_frame_equal(table(both), table(docs))
    with pytest.raises(ComparisonError, match="boundary_mode"):
        table(pd.concat([docs, packed]))


def test_curves_are_in_the_order_of_training():
    curves = curve_set(documents().sample(frac=1, random_state=0), ["ref", "new"])
    x, y = curves.losses(curves.curves["ref", 0], curves.once())
    assert x[0] == pytest.approx([4, 3.8, 3.6, 3.4])
    assert y[:, 0] == pytest.approx(np.tile([5, 4.8, 4.6, 4.4], (3, 1)))
