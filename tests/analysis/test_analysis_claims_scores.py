"""Scores in claims: effects planted in the tables of RULER, needles and recall are found in claims.csv."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from seqarch.analysis.claims import evaluate
from seqarch.analysis.claims_evidence import NotRun
from seqarch.analysis.claims_scores import Scores
from seqarch.analysis.claims_spec import ClaimsJob, Entry
from seqarch.analysis.errors import ComparisonError
from seqarch.analysis.long_context import SCHEMA
from seqarch.analysis.realised import load_claims
from seqarch.cli import claims as cli
from seqarch.evaluation import recall_score
from seqarch.evaluation.columns import result_table
from seqarch.files import write_table
from seqarch.provenance import record
from seqarch.schema import parse

CLAIMS = Path(__file__).parents[2] / "config" / "claims.yaml"
TRAIN = 128
ENTRIES = {
    "transformer": Entry(mixers=("attention",)),
    "mamba2": Entry(mixers=("mamba2",)),
    "hybrid": Entry(mixers=("attention", "mamba2"), pattern=True),
}
ARCHS = tuple(ENTRIES)
PUBLISHED = {"their-transformer": Entry(mixers=("attention",)), "their-mamba": Entry(mixers=("mamba2",))}
RECALL = recall_score.SCORES


def cells(lost, *, archs=ARCHS, middle=0.0, seeds=(0, 1, 2), sd=0.01, n=200, setting="limited", rng=0):
    """RULER and needle rows: a score of 0.9, less `lost` beyond the training length, less `middle`."""
    generator = np.random.default_rng(rng)
    rows = []
    for arch in archs:
        for seed in seeds:
            who = {"setting": setting, "arch": arch, "model": arch, "seed": seed, "train_length": TRAIN}
            noise = generator.normal(0, sd) if seed is not None else 0.0
            for length in (64, 128, 256):
                far = (length > TRAIN) * (lost[arch] + noise)
                for task in ("niah_single_1", "vt"):
                    rows.append(who | {"task": task, "length": length, "n": n, "score": 0.9 - far})
                for depth in (0.0, 50.0, 100.0):
                    score = 0.9 - far - (depth == 50) * (middle + noise)
                    place = {"task": "needle Essay-Word-Num", "format": "Essay-Word-Num", "depth": depth}
                    rows.append(who | place | {"length": length, "n": n, "score": score, "signal": "ok"})
    return rows


def ruler_rows(rows):
    """With the rows that average others, far from what was measured."""
    found = [row for row in rows if "depth" not in row]
    keys = {(row["arch"], row["seed"], row["setting"]) for row in found}
    who = [{"arch": a, "seed": s, "setting": t, "train_length": TRAIN} for a, s, t in sorted(keys, key=str)]
    averages = [
        row | {"task": task, "length": length, "n": 400, "score": 0.0}
        for row in who
        for task, length in (("partial_mean", 64), ("mean", 256), ("avg", None), ("wavg_inc", None))
    ]
    return found + averages


def needle_rows(rows):
    found = [row for row in rows if "depth" in row]
    means = [row | {"format": "mean", "task": "needle mean", "score": 0.0} for row in found]
    silent = [row | {"score": 0.0, "signal": "no signal", "task": "needle X"} for row in found]
    return found + means + silent


def recall_rows(lost, archs=ARCHS, seeds=(0, 1, 2), sd=0.01, n=200):
    """More pairs in the longer test: the easy cell of 4 pairs is measured at the training length alone."""
    generator = np.random.default_rng(5)
    rows = []
    for arch in archs:
        for seed in seeds:
            noise = generator.normal(0, sd)
            who = {"setting": "recall", "arch": arch, "model": arch, "seed": seed, "task": "mqar"}
            who |= {"train_length": 64, "n": n, "signal": "ok"}
            rows.append(who | {"length": 64, "n_pairs": 4, "score": 1.0})
            rows.append(who | {"length": 64, "n_pairs": 16, "score": 0.8})
            rows.append(who | {"length": 128, "n_pairs": 16, "score": 0.8 - lost[arch] + noise})
    return rows


def tables(folder, *, long_context=(), recall=()):
    """The three tables as the project writes them; those without rows are not there."""
    paths = []
    for name, rows, schema in (
        ("ruler", ruler_rows(long_context), SCHEMA),
        ("needle", needle_rows(long_context), SCHEMA),
        ("recall", list(recall), RECALL),
    ):
        if rows:
            path = folder / name
            write_table(
                path, result_table(rows, schema, experiment="planted"), record(f"{name}_table", {}, "")
            )
            paths.append(path.with_suffix(".parquet"))
    return paths


@pytest.fixture
def step(tmp_path):
    """cli.claims on the project's own claims -> the claims' rows and the pairs'."""
    docs = pd.DataFrame(
        {name: pd.Series(dtype=object) for name in ("setting", "arch", "phase", "domain", "role", "length")}
    )
    docs.to_parquet(tmp_path / "docs.parquet")

    def run(*paths, published=None, architectures=ENTRIES):
        spec = {
            "claims": [each.model_dump(mode="json") for each in load_claims(CLAIMS).claims],
            "experiment": "planted",
            "architectures": {name: entry.model_dump() for name, entry in architectures.items()},
            "published": {name: entry.model_dump() for name, entry in (published or {}).items()},
            "domains": {"news": "in", "code": "out"},
            "statistics": {"bootstrap": 100},
        }
        out = tmp_path / "claims"
        arguments = ["--spec", json.dumps(spec), "--docs", str(tmp_path / "docs.parquet"), "--out", str(out)]
        arguments += ["--scores", *map(str, paths)] if paths else []
        assert cli.main(arguments) == 0
        table = pd.read_csv(out.with_suffix(".csv"))
        return table.query("level == 'claim'").set_index("claim"), table.query("level == 'pair'")

    return run


