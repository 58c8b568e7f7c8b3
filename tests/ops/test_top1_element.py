"""Top-1 element selection against its autograd form, in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqarch.ops.backend import BackendUnavailable
from seqarch.ops.top1_element.checks import Top1InputError
from seqarch.ops.top1_element.op import top1_element

B, T, H, K, V = 2, 37, 2, 8, 6
EXACT = 1e-12


def inputs(T: int = T, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(B, T, H, D, generator=generator, dtype=dtype) for D in (K, K, V))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def documents(T: int = T) -> Tensor:
    """Documents of 1 to 20 tokens, different in the two rows."""
    ids = [torch.arange(T) // 13, (torch.arange(T) > 2).int() + (torch.arange(T) > 3).int()]
    return torch.stack([ids[0].int(), ids[1]])


def gradients(o: Tensor, *wanted: Tensor) -> tuple[Tensor, ...]:
    weight = torch.randn(o.shape, generator=torch.Generator().manual_seed(1), dtype=o.dtype)
    return torch.autograd.grad((o * weight).sum(), wanted, retain_graph=True)


def close(a: tuple[Tensor, ...], b: tuple[Tensor, ...], tolerance: float = EXACT) -> None:
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=tolerance)


def by_autograd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    st: str = "softmax",
    site: str = "weights",
    tau: float = 1.0,
    include_self: bool = True,
    slopes: Tensor | None = None,
    ids: Tensor | None = None,
) -> Tensor:
    """The definition, differentiated by autograd through straight-through expressions."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    n = q.shape[2]
    i, j = torch.arange(n)[:, None], torch.arange(n)
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if slopes is not None:
        s = s - slopes[:, None, None] * (i - j)
    same = (
        torch.ones(1, 1, n, n, dtype=torch.bool)
        if ids is None
        else (ids[:, None, :, None] == ids[:, None, None])
    )
    seen = same & ((j <= i) if include_self else (j < i))
    seen = torch.where(seen.any(-1, keepdim=True), seen, i == j)
    s = s.masked_fill(~seen, -torch.inf)
    p = (s / tau).softmax(-1)
    index = torch.where(s == s.amax(-1, keepdim=True), j, n).amin(-1)
    hard = F.one_hot(index, n).to(p)
    if st == "softmax" and site == "weights":
        o = (hard + p - p.detach()) @ v
    elif st == "softmax":
        soft = p @ v
        o = (hard @ v - soft).detach() + soft
    else:
        chosen = (p * hard).sum(-1, keepdim=True)
        factor = {"gate": 1 + chosen - chosen.detach(), "scaled": chosen / chosen.detach()}.get(st, 1.0)
        o = factor * (hard @ v)
    return o.transpose(1, 2)


@pytest.mark.parametrize(
    ("st", "site", "tau", "include_self", "alibi", "packed"),
    [
        ("softmax", "weights", 1.0, True, False, False),
        ("softmax", "weights", 0.5, False, True, True),
        ("softmax", "output", 1.0, True, True, False),
        ("softmax", "output", 0.5, True, False, True),
        ("gate", "weights", 0.5, True, False, False),
        ("gate", "output", 1.0, False, True, True),
        ("scaled", "weights", 0.5, False, False, False),
        ("scaled", "output", 1.0, True, True, True),
        ("none", "weights", 1.0, True, False, True),
    ],
)
def test_equals_the_autograd_form(
    st: str, site: str, tau: float, include_self: bool, alibi: bool, packed: bool
) -> None:
    q, k, v = inputs()
    slopes, ids = torch.tensor([0.5, 0.05]).double() if alibi else None, documents() if packed else None
    o, _ = top1_element(
        q, k, v, st=st, st_site=site, tau=tau, include_self=include_self, alibi_slopes=slopes, segment_ids=ids
    )
    expected = by_autograd(q, k, v, st, site, tau, include_self, slopes, ids)
    wanted = (v,) if st == "none" else (q, k, v)
    close((o, *gradients(o, *wanted)), (expected, *gradients(expected, *wanted)))
    if st == "none":
        assert all(not g.any() for g in gradients(o, q, k))


