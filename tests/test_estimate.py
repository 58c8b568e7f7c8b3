"""What an experiment costs: counts against real models, hand-made numbers, the command."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from seqarch.architecture import resolve
from seqarch.cli import estimate as cli
from seqarch.config import load
from seqarch.estimate import Machine, by_architecture, disk, jobs, memory_bytes, training_tokens
from seqarch.model import Decoder
from seqarch.plan import Plan
from seqarch.schema import parse
from seqarch.training.spec import Submitit, TrainSpec

CONFIG = Path(__file__).parents[1] / "config"
MACHINE = Machine(peak=1e15, mfu=0.5)


def plan_of(name: str) -> Plan:
    return Plan(load(yaml.safe_load((CONFIG / f"{name}.yaml").read_text()), CONFIG), CONFIG)


def train_spec(**changes: Any) -> TrainSpec:
    options = {
        "sequence_length": 10,
        "batch_tokens": 100,
        "budgets": [1000, 2000],
        "schedule": {"kind": "wsd", "warmup_fraction": 0.1, "decay_fraction": 0.2},
        "learning_rate": 1e-3,
        "validation": {"tokens": 10, "every_tokens": 1000},
    }
    return parse(TrainSpec, options | changes, "train")


def test_tokens_of_a_run_count_the_decays_of_all_budgets() -> None:
    assert training_tokens(train_spec()) == 1600 + 200 + 400  # the trunk to step 16, decays of 2 and 4 steps
    assert training_tokens(train_spec(schedule={"kind": "cosine"})) == 2000


def test_hours() -> None:
    assert MACHINE.hours(3600 * 5e14) == 1.0


def test_weights_gradients_and_moments_of_1_3b_are_what_torch_would_hold() -> None:
    """On the meta device: shapes and types without the memory."""
    model = resolve("m", {"m": {"mixer": "attention"}}, {"scale": "1.3b"}, 32_000, 2048)
    with torch.device("meta"):
        decoder = Decoder(model)
    optimizer = torch.optim.AdamW(decoder.parameters(), fused=False)  # there are no fused kernels for meta
    held = 0
    for parameter in decoder.parameters():
        parameter.grad = torch.empty_like(parameter)
        held += 2 * parameter.nbytes
    optimizer.step()
    for state in optimizer.state.values():
        held += sum(moment.nbytes for name, moment in state.items() if name.startswith("exp_avg"))
    small = train_spec(sequence_length=2048, batch_tokens=2048, budgets=[2**24], micro_batch_tokens=2048)
    activations = 2048 * 2048 * 34 * 24 + 10 * 2048 * 32_000
    assert memory_bytes(model, small, recompute=False) == held + activations
    shared = {"kind": "submitit", "processes": 8, "sharded": True}
    eight = small.model_copy(update={"batch_tokens": 8 * 2048, "launcher": parse(Submitit, shared)})
    assert memory_bytes(model, eight, recompute=False) == held / 8 + activations
    assert 20e9 < held < 22e9
    recomputed = memory_bytes(model, small, recompute=True)
    assert recomputed == held + 2048 * 2048 * (2 * 24 + 34) + 10 * 2048 * 32_000


def test_the_paper_scale_adds_up() -> None:
    plan = plan_of("slimpajama_110m")
    rows = {row["architecture"]: row for row in by_architecture(plan, MACHINE)}
    assert list(rows) == list(plan.models)
    transformer = rows["transformer"]
    assert transformer["runs"] == 6
    tokens = transformer["tokens_per_run"]
    assert 107e9 < tokens < 108e9
    flops = 3 * transformer["flops_per_token"] * tokens
    assert transformer["hours_per_run"] == pytest.approx(flops / 5e14 / 3600)
    assert transformer["training_hours"] == pytest.approx(6 * transformer["hours_per_run"])
    trials = 3 * transformer["flops_per_token"] * 2e9 * 1.0 * 3 * 2  # three rates, two settings
    assert transformer["trial_hours"] == pytest.approx(trials / 5e14 / 3600, rel=0.01)
    assert sum(jobs(plan).values()) == sum(1 for rule in jobs(plan) for _ in plan.jobs(rule))
    assert disk(plan, list(rows.values()))["token files, at least"] == 2 * 100e9


def test_the_command_prints_tables_and_refuses_nonsense(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = str(CONFIG / "slimpajama_1b.yaml")
    assert cli.main(["--configfile", file]) == 0
    assert "accelerator-hours" in capsys.readouterr().out
    assert cli.main(["--configfile", file, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {"architecture", "training_hours", "memory_bytes"} <= rows[0].keys()
    assert cli.main(["--configfile", file, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"architectures", "disk", "jobs"}
    assert cli.main(["--configfile", str(tmp_path / "none.yaml")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    for wrong in (["--mfu", "1.5"], ["--peak-tflops", "0"]):
        with pytest.raises(SystemExit):
            cli.main(["--configfile", file, *wrong])


def test_a_part_is_estimated_alone_and_what_is_not_counted_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = str(CONFIG / "study_cpu.yaml")
    assert cli.main(["--configfile", file, "--part", "core", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    parts = yaml.safe_load(Path(file).read_text())["parts"]
    assert {row["architecture"] for row in rows} == set(parts["core"]["architectures"])
    assert cli.main(["--configfile", file, "--part", "cor"]) == 2
    assert "did you mean 'core'?" in capsys.readouterr().err
    assert cli.main(["--configfile", str(CONFIG / "config.yaml")]) == 0
    assert re.search(r"without the hours of these jobs: \d+ recall", capsys.readouterr().out)
