"""Top-1 chunk selection in float64: the fast path against dense masks, and relations to other ops."""

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqarch.ops.backend import BackendUnavailable
from seqarch.ops.top1_chunk.grouped import make_tiles
from seqarch.ops.top1_chunk.memory import training_bytes
from seqarch.ops.top1_chunk.op import top1_chunk
from seqarch.ops.top1_chunk.options import Options
from seqarch.ops.top1_element.checks import Top1InputError
from seqarch.ops.top1_element.op import top1_element

_meter = importlib.util.spec_from_file_location(
    "peak_memory", Path(__file__).parents[1] / "benchmarks" / "peak_memory.py"
)
assert _meter is not None
assert _meter.loader is not None
_module = importlib.util.module_from_spec(_meter)
_meter.loader.exec_module(_module)
PeakMemory = _module.PeakMemory

B, T, H, K, C = 2, 37, 2, 8, 5
EXACT = 1e-12


def inputs(T: int = T, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, ...]:
    """q, k, v, q_router, k_router, table."""
    generator = torch.Generator().manual_seed(seed)
    five = [torch.randn(B, T, H, K, generator=generator, dtype=dtype).requires_grad_() for _ in range(5)]
    return *five, torch.randn(H, C, generator=generator, dtype=dtype).requires_grad_()


def documents() -> Tensor:
    """Documents of 1, C and more tokens, different in the two rows, the last ones from token 20 and 24 on."""
    lengths = [[3, 1, C, 11, 17], [10, C, C, 4, 13]]
    return torch.stack([torch.arange(5).repeat_interleave(torch.tensor(row)) for row in lengths])


def call(x: tuple[Tensor, ...], options: Options, own_router: bool = False, **more: object) -> Tensor:
    return step(x, options, own_router, **more)[0]


def step(
    x: tuple[Tensor, ...], options: Options, own_router: bool = False, **more: object
) -> tuple[Tensor, dict[str, Tensor] | None]:
    q, k, v, q_router, k_router, table = x
    routers = {"q_router": q_router, "k_router": k_router} if own_router else {}
    summary_table = table if options.summary == "learned" else None
    return top1_chunk(q, k, v, options, summary_table=summary_table, **routers, **more)  # type: ignore[arg-type]


def gradients(o: Tensor, wanted: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    weight = torch.randn(o.shape, generator=torch.Generator().manual_seed(1), dtype=o.dtype)
    return torch.autograd.grad((o * weight).sum(), wanted, retain_graph=True, materialize_grads=True)


def close(a: Tensor, b: Tensor, wanted: tuple[Tensor, ...], tolerance: float = EXACT) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)
    for x, y in zip(gradients(a, wanted), gradients(b, wanted), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=tolerance)


FAST = [  # every value of every switch that the fast path has, in varying company
    Options(C),
    Options(C, own_chunk="candidate", router_grad="scaled", tau=1.3),
    Options(C, own_chunk="never", router_grad="none", tau_r=0.7),
    Options(C, own_chunk="candidate", router="exact", tau_r=0.7),
    Options(C, router="exact", router_grad="scaled", granularity="query_shared", tau=0.6),
    Options(C, own_chunk="candidate", router="exact", granularity="query_shared"),
    Options(C, own_chunk="never", router="exact"),
    Options(C, own_chunk="candidate", summary="max", granularity="query_block"),
    Options(C, own_chunk="candidate", summary="learned", granularity="query_shared"),
    Options(C, own_chunk="never", summary="learned", router_grad="scaled", granularity="query_block"),
    Options(C, summary="max", granularity="query_shared"),
]
DENSE = [  # and what only dense masks compute
    Options(C, router_grad="dense"),
    Options(C, own_chunk="candidate", router_grad="dense", inner="top1", granularity="query_block"),
    Options(C, own_chunk="never", router="exact", inner="top1", tau=0.5),
    Options(C, selection="one_element_per_chunk"),
    Options(C, own_chunk="candidate", selection="one_element_per_chunk"),
    Options(C, own_chunk="never", selection="one_element_per_chunk", inner="top1"),
]


def name(options: Options) -> str:
    default = Options(C)
    changed = {k: v for k, v in vars(options).items() if v != getattr(default, k)}
    return " ".join(f"{k}={v}" for k, v in changed.items()) or "defaults"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("options", FAST, ids=name)
def test_fast_path_equals_dense_masks(options: Options, packed: bool) -> None:
    x = inputs()
    more = {"segment_ids": documents() if packed else None, "own_router": packed}
    close(call(x, options, **more), call(x, options, backend="dense", **more), x)


