"""Bootstrap draws that depend on nothing but a name, a size and a seed."""

import hashlib

import numpy as np
from numpy.typing import NDArray


def draws(name: str, n: int, seed: int, replicates: int) -> NDArray[np.int64]:
    """How often each of n units is drawn in each replicate of a bootstrap, int64 [replicates, n].

    With a domain's name for `name`, all models get the same documents.
    """
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "big")))
    return generator.multinomial(n, np.full(n, 1 / n), size=replicates)
