"""How much memory the kernels need beside their inputs: linear in the length."""

import torch


def training_bytes(B: int, T: int, H: int, D: int, dtype: torch.dtype, chunk_size: int = 128) -> int:
    """An upper bound on what forward and backward of `top1_chunk` (approx, own chunk always) hold at once.

    Per token and head, with e bytes an element, beside q, k, v and dO:

        saved for the backward pass  o (e D); log-sum-exps and rp (4 bytes each); chosen chunk, twice (8 each)
        backward pass                dO o in float32 and its factors (8 D); dq in float32 (4 D); dq, dk, dv of
                                     the attention, dq, dk of the router and their sums (7 e D); schedule (56)

    and per chunk and head its summary and the gradient of it (2 e D). For T = 100 000, H = 12, D = 64 in
    bfloat16 that is 2.3 GB, where float32 scores by chunk alone would take 3.8 GB, and by key 480 GB.
    """
    e = dtype.itemsize
    tokens = -(-T // chunk_size) * chunk_size
    saved = e * D + 3 * 4 + 2 * 8
    backward = (8 + 4) * D + 7 * e * D + 56
    return B * H * (tokens * (saved + backward) + tokens // chunk_size * 2 * e * D)
