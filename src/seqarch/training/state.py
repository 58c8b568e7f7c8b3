"""What a run needs to go on, as one set of named tensors: weights, optimiser, random state, rows measured."""

from collections.abc import Mapping

import torch
from torch import Tensor

from seqarch.model import Decoder
from seqarch.training.metrics import History
from seqarch.training.world import World


def pack(
    model: Decoder, optimizer: torch.optim.Optimizer, history: History, world: World
) -> dict[str, Tensor]:
    """Whole tensors on the CPU, on the first process; on the others nothing."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in moments.items()}
    tensors["rng"] = torch.get_rng_state()
    tensors["history"] = torch.frombuffer(bytearray(history.to_bytes()), dtype=torch.uint8)
    return world.gather(tensors)


def restore(
    tensors: Mapping[str, Tensor], model: Decoder, optimizer: torch.optim.Optimizer, world: World
) -> None:
    """Weights, optimiser and random state. The history stays: it may go beyond a state that a branch left."""
    weights: dict[str, Tensor] = {}
    moments: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        kind, _, name = key.partition(".")
        if kind == "model":
            weights[name] = tensor
        elif kind == "optimizer":
            index, _, name = name.partition(".")
            moments.setdefault(int(index), {})[name] = tensor
    own = model.state_dict()
    model.load_state_dict({name: world.place(each, own[name]) for name, each in weights.items()})
    # Numbered in the order of the groups.
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    state = {
        index: {name: world.place(each, parameters[index]) for name, each in moment.items()}
        for index, moment in moments.items()
    }
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    torch.set_rng_state(tensors["rng"])


def history_of(tensors: Mapping[str, Tensor]) -> History:
    """The rows measured up to a state."""
    return History.from_bytes(tensors["history"].numpy().tobytes())
