"""Making the tokenizer: a byte-level BPE trained on in-domain training text, or a pretrained one."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, trainers

from seqarch.files import write_bytes
from seqarch.tokens.spec import BpeTokenizer, PretrainedTokenizer
from seqarch.tokens.text import TextFile, read_batches
from seqarch.tokens.tokenizer import BOS, Tokenizer, TokenizerError, byte_alphabet

log = logging.getLogger(__name__)


def train_bpe(spec: BpeTokenizer, files: Sequence[TextFile], out: Path) -> Tokenizer:
    """Train a byte-level BPE (Radford et al., GPT-2, 2019) and write it to `out`.

    BOS is id 0, the bytes follow in the order of their characters, then the merges: every text can be encoded
    and decodes to itself. Of more than `max_bytes` of text each file gives its first documents, in proportion
    to its size. What is kept in memory are counts of distinct words.

    Raises TokenizerError if the text has not enough distinct pairs for the vocabulary.
    """
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        special_tokens=[BOS],
        initial_alphabet=byte_alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(_texts(files, spec.max_bytes), trainer)
    if library.get_vocab_size() != spec.vocab_size:
        n_bytes = sum(file.n_bytes for file in files)
        raise TokenizerError(
            f"{n_bytes} bytes of training text make a vocabulary of {library.get_vocab_size()} entries, "
            f"{spec.vocab_size} are asked for: lower tokenizer.vocab_size or give more text"
        )
    write_bytes(out, library.to_str(pretty=True).encode())
    return Tokenizer(out)


def _texts(files: Sequence[TextFile], max_bytes: int) -> Iterator[list[str]]:
    total = sum(file.n_bytes for file in files)
    if total > max_bytes:
        log.info("training the tokenizer on %d of %d bytes of text", max_bytes, total)
    for file in files:
        left = float("inf") if total <= max_bytes else file.n_bytes * max_bytes / total
        for batch in read_batches(file):
            for text, n_bytes in zip(batch.texts, batch.n_bytes, strict=True):
                if left <= 0:
                    break
                yield [text]
                left -= n_bytes


def take_pretrained(spec: PretrainedTokenizer, out: Path) -> Tokenizer:
    """Copy a pretrained tokenizer to `out`, byte for byte.

    Raises TokenizerError if the file is missing, is no tokenizer, or is not what the configuration says.
    """
    path = Path(spec.path)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise TokenizerError(
            f"tokenizer.path: no file {path}; expected a tokenizer.json of the library tokenizers, or a "
            "folder with one"
        )
    found = Tokenizer(path, spec.bos)
    if spec.sha256 is not None and found.sha256 != spec.sha256:
        raise TokenizerError(f"tokenizer.sha256: {path} has {found.sha256}, expected {spec.sha256}")
    if found.vocab_size != spec.vocab_size:
        raise TokenizerError(
            f"tokenizer.vocab_size: {path} has ids up to {found.vocab_size - 1}: write {found.vocab_size}, "
            f"not {spec.vocab_size}"
        )
    write_bytes(out, path.read_bytes())
    return Tokenizer(out, spec.bos)
