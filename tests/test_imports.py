"""The rules about imports: they point down only, planning loads nothing heavy, nothing dynamic hides."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
BASE = {"errors", "files", "progress", "schema", "provenance"}  # below everything
BELOW: dict[str, set[str]] = {"ops": set(), "corpus": set()}
BELOW["mixers"] = {"ops"}
BELOW["architecture"] = {"mixers"}
BELOW["model"] = {"architecture", "mixers", "ops"}
BELOW["tokens"] = {"corpus"}
BELOW["tasks"] = {"tokens", "corpus"}
BELOW["training"] = {*BELOW["model"], *BELOW["tasks"], "model", "tasks"}
BELOW["evaluation"] = {*BELOW["training"], "training"}
BELOW["analysis"] = {*BELOW["evaluation"], "evaluation"}
BELOW["figures"] = {*BELOW["analysis"], "analysis"}
BELOW["cli"] = {*BELOW["figures"], "figures"}
BELOW["config"] = {*BELOW["figures"], "figures"}
BELOW["long_context"] = {*BELOW["config"], "config"}
BELOW["recall"] = {*BELOW["config"], "config"}
BELOW["slices"] = {*BELOW["recall"], "recall"}
BELOW["rules"] = {*BELOW["slices"], "slices", "long_context"}
BELOW["plan"] = {*BELOW["rules"], "rules"}
BELOW["estimate"] = BELOW["adopt"] = {*BELOW["plan"], "plan"}
ABOVE_PLANNING = {"seqarch.cli.adopt", "seqarch.cli.clean", "seqarch.cli.estimate"}  # about whole experiments
BELOW["workflow"] = {"plan", "config"}


def name_of(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): ast.parse(file.read_bytes()) for file in sorted(SOURCE.rglob("*.py"))}


def imports(tree: ast.Module) -> set[str]:
    """Modules of this package that are imported, anywhere in the file."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import hides from the fingerprints"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name in MODULES and name != "seqarch"}


def stage(module: str) -> str:
    return module.split(".")[1]


@pytest.mark.parametrize("module", [name for name in MODULES if name != "seqarch"])
def test_imports_point_down_only(module: str) -> None:
    here = stage(module)
    allowed = BASE if here in BASE else {*BASE, *BELOW[here], here}
    if module in ABOVE_PLANNING:
        allowed |= {*BELOW["estimate"], "adopt", "estimate"}
    wrong = {name for name in imports(MODULES[module]) if stage(name) not in allowed}
    assert not wrong, f"{module} imports {wrong}; below it are {sorted(allowed)}"


def test_there_is_no_circle() -> None:
    graphlib.TopologicalSorter({name: imports(tree) - {name} for name, tree in MODULES.items()}).prepare()


def test_packages_are_empty() -> None:
    """What an __init__ imports would be in the fingerprint of every step that touches the package."""
    assert [str(file) for file in SOURCE.rglob("__init__.py") if file.read_text().strip()] == []


SPECS = [name for name in MODULES if name.endswith("spec") and stage(name) not in ("cli", "schema")]


# What trains and scores in one step has options of both; nothing else imports them.
OF_OTHERS = {
    "seqarch.evaluation.recall_spec": {
        *("seqarch.tasks", "seqarch.tasks.recall", "seqarch.tasks.recall.spec"),
        *("seqarch.training", "seqarch.training.spec"),
    }
}


@pytest.mark.parametrize("module", SPECS)
def test_a_stage_s_options_import_nothing_but_the_schema(module: str) -> None:
    """A changed default of one stage must not touch another's fingerprint."""
    allowed = {"seqarch.schema", "seqarch.errors", f"seqarch.{stage(module)}", *OF_OTHERS.get(module, ())}
    allowed |= {name for name in SPECS if stage(name) == stage(module)}
    assert imports(MODULES[module]) <= allowed


def test_planning_loads_nothing_heavy() -> None:
    heavy = {
        "torch",
        "numpy",
        "pandas",
        "pyarrow",
        "scipy",
        "matplotlib",
        "datasets",
        "tokenizers",
        "requests",
    }
    code = f"import sys, seqarch.workflow; print(sorted({heavy!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


DYNAMIC = ("import_module", "__import__", "exec")


def test_only_what_the_workflow_knows_of_is_imported_by_name() -> None:
    """`importlib` escapes the static import closure; the workflow adds what these modules load to it."""
    dynamic = set()
    for name, tree in MODULES.items():
        for node in ast.walk(tree):
            called = node.func if isinstance(node, ast.Call) else None
            if getattr(called, "attr", getattr(called, "id", "")) in DYNAMIC:
                dynamic.add(name)
    third_party = {"seqarch.ops.fla_adapter"}  # loads parts of another library, not of this package
    assert dynamic - third_party <= {"seqarch.mixers.registry", "seqarch.cli.figure"}


@pytest.mark.parametrize(
    "library", ["fla", "mamba_ssm", "flash_attn", "causal_conv1d", "transformers", "submitit", "lm_eval"]
)
def test_optional_libraries_are_touched_in_one_file_and_inside_functions(library: str) -> None:
    files = []
    for name, tree in MODULES.items():
        for node in ast.walk(tree):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(each.split(".")[0] == library for each in named):
                files.append(name)
                assert node not in tree.body, f"{name}: import {library} inside the function that needs it"
    assert len(set(files)) <= 1, f"{library} is imported in {sorted(set(files))}"
