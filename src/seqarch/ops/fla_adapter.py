"""The only file that touches fla-core (Triton kernels for linear attention and delta rules, MIT).

Its import takes seconds and its kernels need a GPU, so it is imported inside the functions that call it.
Ops ask `unsupported` first. Each function has our op's signature; layout is [B, T, H, D] and states are
[B, H, K, V] float32 on both sides. Documents are packed: one row of all rows' tokens with the boundaries
beside it.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqarch.ops.segments import starts

KERNELS = {
    "linear_attention": "linear_attn.chunk_linear_attn",  # no decay
    "simple_gla": "simple_gla.chunk_simple_gla",  # one decay a head, constant or by token
    "gla": "gla.chunk_gla",  # a decay for each key channel
    "rwkv6": "rwkv6.chunk_rwkv6",  # the same with the bonus read
    "delta_rule": "delta_rule.chunk_delta_rule",
    "gated_delta_rule": "gated_delta_rule.chunk_gated_delta_rule",
    "dplr_rule": "rwkv7.chunk_rwkv7",
    "diag_scan": "hgrn.chunk_hgrn",
}
HOPPER = (9, 0)
GUARDED = {"simple_gla", "gated_delta_rule"}  # wrong gradients on Hopper: fla #640
WIDEST_KEY = 256
NARROWEST_HEAD = 16  # tl.dot's smallest side


def available() -> bool:
    """Whether fla-core is installed; nothing is imported."""
    return importlib.util.find_spec("fla") is not None


def version() -> str | None:
    return importlib.metadata.version("fla-core") if available() else None


def unsupported(
    kernel: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    K: int | None = None,
    V: int | None = None,
    needs_grad: bool = True,
    resets: bool = False,
) -> str | None:
    """Why fla can't serve a call of the kernel (a key of KERNELS), or None if it can."""
    if device.type != "cuda":
        return f"fla's kernels need a GPU, the inputs are on {device.type}"
    if not available():
        return "fla-core is not installed (pip install 'seqarch[gpu]')"
    if dtype == torch.float64:
        return "float64 is for the reference"
    if kernel == "delta_rule" and dtype == torch.float32:
        return "fla's delta rule does not take float32 (use bfloat16)"
    if K is not None and K > WIDEST_KEY and kernel in {"delta_rule", "gated_delta_rule"}:
        return f"keys of width {K} are wider than {WIDEST_KEY}"
    if min(K or NARROWEST_HEAD, V or NARROWEST_HEAD) < NARROWEST_HEAD:
        return f"heads of width {K} and {V}: Triton's dot needs at least {NARROWEST_HEAD}"
    if kernel == "diag_scan" and resets:
        return "fla's scan has no document boundaries"
    if kernel in GUARDED and needs_grad and torch.cuda.get_device_capability(device) == HOPPER:
        triton = _release(importlib.metadata.version("triton"))
        if (3, 4, 0) <= triton < (3, 7, 1):
            return "wrong gradients on Hopper with triton 3.4.0 to 3.7.0 (fla issue 640): use 3.7.1 or newer"
    return None


