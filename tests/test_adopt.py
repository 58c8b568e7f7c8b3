"""An output is adopted only if it was made from the files that are there now."""

from pathlib import Path
from typing import Any

import pytest

from seqarch.adopt import AdoptionError, Candidate, adopt, candidates, inputs_of
from seqarch.files import sha256_file, sha256_text, write_json
from seqarch.plan import Plan, open_experiment
from seqarch.provenance import record

CONFIG = Path(__file__).parents[1] / "config"
RUN = {"setting": "limited", "architecture": "transformer", "seed": "0"}


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """In an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return open_experiment(CONFIG / "slimpajama_110m.yaml", CONFIG)


def made(plan: Plan, rule: str, job: dict[str, str], code: str = "0" * 64) -> Path:
    """An output of other code than the present, from inputs that are written for it."""
    inputs = inputs_of(plan, rule, job)
    for file in inputs.values():
        write_json(file, {"name": str(file)})
    path = Path(plan.path(rule).format(**job))
    write_json(path, {"provenance": record(rule, plan.slice(rule, **job), code, inputs)})
    return path


@pytest.mark.parametrize("name", ["train/c4", "validation/c4", "choice"])
def test_a_run_from_other_inputs_than_the_present_ones_is_refused(plan: Plan, name: str) -> None:
    run = made(plan, "train", RUN)
    file = inputs_of(plan, "train", RUN)[name]
    assert [each.path for each in candidates(plan, [run])] == [run]
    write_json(file, {"name": "rebuilt"})
    with pytest.raises(AdoptionError, match=rf"{run}: was made from other files than are there now: {file}"):
        candidates(plan, [run])
    file.unlink()
    assert candidates(plan, [run]), "a file that is not there tells nothing"


def test_what_the_records_name_is_compared_for_every_kind(plan: Plan) -> None:
    rate = plan.values["rate"][0]
    jobs: dict[str, dict[str, Any]] = {
        "sweep": {"setting": "limited", "architecture": "transformer", "rate": rate},
        "choice": {"setting": "limited", "architecture": "transformer"},
        "loss": RUN,
    }
    names = {rule: set(inputs_of(plan, rule, job)) for rule, job in jobs.items()}
    assert {"train/c4", "validation/c4"} <= names["sweep"]
    assert names["choice"] == {f"trial lr{each}" for each in plan.values["rate"]}
    assert {"c4", plan.slice("loss", **RUN)["train"]["checkpoints"][0]} <= names["loss"]


def test_an_input_that_was_adopted_itself_is_still_the_same(plan: Plan) -> None:
    run = made(plan, "train", RUN)
    manifest = inputs_of(plan, "train", RUN)["train/c4"]
    job = {"domain": "c4"}
    spec = plan.slice("tokens_manifest", **job)
    write_json(manifest, {"provenance": record("tokens_manifest", spec, sha256_text("old"))})
    before = sha256_file(manifest)
    write_json(
        run, {"provenance": record("train", plan.slice("train", **RUN), "0" * 64, {"train/c4": manifest})}
    )
    (candidate,) = candidates(plan, [manifest])
    assert isinstance(candidate, Candidate)
    adopt(candidate, "a log line")
    assert sha256_file(manifest) != before
    assert [each.path for each in candidates(plan, [run])] == [run]
