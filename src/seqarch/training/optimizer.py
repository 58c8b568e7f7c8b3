"""The optimiser: AdamW (arXiv 1711.05101) with weight decay on matrices only."""

import inspect
from typing import Any

import torch
from torch.optim import Adam, AdamW

from seqarch.model import Decoder
from seqarch.training.spec import Optimizer


class FusedAdamW(AdamW):
    """torch's AdamW as one fused kernel, without the compiler.

    torch.optim imports torch._dynamo (over a second: a hundred steps of a small run) at the first call of
    `step` and of four other methods, only to mark them as not to be compiled. We compile no optimiser: `step`
    here is the method below its marks, and the others are marked beforehand. A torch without these details
    behaves as it always does.
    """

    def __init__(self, groups: list[dict[str, Any]], **options: Any) -> None:
        _mark_as_uncompiled()
        super().__init__(groups, fused=True, **options)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        inspect.unwrap(Adam.step)(self)


def _mark_as_uncompiled() -> None:
    for method in (AdamW.add_param_group, AdamW.zero_grad, AdamW.state_dict, AdamW.load_state_dict):
        inner = getattr(method, "__wrapped__", None)
        if inner is not None and not hasattr(inner, "__dynamo_disable"):
            inner.__dynamo_disable = inner  # where torch keeps the marked method


def make_optimizer(model: Decoder, options: Optimizer, learning_rate: float) -> FusedAdamW:
    """AdamW over the model's decay groups."""
    groups = model.decay_groups(options.weight_decay)
    return FusedAdamW(groups, lr=learning_rate, betas=options.betas, eps=options.eps)
