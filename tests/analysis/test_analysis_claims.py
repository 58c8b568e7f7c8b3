"""Planted effects are found through the table; what is missing or wrong is "not run", never support."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from scipy import stats

from seqarch.analysis.claims import evaluate
from seqarch.analysis.claims_binding import bind, selects, words
from seqarch.analysis.claims_evidence import Evidence
from seqarch.analysis.claims_spec import Claim, ClaimsFile, ClaimsJob, Selector
from seqarch.analysis.claims_verdicts import Finding, judge
from seqarch.analysis.equal_loss import equal_loss
from seqarch.analysis.realised import load_claims, realised
from seqarch.analysis.spec import StatisticsSpec, StudySpec
from seqarch.architecture import ModelSpec, resolve
from seqarch.cli import claims as cli
from seqarch.errors import ConfigError
from seqarch.evaluation.columns import COMMON
from seqarch.evaluation.loss_tables import DOCS
from seqarch.files import read_parquet_provenance
from seqarch.schema import parse

CLAIMS = Path(__file__).parents[2] / "config" / "claims.yaml"
DOMAINS = {"news": "in", "books": "in", "code": "out", "maths": "out"}
ENTRIES = {
    "transformer": {"mixer": "attention"},
    "window-16": {"mixer": "attention", "window": 16},
    "window-64": {"mixer": "attention", "window": 64},
    "alibi": {"mixer": "attention", "position": "alibi"},
    "cold": {"mixer": "attention", "temperature": 0.5},
    "cold-window": {"mixer": "attention", "temperature": 0.5, "window": 16},
    "mamba2": {"mixer": "mamba2"},
    "mamba2-no-conv": {"mixer": "mamba2", "conv": False},
    "chunks": {"mixer": "top1_chunk", "chunk_size": 16},
    "hybrid": {"pattern": ["mamba2", "transformer"]},
}
STEPS = (100, 200, 300)


def entries(names=tuple(ENTRIES)):
    chosen = {name: ENTRIES[name] for name in names}
    sizes = ModelSpec(scale="nano")
    models = {name: resolve(name, chosen, sizes, 512, 128) for name in chosen}
    return realised(chosen, models, sizes, 512, 128)


def documents(offsets, *, settings=("limited",), seeds=(0, 1, 2), sd=0.002, n_docs=30, rng=0):
    """Rows of docs.parquet as the loss step writes them: y = x + 1 + offset out of domain.

    Args:
        offsets: setting -> architecture -> nats that it pays out of domain beyond the others.
        sd: of one run's out-of-domain loss, in nats.
    """
    generator = np.random.default_rng(rng)
    rows = []
    for setting in settings:
        for arch, offset in offsets[setting].items():
            for seed in seeds:
                noise = generator.normal(0, sd)
                for k, step in enumerate(STEPS):
                    x = 4 - 0.2 * k + 0.02 * seed
                    for domain, role in DOMAINS.items():
                        y = x + (1 + offset + noise if role == "out" else 0)
                        rows += _rows(setting, arch, seed, step, domain, role, y, n_docs)
    return pd.DataFrame(rows)


def _rows(setting, arch, seed, step, domain, role, y, n_docs):
    point = {
        "experiment": "planted",
        "setting": setting,
        "arch": arch,
        "seed": seed,
        "step": step,
        "phase": "annealed",
        "domain": domain,
        "role": {"in": "id", "out": "ood"}[role],
        "length": 128,
        "stride": 128,
        "window_mode": "disjoint",
        "boundary_mode": "document",
        "prefix_token": 0,
        "tokenizer_sha256": "t",
        "dtype": "float32",
        "eval_set_sha256": domain,
    }
    n_tokens = 500
    return [
        point
        | {"doc_id": f"{domain}-{i}", "doc_sha256": f"{domain}-{i}", "n_tokens": n_tokens}
        | {"nll_nats": n_tokens * (y + 0.1 * math.sin(i))}
        for i in range(n_docs)
    ]


def claim(**changes):
    values = {
        "id": "planted",
        "text": "As it was planted",
        "source": "this test",
        "kind": "difference",
        "measure": "ood_loss",
        "sign": "+",
        "setting": "limited",
        "compare": {"mixer": "mamba2"},
        "reference": {"mixer": "attention"},
    }
    return {key: value for key, value in (values | changes).items() if value is not None}


def job(*claims, names=("transformer", "mamba2", "window-16", "window-64"), **changes):
    values = {
        "claims": claims,
        "experiment": "planted",
        "architectures": {name: entry.model_dump() for name, entry in entries(names).items()},
        "domains": DOMAINS,
        "statistics": {"bootstrap": 200},
    }
    return parse(ClaimsJob, values | changes)


def judged(one, docs, scores=None, **changes):
    """The claim's row."""
    table = evaluate(job(one, **changes), docs, scores)
    (row,) = table[table["level"] == "claim"].to_dict("records")
    return row


