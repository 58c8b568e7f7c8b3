"""Code fingerprints, recipes and the records inside outputs."""

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from seqarch import provenance
from seqarch.cli.common import run_step, step_parser
from seqarch.files import write_json, write_parquet

SOURCE = {
    "cli/first.py": "from seqarch.work import double\n\n\ndef main(x: int) -> int:\n    return double(x)\n",
    "cli/second.py": "import seqarch.other\n\nVALUE = seqarch.other.VALUE\n",
    "work.py": '"""Doubles."""\n\n\ndef double(x: int) -> int:\n    """Twice x."""\n    return 2 * x\n',
    "other.py": "VALUE = 1\n",
    "files.py": "SLOW = True\n",
    "mixers/gla/config.py": "HEADS = 4\n",
    "mixers/gla/module.py": "from seqarch.mixers.gla.config import HEADS\nfrom seqarch.work import double\n",
    "mixers/retnet/config.py": "HEADS = 2\n",
    "mixers/retnet/module.py": "from seqarch.mixers.retnet.config import HEADS\n",
}
FIRST, SECOND = ("seqarch.cli.first",), ("seqarch.cli.second",)
Edit = Callable[[str, str, str], None]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edit:
    """A small package in place of the real one; the value edits a file of it: edit(file, old, new)."""
    for name, text in SOURCE.items():
        for folder in Path(name).parents:
            (tmp_path / folder).mkdir(exist_ok=True, parents=True)
            (tmp_path / folder / "__init__.py").touch()
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.delenv(provenance.TABLE_VARIABLE, raising=False)

    def edit(name: str, old: str, new: str) -> None:
        text = (tmp_path / name).read_text()
        assert old in text
        (tmp_path / name).write_text(text.replace(old, new))
        provenance.forget()

    provenance.forget()
    yield edit
    provenance.forget()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("work.py", "return 2", "# a comment\n    return 2"),
        ("work.py", '"""Twice x."""', '"""Two times x."""'),
        ("work.py", '"""Doubles."""\n', ""),
        ("work.py", "2 * x", "(2*x)"),
        ("files.py", "True", "False"),  # cannot change a number: left out by name
        ("other.py", "1", "2"),  # another step's module
    ],
)
def test_what_a_step_does_not_depend_on_leaves_its_fingerprint(
    package: Edit, name: str, old: str, new: str
) -> None:
    before = provenance.fingerprint(FIRST)
    package(name, old, new)
    assert provenance.fingerprint(FIRST) == before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("work.py", "2 * x", "3 * x"),
        ("work.py", "2 * x", "x * 2"),
        ("work.py", "x: int", "x: int = None"),
        ("cli/first.py", "double(x)", "double(x) or None"),
    ],
)
def test_an_edit_in_the_closure_changes_the_fingerprint(package: Edit, name: str, old: str, new: str) -> None:
    before = provenance.fingerprint(FIRST)
    package(name, old, new)
    assert provenance.fingerprint(FIRST) != before


def test_a_mixer_changes_only_the_fingerprints_of_its_own_runs(package: Edit) -> None:
    gla, retnet = (provenance.entry_modules("first", [mixer]) for mixer in ("gla", "retnet"))
    before = provenance.fingerprint(gla), provenance.fingerprint(retnet)
    package("mixers/gla/config.py", "4", "8")
    assert provenance.fingerprint(gla) != before[0]
    assert provenance.fingerprint(retnet) == before[1]


def test_plain_imports_imports_inside_functions_and_assets_are_followed(
    package: Edit, tmp_path: Path
) -> None:
    assert provenance.closure(SECOND) == {"seqarch.cli.second", "seqarch.other"}
    package(
        "other.py",
        "VALUE = 1",
        "ASSETS: tuple[str, ...] = ('words.txt',)\n\n\ndef f():\n    import seqarch.work",
    )
    (tmp_path / "words.txt").write_text("one")
    assert "seqarch.work" in provenance.closure(SECOND)
    before = provenance.fingerprint(SECOND)
    (tmp_path / "words.txt").write_text("two")
    provenance.forget()
    assert provenance.fingerprint(SECOND) != before


