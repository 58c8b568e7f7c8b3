"""One token of Top-1 chunk selection from a state: a score per chunk and at most 2 C keys a head.

Written with plain operations for autograd; the choice and the gradients are those of the parallel form.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from seqarch.ops.top1_chunk.cache import State, lengths
from seqarch.ops.top1_chunk.options import Call, Options
from seqarch.ops.top1_chunk.reference import Rule, gate, weights_of
from seqarch.ops.top1_element.reference import first_argmax


def attend(call: Call, state: State, options: Options, rule: Rule) -> Tensor:
    """q [B, 1, H, K] against a state that holds the token already -> o [B, 1, H, V]."""
    q, C = call.q, options.chunk_size
    place = lengths(state) - 1
    own = place // C
    r, candidate = _scores(call, state, options, rule, place)
    routed = candidate.any(-1).view(-1, 1, 1)
    chosen = first_argmax(r)
    rp = torch.where(routed, r, 0.0).softmax(-1).gather(-1, chosen.unsqueeze(-1))  # [B, H or 1, 1]
    taken = torch.where(routed.squeeze(-1), chosen, own[:, None]).expand(q.shape[0], q.shape[2])
    pair = torch.stack([own[:, None].expand_as(taken), taken], dim=-1)  # [B, H, 2]: own chunk, chosen chunk
    index = (pair.unsqueeze(-1) * C + torch.arange(C, device=q.device)).flatten(-2)  # [B, H, 2 C]
    second = (torch.arange(2 * C, device=q.device) >= C).expand_as(index)
    same = (taken == own[:, None]).unsqueeze(-1)
    use_own = same | (rule.own_chunk == "always")
    visible = torch.where(second, ~same, use_own) & (index <= place[:, None, None])
    index = index.clamp(max=state["k"].shape[1] - 1).unsqueeze(-1)
    k, v = (
        x.transpose(1, 2).gather(2, index.expand(-1, -1, -1, x.shape[3])) for x in (state["k"], state["v"])
    )
    s = (q.transpose(1, 2) @ k.transpose(-1, -2)).squeeze(2) * (rule.scale / rule.tau)
    part = second & routed if rule.own_chunk == "always" else routed.expand_as(second)
    weights = weights_of(s, visible, rule) * torch.where(part, gate(rp, rule.router_grad), 1.0)
    o = (weights.unsqueeze(2) @ v).masked_fill(rp.isnan().unsqueeze(-1), torch.nan)  # no choice between NaNs
    return o.transpose(1, 2)


def _scores(call: Call, state: State, options: Options, rule: Rule, place: Tensor) -> tuple[Tensor, Tensor]:
    """Router scores [B, H or 1, N], -inf where chunk is no candidate, and the candidates [B, N]."""
    C = options.chunk_size
    N = -(-state["k"].shape[1] // C)
    chunk, own = torch.arange(N, device=place.device), (place // C)[:, None]
    candidate = chunk <= own if rule.own_chunk == "candidate" else chunk < own
    q = call.router_queries
    if options.granularity == "query_block":
        q = state["q_sum"].unsqueeze(1) / (place % C + 1)[:, None, None, None]
    q = q.transpose(1, 2)  # [B, H, 1, K]
    if rule.router == "exact":
        keys = state.get("k_router", state["k"])
        s = (q @ keys.permute(0, 2, 3, 1)).squeeze(2) * rule.scale
        seen = torch.arange(s.shape[-1], device=s.device) <= place[:, None, None]
        s = F.pad(s.masked_fill(~seen, -torch.inf), (0, N * C - s.shape[-1]), value=-torch.inf)
        s = s.unflatten(-1, (-1, C))
        r = torch.where(candidate[:, None, :, None], s, 0.0).logsumexp(-1)
    else:
        r = (q @ state["summary"].to(q.dtype).permute(0, 2, 3, 1)).squeeze(2) * rule.scale
    r = (r.sum(1, keepdim=True) if rule.shared else r) / rule.tau_r
    return r.masked_fill(~candidate.unsqueeze(1), -torch.inf), candidate