def planted(offset, **changes):
    return documents({"limited": {"transformer": 0.0, "mamba2": offset}}, **changes)


# --- binding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compare", "reference", "expected"),
    [
        ({"mixer": "mamba2"}, {"mixer": "attention"}, [("mamba2", "transformer")]),
        (
            {"mixer": "attention", "switches": {"window": "set"}},
            {"mixer": "attention"},
            [("window-16", "transformer"), ("window-64", "transformer")],
        ),
        (
            {"mixer": "attention", "switches": {"window": "set"}},
            {"mixer": "attention", "switches": {"window": "larger"}},
            [("window-16", "window-64")],
        ),
        (
            {"mixer": "attention", "switches": {"temperature": "any"}},
            {"mixer": "attention", "switches": {"temperature": "larger"}},
            [("cold", "transformer")],
        ),
        ({"mixer": "any", "switches": {"conv": "set"}}, {"mixer": "same"}, [("mamba2-no-conv", "mamba2")]),
        (
            {"mixer": "attention", "switches": {"position": ["alibi", "none"]}},
            {"mixer": "attention"},
            [("alibi", "transformer")],
        ),
        (
            {"mixer": "attention", "switches": {"temperature": 0.5, "window": "any"}},
            {"mixer": "attention", "switches": {"temperature": "same"}},
            [("cold-window", "cold")],
        ),
        (
            {"mixer": "top1_chunk", "switches": {"chunk_size": "any"}},
            {"mixer": "attention"},
            [("chunks", "transformer")],
        ),
        ({"pattern": "any"}, {"mixer": "attention"}, [("hybrid", "transformer")]),
        ({"pattern": ["attention", "mamba2"]}, {"mixer": "attention"}, [("hybrid", "transformer")]),
    ],
)
def test_a_claim_finds_the_entries_that_realise_it(compare, reference, expected):
    pairs, reason = bind(parse(Claim, claim(compare=compare, reference=reference)), entries())
    assert (pairs, reason == "") == (expected, bool(expected))


def test_a_claim_that_nothing_realises_says_what_is_missing():
    pairs, reason = bind(parse(Claim, claim(compare={"mixer": ["rwkv6", "rwkv7"]})), entries())
    assert not pairs
    assert reason == "no architecture of this run is rwkv6 or rwkv7 as published"
    assert words(Selector(mixer="attention", switches={"window": "set"})) == "attention with window: set"
    assert not selects(Selector(pattern=("gla",)), entries()["hybrid"])


# --- the file -----------------------------------------------------------------------------------------


