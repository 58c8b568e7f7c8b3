"""Everything that touches the library transformers: its models, behind our interface, and its tokenizers.

No code that comes with a checkpoint is ever run (`trust_remote_code` is off).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Library
from torch import Tensor, nn

from seqarch.evaluation.checkpoints.weights import PretrainedError
from seqarch.evaluation.generation import Ended, most_probable

ONE_BY_ONE = ("rwkv",)  # transformers' RWKV-4 mixes the rows of a batch when it decodes
POSITION_TABLES = ("wpe", "embed_positions", "position_embeddings", "position_embedding")


def load_model(folder: Path, config: Mapping[str, Any], dtype: torch.dtype) -> Any:
    """The model in a folder. Raises PretrainedError if it cannot be loaded, or transformers is missing."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise PretrainedError(f"{folder}: pip install 'seqarch[pretrained]' ({error})") from error
    try:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, trust_remote_code=False, local_files_only=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        own = " It brings code of its own, which isn't run here." if "auto_map" in config else ""
        raise PretrainedError(
            f"{folder}: transformers cannot load a {config.get('model_type')!r} model: {error}.{own} Known "
            "beside transformers' own: checkpoints of mamba_ssm (Mamba-2, attention and hybrids) and RWKV-6"
        ) from error


class HubModel:
    """A causal language model of transformers, with its own cache or recurrent state."""

    def __init__(self, model: Any, context: int | None = None) -> None:
        from transformers import GenerationConfig

        self.model = model.eval()
        # Its own would add sampling, penalties, or an end token that pads the rows which reach it.
        self.model.generation_config = GenerationConfig()
        tables = [
            module.num_embeddings
            for name, module in model.named_modules()
            if isinstance(module, nn.Embedding) and name.rsplit(".", 1)[-1] in POSITION_TABLES
        ]
        if tables:  # OPT's has two rows more than places
            tables.append(getattr(model.config, "max_position_embeddings", None) or tables[0])
        limits = [limit for limit in (context, *tables) if limit is not None]
        self.context = min(limits) if limits else None
        self.max_batch = 1 if model.config.model_type in ONE_BY_ONE else None
        self.device = model.device

    @torch.inference_mode()
    def greedy(self, prompts: Tensor, n: int, ended: Ended) -> Tensor:
        from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

        self._forget()
        start = prompts.shape[1]

        def check(ids: Tensor, scores: Tensor) -> Tensor:
            most_probable(scores)
            return scores

        def stop(ids: Tensor, scores: Any, **_: Any) -> Tensor:
            return ended(ids[:, start:])

        config = GenerationConfig(
            max_new_tokens=n, do_sample=False, num_beams=1, use_cache=True, pad_token_id=0
        )
        found: Tensor = self.model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            generation_config=config,
            logits_processor=LogitsProcessorList([check]),
            stopping_criteria=StoppingCriteriaList([stop]),
        )
        return found[:, start:]

    def _forget(self) -> None:
        """RecurrentGemma keeps its state in its modules, from one prompt to the next."""
        for module in self.model.modules():
            for name in ("conv1d_state", "recurrent_states"):
                if getattr(module, name, None) is not None:
                    setattr(module, name, None)


def load_tokenizer(folder: Path) -> Library:
    """The tokenizer of a folder without tokenizer.json. Raises PretrainedError."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise PretrainedError(f"{folder}: pip install 'seqarch[pretrained]' ({error})") from error
    try:
        found = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        return found.backend_tokenizer
    except (OSError, ValueError, KeyError, ImportError, AttributeError) as error:
        raise PretrainedError(
            f"{folder}: no tokenizer that can be used: {str(error).splitlines()[0]}; expected "
            "tokenizer.json, or what transformers converts to one (an old sentencepiece file needs "
            "`pip install sentencepiece tiktoken`); code that comes with a tokenizer is not run"
        ) from error
