"""Other methods find what is planted, with the errors they promise, and say where they say nothing."""

import json

import numpy as np
import pandas as pd
import pytest

from seqarch.analysis.errors import ComparisonError
from seqarch.analysis.intervals import Estimate, welch
from seqarch.analysis.power_law import PowerLaw, fit, value
from seqarch.analysis.sensitivity import METHODS, Pair, agreement, deming, mix
from seqarch.cli import sensitivity as cli
from seqarch.files import read_parquet_provenance, sha256_file, write_json

ALL = ["primary", "mix_weighted_x", "welch", "deming", "clustered_lines", "mixed_lines", "power_law"]
DOMAINS = {"news": "in", "books": "in", "code": "out"}
STEPS = (100, 200, 300, 400)


def experiment(generator, *, offset=0.0, n_seeds=3, seed_sd=0.02, point_sd=0.003, n_points=4):
    """Points of two architectures on bent curves; the architecture's are `offset` higher."""
    sides = []
    for shift in (offset, 0.0):
        runs = []
        for _ in range(n_seeds):
            x = np.linspace(4, 3.4, n_points) + generator.normal(0, 0.02) + generator.normal(0, 0.003)
            y = 1 + 1.2 * (x - 3) ** 0.9 + shift + generator.normal(0, seed_sd)
            runs.append((x, y + generator.normal(0, point_sd, n_points)))
        sides.append(runs)
    return Pair(*sides, noise=1.0)


def lowest(pair):
    return max(x.min() for side in (pair.arch, pair.ref) for x, _ in side)


@pytest.mark.parametrize(
    ("name", "n", "low", "high"),
    [
        ("deming", 2000, 0.93, 0.97),
        ("clustered_lines", 2000, 0.93, 0.985),  # a few curves: somewhat wide
        ("mixed_lines", 300, 0.92, 0.995),
        ("power_law", 120, 0.88, 1.0),
    ],
)
def test_intervals_cover_a_planted_offset(name, n, low, high):
    generator = np.random.default_rng(0)
    covered, zero = [], []
    for _ in range(n):
        pair = experiment(generator, offset=0.05)
        start, end = METHODS[name](pair, lowest(pair)).interval(0.95)
        covered.append(start < 0.05 < end)
        zero.append(start < 0 < end)
    assert low <= np.mean(covered) <= high
    assert np.mean(zero) < np.mean(covered)


@pytest.mark.parametrize("name", METHODS)
def test_with_little_noise_every_method_gives_the_offset(name):
    pair = experiment(np.random.default_rng(1), offset=0.3, seed_sd=0.002, point_sd=0.001, n_points=6)
    assert METHODS[name](pair, lowest(pair)).mean == pytest.approx(0.3, abs=0.02)


def test_welch_covers_and_ignores_pairs():
    generator = np.random.default_rng(2)
    covered = []
    for _ in range(2000):
        a, b = generator.normal(0.1, 0.02, 3), generator.normal(0, 0.05, 3)
        low, high = welch(a, b).interval(0.95)
        covered.append(low < 0.1 < high)
    assert 0.93 <= np.mean(covered) <= 0.98  # conservative, where the variances differ
    assert welch(a, b).se == welch(a[::-1], b).se
    assert np.isnan(welch(a[:1], b[:1]).se)


def test_deming_undoes_the_bias_of_noise_in_x():
    """Least squares of y on a noisy x is too flat; Deming's line with the right ratio is not."""
    generator, n = np.random.default_rng(3), 20_000
    x = np.linspace(3, 5, n)
    noisy, y = x + generator.normal(0, 0.4, n), 1 + x + generator.normal(0, 0.4, n)
    run, flat = [(noisy, y)], [(noisy, np.zeros(n))]
    at = [deming(Pair(run, flat, noise), 5.0).mean for noise in (1.0, np.inf)]
    assert at[0] == pytest.approx(6.0, abs=0.03)
    assert at[1] == pytest.approx(5 + 1 / (1 + 0.16 * 3), abs=0.03)  # var(x) = 1/3: slope 1/(1 + 0.16/var)


def test_a_power_law_is_fitted_through_its_own_points():
    law = PowerLaw(K=1.3, E0=2.0, k=0.8, E1=0.7)
    x = np.linspace(3, 5, 9)
    y = np.array([value(law, each) for each in x])
    found = fit(x, y)
    assert [value(found, each) for each in x] == pytest.approx(y, abs=1e-4)
    assert value(fit(x, y, near=found), 4.1) == pytest.approx(value(law, 4.1), abs=1e-4)


def test_agreement():
    zero, above, below = Estimate(0.0, 1, 5, ""), Estimate(9.0, 1, 5, ""), Estimate(-9.0, 1, 5, "")
    assert agreement(above, above, 0.95) == agreement(zero, zero, 0.95) == "agrees"
    assert agreement(above, below, 0.95) == agreement(above, zero, 0.95) == "differs"
    assert agreement(above, Estimate(9.0, float("nan"), 1, ""), 0.95) is None