def test_the_projects_claims_are_well_formed_and_cover_both_papers():
    claims = load_claims(CLAIMS).claims
    assert {"arXiv 2505.18522", "arXiv 2407.08112", "arXiv 2502.12120"} <= {each.source for each in claims}
    assert {each.kind for each in claims} == {"difference", "equivalence", "interaction"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "differnce"}, "kind"),
        ({"sign": None}, "sign belongs to a difference"),
        ({"against": "mixed"}, "against"),
        ({"reference": None}, "needs a reference and a setting"),
        ({"measure": "middle"}, "needs its margin"),
        ({"compare": {"mixer": "mamba3"}}, "did you mean 'mamba1'|did you mean 'mamba2'"),
        ({"compare": {"mixer": "mamba2", "switches": {"windw": 3}}}, "no switch 'windw' in mamba2"),
        ({"compare": {"mixer": "same"}}, "use it in reference"),
        ({"compare": {"mixer": "mamba2", "pattern": "any"}}, "either mixer or pattern"),
        ({"colour": "red"}, "unknown key 'colour'"),
    ],
)
def test_a_wrong_claim_is_an_error_that_names_it(tmp_path, changes, message):
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump({"claims": [claim(**changes)]}))
    with pytest.raises(ConfigError, match=message):
        load_claims(path)


def test_two_claims_of_one_name_and_a_missing_file_are_errors(tmp_path):
    path = tmp_path / "claims.yaml"
    with pytest.raises(ConfigError, match="expected a YAML file"):
        load_claims(path)
    path.write_text(yaml.safe_dump({"claims": [claim(), claim()]}))
    with pytest.raises(ConfigError, match="claims with one id: planted"):
        load_claims(path)


# --- verdicts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "sd", "difference", "equivalence"),
    [
        (0.08, 0.002, "supported", "contradicted"),
        (-0.08, 0.002, "contradicted", "contradicted"),
        (0.0, 0.002, "contradicted", "supported"),
        (0.02, 0.03, "inconclusive", "inconclusive"),
        (0.012, 0.0, "inconclusive", "supported"),  # different, but within the margin
    ],
)
def test_a_planted_difference_gets_the_verdict_that_it_deserves(offset, sd, difference, equivalence):
    docs = planted(offset, sd=sd)
    row = judged(claim(), docs)
    assert row["verdict"] == difference
    assert row["effect"] == pytest.approx(offset, abs=4 * sd + 1e-9)
    assert row["lo"] <= row["effect"] <= row["hi"]
    assert (row["n_seeds"], row["arch"], row["ref"], row["margin"]) == (3, "mamba2", "transformer", 0.02)
    assert judged(claim(kind="equivalence", sign=None), docs)["verdict"] == equivalence
    assert judged(claim(sign="any"), docs)["verdict"] == ("supported" if abs(offset) == 0.08 else difference)


def test_the_effect_is_that_of_the_equal_loss_analysis():
    docs = planted(0.05, sd=0.01)
    row = judged(claim(), docs)
    study = {"one": StudySpec(reference="transformer", compare=("mamba2",))}
    table = equal_loss(docs, study, StatisticsSpec(bootstrap=200))
    (other,) = table.query("kind == 'summary' and is_primary and domain == 'macro_ood'").to_dict("records")
    wide = "domain_ci" if other["interval"] == "seeds and documents" else "ci"
    pairs = [("effect", "mean"), ("lo", f"{wide}_lo"), ("hi", f"{wide}_hi"), ("mde", "mde"), ("x0", "x0")]
    for ours, theirs in [*pairs, ("p", "p"), ("tost_p", "tost_p"), ("sd_seeds", "sd_seeds")]:
        assert row[ours] == pytest.approx(other[theirs]), ours
    assert row["n_docs"] == other["n_docs"]


