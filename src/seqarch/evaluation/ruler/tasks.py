"""The 13 tasks by name."""

from seqarch.evaluation.ruler.cwe import Cwe
from seqarch.evaluation.ruler.fwe import Fwe
from seqarch.evaluation.ruler.niah import NIAH, Niah
from seqarch.evaluation.ruler.prompt import Setup, Task
from seqarch.evaluation.ruler.qa import Qa
from seqarch.evaluation.ruler.vt import Vt

_FAMILIES: dict[str, type[Niah] | type[Vt] | type[Cwe] | type[Fwe] | type[Qa]] = {
    **dict.fromkeys(NIAH, Niah),
    "vt": Vt,
    "cwe": Cwe,
    "fwe": Fwe,
    "qa_1": Qa,
    "qa_2": Qa,
}


def set_up(setup: Setup) -> Task:
    """The task that `setup` names.

    Raises ResourceError if it lacks a text, questions or words.
    """
    return _FAMILIES[setup.task](setup)


def deviations(setup: Setup) -> list[str]:
    """How this file differs from upstream's choices (ids of the specification); none in `faithful`."""
    if not setup.fixed:
        return []
    if setup.task not in NIAH:
        ids = {"vt": ["D4", "D5", "D8"], "cwe": ["D2"], "fwe": ["D2", "D11"]}
        return [*ids.get(setup.task, ["D1", "D10"]), "D9"]
    essay = NIAH[setup.task].haystack == "essay"
    return ["D2", "D3", *(["D7", "D12"] if essay else ["D6"]), "D9"]
