"""The samples of one task at one length as a file: JSON lines, and a JSON beside it that describes them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqarch.evaluation.ruler.errors import RulerError
from seqarch.evaluation.ruler.fitting import Fitted, fit_all, needle_spans
from seqarch.evaluation.ruler.niah import NIAH
from seqarch.evaluation.ruler.prompt import Setup, Task
from seqarch.evaluation.ruler.resources import SPLITTER
from seqarch.evaluation.ruler.streams import sample_seed
from seqarch.evaluation.ruler.tasks import deviations, set_up
from seqarch.files import atomic_path, canonical_json, read_json, sha256_file, sha256_text, write_json

VERSION = 1  # of the generator: raise it when equal options give other prompts
STYLE = "RULER-style"  # and not comparable
KEY_DIGITS = 16
VERIFY_EVERY = 50  # samples whose prompt is also encoded as a whole, to check the count
OFFICIAL_LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)
OFFICIAL_N = 500
# sha256 of upstream's essay text (words joined by single spaces). Filled in when the file was seen.
UPSTREAM_ESSAYS: frozenset[str] = frozenset()


def make(setup: Setup, n: int, first: int = 0) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The records of samples first … first + n - 1, and what the side file says of them.

    All are fitted before anything is returned.

    Raises:
        InfeasibleLength: one of them does not fit.
        ResourceError: a text is missing, or spells a special token.
    """
    check_resources(setup)
    task = set_up(setup)
    header = describe(setup, task, n, first)
    records = []
    every = fit_all(setup, set_up, range(first, first + n))
    if any(fitted.capped for fitted in every):
        header["comparable"] = STYLE  # upstream would go on, cwe with another list of words
    for fitted in every:
        if fitted.index % VERIFY_EVERY == 0:
            verify(setup, fitted)
        records.append(record_of(setup, task, fitted, header))
    return records, header


def check_resources(setup: Setup) -> None:
    """Raise ResourceError if a text that prompts are made of spells a special token."""
    check = setup.encoder.check_text
    check(setup.wrapper.before + "\n" + setup.wrapper.after, "the wrapper")
    if setup.haystack is not None:
        check(setup.haystack.text, f"haystack {setup.haystack.source}")
    if setup.questions is not None:
        check("\n".join(setup.questions.documents), f"{setup.questions.source}: a document")
        check(
            "\n".join(each.text for each in setup.questions.questions),
            f"{setup.questions.source}: a question",
        )


def describe(setup: Setup, task: Task, n: int, first: int, **more: Any) -> dict[str, Any]:
    """What a file was made of. `dataset_key` is a digest of all that can change its prompts.

    Args:
        n: its samples, from index `first` on.
        more: what else its prompts depend on.
    """
    essay = setup.task in NIAH and NIAH[setup.task].haystack == "essay"
    text = setup.haystack if essay else None
    questions = setup.questions if setup.task.startswith("qa") else None
    source = text or questions
    key = {
        "generator_version": VERSION,
        "profile": setup.profile,
        "task": setup.task,
        "length": setup.length,
        "n": n,
        "first": first,
        "seed": setup.seed,
        "tokenizer_sha256": setup.encoder.sha256,
        "special_tokens": setup.encoder.special_tokens,
        "n_special": setup.encoder.n_special,
        "template_sha256": sha256_text(task.template),
        "wrapper": setup.wrapper.model_dump(),
        "haystack_sha256": source.sha256 if source else None,
        "wordlist_sha256": setup.words.sha256,
        "splitter": SPLITTER,
        "random_offset": setup.random_offset,
        "tokens_to_generate": task.tokens_to_generate,
        **more,
    }
    wrapper_tokens = sum(setup.encoder.count([part]) for part in (setup.wrapper.before, setup.wrapper.after))
    return {
        **key,
        "haystack_source": source.source if source else None,
        "deviations": deviations(setup),
        "length_w_model_temp": setup.length + wrapper_tokens,
        "dataset_key": sha256_text(canonical_json(key))[:KEY_DIGITS],
        "comparable": comparable(setup, n, text.sha256 if text else None),
    }


def comparable(setup: Setup, n: int, essay_sha256: str | None) -> str:
    """`RULER-comparable` for what upstream would measure, else `RULER-style`."""
    same = setup.profile == "faithful" and n == OFFICIAL_N and setup.length in OFFICIAL_LENGTHS
    same = same and (essay_sha256 is None or essay_sha256 in UPSTREAM_ESSAYS)
    same = same and not (setup.questions is not None and setup.questions.source.startswith("corpus:"))
    return "RULER-comparable" if same else STYLE


