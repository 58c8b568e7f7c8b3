"""One Slurm for all tests here, and on it the smoke configuration from raw text to figures.

The texts are this repository's own, so that nothing is downloaded, with one seed, one setting and the
evaluation of losses only: what a cluster adds is in no further job. What the tests change is a copy of that.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
# Few jobs at a time end soon on a small machine, and are asked for soon: the default is after 40 s.
PACE = ("--jobs", "4", "--slurm-init-seconds-before-status-checks", "6")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CLUSTER = load("cluster")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    problem = CLUSTER.missing()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
            if problem:
                item.add_marker(pytest.mark.skip(reason=problem))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: it holds a socket
    try:
        with CLUSTER.Cluster(folder / "c") as cluster:
            yield cluster
    except CLUSTER.ClusterError as error:
        pytest.fail(str(error), pytrace=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Site:
    """A working directory on a cluster, with a checkout that nobody edits meanwhile."""

    folder: Path
    checkout: Path
    cluster: Any

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "PYTHONPATH": str(self.checkout / "src"),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("SEQARCH_", "SLURM_"))
        }
        return kept | own | self.cluster.environment

    def start(self, config: dict[str, Any], *arguments: str) -> subprocess.Popen[str]:
        """`snakemake --profile slurm`, under way; its output goes to `<experiment>.out`."""
        file = self.folder / f"{config['experiment']}.yaml"
        file.write_text(yaml.safe_dump(config, sort_keys=False))
        command = [
            *(sys.executable, "-m", "snakemake", "--profile", str(self.checkout / "slurm")),
            *("-s", str(self.checkout / "Snakefile"), "-d", str(self.folder), "--configfile", str(file)),
            *(*PACE, *arguments),
        ]
        with open(self.output_of(config), "w") as output:
            return subprocess.Popen(
                command,
                env=self.environment,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def output_of(self, config: dict[str, Any]) -> Path:
        return self.folder / f"{config['experiment']}.out"

    def finish(self, process: subprocess.Popen[str], config: dict[str, Any], seconds: float = 400) -> str:
        """Wait for it; its output. Fails with it if Snakemake did."""
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()  # a signal that it can handle makes it wait for its jobs
            process.wait()
            code = None
        output = self.output_of(config).read_text(errors="replace")
        assert code == 0, f"exit code {code}\n{output[-6000:]}\n{self.logs()}"
        return output

    def logs(self) -> str:
        """The ends of the steps' logs."""
        files = [file for file in sorted(self.results.glob("*/logs/**/*.log")) if file.stat().st_size]
        return "\n".join(f"--- {file}\n{file.read_text(errors='replace')[-500:]}" for file in files[-12:])

    def copy(self, folder: Path) -> "Site":
        """Another working directory with the same results, and Snakemake's records of them."""
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("slurm_logs", "log"))
        return Site(folder, self.checkout, self.cluster)


def smoke() -> dict[str, Any]:
    config = yaml.safe_load((ROOT / "config" / "smoke.yaml").read_text())
    config["corpus"] |= {"domains": {"words": "in", "code": "out"}, "n_shards": 1}
    config["train"] |= {"settings": {"limited": "in"}, "seeds": [0]}
    config["evaluation"] = {"loss": config["evaluation"]["loss"]}
    return config


def write_texts(folder: Path) -> dict[str, str]:
    """Paragraphs of the documentation and functions of the package, as JSON Lines."""
    files = {
        "words": [*sorted(ROOT.glob("*.md")), ROOT / "LICENSE", *sorted((ROOT / "docs").glob("*.md"))],
        "code": sorted((ROOT / "src").rglob("*.py")),
    }
    for domain, paths in files.items():
        texts = [part for path in paths for part in path.read_text(encoding="utf-8").split("\n\n")]
        rows = (json.dumps({"text": text, "source": domain}) for text in texts if text.strip())
        (folder / f"{domain}.jsonl").write_text("\n".join(rows) + "\n")
    return {domain: str(folder / f"{domain}.jsonl") for domain in files}


@pytest.fixture(scope="session")
def site(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """After a first, complete run."""
    base = tmp_path_factory.mktemp("site")
    site = Site(base / "work dir", base / "checkout", cluster)
    site.folder.mkdir()
    site.checkout.mkdir()
    for part in ("Snakefile", "workflow", "config", "envs", "slurm", "src"):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
        copy(ROOT / part, site.checkout / part)
    config = smoke()
    config["corpus"]["source"] = {"kind": "files", "paths": write_texts(base)}
    started = time.monotonic()
    site.finish(site.start(config), config)
    print(f"\nthe chain took {time.monotonic() - started:.0f} s", file=sys.stderr)
    return site


@pytest.fixture(scope="session")
def config(site: Site) -> Callable[..., dict[str, Any]]:
    """The smoke configuration under another name: one architecture, other options of training."""

    def make(experiment: str, **train: Any) -> dict[str, Any]:
        config = yaml.safe_load((site.folder / "smoke.yaml").read_text())
        config |= {"experiment": experiment, "architectures": {"transformer": {"mixer": "attention"}}}
        config |= {"studies": {}}
        config["train"] |= train
        return config

    return make