NAMES = {
    "models": "models-drop-beyond-training-length",
    "hybrids": "hybrids-drop-beyond-training-length",
    "further": "recurrent-models-extrapolate-further",
    "middle": "the-middle-is-lost",
}


def verdicts(claims):
    return {short: claims.loc[name, "verdict"] for short, name in NAMES.items()}


def test_planted_effects_are_found_in_tables_of_the_projects_own_writers(step, tmp_path):
    lost = {"transformer": 0.6, "mamba2": 0.3, "hybrid": 0.4}
    claims, pairs = step(*tables(tmp_path, long_context=cells(lost, middle=0.2)))
    assert verdicts(claims) == dict.fromkeys(NAMES, "supported")
    row = claims.loc[NAMES["further"]]
    assert row["effect"] == pytest.approx(0.3, abs=0.02)
    assert (row["setting"], row["unit"], row["n_seeds"]) == ("limited", "score", 3)
    assert row["rows"] == "scores: setting=limited arch=mamba2|transformer seed=0|1|2 task=all"
    drops = pairs[pairs["claim"] == NAMES["models"]].set_index("arch")["effect"]
    assert drops["transformer"] == pytest.approx(-0.6, abs=0.02)  # averages and cells without signal are out
    assert set(claims.query("measure == 'ood_loss'")["verdict"]) == {"not run"}

    claims, _ = step(*tables(tmp_path, long_context=cells(dict.fromkeys(ARCHS, 0.0), n=10_000)))
    assert verdicts(claims) == dict.fromkeys(NAMES, "contradicted")
    other = {"transformer": 0.3, "mamba2": 0.6, "hybrid": -0.4}
    claims, _ = step(*tables(tmp_path, long_context=cells(other, middle=-0.2)))
    assert verdicts(claims) == {"models": "supported"} | dict.fromkeys(
        ("hybrids", "further", "middle"), "contradicted"
    )
    noisy = cells(dict.fromkeys(ARCHS, 0.05), sd=0.2, middle=0.05)
    claims, _ = step(*tables(tmp_path, long_context=noisy))
    assert verdicts(claims) == dict.fromkeys(NAMES, "inconclusive")
    assert (claims.loc[list(NAMES.values()), "mde"] > 0.1).all()