@pytest.mark.parametrize("options", FAST + DENSE, ids=name)
def test_documents_equal_separate_calls(options: Options) -> None:
    x, ids = inputs(), documents()
    rows = []
    for b in range(B):
        lengths = ids[b].unique_consecutive(return_counts=True)[1].tolist()
        parts = zip(*(y[b : b + 1].split(lengths, dim=1) for y in x[:5]), strict=True)
        rows.append(torch.cat([call((*part, x[5]), options, own_router=True) for part in parts], dim=1))
    close(call(x, options, own_router=True, segment_ids=ids), torch.cat(rows), x)


@pytest.mark.parametrize(
    ("packed", "cuts"), [(False, [1, 17]), (False, [15, 16]), (True, [26, 31, *range(32, T)])]
)
@pytest.mark.parametrize("options", FAST + DENSE, ids=name)
def test_continuing_from_a_state_equals_one_call(options: Options, packed: bool, cuts: list[int]) -> None:
    x = inputs()
    ids = documents() if packed else None  # the last documents begin before the first cut
    expected = call(x, options, own_router=packed, segment_ids=ids)
    parts, state = [], None
    for a, b in zip([0, *cuts], [*cuts, T], strict=True):
        first_ids = ids[:, :b] if ids is not None and a == 0 else None
        part = (*(y[:, a:b] for y in x[:5]), x[5])
        o, state = step(
            part, options, own_router=packed, segment_ids=first_ids, initial_state=state, return_state=True
        )
        parts.append(o)
    close(torch.cat(parts, dim=1), expected, x)


def test_generation_token_by_token_equals_one_call_in_float32() -> None:
    x = inputs(dtype=torch.float32)
    expected, state, parts = call(x, Options(C)), None, []
    for t in range(T):
        part = (*(y[:, t : t + 1] for y in x[:5]), x[5])
        o, state = step(part, Options(C), initial_state=state, return_state=True)
        parts.append(o)
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=0, atol=1e-5)


# --- the five relations -------------------------------------------------------------------------------


@pytest.mark.parametrize("own_chunk", ["always", "candidate", "never"])
@pytest.mark.parametrize("router_grad", ["gate", "scaled", "dense", "none"])
@pytest.mark.parametrize("chunk_size", [T, 64])
def test_one_chunk_is_causal_attention(own_chunk: str, router_grad: str, chunk_size: int) -> None:
    x = inputs()[:3]
    o, _ = top1_chunk(*x, Options(chunk_size, own_chunk=own_chunk, router_grad=router_grad))
    expected = F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in x), is_causal=True).transpose(1, 2)
    close(o, expected, x)


def test_chunks_of_one_with_dense_gradient_are_element_selection() -> None:
    x = inputs()[:3]
    o, _ = top1_chunk(*x, Options(1, own_chunk="candidate", router_grad="dense"))
    close(o, top1_element(*x)[0], x)


@pytest.mark.parametrize("own_chunk", ["always", "candidate", "never"])
def test_forward_does_not_depend_on_the_router_gradient(own_chunk: str) -> None:
    x = inputs()
    first, *others = (
        call(x, Options(C, own_chunk=own_chunk, router_grad=grad))
        for grad in ("none", "gate", "scaled", "dense")
    )
    assert all((o - first).abs().max() < 1e-14 for o in others)