def test_blocks_of_rows_do_not_show() -> None:
    q, k, v = inputs(T=521)
    o, _ = top1_element(q, k, v)
    expected = by_autograd(q, k, v)
    close((o, *gradients(o, q, k, v)), (expected, *gradients(expected, q, k, v)))


def test_hand_formula_and_that_the_flash_identity_is_wrong_here() -> None:
    q, k, v = inputs()
    o, _ = top1_element(q, k, v)
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(1), dtype=o.dtype).transpose(1, 2)
    Q, K_, V_ = (x.detach().transpose(1, 2) for x in (q, k, v))
    s = Q @ K_.transpose(-1, -2) * K**-0.5
    p = s.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -torch.inf).softmax(-1)
    a = do @ V_.transpose(-1, -2)

    def dq_with(delta: Tensor) -> Tensor:
        return (K**-0.5 * (p * (a - delta)) @ K_).transpose(1, 2)

    right = (do * (p @ V_)).sum(-1, keepdim=True)
    wrong = (do * o.detach().transpose(1, 2)).sum(-1, keepdim=True)
    close(gradients(o, q), (dq_with(right),))
    assert (gradients(o, q)[0] - dq_with(wrong)).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_output_is_the_selected_value_bit_for_bit(dtype: torch.dtype) -> None:
    q, k, v = (x.detach().to(dtype) for x in inputs())
    o, _ = top1_element(q, k, v)
    s = torch.einsum("bihd,bjhd->bhij", q.float(), k.float()) * K**-0.5
    index = s.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -torch.inf).argmax(-1)
    picked = v.transpose(1, 2).gather(2, index.unsqueeze(-1).expand(-1, -1, -1, V)).transpose(1, 2)
    assert o.dtype == dtype
    assert torch.equal(o, picked)


def test_ties_go_to_the_lowest_place() -> None:
    q, k, v = inputs()
    q, k = q.round(), torch.ones_like(k)  # all scores of a query equal, exactly: it takes key 0
    o, _ = top1_element(q, k, v)
    assert torch.equal(o, v[:, :1].expand_as(o))


def test_temperature_never_changes_the_selection() -> None:
    q, k, v = inputs()
    assert torch.equal(top1_element(q, k, v, tau=0.1)[0], top1_element(q, k, v, tau=10.0)[0])


def test_shared_choice_is_by_the_sum_of_scores_over_heads() -> None:
    q, k, v = inputs()
    o, _ = top1_element(q, k, v, granularity="shared")
    s = torch.einsum("bihd,bjhd->bij", q, k) * K**-0.5
    index = s.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -torch.inf).argmax(-1)
    assert torch.equal(o, v.gather(1, index[..., None, None].expand(-1, -1, H, V)))


def test_forced_index_is_taken() -> None:
    q, k, v = inputs()
    index = torch.zeros(B, T, H, dtype=torch.int64)
    index[:, 5:] = 3
    o, _ = top1_element(q, k, v, force_index=index)
    assert torch.equal(o[:, 5:], v[:, 3:4].expand_as(o[:, 5:]))
    assert torch.equal(o[:, :5], v[:, :1].expand_as(o[:, :5]))


@pytest.mark.parametrize("include_self", [True, False])
def test_documents_equal_separate_calls(include_self: bool) -> None:
    q, k, v = inputs()
    ids = documents()
    o, _ = top1_element(q, k, v, segment_ids=ids, include_self=include_self)
    rows = []
    for b in range(B):
        lengths = ids[b].unique_consecutive(return_counts=True)[1].tolist()
        parts = zip(*(x[b : b + 1].split(lengths, dim=1) for x in (q, k, v)), strict=True)
        rows.append(torch.cat([top1_element(*part, include_self=include_self)[0] for part in parts], dim=1))
    expected = torch.cat(rows)
    close((o, *gradients(o, q, k, v)), (expected, *gradients(expected, q, k, v)))


