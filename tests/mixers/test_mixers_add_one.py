"""docs/add_a_mixer.md does what it says: its two files, put in a copy of the package, are a mixer."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import seqarch

ROOT = Path(__file__).parents[2]
PACKAGE = Path(seqarch.__file__).parent


@pytest.mark.slow
def test_the_guide(tmp_path: Path) -> None:
    package = tmp_path / "seqarch"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    folder = package / "mixers" / "ema"
    folder.mkdir()
    (folder / "__init__.py").touch()
    guide = (ROOT / "docs" / "add_a_mixer.md").read_text()
    files = dict(re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", guide, re.DOTALL))
    assert set(files) == {"config.py", "module.py"}
    for name, text in files.items():
        (folder / name).write_text(text)
    assert sum(text.count("\n") for text in files.values()) < 120
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}

    command = [sys.executable, "-m", "seqarch.cli.architectures", "--scale", "nano", "--format", "json"]
    table = json.loads(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)
    (row,) = [row for row in table if row["architecture"] == "ema"]
    assert abs(row["deviation"]) < 0.05

    properties = str(Path(__file__).with_name("test_mixers_properties.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-k", "ema", "-p", "no:cacheprovider", properties]
    result = subprocess.run(command, env=env, check=False, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    passed = int(re.search(r"(\d+) passed", result.stdout)[1])
    assert passed >= 20  # with the gate and without