def moba(q: Tensor, k: Tensor, v: Tensor, C: int, topk: int) -> Tensor:
    """Mixture of block attention (arXiv 2502.13189) as published: the own block and topk - 1 earlier ones."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    n = -(-q.shape[2] // C)
    means = torch.stack([k[:, :, c * C : (c + 1) * C].mean(2) for c in range(n)], dim=2)
    gate = q @ means.transpose(-1, -2)
    own = torch.arange(q.shape[2])[:, None] // C
    block = torch.arange(n)
    gate = gate.masked_fill(block > own, -torch.inf).masked_fill(block == own, torch.inf)
    picked = torch.zeros_like(gate, dtype=torch.bool).scatter(
        -1, gate.topk(min(topk, n), dim=-1).indices, True
    )
    visible = (picked & (block <= own)).repeat_interleave(C, -1)[..., : q.shape[2]]
    visible &= torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible).transpose(1, 2)


def test_without_router_gradient_it_is_mixture_of_block_attention() -> None:
    x = inputs()[:3]
    close(top1_chunk(*x, Options(C, router_grad="none"))[0], moba(*x, C, topk=2), x)


def test_two_streams_equal_dense_masks_at_a_length_of_many_blocks() -> None:
    x = inputs(T=600)[:3]
    o, _ = top1_chunk(*x, Options(16))
    close(o, top1_chunk(*x, Options(16), backend="dense")[0], x, tolerance=1e-11)


# --- gradient of the gate by hand -----------------------------------------------------------------------


def test_router_gradient_by_the_hand_formula() -> None:
    """dr = rp (onehot - rp_{c*}) dO . (chosen part); d kbar_c = scale sum_i dr_ic q_i; dk_j += d kbar / C."""
    q, k, v = inputs(T=20)[:3]
    gate, none = (top1_chunk(q, k, v, Options(C, router_grad=grad))[0] for grad in ("gate", "none"))
    do = torch.randn(gate.shape, generator=torch.Generator().manual_seed(1), dtype=gate.dtype).transpose(1, 2)
    Q, K_, V = (x.detach().transpose(1, 2) for x in (q, k, v))
    means = K_.unflatten(2, (-1, C)).mean(3)
    own = torch.arange(20) // C
    past = torch.arange(4) < own[:, None]
    r = (Q @ means.transpose(-1, -2) * K**-0.5).masked_fill(~past, -torch.inf)
    rp = r[:, :, C:].softmax(-1)
    chosen = r[:, :, C:].argmax(-1)
    in_chosen = own == chosen.unsqueeze(-1)
    visible = in_chosen | ((own[C:, None] == own) & (torch.arange(20) <= torch.arange(C, 20)[:, None]))
    p = (Q[:, :, C:] @ K_.transpose(-1, -2) * K**-0.5).masked_fill(~visible, -torch.inf).softmax(-1)
    drp = (do[:, :, C:] * ((p * in_chosen) @ V)).sum(-1, keepdim=True)
    dr = rp * (F.one_hot(chosen, 4) - rp.gather(-1, chosen.unsqueeze(-1))) * drp
    dq = torch.zeros_like(Q)
    dq[:, :, C:] = K**-0.5 * dr @ means
    dk = (K**-0.5 * dr.transpose(-1, -2) @ Q[:, :, C:] / C).repeat_interleave(C, 2)
    found = [a - b for a, b in zip(gradients(gate, (q, k)), gradients(none, (q, k)), strict=True)]
    torch.testing.assert_close(found[0], dq.transpose(1, 2), rtol=0, atol=EXACT)
    torch.testing.assert_close(found[1], dk.transpose(1, 2), rtol=0, atol=EXACT)


# --- properties -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [*FAST, DENSE[0], DENSE[3]], ids=name)
def test_later_inputs_change_nothing_earlier(options: Options) -> None:
    x = inputs(dtype=torch.float32)
    before = call(x, options)
    changed = [y.detach().clone() for y in x]
    for y in changed[:5]:
        y[:, 18:] += 3
    after = call((*changed[:5], x[5]), options)
    torch.testing.assert_close(after[:, :18], before[:, :18], rtol=0, atol=1e-6)


@pytest.mark.parametrize("length", [1, 2, 4, 5, 6, 15, 16, 17, 64, 65])
def test_any_length_in_poisoned_memory(length: int) -> None:
    x = inputs(T=length)
    torch.use_deterministic_algorithms(True)  # torch.empty gives NaN
    try:
        assert torch.empty(3).isnan().all()
        o = call(x, Options(C))
        found = gradients(o, x[:3])
    finally:
        torch.use_deterministic_algorithms(False)
    expected = call(x, Options(C), backend="dense")
    torch.testing.assert_close(o, expected, rtol=0, atol=EXACT)
    for a, b in zip(found, gradients(expected, x[:3]), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=EXACT)


def test_backward_is_deterministic() -> None:
    x = inputs(T=200, dtype=torch.float32)[:3]
    o, _ = top1_chunk(*x, Options(16))
    assert all(torch.equal(a, b) for a, b in zip(gradients(o, x), gradients(o, x), strict=True))


def test_ties_go_to_the_earliest_chunk() -> None:
    q, k, v = inputs()[:3]
    q, k = q.round(), torch.ones_like(k)  # all scores of a query equal, exactly
    o, _ = top1_chunk(q, k, v, Options(C, own_chunk="never"))
    torch.testing.assert_close(o[:, C:], v[:, :C].mean(1, keepdim=True).expand_as(o[:, C:]))


def test_forced_chunks_are_taken() -> None:
    q, k, v = inputs()[:3]
    forced = torch.zeros(B, T, H, dtype=torch.int64)
    forced[:, 10:] = 1
    options = Options(C, own_chunk="never")
    o, _ = top1_chunk(q, k, v, options, force_chunk=forced)
    close(o, top1_chunk(q, k, v, options, force_chunk=forced, backend="dense")[0], (q, k, v))
    s = torch.einsum("bihd,bjhd->bhij", q[:, 12:], k[:, C : 2 * C]) * K**-0.5
    expected = torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v[:, C : 2 * C])
    torch.testing.assert_close(o[:, 12:], expected)


def test_tiles_hold_each_query_once_beside_its_chunk() -> None:
    chosen = torch.randint(-1, 6, (2, 3, 50), generator=torch.Generator().manual_seed(0))
    tiles = make_tiles(chosen, n_chunks=6, M=4)
    rows = tiles.rows[tiles.valid]
    assert rows.sort().values.equal((chosen.flatten() >= 0).nonzero().squeeze(1))
    head, chunk = tiles.chunk // 6, tiles.chunk % 6
    assert torch.equal(
        chosen.flatten()[tiles.rows][tiles.valid], chunk[:, None].expand_as(tiles.rows)[tiles.valid]
    )
    assert torch.equal((tiles.rows // 50)[tiles.valid], head[:, None].expand_as(tiles.rows)[tiles.valid])
    assert tiles.chunk.diff().min() >= 0


@pytest.mark.parametrize("router", ["approx", "exact"])
def test_nan_shows_wherever_its_chunk_was_a_candidate(router: str) -> None:
    q, k, v = (y.detach().clone() for y in inputs()[:3])
    k[0, 7, 0] = torch.nan  # chunk 1 (tokens 5 to 9)
    o, _ = top1_chunk(q, k, v, Options(C, router=router))
    assert o[0, 7:, 0].isnan().all()
    o[0, 5:, 0] = 0  # whole chunks: a NaN shows through the causal mask within its own
    assert not o.isnan().any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"own_chunk": "sometimes"}, "own_chunk='sometimes' is not one of"),
        ({"chunk_size": 0}, "chunk_size must be positive"),
        ({"tau_r": -1.0}, "tau_r must be positive"),
        ({"router": "exact", "granularity": "query_block"}, "use router='approx'"),
        ({"summary": "learned"}, "needs summary_table"),
    ],
)
def test_bad_options_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(Top1InputError, match=message):
        top1_chunk(*inputs()[:3], Options(**change))  # type: ignore[arg-type]


def test_a_kernel_that_cannot_run_says_why() -> None:
    x = inputs()[:3]
    with pytest.raises(BackendUnavailable, match="router_grad='dense' has no kernel"):
        top1_chunk(*x, Options(C, router_grad="dense"), backend="triton")
    with pytest.raises(BackendUnavailable, match="no power of two"):
        top1_chunk(*x, Options(C), backend="triton")
    with pytest.raises(BackendUnavailable, match="no Triton on cpu"):
        top1_chunk(*x, Options(16), backend="triton")


# --- cost -----------------------------------------------------------------------------------------------


def work(T: int) -> float:
    """CPU seconds of one forward and backward pass, the better of two."""
    q, k, v = (torch.randn(1, T, 4, 32, requires_grad=True) for _ in range(3))
    best = float("inf")
    for _ in range(2):
        begin = time.process_time()
        top1_chunk(q, k, v)[0].sum().backward()
        best = min(best, time.process_time() - begin)
    return best


def test_time_grows_far_less_than_the_square_of_the_length() -> None:
    work(1024)  # warm
    assert work(16384) / work(4096) < 2.6**2  # a quadratic path: 16


def peak_bytes(function: Callable[..., Tensor], T: int) -> int:
    """Of one forward and backward pass, beside the inputs."""
    x = tuple(torch.randn(1, T, 4, 32, requires_grad=True) for _ in range(3))
    with PeakMemory() as memory:
        function(*x).sum().backward()
    return memory.peak


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in (q, k, v)), is_causal=True)


def test_memory_is_linear_in_the_length() -> None:
    """At 8K within four times of torch's attention; a block of rows costs the same at any length."""
    short, middle, long = (peak_bytes(lambda *x: top1_chunk(*x)[0], T) for T in (2048, 4096, 8192))
    assert (long - middle) / (middle - short) == pytest.approx(2, rel=0.02)
    attention = peak_bytes(causal_attention, 8192)
    assert long <= 4 * attention


def test_the_memory_of_a_long_training_step_on_a_gpu() -> None:
    needed = training_bytes(1, 100_000, 12, 64, torch.bfloat16)
    assert needed < 2.5e9  # per layer, beside its inputs
    assert training_bytes(1, 200_000, 12, 64, torch.bfloat16) == pytest.approx(2 * needed, rel=0.01)
