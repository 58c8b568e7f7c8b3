"""Samples of the needle tasks at 16K tokens: ours against NVIDIA/RULER's own generator, run beside it.

The peer is a checkout of https://github.com/NVIDIA/RULER, given by the environment variable RULER_PEER;
without it the rows say so and are left out. It is never part of this repository. What it downloads is
replaced, for both sides alike: the essays by generated prose, nltk's sentence splitter by a regular
expression. Its time for 500 samples is taken from two runs with few samples: start and search once, then
equal samples.

    RULER_PEER=/path/to/RULER python tests/benchmarks/run.py --only ruler
    RULER_TASKS=niah_multikey_2,niah_multikey_3   only these tasks
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from seqarch.evaluation.ruler import records
from seqarch.evaluation.ruler.encoder import PromptEncoder
from seqarch.evaluation.ruler.niah import NIAH, PLURAL, PLURAL_PREFIX
from seqarch.evaluation.ruler.prompt import Setup
from seqarch.evaluation.ruler.resources import Haystack, word_lists

GOAL = 5.0
LENGTH, SAMPLES, GENERATED = 16_384, 500, 128
FEW, MORE = 10, 90  # samples of the peer's two runs
VOCABULARY = 32_000
SPLITTER = r"""import re
def sent_tokenize(text):
    return re.split(r'(?<=[.!?])\s+(?=[A-Z])', text)
"""


def rows() -> Iterator[dict[str, Any]]:
    peer = os.environ.get("RULER_PEER")
    if peer is None:
        print("bench_ruler: no rows: set RULER_PEER to a checkout of NVIDIA/RULER", file=sys.stderr)
        return
    wanted = os.environ.get("RULER_TASKS", ",".join(NIAH)).split(",")
    with tempfile.TemporaryDirectory() as folder:
        essays = prose()
        library = tokenizer(essays)
        checkout = prepared(Path(peer), Path(folder), essays, library)
        peer_seconds(checkout, wanted[0], 1)  # brings its libraries into memory
        for task in wanted:
            ours = our_seconds(task, library, essays)
            few, more = (peer_seconds(checkout, task, n) for n in (FEW, MORE))
            each = (more - few) / (MORE - FEW)
            yield {
                "benchmark": f"ruler {task}",
                "shape": f"{SAMPLES} samples of {LENGTH} tokens, {VOCABULARY} entries",
                "threads": os.cpu_count(),
                "ours": "cli.ruler_data",
                "peer": f"RULER's niah.py ({FEW}: {few:.3g} s, {MORE}: {more:.3g} s)",
                "ours_seconds": ours,
                "peer_seconds": few + (SAMPLES - FEW) * each,
                "goal": GOAL,
            }


def prose(n: int = 3000) -> str:
    """Sentences of random words."""
    rng = random.Random(7)
    pool = [word for word in word_lists().pool if word.islower()]
    sentences = [" ".join(rng.choices(pool, k=rng.randint(6, 20))).capitalize() + "." for _ in range(n)]
    return " ".join(sentences)


def tokenizer(essays: str) -> Tokenizer:
    """A byte-level BPE, trained on words, pairs of them, and digits."""
    rng, lists = random.Random(3), word_lists()
    pairs = (f"{rng.choice(lists.adjectives)}-{rng.choice(lists.nouns)}" for _ in range(60_000))
    numbers = (str(rng.randrange(10**6, 10**7)) for _ in range(20_000))
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|bos|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator([essays, " ".join(pairs), " ".join(numbers)], trainer)
    return library


def our_seconds(task: str, library: Tokenizer, essays: str) -> float:
    """A whole file: fitted, described, located, checked."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        encoder = PromptEncoder(Tokenizer.from_str(library.to_str()), "none")
        haystack = Haystack([essays], "prose") if NIAH[task].haystack == "essay" else None
        setup = Setup(task, "fixed", LENGTH, 42, encoder, word_lists(), haystack)
        lines, header = records.make(setup, SAMPLES)
        records.write(Path(folder) / "samples.jsonl", lines, header)
        return time.perf_counter() - start


def prepared(peer: Path, folder: Path, essays: str, library: Tokenizer) -> Path:
    """A copy of the peer's scripts with the essays and a sentence splitter; its tokenizer beside it."""
    scripts = folder / "scripts"
    if (peer / "scripts").is_dir():
        shutil.copytree(peer / "scripts", scripts)
    else:  # a bare repository
        scripts.mkdir(parents=True)
        archive = subprocess.run(
            ["git", "-C", peer, "archive", "HEAD", "scripts"], check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    (scripts / "data/synthetic/json/PaulGrahamEssays.json").write_text(json.dumps({"text": essays}))
    (folder / "nltk/tokenize").mkdir(parents=True)
    (folder / "nltk/__init__.py").write_text("")
    (folder / "nltk/tokenize/__init__.py").write_text(SPLITTER)
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=library).save_pretrained(folder / "tokenizer")
    return folder


def peer_seconds(folder: Path, task: str, n: int) -> float:
    """A process of the peer's, its start included."""
    kind = NIAH[task]
    options = {
        "save_dir": folder / "out",
        "save_name": task,
        "tokenizer_path": folder / "tokenizer",
        "tokenizer_type": "hf",
        "max_seq_length": LENGTH,
        "tokens_to_generate": GENERATED,
        "num_samples": n,
        "template": f"{PLURAL}{PLURAL_PREFIX}".replace("{type}", "{type_needle_v}"),
        **{f"num_needle_{letter}": getattr(kind, letter) for letter in "kvq"},
        "type_haystack": kind.haystack,
        "type_needle_k": kind.key,
        "type_needle_v": kind.value,
    }
    command = [sys.executable, "niah.py", *(f"--{name}={value}" for name, value in options.items())]
    environment = {**os.environ, "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1"}
    start = time.perf_counter()
    run = subprocess.run(
        command, cwd=folder / "scripts/data/synthetic", env=environment, capture_output=True, text=True
    )
    if run.returncode:
        raise RuntimeError(run.stderr[-2000:])
    return time.perf_counter() - start
