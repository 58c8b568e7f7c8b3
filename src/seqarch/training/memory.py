"""What fits on a device: activation checkpointing, compiled blocks, smaller micro-batches."""

import functools
import logging

import torch

from seqarch.model import Decoder
from seqarch.training.errors import OutOfMemory
from seqarch.training.workdir import WorkDirectory

log = logging.getLogger(__name__)


def prepare_blocks(model: Decoder, compiled: bool, checkpointed: bool) -> None:
    """Compile each block, or compute it again in the backward pass (arXiv 1604.06174), or both.

    State dictionaries stay as they are.
    """
    for block in model.blocks:
        if compiled:
            block.forward = torch.compile(block.forward)
        if checkpointed:
            block.forward = functools.partial(_checkpoint, block.forward)


def _checkpoint(forward, *args):  # type: ignore[no-untyped-def]
    if not torch.is_grad_enabled():
        return forward(*args)
    from torch.utils.checkpoint import checkpoint

    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False)


def state_bytes(model: torch.nn.Module) -> int:
    """Bytes that a process holds of parameters, gradients and AdamW's two moments, all float32."""
    total = 0
    for parameter in model.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        total += 4 * local.numel() * local.element_size()
    return total


class MicroBatch:
    """How many rows go through the model at a time: what was asked for, or what turned out to fit."""

    def __init__(self, rows: int, work: WorkDirectory) -> None:
        self._work = work
        self.rows = min(rows, work.micro_batch or rows)

    def halve(self, error: str) -> None:
        """After an out-of-memory error: half as many rows, noted for later attempts.

        Raises:
            OutOfMemory: one row is too many.
        """
        if self.rows == 1:
            raise OutOfMemory(
                f"one sequence does not fit in the device's memory ({error}): set "
                "train.checkpoint_activations, shorten train.sequence_length, or take a larger device"
            )
        self.rows = (self.rows + 1) // 2
        log.warning("out of memory: from now on micro-batches of %d sequences (%s)", self.rows, error)
        self._work.note_micro_batch(self.rows)