def test_the_mix_of_a_setting():
    tokens = {"news": 300, "books": 100}
    assert mix({"news": None, "books": None}, ["books", "news"], tokens) == {"books": 0.25, "news": 0.75}
    assert mix({"news": 1.0, "code": 9.0}, ["books", "news"], {}) == {"books": 0.0, "news": 1.0}
    assert mix({"code": 1.0}, ["books", "news"], {}) is None
    with pytest.raises(ComparisonError, match="training manifest of each"):
        mix({"news": None}, ["news"], {})


# --- the step -----------------------------------------------------------------------------------------


def documents(offset, seeds=(0, 1, 2), apart=0.0):
    """Documents of two architectures; "news" is 0.2 easier for the new one, "books" 0.2 harder."""
    generator = np.random.default_rng(4)
    rows = []
    for arch in ("ref", "new"):
        for seed in seeds:
            run = 1 + generator.normal(0, 0.002)
            for k, step in enumerate(STEPS):
                x = 4 - 0.2 * k + 0.02 * seed
                new = arch == "new"
                y = x + run + offset * new + generator.normal(0, 0.001)
                level = {"news": x - 0.2 * new, "books": x + 0.2 * new, "code": y}
                for domain, y in level.items():
                    values = y + apart * new + 0.1 * np.sin(np.arange(20))
                    rows += [(arch, seed, step, domain, f"{domain}{i}", 50 * v) for i, v in enumerate(values)]
    frame = pd.DataFrame(rows, columns=["arch", "seed", "step", "domain", "doc_id", "nll_nats"])
    same = {"experiment": "x", "setting": "limited", "length": 128, "phase": "annealed", "n_tokens": 50}
    same |= {"window_mode": "disjoint", "stride": 128, "boundary_mode": "document", "prefix_token": 0}
    role = frame["domain"].map({"news": "id", "books": "id", "code": "ood"})
    same |= {"tokenizer_sha256": "t", "dtype": "float32", "doc_sha256": frame["doc_id"], "role": role}
    return frame.assign(**same, eval_set_sha256=frame["domain"])


def manifest(folder, domain, n_tokens):
    folder = folder / domain
    folder.mkdir()
    np.zeros(n_tokens, dtype="<u2").tofile(folder / "00000.bin")
    np.array([0, n_tokens]).astype("<i8").tofile(folder / "00000.idx")
    entry = {"name": "00000.bin", "n_tokens": n_tokens, "n_docs": 1}
    entry["sha256"] = sha256_file(folder / "00000.bin")
    values = {"domain": domain, "split": "train", "dtype": "uint16", "vocab_size": 8, "bos_id": 0}
    values |= {"tokenizer_sha256": "t", "n_tokens": n_tokens, "n_docs": 1, "n_bytes": 9, "files": [entry]}
    write_json(folder / "manifest.json", values)
    return folder / "manifest.json"


@pytest.fixture
def step(tmp_path):
    manifests = [manifest(tmp_path, "news", 75), manifest(tmp_path, "books", 25)]

    def run(docs, **changes):
        paths = []
        for run, part in docs.groupby(["arch", "seed"]):
            paths.append(tmp_path / f"{run}.parquet")
            part.to_parquet(paths[-1])
        spec = {
            "studies": {"s": {"reference": "ref", "compare": ["new"]}},
            "statistics": {"bootstrap": 100},
            "domains": DOMAINS,
            "settings": {"limited": {"news": None, "books": None}},
        } | changes
        out = tmp_path / "sensitivity"
        arguments = ["--spec", json.dumps(spec), "--docs", *map(str, paths), "--manifests"]
        assert cli.main([*arguments, *map(str, manifests), "--out", str(out)]) == 0
        assert read_parquet_provenance(out.with_suffix(".parquet"))["step"] == "sensitivity"
        return pd.read_csv(out.with_suffix(".csv")).query("domain == 'code'").set_index("method")

    return run


def test_a_planted_offset_is_found_by_every_method_end_to_end(step):
    table = step(documents(0.1))
    assert list(table.index) == ALL
    same = table.drop(index="mix_weighted_x")
    assert same["effect"].to_numpy() == pytest.approx(0.1, abs=0.01)
    assert (same["ci_lo"] < 0.1).all()
    assert (table["agreement"] == "agrees").all()
    assert (table["ci_lo"] > 0).all()
    assert table["note"].isna().all()
    # Three quarters of the mix are news, where the new one is 0.2 better: its x is 0.1 lower, so it pays 0.1.
    assert table.loc["mix_weighted_x", "effect"] == pytest.approx(0.2, abs=0.01)


def test_where_the_runs_say_nothing_the_table_says_why(step):
    apart = step(documents(0.1, apart=5.0))
    assert apart["effect"].isna().all()
    assert apart["note"].str.startswith("no overlap").all()
    one = step(documents(0.1, seeds=(0,)))
    assert one["ci_lo"].isna().all()
    assert one["agreement"].isna().all()
    assert one.loc["welch", "note"] == "one seed: no interval"
    assert "too few points" in one.loc["power_law", "note"]
    outside = step(documents(0.1), settings={"limited": {"code": 1.0}})
    assert "no in-domain text" in outside.loc["mix_weighted_x", "note"]
    assert outside.loc["primary", "effect"] == pytest.approx(0.1, abs=0.01)
