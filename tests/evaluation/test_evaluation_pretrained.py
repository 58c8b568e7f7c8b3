"""Models of transformers: tiny random ones of the real classes, saved to disk and loaded again, with a real
tokenizer; what cannot be had or loaded is an error that says what to do."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from seqarch.evaluation.checkpoints.weights import PretrainedError
from seqarch.evaluation.generation import Answer, ContextTooLong, NotANumber, Stops, generate
from seqarch.evaluation.long_context_spec import MIXERS
from seqarch.evaluation.pretrained import end_ids, load, locate
from seqarch.evaluation.published_tokenizer import take
from seqarch.evaluation.ruler import records
from seqarch.evaluation.ruler.encoder import PromptEncoder
from seqarch.evaluation.ruler.errors import RulerError
from seqarch.evaluation.ruler.prompt import Setup
from seqarch.evaluation.ruler.resources import word_lists
from seqarch.evaluation.world_tokenizer import WorldError

transformers = pytest.importorskip("transformers", reason="transformers is an extra")
VOCAB, N = 300, 6
SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "bos_token_id": 0, "eos_token_id": 0}
HEADS = {"intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
SSM = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8}
MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", HEADS),
    "mamba": ("Mamba", {"state_size": 8}),
    "mamba2": ("Mamba2", {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 8}),
    "recurrentgemma": (
        "RecurrentGemma",
        {**HEADS, "lru_width": 32, "num_hidden_layers": 3, "attention_window_size": 16},
    ),
    "rwkv": ("Rwkv", {"attention_hidden_size": 32, "context_length": 64}),
    "hybrid": ("FalconH1", {**HEADS, **SSM}),
}
TEXTS = ["The grass is green. The sky is blue.", "One of the special magic numbers for a-b is: 1234567."] * 20


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a model of that name, made once."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            family, options = MADE[name]
            config = getattr(transformers, f"{family}Config")(**{**SIZES, **options})
            torch.manual_seed(0)
            model = getattr(transformers, f"{family}ForCausalLM")(config)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.2 * torch.randn_like(parameter))
            model.save_pretrained(made[name])
        return made[name]

    return folder


def byte_level(bos: str | None = "<s>") -> Tokenizer:
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[bos] if bos else [],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(TEXTS, trainer)
    if bos:
        library.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, 0)])
    return library


def answers(model: Any, prompts: list[list[int]], n: int = N, **options: Any) -> list[Answer]:
    return [each for _, each in sorted(generate(model, prompts, lambda ids: str(ids), n, **options))]


@pytest.mark.parametrize("name", MADE)
def test_a_batch_is_its_prompts_one_by_one_and_the_whole_forward_pass(
    name: str, saved: Callable[[str], Path]
) -> None:
    """Fault 32. Also RecurrentGemma, which keeps state in its modules, and RWKV-4, which mixes the rows of a
    batch."""
    model = load(saved(name), torch.float32)
    rng = random.Random(1)
    prompts = [[rng.randrange(VOCAB) for _ in range(n)] for n in (9, 1, 9, 5, 20, 9, 1)]
    together = answers(model, prompts)
    assert together == [answers(model, [prompt])[0] for prompt in prompts]
    for prompt, found in zip(prompts, together, strict=True):
        ids = list(prompt)
        with torch.no_grad():
            for _ in range(N):
                logits = model.model(torch.tensor([ids]), use_cache=False).logits  # type: ignore[attr-defined]
                ids.append(int(logits[0, -1].argmax()))
        assert list(found.ids) == ids[len(prompt) :]
    assert len({each.ids for each in together}) > 3


def test_stops_end_each_row(saved: Callable[[str], Path]) -> None:
    model = load(saved("llama"), torch.float32)
    prompts = [[5, 6, 7], [8, 9, 10], [11, 12, 13]]
    free = answers(model, prompts)
    stop = free[0].ids[2]
    found = answers(model, prompts, stops=Stops(ids=frozenset({stop})))
    for whole, cut in zip(free, found, strict=True):
        kept = whole.ids[: whole.ids.index(stop)] if stop in whole.ids else whole.ids
        assert cut.ids == kept
    assert found[0].end == "id"


def test_nan_weights_are_an_error(saved: Callable[[str], Path]) -> None:
    model = load(saved("mamba2"), torch.float32)
    with torch.no_grad():
        model.model.lm_head.weight[3] = float("nan")  # type: ignore[attr-defined]
    with pytest.raises(NotANumber, match="not finite"):
        answers(model, [[1, 2, 3]])


@pytest.mark.parametrize("family", ["GPT2", "OPT"])
def test_a_table_of_learned_positions_limits_the_context(tmp_path: Path, family: str) -> None:
    sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16}
    if family == "OPT":
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 32}
        sizes |= {"max_position_embeddings": 16, "word_embed_proj_dim": 32, "pad_token_id": 1}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCAB, bos_token_id=0, eos_token_id=7, **sizes
    )
    name = {"GPT2": "GPT2LMHeadModel", "OPT": "OPTForCausalLM"}[family]
    getattr(transformers, name)(config).save_pretrained(tmp_path)
    model = load(tmp_path, torch.float32)
    assert model.context == 16
    assert len(answers(model, [[3] * 12], 5)[0].ids) == 5
    with pytest.raises(ContextTooLong, match="reads 16"):
        answers(model, [[3] * 13], 5)
    assert load(tmp_path, torch.float32, context=10).context == 10
    assert end_ids(tmp_path) == {7}


def test_a_rotary_model_reads_on_beyond_its_training_length_unless_told(saved: Callable[[str], Path]) -> None:
    assert load(saved("llama"), torch.float32).context is None
    limited = load(saved("llama"), torch.float32, context=8)
    with pytest.raises(ContextTooLong, match="reads 8"):
        answers(limited, [[1] * 9], 1)


def test_dtype_is_what_was_asked_for(saved: Callable[[str], Path]) -> None:
    model = load(saved("llama"), torch.bfloat16)
    assert {p.dtype for p in model.model.parameters()} == {torch.bfloat16}  # type: ignore[attr-defined]
    assert len(answers(model, [[1, 2, 3]])[0].ids) == N


def test_a_checkpoint_of_mamba_ssm_goes_into_our_own_mixers(
    tmp_path: Path, saved: Callable[[str], Path]
) -> None:
    """transformers' Mamba-2 as mamba_ssm stores it: the same answers from both."""
    theirs = load(saved("mamba2"), torch.float32)
    weights = {
        name.replace("backbone.embeddings.", "backbone.embedding."): each
        for name, each in theirs.model.state_dict().items()  # type: ignore[attr-defined]
    }
    torch.save(weights, tmp_path / "pytorch_model.bin")
    about = {"d_model": 32, "n_layer": 2, "vocab_size": VOCAB, "rms_norm": True, "tie_embeddings": False}
    about["ssm_cfg"] = {"layer": "Mamba2", "headdim": 16, "d_state": 8}
    (tmp_path / "config.json").write_text(json.dumps(about))
    ours = load(tmp_path, torch.float32)
    assert type(ours).__name__ == "OwnModel"
    prompts = [[1, 2, 3, 4], [9, 8, 7, 6], [5] * 17]
    assert answers(ours, prompts) == answers(theirs, prompts)
    half = load(tmp_path, torch.bfloat16)
    assert len(answers(half, prompts)[0].ids) == N