def test_what_is_remembered_is_used_only_for_the_same_source(
    package: Edit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = provenance.fingerprint(FIRST)
    provenance.remember()
    provenance.forget()
    monkeypatch.setattr(provenance.ast, "parse", lambda *_, **__: pytest.fail("parsed again"))
    assert provenance.fingerprint(FIRST) == before
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    package("work.py", "2 * x", "3 * x")
    assert provenance.fingerprint(FIRST) != before
    package("work.py", "3 * x", "2 * x")
    provenance.MEMORY.write_text("{")  # a damaged file is no file
    provenance.forget()
    assert provenance.fingerprint(FIRST) == before


def test_relative_imports_and_unknown_steps_are_refused(package: Edit) -> None:
    package("other.py", "VALUE = 1", "from . import work")
    with pytest.raises(provenance.ProvenanceError, match="not relative"):
        provenance.fingerprint(SECOND)
    with pytest.raises(provenance.ProvenanceError, match=r"no module 'seqarch\.cli\.third'"):
        provenance.fingerprint(["seqarch.cli.third"])


def test_the_plan_of_the_queuing_process_wins_and_an_edit_after_it_is_refused(
    package: Edit, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = provenance.planned_fingerprint(FIRST)
    monkeypatch.setenv(provenance.TABLE_VARIABLE, json.dumps({" ".join(FIRST): planned}))
    provenance.verify_code(FIRST, planned)
    package("work.py", "2 * x", "3 * x")
    assert provenance.planned_fingerprint(FIRST) == planned
    with pytest.raises(provenance.ProvenanceError, match="changed after this job was queued"):
        provenance.verify_code(FIRST, planned)


def test_the_digest_is_that_of_the_syntax_and_equal_on_every_python() -> None:
    """Pinned: a digest that another Python version or an edit of the dump changes would redo every result."""
    source = '''"""Module."""
import os
from a import b as c
class A(B, metaclass=M):
    """Doc."""
    x: int = 1
    async def f(self, /, a, *b: int, c=None, **d) -> None:
        """Doc."""
        return f"{a!r:>{c}} text" "more" + -1.5e3 + 2j
def g(x):
    match x:
        case [1, *rest] | {"k": None, **more} if rest: pass
    with open(x) as (y), z: yield (w := [*x, {**y}])
    try: raise E from None
    except* E: ...
'''
    dump = provenance._dump(ast.parse(source))
    assert "Doc" not in dump
    assert "ctx" not in dump
    assert provenance.sha256_text(dump) == "a27fdcdd5ef2fd0ddd941da912df38087060c215e515b1659fbb7eab7f580c65"


@pytest.mark.parametrize("python", ["python3.11", "python3.12", "python3.13", "python3.14"])
def test_other_pythons_give_the_same_fingerprints(python: str) -> None:
    """The whole package's, by the interpreters that are there."""
    if shutil.which(python) is None or subprocess.run([python, "-V"], capture_output=True).returncode:
        pytest.skip(f"no {python} here")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from seqarch import provenance as p; "
        "print(p.fingerprint(sorted('.'.join(('seqarch', *f.relative_to(p.ROOT).with_suffix('').parts)) "
        "for f in p.ROOT.rglob('*.py') if f.stem != '__init__')))"
    )
    source = str(provenance.ROOT.parent)
    run = [
        subprocess.run([each, "-Sc", code, source], capture_output=True, text=True)
        for each in (python, sys.executable)
    ]
    assert run[0].stdout == run[1].stdout != "", run[0].stderr


def test_check_inputs_accepts_the_right_recipe_and_names_each_wrong_file(tmp_path: Path) -> None:
    right = provenance.record("make", {"x": 1}, "c" * 64)
    write_json(tmp_path / "a" / "right.json", {"provenance": right})
    write_parquet(
        tmp_path / "wrong.parquet", pa.table({"x": [1]}), provenance.record("make", {"x": 2}, "c" * 64)
    )
    write_json(tmp_path / "bare.json", {"x": 1})
    provenance.check_inputs({str(tmp_path / "a"): {"right.json": right["recipe"][:16]}})
    names = ("a/right.json", "wrong.parquet", "bare.json")
    with pytest.raises(provenance.ProvenanceError) as caught:
        provenance.check_inputs({str(tmp_path / name): right["recipe"] for name in names})
    assert "right.json" not in str(caught.value)
    assert "wrong.parquet: made by make" in str(caught.value)
    assert "bare.json: carries no provenance record" in str(caught.value)


def test_records_stand_in_json_beside_binary_files_and_inside_safetensors(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    made = provenance.record("make", {"x": 1}, "c" * 64, inputs={"self": Path(__file__)}, packages=["numpy"])
    write_json(tmp_path / "figure.json", {"provenance": made})
    (tmp_path / "figure.svg").write_text("<svg/>")
    save_file(
        {"x": np.zeros(1)},
        tmp_path / "x.safetensors",
        {provenance.PROVENANCE_KEY: provenance.canonical_json(made)},
    )
    assert provenance.read_record(tmp_path / "figure.svg") == made
    assert provenance.read_record(tmp_path / "x.safetensors") == made
    assert made["recipe"] == provenance.recipe("make", {"x": 1}, "c" * 64)
    assert made["recipe"] != provenance.recipe("make", {"x": 1}, "d" * 64)


def test_a_step_refuses_code_that_is_edited_while_it_runs(
    package: Edit, capsys: pytest.CaptureFixture[str]
) -> None:
    def function(args: object) -> None:
        package("work.py", "2 * x", "3 * x")

    assert run_step("first", step_parser("first", ""), function, ["--spec", "{}"]) == 1
    assert "changed after this job was queued" in capsys.readouterr().err


def test_a_wrong_spec_argument_is_a_usage_error(package: Edit, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_step("first", step_parser("first", ""), lambda args: None, ["--spec", "@missing.json"])
    assert "expected JSON or @file with JSON" in capsys.readouterr().err
