"""The peak of live tensor memory on a CPU, where no allocator keeps count."""

import weakref
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """`with PeakMemory() as memory: ...`, then `memory.peak`: the most bytes that operations inside held."""

    def __enter__(self) -> "PeakMemory":
        self.live = self.peak = 0
        self._known: set[int] = set()
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {
            leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)
        }
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if _is_tensor(leaf):
                self._count(leaf.untyped_storage(), given)
        return result

    def _count(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        if place in self._known or place in given or size == 0:
            return
        self._known.add(place)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, place, size)

    def _free(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.live -= size


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)