def test_differences_hidden_by_mixed_domains():
    one = claim(kind="interaction", sign=None, against="mixed")
    names = ("transformer", "mamba2")

    def verdict(limited, mixed, sd=0.002):
        offsets = {
            "limited": dict(zip(names, limited, strict=True)),
            "mixed": dict(zip(names, mixed, strict=True)),
        }
        docs = documents(offsets, settings=("limited", "mixed"), sd=sd)
        return judged(one, docs, names=names)

    hidden = verdict((0, 0.1), (0, 0.01))
    assert hidden["verdict"] == "supported"
    assert hidden["effect"] == pytest.approx(0.09, abs=0.01)
    assert hidden["effect_setting"] == pytest.approx(0.1, abs=0.01)
    assert hidden["effect_against"] == pytest.approx(0.01, abs=0.01)
    assert verdict((0, -0.1), (0, -0.01))["verdict"] == "supported"
    assert verdict((0, 0.1), (0, 0.1))["verdict"] == "contradicted"
    assert verdict((0, 0.1), (0, 0.2))["verdict"] == "contradicted"
    # Smaller is closer to zero: a difference of the other sign is not smaller for that.
    for mixed in (-0.2, -0.12, -0.1):
        assert verdict((0, 0.1), (0, mixed))["verdict"] == "contradicted"
        assert verdict((0, -0.1), (0, -mixed))["verdict"] == "contradicted"
    beyond = verdict((0, 0.1), (0, -0.1), sd=0.02)
    assert beyond["verdict"] == "inconclusive"
    assert "with the other sign" in beyond["note"]
    assert verdict((0, 0.1), (0, -0.03))["verdict"] == "supported"
    nothing = verdict((0, 0.0), (0, 0.0))
    assert nothing["verdict"] == "contradicted"
    assert "nothing to hide" in nothing["note"]
    assert verdict((0, 0.02), (0, 0.0), sd=0.03)["verdict"] == "inconclusive"


def test_one_contradicted_pair_contradicts_and_all_must_support():
    windows = {"mixer": "attention", "switches": {"window": "set"}}
    one = claim(compare=windows)

    def verdicts(near, far):
        docs = documents({"limited": {"transformer": 0, "window-16": near, "window-64": far}})
        table = evaluate(job(one), docs)
        return table.query("level == 'claim'")["verdict"].item(), table

    assert verdicts(0.1, 0.05)[0] == "supported"
    word, table = verdicts(0.1, 0.0)
    assert word == "contradicted"
    assert list(table.query("level == 'pair'")["verdict"]) == ["supported", "contradicted"]
    summary = table.query("level == 'claim'").iloc[0]
    assert (summary["arch"], summary["n_pairs"]) == ("window-64", 2)
    assert "1 contradicted, 1 supported" in summary["note"]
    assert set(table.query("level == 'domain'")["domain"]) == {"code", "maths"}
    assert len(table.query("level == 'seed'")) == 6


@pytest.mark.parametrize(("effect", "kind"), [(0.0, "difference"), (0.02, "equivalence")])
def test_what_is_not_there_is_supported_no_more_often_than_promised(effect, kind):
    """300 runs of three pairs and three seeds, with no difference, or with one as large as the margin."""
    one = parse(Claim, claim(kind=kind, sign="any" if kind == "difference" else None))
    generator = np.random.default_rng(0)
    found = 0
    for _ in range(300):
        values = effect + generator.normal(0, 0.05 if kind == "difference" else 0.004, (3, 3))
        findings = [Finding(f"new{i}", "ref", Evidence(dict(enumerate(row)))) for i, row in enumerate(values)]
        judge(one, findings, StatisticsSpec(), 0.02)
        found += any(each.verdict == "supported" for each in findings)
    assert 1 <= found <= 24  # 15 at most are expected (Holm); 24 adds 2.4 standard deviations


