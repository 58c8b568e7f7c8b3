"""Every known fault of generators and evaluations of this kind has a test that names it."""

import re
from pathlib import Path

KNOWN = 50  # what went wrong in upstream RULER, in lm-evaluation-harness's port, and elsewhere


def test_every_fault_has_a_test() -> None:
    folder = Path(__file__).parents[1]
    named: set[int] = set()
    for file in folder.rglob("test_*.py"):
        for words in re.findall(r"[Ff]aults? ((?:\d+(?:, and |, | and )?)+)", file.read_text()):
            named |= set(map(int, re.findall(r"\d+", words)))
    assert named == set(range(1, KNOWN + 1))