def test_every_population_counts_and_one_contradicts(step, tmp_path):
    lost = {"transformer": 0.6, "mamba2": 0.3, "hybrid": 0.4}
    both = cells(lost, middle=0.2) + cells(lost, setting="mixed", rng=1, middle=0.2)
    paths = tables(tmp_path, long_context=both, recall=recall_rows(lost))
    claims, pairs = step(*paths)
    assert claims.loc[NAMES["models"], ["verdict", "n_pairs"]].tolist() == ["supported", 6]
    # Recall without depths does not keep needles from an answer.
    assert claims.loc[NAMES["middle"], ["verdict", "n_pairs"]].tolist() == ["supported", 4]
    assert set(pairs[pairs["claim"] == NAMES["models"]]["setting"]) == {"limited", "mixed", "recall"}
    # The recall cell of 4 pairs has no longer counterpart: it is left out, not averaged against others.
    recall = pairs[(pairs["claim"] == NAMES["models"]) & (pairs["setting"] == "recall")].set_index("arch")
    assert recall.loc["transformer", "effect"] == pytest.approx(-0.6, abs=0.02)
    paths = tables(tmp_path, long_context=both, recall=recall_rows(lost | {"mamba2": 0.0}, n=10_000))
    claims, _ = step(*paths)
    assert claims.loc[NAMES["models"], "verdict"] == "contradicted"
    assert claims.loc[NAMES["models"], "setting"] == "recall"


def test_published_models_are_judged_over_samples(step, tmp_path):
    lost = {"their-transformer": 0.8, "their-mamba": 0.3}
    rows = cells(lost, archs=tuple(lost), seeds=(None,), setting=None, n=250)
    claims, _ = step(*tables(tmp_path, long_context=rows), published=PUBLISHED)
    assert verdicts(claims)["models"] == verdicts(claims)["further"] == "supported"
    row = claims.loc[NAMES["further"]]
    assert row["interval"] == "samples of one model"
    assert row["setting"] == "published"
    assert np.isnan(row["n_seeds"])
    assert row["effect"] == pytest.approx(0.5, abs=0.01)
    assert verdicts(claims)["hybrids"] == "not run"
    few = cells(lost, archs=tuple(lost), seeds=(None,), setting=None, n=4)
    claims, _ = step(*tables(tmp_path, long_context=few), published=PUBLISHED)
    assert claims.loc[NAMES["further"], "hi"] - claims.loc[NAMES["further"], "lo"] > 0.2
    # Models that the configuration does not know are nobody's evidence.
    claims, _ = step(*tables(tmp_path, long_context=rows))
    assert set(claims["verdict"]) == {"not run"}


def test_the_interval_over_samples_covers():
    """300 simulated models whose true drop is 0.5, three tasks of 100 samples a side."""
    generator = np.random.default_rng(0)
    covered = []
    for _ in range(300):
        rows = [
            {"arch": "m", "setting": None, "seed": None, "task": f"t{i}", "length": length, "n": 100}
            | {"train_length": 128, "score": generator.binomial(100, p) / 100}
            for i in range(3)
            for length, p in ((128, 0.9), (256, 0.4))
        ]
        evidence = Scores(pd.DataFrame(rows)).contrast("beyond_training_length", "m", None, "published", ())
        low, high = evidence.estimate().interval(0.95)
        covered.append(low < -0.5 < high)
    assert 0.92 <= np.mean(covered) <= 0.985


def contrast(rows, *names):
    return Scores(pd.DataFrame(rows)).contrast("beyond_training_length", *names, "published", ())


def score_rows(arch, train_length, lengths, seed=None, n=500):
    """A score that falls with the multiple of the training length, and with nothing else."""
    who = {"arch": arch, "setting": None, "seed": seed, "task": "vt", "n": n, "train_length": train_length}
    return [who | {"length": each, "score": 0.9 / max(1.0, each / train_length)} for each in lengths]


def test_models_are_compared_at_the_same_multiples_of_their_training_lengths():
    lengths = (1024, 2048, 4096, 8192, 16_384)
    rows = score_rows("short", 2048, lengths) + score_rows("long", 4096, lengths)
    assert contrast(rows, "short", "long").mean == pytest.approx(0, abs=1e-12)
    # What one of them has alone does not count, also where it is only a cell without signal that is missing.
    assert contrast(rows[:-1], "short", "long").mean == pytest.approx(0, abs=1e-12)
    assert contrast(rows, "short", None).mean < contrast(rows, "long", None).mean
    apart = score_rows("short", 2048, (2048, 4096)) + score_rows("long", 2048, (2048, 8192))
    with pytest.raises(NotRun, match="no scores of the same tasks"):
        contrast(apart, "short", "long")


