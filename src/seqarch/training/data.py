"""The batches of one run: training sequences of its domains, validation sequences of the in-domain ones."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from seqarch.tasks.batch import Batch
from seqarch.tasks.language_modelling import LanguageModelling, Validation
from seqarch.tokens.store import TokenSet
from seqarch.training.errors import TrainingError
from seqarch.training.spec import RunSpec, TokenData


class DataError(TrainingError):
    """The token sets given are not those the run needs."""


def name_manifests(paths: Sequence[Path]) -> dict[str, Path]:
    """Token manifests by `<split>/<domain>`. Raises DataError if two are of the same."""
    named: dict[str, Path] = {}
    for path in paths:
        tokens = TokenSet(path)
        name = f"{tokens.split}/{tokens.domain}"
        if name in named:
            raise DataError(f"two manifests of {name}: {named[name]} and {path}")
        named[name] = Path(path)
    return named


class Batches(Protocol):
    """Training batches, a pure function of the step."""

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> Batch:
        """The rows of `rank` in the global batch of `step`, both from 0."""


# How a run gets its training and validation batches, from its spec and its token manifests.
OpenData = Callable[[RunSpec, Mapping[str, Path]], tuple[Batches, Iterable[Batch]]]


def open_data(spec: RunSpec, manifests: Mapping[str, Path]) -> tuple[LanguageModelling, Validation]:
    """Training and validation batches of tokenized text.

    Args:
        manifests: `train/<domain>` for each domain in `spec.data.weights`, `validation/<domain>` for each in
            `spec.data.id_domains`.

    Raises:
        DataError: a manifest is missing or not needed, or has another vocabulary than the model.
    """
    if not isinstance(spec.data, TokenData):
        raise DataError(f"data of kind {spec.data.kind!r}: seqarch.cli.train trains on tokens")
    needed = {f"train/{name}" for name in spec.data.weights}
    needed |= {f"validation/{name}" for name in spec.data.id_domains}
    if needed != manifests.keys():
        missing = ", ".join(sorted(needed - manifests.keys())) or "none"
        surplus = ", ".join(sorted(manifests.keys() - needed)) or "none"
        raise DataError(f"token manifests: missing {missing}; not needed {surplus}")
    train = spec.train
    rows = (train.micro_batch_tokens or train.batch_tokens) // train.sequence_length
    training = LanguageModelling(
        manifests={name: manifests[f"train/{name}"] for name in spec.data.weights},
        weights=spec.data.weights,
        sequence_length=train.sequence_length,
        batch_sequences=train.batch_tokens // train.sequence_length,
        seed=spec.seed,
        document_mask=train.document_mask,
    )
    validation = Validation(
        manifests={name: manifests[f"validation/{name}"] for name in spec.data.id_domains},
        n_tokens=train.validation.tokens,
        sequence_length=train.sequence_length,
        batch_sequences=rows,
        document_mask=train.document_mask,
    )
    if training.vocab_size != spec.model["vocab_size"]:
        raise DataError(
            f"the tokens have a vocabulary of {training.vocab_size}, the model one of "
            f"{spec.model['vocab_size']}: use the tokenizer's vocab_size in both"
        )
    return training, validation