def test_code_that_comes_with_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "modeling_own.py").write_text(
        f"open({str(marker)!r}, 'w')\nclass Own: pass\nclass OwnConfig: pass\n"
    )
    auto = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.Own"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": auto}))
    with pytest.raises(PretrainedError, match="brings code of its own, which isn't run"):
        load(tmp_path, torch.float32)
    assert not marker.exists()


def test_what_is_not_there_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PretrainedError, match=r"no readable config.json"):
        load(tmp_path, torch.float32)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(PretrainedError, match="transformers cannot load a 'llama' model"):
        load(tmp_path, torch.float32)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PretrainedError, match=r"no network is allowed.*hf download nobody/nothing"):
        locate("nobody/nothing", "main", ("config.json",))
    assert locate(str(tmp_path), "main", ()) == (tmp_path, None)


def test_every_mixer_that_checkpoints_are_loaded_into_is_in_the_fingerprint() -> None:
    source = Path(__file__).parents[2] / "src/seqarch/evaluation/checkpoints"
    text = "".join(file.read_text() for file in source.glob("*.py"))
    named = {
        word for word in ("attention", "mamba2", "rwkv6", "mamba1", "rwkv7") if f'"mixer": "{word}"' in text
    }
    assert named == set(MIXERS)


# --- tokenizers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["file", "transformers"])
def test_a_tokenizer_from_a_folder(tmp_path: Path, how: str) -> None:
    """Its own template's tokens go before a prompt; new ids are decoded without special ones."""
    library = byte_level()
    source = tmp_path / "model"
    source.mkdir()
    if how == "file":
        library.save(str(source / "tokenizer.json"))
        (source / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": {"content": "<s>"}}')
    else:
        fast = transformers.PreTrainedTokenizerFast(
            tokenizer_object=library, bos_token="<s>", eos_token="<s>"
        )
        fast.save_pretrained(source)
    manifest = take(source, tmp_path / "out")
    encoder = PromptEncoder.load(manifest, "template")
    assert encoder.encode("The sky")[0] == 0
    assert encoder.decode(encoder.encode("The sky is blue.")) == "The sky is blue."
    assert encoder.end_id == 0
    assert PromptEncoder.load(manifest, "bos").prefix == [0]
    assert PromptEncoder.load(manifest, "none").prefix == []


def test_a_tokenizer_without_bos(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    byte_level(bos=None).save(str(source / "tokenizer.json"))
    manifest = take(source, tmp_path / "out")
    assert PromptEncoder.load(manifest, "template").prefix == []
    assert PromptEncoder.load(manifest, "template").end_id is None
    with pytest.raises(RulerError, match="special_tokens: bos needs a token"):
        PromptEncoder.load(manifest, "bos")


def test_a_tokenizer_that_changed_is_noticed(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    byte_level().save(str(source / "tokenizer.json"))
    manifest = take(source, tmp_path / "out")
    (tmp_path / "out/tokenizer.json").write_text(byte_level(bos=None).to_str())
    with pytest.raises(RulerError, match="make the tokenizer again"):
        PromptEncoder.load(manifest, "none")


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PretrainedError, match="no tokenizer"):
        take(tmp_path, tmp_path / "out")


# --- RWKV's World vocabulary ------------------------------------------------------------------------------


def world(folder: Path) -> Path:
    """The published form: single bytes, words, a letter of three bytes."""
    entries = [bytes([byte]) for byte in range(256)]
    entries += [word.encode() for word in ("The", "The grass", " grass", " is", "\n\n", "長", "長い", "  ")]
    lines = []
    for index, entry in enumerate(entries, start=1):
        try:
            literal = repr(entry.decode())
        except UnicodeDecodeError:
            literal = repr(entry)
        lines.append(f"{index} {literal} {len(entry)}")
    folder.mkdir()
    (folder / "rwkv_vocab_v1.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "config.json").write_text('{"model_type": "rwkv6", "eos_token_id": 0}')
    return folder


def longest_first(text: str, entries: dict[int, bytes]) -> list[int]:
    """By trying all entries at every byte."""
    data, found = text.encode(), []
    while data:
        index = max(
            (i for i, entry in entries.items() if data.startswith(entry)), key=lambda i: len(entries[i])
        )
        found.append(index)
        data = data[len(entries[index]) :]
    return found


def test_the_world_vocabulary_takes_the_longest_entry(tmp_path: Path) -> None:
    manifest = take(world(tmp_path / "rwkv"), tmp_path / "out")
    encoder = PromptEncoder.load(manifest, "none")
    entries = encoder._library.entries  # type: ignore[union-attr]
    assert len(entries) == 264
    rng = random.Random(2)
    for _ in range(200):
        text = "".join(rng.choices(["The", " grass", " is", "\n", " ", "長い", "長", "é", "x", "👩"], k=12))
        ids = encoder.encode(text)
        assert ids == longest_first(text, entries)
        assert encoder.decode(ids) == text
        assert encoder.count([text[:5], text[5:]]) == len(ids)
        start = rng.randrange(len(text))
        (first, last) = encoder.locate([text], [(start, start + 1)])[0]
        said = encoder.decode(ids[first:last])
        assert text[start] in said or "\ufffd" in said  # a character of several tokens: its first
        assert len(encoder.token_ends(text)) == len(ids)
        assert encoder.token_ends(text)[-1] == len(text)
    assert encoder.end_id is None
    assert end_ids(tmp_path / "rwkv") == {0}
    with pytest.raises(RulerError, match="special_tokens: bos needs a token"):
        PromptEncoder.load(manifest, "bos")


def test_samples_can_be_made_with_the_world_vocabulary(tmp_path: Path) -> None:
    encoder = PromptEncoder.load(take(world(tmp_path / "rwkv"), tmp_path / "out"), "none")
    setup = Setup("niah_single_1", "fixed", 1500, 42, encoder, word_lists())
    lines, _ = records.make(setup, 2)
    assert [0.95 < line["fill"] <= 1 for line in lines] == [True, True]


def test_a_damaged_world_vocabulary_is_an_error(tmp_path: Path) -> None:
    folder = world(tmp_path / "rwkv")
    text = (folder / "rwkv_vocab_v1.txt").read_text(encoding="utf-8")
    (folder / "rwkv_vocab_v1.txt").write_text(
        text.replace("'The grass' 9", "'The grass' 8"), encoding="utf-8"
    )
    with pytest.raises(WorldError, match=r"line 258: 9 bytes instead of 8"):
        take(folder, tmp_path / "out")
    (folder / "rwkv_vocab_v1.txt").write_text("1 'a' 1\n", encoding="utf-8")
    with pytest.raises(WorldError, match="255 bytes"):
        take(folder, tmp_path / "out")