def linear_attention_kernel(g: Tensor | None, bonus: Tensor | None) -> str:
    """Which kernel computes `ops.linear_attention` with these gates."""
    if bonus is not None:
        return "rwkv6"
    if g is None:
        return "linear_attention"
    return "simple_gla" if g.dim() in (1, 3) else "gla"


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    *,
    bonus: Tensor | None = None,
    scale: float,
    initial_state: Tensor | None = None,
    segment_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `ops.linear_attention`: g None, [H], [H, K], [B, T, H] or [B, T, H, K]; q and k may have one
    shared head.
    """
    (B, T, H, _), K = v.shape, q.shape[-1]
    kernel = linear_attention_kernel(g, bonus)
    inputs = {"q": q.expand(B, T, H, K), "k": k.expand(B, T, H, K), "v": v}
    constant: dict[str, Any] = {}
    if kernel == "linear_attention":
        constant["normalize"] = False
    elif kernel == "simple_gla" and g is not None and g.dim() == 1:
        constant["g_gamma"] = g.float()
    elif kernel == "simple_gla" and g is not None:
        inputs["g"] = g.float()
    else:
        if g is None or g.dim() in (1, 3):
            g = (torch.zeros_like(v[:, :, :, 0]) if g is None else g).unsqueeze(-1)
        inputs["w" if kernel == "rwkv6" else "g"] = g.expand(B, T, H, K).to(
            v.dtype if kernel == "gla" else torch.float32
        )
    if bonus is not None:
        constant["u"] = bonus.to(v.dtype)
        inputs["r"] = inputs.pop("q")
    return _call(kernel, inputs, constant | {"scale": scale}, initial_state, segment_ids, v)


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    *,
    scale: float,
    initial_state: Tensor | None = None,
    segment_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `ops.delta_rule`."""
    inputs = {"q": q, "k": k, "v": v, "beta": beta.to(v.dtype)}
    if g is not None:
        return _call(
            "gated_delta_rule", inputs | {"g": g.float()}, {"scale": scale}, initial_state, segment_ids, v
        )
    # chunks of 64 gave wrong gradients on Hopper (fla issue 984)
    return _call("delta_rule", inputs, {"scale": scale, "chunk_size": 32}, initial_state, segment_ids, v)


def dplr_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    *,
    scale: float,
    initial_state: Tensor | None = None,
    segment_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `ops.dplr_rule`; chunks of 16, the length that holds for gates of any size."""
    inputs = {"r": q, "w": g.float(), "k": k, "v": v, "a": a, "b": b}
    return _call("dplr_rule", inputs, {"scale": scale, "chunk_size": 16}, initial_state, segment_ids, v)


def diag_scan(a: Tensor, x: Tensor, initial_state: Tensor | None = None) -> Tensor:
    """h [B, T, D] as `ops.diag_scan`, without resets."""
    g = a.float().clamp_min(torch.finfo(torch.float32).tiny).log()
    return _kernel("diag_scan")(x, g, initial_state=initial_state)[0]


@functools.cache
def _kernel(name: str) -> Callable[..., Any]:
    module, function = KERNELS[name].split(".")
    return getattr(importlib.import_module(f"fla.ops.{module}"), function)


def _call(
    kernel: str,
    inputs: dict[str, Tensor],
    options: dict[str, Any],
    initial_state: Tensor | None,
    segment_ids: Tensor | None,
    v: Tensor,
) -> tuple[Tensor, Tensor]:
    """One fla call: inputs [B, T, H, ...] -> o [B, T, H, V] in v's dtype and the final state float32."""
    state = None if initial_state is None else initial_state.float()
    packing = None if segment_ids is None else pack(segment_ids)
    if packing is not None:
        inputs = {name: x.flatten(0, 1).unsqueeze(0) for name, x in inputs.items()}
        options = options | {"cu_seqlens": packing.cu_seqlens}
        if state is not None:
            documents = state.new_zeros(len(packing.cu_seqlens) - 1, *state.shape[1:])
            state = documents.index_copy(0, packing.first, state)
    inputs = {name: x.contiguous() for name, x in inputs.items()}
    o, final = _kernel(kernel)(**inputs, **options, initial_state=state, output_final_state=True)
    if packing is not None:
        o, final = o.reshape(v.shape), final[packing.last]
    return o.to(v.dtype), final


class Packing(NamedTuple):
    """All rows' documents as one sequence: their boundaries [documents + 1], and each row's first and last
    document.
    """

    cu_seqlens: Tensor
    first: Tensor
    last: Tensor


def pack(segment_ids: Tensor) -> Packing:
    """segment_ids int [B, T], non-decreasing in each row."""
    begins = starts(segment_ids)
    begins[:, 0] = True
    boundaries = begins.flatten().nonzero().flatten()
    end = boundaries.new_tensor([segment_ids.numel()])
    last = begins.sum(1).cumsum(0) - 1
    first = torch.cat([last.new_zeros(1), last[:-1] + 1])
    return Packing(torch.cat([boundaries, end]), first, last)


def _release(text: str) -> tuple[int, ...]:
    """ "3.7.1+git" -> (3, 7, 1)."""
    numbers = text.split("+")[0].split(".")[:3]
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in numbers)
