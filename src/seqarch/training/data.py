"""The batches of one run: training sequences of its domains, validation sequences of the in-domain ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from seqarch.tasks.language_modelling import LanguageModelling, Validation
from seqarch.tokens.store import TokenSet
from seqarch.training.errors import TrainingError
from seqarch.training.spec import RunSpec


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


def open_data(spec: RunSpec, manifests: Mapping[str, Path]) -> tuple[LanguageModelling, Validation]:
    """Training and validation batches.

    Args:
        manifests: `train/<domain>` for each domain in `spec.weights`, `validation/<domain>` for each in
            `spec.id_domains`.

    Raises:
        DataError: a manifest is missing or not needed, or has another vocabulary than the model.
    """
    needed = {f"train/{name}" for name in spec.weights} | {f"validation/{name}" for name in spec.id_domains}
    if needed != manifests.keys():
        missing = ", ".join(sorted(needed - manifests.keys())) or "none"
        surplus = ", ".join(sorted(manifests.keys() - needed)) or "none"
        raise DataError(f"token manifests: missing {missing}; not needed {surplus}")
    train = spec.train
    rows = (train.micro_batch_tokens or train.batch_tokens) // train.sequence_length
    training = LanguageModelling(
        manifests={name: manifests[f"train/{name}"] for name in spec.weights},
        weights=spec.weights,
        sequence_length=train.sequence_length,
        batch_sequences=train.batch_tokens // train.sequence_length,
        seed=spec.seed,
        document_mask=train.document_mask,
    )
    validation = Validation(
        manifests={name: manifests[f"validation/{name}"] for name in spec.id_domains},
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