@pytest.mark.parametrize(("n_seeds", "sd"), [(3, 0.008), (5, 0.02)])
def test_a_difference_of_the_margins_size_is_found_as_often_as_the_formula_predicts(n_seeds, sd):
    """600 runs of one pair with a true difference of the margin, against the noncentral t's power."""
    one, margin = parse(Claim, claim()), 0.02
    generator = np.random.default_rng(1)
    found = 0
    for _ in range(600):
        values = dict(enumerate(margin + generator.normal(0, sd, n_seeds)))
        finding = Finding("new", "ref", Evidence(values))
        judge(one, [finding], StatisticsSpec(), margin)
        found += "different" in finding.result
    df = n_seeds - 1
    noncentrality, limit = margin / sd * math.sqrt(n_seeds), stats.t.ppf(0.975, df)
    power = stats.nct.sf(limit, df, noncentrality) + stats.nct.cdf(-limit, df, noncentrality)
    assert 0.3 < power < 0.95
    assert found / 600 == pytest.approx(power, abs=3 * math.sqrt(power * (1 - power) / 600))


# --- what is missing ----------------------------------------------------------------------------------


def test_one_seed_has_no_interval_and_no_verdict():
    row = judged(claim(), planted(0.5, seeds=(0,)))
    assert (row["verdict"], row["note"]) == ("inconclusive", "one seed: no interval")
    assert row["effect"] == pytest.approx(0.5, abs=0.02)
    assert math.isnan(row["lo"])
    assert math.isnan(row["mde"])


def test_no_common_loss_is_inconclusive():
    docs = planted(0.5)
    far = (docs["arch"] == "mamba2") & (docs["role"] == "id")
    docs.loc[far, "nll_nats"] += 500 * 3.0
    row = judged(claim(), docs)
    assert row["verdict"] == "inconclusive"
    assert "no common in-domain loss" in row["note"]
    assert math.isnan(row["effect"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda docs: docs[docs["arch"] != "mamba2"], "no losses of mamba2"),
        (lambda docs: docs.assign(setting="mixed"), "trained on the setting 'limited'"),
        (lambda docs: docs[docs["domain"] != "maths"], "no losses on maths"),
        (lambda docs: docs.assign(phase="stable"), "no losses on"),
        (
            lambda docs: docs.assign(dtype=docs["arch"].map({"mamba2": "bfloat16"}).fillna("float32")),
            "different dtype",
        ),
        (lambda docs: docs[~((docs["arch"] == "mamba2") & (docs["doc_id"] == "code-3"))], "documents"),
        (lambda docs: docs.assign(seed=docs["seed"] + 10 * (docs["arch"] == "mamba2")), "share no seed"),
        (lambda docs: docs.assign(role="id"), "role"),
    ],
)
def test_missing_or_wrong_rows_are_not_run(change, message):
    for one in (claim(), claim(kind="equivalence", sign=None)):
        row = judged(one, change(planted(0.08)))
        assert row["verdict"] == "not run"
        assert message in row["note"]


def test_one_pair_that_could_not_be_run_keeps_the_claim_from_support():
    windows = claim(compare={"mixer": "attention", "switches": {"window": "set"}})
    docs = documents({"limited": {"transformer": 0, "window-16": 0.1}})
    assert judged(windows, docs)["verdict"] == "not run"
    docs = documents({"limited": {"transformer": 0, "window-16": -0.1}})
    assert judged(windows, docs)["verdict"] == "contradicted"


def test_other_domains_stand_in_and_the_table_says_so():
    docs = planted(0.08)
    row = judged(claim(domains=["arxiv", "github"]), docs)
    assert (row["domains"], row["stand_in"]) == ("code maths", "in place of arxiv github")
    row = judged(claim(domains=["code", "github"]), docs)
    assert (row["domains"], row["stand_in"]) == ("code", "without github")
    row = judged(claim(domains=["code"]), docs)
    assert row["domains"] == "code"
    assert pd.isna(row["stand_in"])