def test_equal_scores_of_all_seeds_are_not_known_exactly():
    rows = [row for seed in (0, 1) for row in score_rows("m", 64, (64, 128), seed, n=50)]
    estimate = contrast(rows, "m", None).estimate()
    low, high = estimate.interval(0.95)
    assert low < -0.45 - 0.1 < -0.45 + 0.1 < high
    assert 0 < estimate.p_different() < 1e-3


# --- what is missing ----------------------------------------------------------------------------------


def test_missing_tables_columns_and_cells_are_not_run(step, tmp_path):
    claims, _ = step()
    assert set(claims["verdict"]) == {"not run"}
    assert "no table of scores was given" in claims.loc[NAMES["middle"], "note"]
    lost = {"transformer": 0.6, "mamba2": 0.3, "hybrid": 0.4}
    rows = cells(lost, middle=0.2)
    short = [row for row in rows if row["length"] <= TRAIN]
    claims, _ = step(*tables(tmp_path, long_context=short))
    assert verdicts(claims) == dict.fromkeys(("models", "hybrids", "further"), "not run") | {
        "middle": "supported"
    }
    assert "on both sides of beyond_training_length" in claims.loc[NAMES["hybrids"], "note"]
    paths = tables(tmp_path, long_context=[row for row in rows if "depth" not in row])
    claims, _ = step(tmp_path / "ruler.parquet")
    assert verdicts(claims)["middle"] == "not run"
    assert verdicts(claims)["models"] == "supported"
    silent = [row | {"signal": "no signal"} if "depth" in row else row for row in rows]
    claims, _ = step(*tables(tmp_path, long_context=silent))
    assert verdicts(claims)["middle"] == "not run"
    assert "with signal" in claims.loc[NAMES["middle"], "note"]
    unknown = pd.read_parquet(paths[0]).drop(columns="train_length")
    unknown.to_parquet(tmp_path / "other.parquet")
    claims, _ = step(tmp_path / "other.parquet")
    assert "lack train_length" in claims.loc[NAMES["models"], "note"]
    one = [row for row in rows if not (row["arch"] == "hybrid" and row["seed"] != 0)]
    claims, _ = step(*tables(tmp_path, long_context=one))
    assert verdicts(claims)["hybrids"] == "inconclusive"
    assert "one seed" in claims.loc[NAMES["hybrids"], "note"]


def test_pairs_need_common_cells_and_seeds():
    rows = cells({"transformer": 0.5, "mamba2": 0.1}, archs=("transformer", "mamba2"))
    frame = pd.DataFrame(rows).assign(setting="limited")
    measure = ("beyond_training_length", "mamba2", "transformer", "limited", ())
    apart = frame.assign(task=np.where(frame["arch"] == "mamba2", "a", "b"))
    with pytest.raises(ComparisonError, match="the same tasks"):
        Scores(apart).contrast(*measure)
    with pytest.raises(ComparisonError, match="share no seed"):
        Scores(frame.assign(seed=frame["seed"] + 10 * (frame["arch"] == "mamba2"))).contrast(*measure)
    with pytest.raises(ComparisonError, match="lack n"):
        Scores(frame.drop(columns="n")).contrast(*measure)


def test_a_claim_about_one_setting_and_some_tasks_uses_these():
    rows = cells({"mamba2": 0.4}, archs=("mamba2",)) + cells(
        {"mamba2": 0.0}, archs=("mamba2",), setting="mixed"
    )
    one = {"id": "one", "text": "t", "source": "s", "kind": "difference", "sign": "-", "margin": 0.05}
    one |= {"measure": "beyond_training_length", "compare": {"mixer": "mamba2"}, "tasks": ["vt"]}
    job = {"claims": [one | {"setting": "limited"}], "experiment": "x", "domains": {"a": "in", "b": "out"}}
    job |= {"architectures": {"mamba2": ENTRIES["mamba2"].model_dump()}, "statistics": {"bootstrap": 100}}
    docs = pd.DataFrame({"setting": [], "arch": []})
    table = evaluate(parse(ClaimsJob, job), docs, pd.DataFrame(rows))
    (claim,) = table[table["level"] == "claim"].to_dict("records")
    assert (claim["verdict"], claim["setting"], claim["n_pairs"]) == ("supported", "limited", 1)
    assert claim["rows"].endswith("task=vt")
    job["claims"] = [one | {"setting": "nowhere"}]
    table = evaluate(parse(ClaimsJob, job), docs, pd.DataFrame(rows))
    assert table["verdict"].tolist()[0] == "not run"