def verify(setup: Setup, fitted: Fitted) -> None:
    """The count of parts must be the count of the whole."""
    whole = len(setup.encoder.encode("".join(fitted.prompt.all_pieces())))
    if whole != fitted.prompt_tokens:
        raise RulerError(
            f"{setup.task}, sample {fitted.index}: the prompt has {whole} tokens, counted were "
            f"{fitted.prompt_tokens}: this tokenizer's words do not end at spaces; please report it"
        )


def record_of(setup: Setup, task: Task, fitted: Fitted, header: Mapping[str, Any]) -> dict[str, Any]:
    """One line of the file."""
    prompt = fitted.prompt
    spans = needle_spans(setup, prompt) if fitted.spans is None else fitted.spans
    used = fitted.prompt_tokens + task.tokens_to_generate
    same = (
        "task",
        "profile",
        "length",
        "tokens_to_generate",
        "length_w_model_temp",
        "seed",
        "deviations",
        "haystack_source",
        "haystack_sha256",
        "splitter",
        "wordlist_sha256",
        "template_sha256",
        "tokenizer_sha256",
    )
    return {
        **{name: header[name] for name in same},
        "index": fitted.index,
        "input": prompt.input,
        "answer_prefix": prompt.answer_prefix,
        "outputs": prompt.outputs,
        "prompt_tokens": fitted.prompt_tokens,
        "used_tokens": used,
        "fill": used / setup.length,
        "n_units": prompt.n_units,
        "capped": fitted.capped,
        "needle_spans": [span for span, _ in spans],
        "token_position_answer": None if prompt.answer_spot is None else spans[prompt.answer_spot][1],
        "gold_doc_positions": list(prompt.gold_positions),
        "sample_seed": sample_seed(setup.seed, setup.task, fitted.index),
        "ambiguous": prompt.ambiguous,
        **dict(prompt.notes),
    }


def write(path: Path, records: Sequence[Mapping[str, Any]], header: Mapping[str, Any]) -> None:
    """`path` (.jsonl), then its side file (.json), which declares it complete."""
    if len(records) != header["n"]:
        raise RulerError(f"{path}: {len(records)} samples instead of {header['n']}; nothing was written")
    write_lines(path, records)
    write_json(path.with_suffix(".json"), {**header, "file": path.name, "sha256": sha256_file(path)})


def write_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """JSON lines, one record each."""
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(canonical_json(record) + "\n" for record in records)


def read(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What `write` wrote.

    Raises RulerError if the file is incomplete or is not the one its side file describes.
    """
    try:
        header = read_json(Path(path).with_suffix(".json"))
        records = read_lines(path)
        wanted, found = header["sha256"], sha256_file(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RulerError(f"{path}: {error}; expected samples and their .json; make them again") from error
    if len(records) != header["n"] or found != wanted:
        raise RulerError(
            f"{path}: {len(records)} samples, sha256 {found}; its side file has {header['n']} and {wanted}: "
            "make it again"
        )
    return records, header


def write_predictions(
    path: Path, predictions: Sequence[Mapping[str, Any]], data: Mapping[str, Any], header: Mapping[str, Any]
) -> None:
    """Predictions and their side file, which names the samples they belong to.

    Args:
        predictions: with `index`, `pred`, `n_new_tokens`, `hit_max_tokens`.
        data: the samples' side file.
        header: what else the side file says: the model, the provenance.
    """
    write_lines(path, predictions)
    same = {name: data[name] for name in ("dataset_key", "n")}
    write_json(path.with_suffix(".json"), {**header, **same, "file": path.name, "sha256": sha256_file(path)})


def read_predictions(path: Path, data: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What `write_predictions` wrote.

    Raises RulerError if it is incomplete, or made from other samples than those `data` describes.
    """
    predictions, header = read(path)
    if header["dataset_key"] != data["dataset_key"]:
        raise RulerError(
            f"{path} was made from samples {header['dataset_key']}, not from {data['dataset_key']}: predict "
            "again"
        )
    return predictions, header


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines.

    Raises RulerError if it is missing or a line is no JSON.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except (OSError, ValueError) as error:
        raise RulerError(f"{path}: {error}; expected JSON lines") from error
