"""The recurrence of linear attention, step by step: decoding, and the oracle of the chunk form."""

import torch
from torch import Tensor

from seqarch.ops.common import accumulation_dtype
from seqarch.ops.segments import starts


def linear_attention_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    *,
    bonus: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    segment_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `linear_attention`; always returns the state. A Python loop over T."""
    acc = accumulation_dtype(q, k, v, g, initial_state)
    (B, T, H, V), K = v.shape, q.shape[-1]
    scale = K**-0.5 if scale is None else scale
    S = v.new_zeros(B, H, K, V, dtype=acc) if initial_state is None else initial_state.to(acc)
    decay = None if g is None else _per_step(g, B, T).to(acc).exp().unbind(1)  # T times [B or 1, H, K or 1]
    reset = None if segment_ids is None else starts(segment_ids).unbind(1)
    queries, keys, values = (x.to(acc).unbind(1) for x in (q if scale == 1 else q * scale, k, v))
    outputs = []
    for t in range(T):
        if reset is not None:
            S = S.masked_fill(reset[t][:, None, None, None], 0)
        key, value, before = keys[t].unsqueeze(-1), values[t].unsqueeze(-2), S  # [B, H, K, 1], [B, H, 1, V]
        S = torch.addcmul(S if decay is None else decay[t].unsqueeze(-1) * S, key, value)
        read = S if bonus is None else torch.addcmul(before, bonus.to(acc).unsqueeze(-1) * key, value)
        outputs.append((queries[t].unsqueeze(-2) @ read).squeeze(-2))
    o = outputs[0].unsqueeze(1) if T == 1 else torch.stack(outputs, 1)
    return o.to(v.dtype), S


def _per_step(g: Tensor, B: int, T: int) -> Tensor:
    """Any gate kind as [B or 1, T, H, K or 1]."""
    if g.dim() == 1:
        return g[None, None, :, None].expand(1, T, -1, 1)
    if g.dim() == 2:
        return g[None, None].expand(1, T, -1, -1)
    return g.unsqueeze(-1) if g.dim() == 3 else g