def test_no_kind_of_error_lets_more_pairs_differ_than_promised():
    """30 pairs without any difference, seeds that vary as much as documents do or more: at Holm's levels the
    t over three seeds is far wider than the t over documents, also where it is narrower at 95 %."""
    spec = StatisticsSpec(bootstrap=200)
    one = parse(Claim, claim(kind="equivalence", sign=None))
    generator = np.random.default_rng(0)
    found = 0
    runs = 150
    for ratio in (1.0, 1.5, 3.0):
        for _ in range(runs // 3):
            findings = []
            for pair in range(30):
                values = generator.normal(0, 0.01 * ratio, 3) + generator.normal(0, 0.01)
                drawn = values[generator.integers(0, 3, (200, 3))].mean(1) + generator.normal(0, 0.01, 200)
                evidence = Evidence(dict(enumerate(values)), drawn, n_docs=200)
                findings.append(Finding(f"arch{pair}", "ref", evidence))
            judge(one, findings, spec, margin=1e-9)
            found += any(each.result == "different" for each in findings)
    assert found / runs <= 0.05 + 2 * (0.05 * 0.95 / runs) ** 0.5


# --- the step -----------------------------------------------------------------------------------------


def test_the_step_finds_planted_effects_end_to_end(tmp_path):
    """From files with the loss step's schema, one a run, to claims.csv, with the project's own claims."""
    names = ("transformer", "window-16", "window-64", "mamba2")
    offsets = {
        "limited": dict(zip(names, (0.0, 0.15, 0.06, 0.1), strict=True)),
        "mixed": dict(zip(names, (0.0, 0.005, 0.0, 0.0), strict=True)),
    }
    docs = documents(offsets, settings=("limited", "mixed"))
    schema = pa.schema([*COMMON, *(each for each in DOCS if each.name not in COMMON.names)])
    paths = []
    for run, rows in docs.groupby(["setting", "arch", "seed"]):
        path = tmp_path.joinpath(*map(str, run)) / "docs.parquet"
        path.parent.mkdir(parents=True)
        columns = {each.name: rows.get(each.name, pd.Series([None] * len(rows))) for each in schema}
        pq.write_table(
            pa.table(
                [pa.array(list(each)).cast(schema.field(name).type) for name, each in columns.items()],
                schema=schema,
            ),
            path,
        )
        paths.append(str(path))
    spec = job(*load_claims(CLAIMS).claims, names=names).model_dump(mode="json")
    out = tmp_path / "tables" / "claims"
    assert cli.main(["--spec", json.dumps(spec), "--docs", *paths, "--out", str(out)]) == 0
    table = pd.read_csv(out.with_suffix(".csv")).query("level == 'claim'").set_index("claim")
    expected = {
        "mixed-domains-hide-differences": "supported",
        "mamba-degrades": "supported",
        "window-degrades": "supported",
        "larger-windows-are-better": "supported",
        "architecture-hardly-moves-loss-lines": "supported",
        "architecture-hardly-moves-loss-lines-on-limited": "contradicted",
    }
    assert dict(table.loc[list(expected), "verdict"]) == expected
    assert set(table.drop(index=list(expected))["verdict"]) == {"not run"}
    assert table.loc["mamba-degrades", "stand_in"] == "in place of arxiv github stackexchange"
    assert table.loc["mamba-degrades", "rows"] == (
        "docs: setting=limited arch=mamba2|transformer seed=0|1|2 length=128 phase=annealed role=id, "
        "domain=code|maths"
    )
    provenance = read_parquet_provenance(out.with_suffix(".parquet"))
    assert provenance["step"] == "claims"
    assert len(provenance["inputs"]) == len(paths)
    first = {ending: out.with_suffix(ending).read_bytes() for ending in (".csv", ".parquet")}
    assert cli.main(["--spec", json.dumps(spec), "--docs", *reversed(paths), "--out", str(out)]) == 0
    assert first == {ending: out.with_suffix(ending).read_bytes() for ending in first}


def test_the_spec_survives_json():
    spec = job(*load_claims(CLAIMS).claims)
    assert parse(ClaimsJob, json.loads(spec.model_dump_json())) == spec
    assert parse(ClaimsFile, {"claims": [claim()]}).claims[0].compare.mixer == "mamba2"
