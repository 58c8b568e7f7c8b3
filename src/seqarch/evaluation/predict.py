"""A model's answers to the samples of one file."""

from collections.abc import Mapping, Sequence
from typing import Any

from seqarch.evaluation.generation import CausalModel, Stops, generate
from seqarch.evaluation.ruler.encoder import PromptEncoder
from seqarch.evaluation.ruler.errors import RulerError
from seqarch.progress import progress


def predict(
    model: CausalModel,
    encoder: PromptEncoder,
    lines: Sequence[Mapping[str, Any]],
    header: Mapping[str, Any],
    end_ids: frozenset[int] = frozenset(),
    batch_tokens: int = 32_768,
) -> list[dict[str, Any]]:
    """One row a sample, in their order: index, pred, n_new_tokens, hit_max_tokens.

    The model reads input + answer prefix, byte for byte, and says at most `tokens_to_generate` tokens. Only
    the new ids are decoded. No string ends an answer, as in RULER; what ends a text does.

    Args:
        lines, header: samples and their side file.
        end_ids: that end the model's text, beside the tokenizer's own.

    Raises:
        RulerError: the samples were made for another tokenizer, or its ids are not those they were made with.
        ContextTooLong: a sample does not fit into the model.
    """
    if header["tokenizer_sha256"] != encoder.sha256 or header["special_tokens"] != encoder.special_tokens:
        raise RulerError(
            f"samples {header['dataset_key']} are for tokenizer {header['tokenizer_sha256'][:12]} with "
            f"special tokens {header['special_tokens']!r}, this one is {encoder.sha256[:12]} with "
            f"{encoder.special_tokens!r}: make the samples again"
        )
    prompts = [encoder.encode(line["input"] + line["answer_prefix"]) for line in lines]
    for line, prompt in zip(lines, prompts, strict=True):
        if len(prompt) != line["prompt_tokens"]:
            raise RulerError(
                f"sample {line['index']} has {len(prompt)} tokens, its record says {line['prompt_tokens']}: "
                "the library tokenizers changed; make the samples again"
            )
    ends = end_ids if encoder.end_id is None else end_ids | {encoder.end_id}
    limits = {line["tokens_to_generate"] for line in lines}
    if len(limits) != 1:
        raise RulerError(f"tokens_to_generate {sorted(limits)}: expected samples of one task")
    rows: list[dict[str, Any]] = []
    with progress("predict", len(lines)) as advance:
        found = generate(model, prompts, encoder.decode, limits.pop(), Stops(ends), batch_tokens)
        for i, answer in found:
            rows.append(
                {
                    "index": lines[i]["index"],
                    "pred": answer.text,
                    "n_new_tokens": len(answer.ids),
                    "hit_max_tokens": answer.end == "length",
                }
            )
            advance(1, "")
    return sorted(rows, key=lambda row: row["index"])