@pytest.mark.parametrize("granularity", ["head", "shared"])
@pytest.mark.parametrize(
    ("packed", "cuts"), [(False, [1]), (False, [15, 16]), (True, [30, 32, *range(33, T)])]
)
def test_continuing_from_a_state_equals_one_call(granularity: str, packed: bool, cuts: list[int]) -> None:
    q, k, v = inputs()
    ids = documents() if packed else None  # the last documents begin before the first cut
    slopes = torch.tensor([0.3, 0.01]).double()
    switches = {"include_self": False, "granularity": granularity, "alibi_slopes": slopes}
    expected, _ = top1_element(q, k, v, segment_ids=ids, **switches)
    parts, state = [], None
    for a, b in zip([0, *cuts], [*cuts, T], strict=True):
        first_ids = ids[:, :b] if ids is not None and a == 0 else None
        part = (x[:, a:b] for x in (q, k, v))
        o, state = top1_element(
            *part, segment_ids=first_ids, initial_state=state, return_state=True, **switches
        )
        parts.append(o)
    o = torch.cat(parts, dim=1)
    close((o, *gradients(o, q, k, v)), (expected, *gradients(expected, q, k, v)))


def test_later_inputs_change_nothing_earlier() -> None:
    q, k, v = inputs(dtype=torch.float32)
    before, _ = top1_element(q, k, v)
    changed = [x.detach().clone() for x in (q, k, v)]
    for x in changed:
        x[:, 20:] += 100
    assert torch.equal(top1_element(*changed)[0][:, :20], before[:, :20])


@pytest.mark.parametrize("length", [1, 2, 3, 15, 16, 17, 64, 65, 257])
def test_any_length_in_poisoned_memory(length: int) -> None:
    q, k, v = inputs(T=length)
    with poisoned_memory():
        o, _ = top1_element(q, k, v)
        found = (o, *gradients(o, q, k, v))
    expected = by_autograd(q, k, v)
    close(found, (expected, *gradients(expected, q, k, v)))


class poisoned_memory:
    """torch.empty and its kin give NaN, or the largest integer."""

    def __enter__(self) -> None:
        torch.use_deterministic_algorithms(True)
        assert torch.empty(3).isnan().all()

    def __exit__(self, *_: object) -> None:
        torch.use_deterministic_algorithms(False)


def test_backward_is_deterministic() -> None:
    q, k, v = inputs(dtype=torch.float32)
    o, _ = top1_element(q, k, v)
    assert all(torch.equal(a, b) for a, b in zip(gradients(o, q, k, v), gradients(o, q, k, v), strict=True))


def test_nan_shows_where_it_is_seen_and_nowhere_else() -> None:
    q, k, v = (x.detach().clone() for x in inputs())
    k[0, 10, 0] = torch.nan
    o, _ = top1_element(q, k, v)
    assert o[0, 10:, 0].isnan().all()
    o[0, 10:, 0] = 0
    assert not o.isnan().any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(B, T, H, K + 1)}, "expected q, k"),
        ({"v": torch.zeros(B, T, H, V, dtype=torch.float32)}, "one floating dtype"),
        ({name: torch.zeros(B, 0, H, K, dtype=torch.float64) for name in "qkv"}, "empty dimension"),
        ({"segment_ids": torch.zeros(B, T + 1, dtype=torch.int64)}, "segment_ids"),
        ({"st": "hard"}, "st='hard' is not one of"),
        ({"tau": 0.0}, "tau must be positive"),
        ({"alibi_slopes": torch.zeros(H + 1)}, "alibi_slopes"),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], message: str) -> None:
    q, k, v = inputs()
    with pytest.raises(Top1InputError, match=message):
        top1_element(**({"q": q, "k": k.double(), "v": v} | change))  # type: ignore[arg-type]


def test_a_kernel_that_cannot_run_says_why() -> None:
    q, k, v = inputs()
    with pytest.raises(BackendUnavailable, match="no Triton on cpu"):
        top1_element(q, k, v, backend="triton")
