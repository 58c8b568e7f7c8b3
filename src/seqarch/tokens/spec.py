"""Options of the token stages: `tokenizer` of a configuration, and the slices the steps get."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from seqarch.schema import Spec

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class BpeTokenizer(Spec):
    """A byte-level BPE trained on the in-domain training split."""

    kind: Literal["bpe"]
    vocab_size: Annotated[int, Field(ge=257, le=2**31)]  # entries: 256 bytes, <|bos|>, merges
    max_bytes: Annotated[int, Field(gt=0)] = 1_000_000_000  # UTF-8 bytes of text to train on, at most


class PretrainedTokenizer(Spec):
    """A file in the format of the library `tokenizers` (Hugging Face's tokenizer.json)."""

    kind: Literal["pretrained"]
    path: str  # the file, or the folder that holds tokenizer.json
    vocab_size: Annotated[int, Field(ge=2, le=2**31)]  # largest id + 1, added tokens included
    bos: str  # the entry that starts each document, e.g. <|endoftext|>
    sha256: Digest | None = None  # of the file, checked if given


TokenizerSpec = Annotated[BpeTokenizer | PretrainedTokenizer, Field(discriminator="kind")]


def _names(value: object) -> object:
    """A mapping of domains to roles stands for its names."""
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


Domains = Annotated[tuple[str, ...], BeforeValidator(_names), Field(min_length=1)]


class TokenizerStep(Spec):
    """`cli.tokenizer`."""

    tokenizer: TokenizerSpec
    domains: Domains  # trained on; a pretrained tokenizer ignores them


class TokenizeStep(Spec):
    """`cli.tokenize`: one shard of one group."""

    group: str
    shard: Annotated[int, Field(ge=0)]
    tokenizer: TokenizerSpec
    domains: Domains


class TokensManifestStep(Spec):
    """`cli.tokens_manifest`: the shards of a group, merged by split and domain."""

    group: str
    domains: Domains
    splits: tuple[str, ...] = ("train", "validation", "test")
