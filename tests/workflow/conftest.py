"""A very small experiment, run once for real, and copies of it to change.

The checkout has a space in its path, is not written to, and the results lie in another directory.
"""

import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from filelock import FileLock

ROOT = Path(__file__).parents[2]
# poems: text that the configuration does not use yet
DOMAINS = {"prose": "in", "code": "out", "poems": "out"}
WORDS = {
    "prose": "the river ran past old houses and people spoke of rain while trains went by slowly",
    "code": "def return self value for in range ( ) : = + [ ] if not None import",
    "poems": "O moon thou silver lamp of night whose beam upon the silent water lies",
}
MQAR = {"kind": "mqar", "vocab": 16, "length": 16, "pairs": [2], "steps": 2, "batch_size": 8}
MQAR |= {"test_lengths": [16, 32], "test_pairs": [2, 4]}
NEEDLE = {"kind": "needle_lines", "length": 50, "test_lengths": [50], "depths": [0, 100], "value_digits": 2}
NEEDLE |= {"key_letters": 1, "steps": 2, "batch_size": 8}


def configuration(data: Path) -> dict[str, Any]:
    return {
        "experiment": "tiny",
        "corpus": {
            "name": "words",
            "source": {
                "kind": "files",
                "paths": {name: str(data / f"{name}.jsonl") for name in ("prose", "code")},
            },
            "domains": {name: DOMAINS[name] for name in ("prose", "code")},
            "split": {"validation": 0.2, "test": 0.3},
            "n_shards": 2,
        },
        "tokenizer": {"kind": "bpe", "vocab_size": 300},
        "model": {"d_model": 16, "n_layers": 1},
        "architectures": {
            "transformer": {"mixer": "attention"},
            "retnet": {"mixer": "retnet"},
            "gla": {"mixer": "gla"},
        },
        "train": {
            "settings": {"limited": "in", "mixed": {"prose": 1, "code": 1}},
            "seeds": [0],
            "sequence_length": 32,
            "batch_tokens": 256,
            "budgets": [2560, 5120],
            "schedule": {"kind": "wsd", "warmup_fraction": 0.1, "decay_fraction": 0.2},
            "learning_rate": 0.005,
            "validation": {"tokens": 512, "every_tokens": 2560},
        },
        "evaluation": {
            "loss": {"bytes_per_domain": 2000, "bootstrap": 100},
            "recall": {
                "d_model": 16,
                "n_layers": 1,
                "seeds": [0],
                "learning_rates": [0.001, 0.01],
                "n": 10,
                "n_validation": 8,
                "tasks": {"pairs": dict(MQAR), "lines": dict(NEEDLE)},
            },
        },
        "studies": {"all": {"reference": "transformer", "compare": ["retnet", "gla"]}},
        "statistics": {"grid": 2, "bootstrap": 100},
        "figures": {"formats": ["svg"]},
    }


def write_texts(data: Path) -> None:
    """150 short documents a domain, equal in every session."""
    data.mkdir()
    for name, words in WORDS.items():
        draw = random.Random(name)
        rows = [{"text": " ".join(draw.choices(words.split(), k=draw.randint(20, 120)))} for _ in range(150)]
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@dataclass
class Project:
    """A checkout and a working directory beside it."""

    folder: Path

    @property
    def checkout(self) -> Path:
        return self.folder / "check out"

    @property
    def workdir(self) -> Path:
        return self.folder / "work dir"

    @property
    def results(self) -> Path:
        return self.workdir / "results"

    @property
    def environment(self) -> dict[str, str]:
        source = str(self.checkout / "src")
        own = {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        return {name: value for name, value in os.environ.items() if name != "SEQARCH_CODE_TABLE"} | own

    def command(self, *arguments: str) -> list[str]:
        # As in an environment that is not activated: its folder is not on PATH.
        where = ["-s", str(self.checkout / "Snakefile"), "-d", str(self.workdir)]
        config = ["--configfile", str(self.folder / "tiny.yaml")]
        return [sys.executable, "-m", "snakemake", *arguments, *where, *config]

    def snakemake(self, *arguments: str, fails: bool = False) -> str:
        """Run Snakemake; its output."""
        run = subprocess.run(
            self.command(*arguments),
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        assert (run.returncode != 0) == fails, run.stdout
        return run.stdout

    def pending(self, *arguments: str) -> set[str]:
        """The jobs that would run, as `rule` or `rule value value`."""
        lines = self.snakemake("--summary", *arguments).splitlines()
        start = next(number for number, line in enumerate(lines) if line.startswith("output_file\t"))
        rows = [line.split("\t") for line in lines[start + 1 :]]
        return {label(row[0], row[2]) for row in rows if row[-1] == "update pending"}

    def edit(self, file: str, change: Callable[[str], str]) -> None:
        """Change a source file of the copied checkout."""
        path = self.checkout / "src" / "seqarch" / file
        text = path.read_text()
        changed = change(text)
        assert changed != text
        path.write_text(changed)

    def configure(self, change: Callable[[dict[str, Any]], object]) -> None:
        file = self.folder / "tiny.yaml"
        config = yaml.safe_load(file.read_text())
        change(config)
        file.write_text(yaml.safe_dump(config, sort_keys=False))


def label(path: str, rule: str) -> str:
    """train + results/tiny/runs/limited/gla/seed0/run.json -> `train limited gla 0`."""
    parts = Path(path).parts
    if rule in ("train", "loss"):
        seed = next(part for part in parts if part.startswith("seed"))
        at = parts.index(seed)
        return " ".join([rule, *parts[at - 2 : at], seed.removeprefix("seed")])
    if rule == "recall":
        return " ".join([rule, *parts[-3:-1]])
    if rule in ("filter", "tokenize", "sources", "deduplicate", "evaluation_set", "discard_text"):
        return f"{rule} {Path(path).stem}"
    return f"{rule} {parts[-2]}" if rule == "tokens_manifest" else rule


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Project:
    """The experiment after a first, complete run. Shared by all workers; nobody changes it."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    project = Project(shared / "finished")
    with FileLock(shared / "finished.lock"):
        if not (project.folder / "output.txt").is_file():
            shutil.rmtree(project.folder, ignore_errors=True)
            project.checkout.mkdir(parents=True)
            for part in ("Snakefile", "workflow", "config", "envs", "slurm", "src"):
                copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
                copy(ROOT / part, project.checkout / part)
            write_texts(project.folder / "data")
            config = configuration(project.folder / "data")
            (project.folder / "tiny.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
            before = tree(project.checkout)
            output = project.snakemake("--cores", "2", "--show-failed-logs")
            assert tree(project.checkout) == before, "the checkout was written to"
            (project.folder / "output.txt").write_text(output)
    return project


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file's size and time of change."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def project(finished: Project, tmp_path: Path) -> Iterator[Project]:
    """A copy of the finished experiment, to change."""
    copy = Project(tmp_path / "project")
    shutil.copytree(finished.folder, copy.folder, ignore=shutil.ignore_patterns("__pycache__"))
    yield copy
    shutil.rmtree(copy.folder)


LOOP_SECONDS = 0.25  # of `_loop` on a quiet core of 2023


@pytest.fixture
def cpu_seconds() -> Callable[[], float]:
    """CPU time of the children that ended since the fixture was made, in seconds of a quiet core: how slow
    others on the machine make it is measured by a loop of known length."""
    start = _children()

    def since() -> float:
        spent = _children() - start
        before = time.process_time()
        _loop()
        return spent * min(1.0, LOOP_SECONDS / (time.process_time() - before))

    return since


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _loop() -> None:
    for _ in range(10**7):
        pass
