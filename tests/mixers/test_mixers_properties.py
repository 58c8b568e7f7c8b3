"""Properties that every mixer has, with every switch, in float64 through the whole decoder."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from seqarch.architecture import describe
from seqarch.model import Decoder

VOCAB = 40
LENGTHS = (1, 2, 3, 15, 16, 17, 63, 64, 65, 127)
TOLERANCE = {"rtol": 0, "atol": 1e-10}


def tokens(B: int, T: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, (B, T), generator=torch.Generator().manual_seed(seed))


def gradients(model: Decoder, loss: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), found, strict=True)]


def weighted(logits: Tensor) -> Tensor:
    """A loss that weighs every logit differently, by its place counted from the end of time."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(300, VOCAB, generator=generator, dtype=torch.float64)
    return (logits * weight[: logits.shape[1]]).sum()


def assert_equal(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, **TOLERANCE)


def test_parameters_are_counted(variant) -> None:
    model, counted = Decoder(variant.resolved()), describe(variant.resolved(), 64)
    assert counted["num_params"] == model.num_params()
    assert counted["num_params_non_embedding"] == model.num_params(non_embedding=True)


@torch.no_grad()
def test_any_length_is_a_prefix(variant) -> None:
    """Causality, and no length is special: chunk borders, shorter than the convolution, one token."""
    model, ids = variant.model(), tokens(1, 129)
    whole, _ = model(ids)
    for T in LENGTHS:
        part, _ = model(ids[:, :T])
        assert_equal(part, whole[:, :T])


@torch.no_grad()
def test_state_splits_anywhere(variant) -> None:
    model, ids = variant.model(), tokens(2, 130)
    whole, end = model(ids, return_state=True)
    for first in (15,) if variant.switches else (1, 15, 64, 100):
        before, state = model(ids[:, :first], return_state=True)
        after, state = model(ids[:, first:], state=state, return_state=True)
        assert_equal(torch.cat([before, after], 1), whole)
        for a, b in zip(tree_flatten(state)[0], tree_flatten(end)[0], strict=True):
            assert_equal(a, b)


def test_gradients_pass_through_a_state(variant) -> None:
    model, ids = variant.model(), tokens(2, 40)
    whole, _ = model(ids)
    before, state = model(ids[:, :17], return_state=True)
    after, _ = model(ids[:, 17:], state=state)
    split = torch.cat([before, after], 1)
    for a, b in zip(gradients(model, weighted(split)), gradients(model, weighted(whole)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_decoding_token_by_token(variant) -> None:
    """The recurrent step equals the parallel form, from nothing and after a prefill."""
    model, ids = variant.model(), tokens(2, 24)
    whole, _ = model(ids)
    for prefill in (0, 10):
        state = model(ids[:, :prefill], return_state=True)[1] if prefill else None
        for t in range(prefill, ids.shape[1]):
            logits, state = model.step(ids[:, t], state)
            assert_equal(logits, whole[:, t])


def test_documents_are_separate(variant) -> None:
    """Packed documents equal one call each, forward and gradients, in two rows with different boundaries."""
    model, ids = variant.model(), tokens(2, 140)
    lengths = [[1, 2, 40, 66, 31], [64, 1, 1, 70, 4]]
    segment_ids = torch.tensor([[i for i, n in enumerate(row) for _ in range(n)] for row in lengths])
    packed, _ = model(ids, segment_ids=segment_ids)
    rows = []
    for row, parts in zip(ids, lengths, strict=True):
        rows.append(torch.cat([model(part[None])[0] for part in row.split(parts)], dim=1))
    separate = torch.cat(rows)
    assert_equal(packed, separate)
    for a, b in zip(gradients(model, weighted(packed)), gradients(model, weighted(separate)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_the_state_belongs_to_the_last_document(variant) -> None:
    """Given state: the first document continues it; returned state: that of the last document."""
    model, ids = variant.model(), tokens(2, 60)
    _, state = model(ids[:, :7], return_state=True)
    segment_ids = torch.tensor([[0] * 10 + [1] * 20, [0] * 25 + [1] * 5])
    packed, packed_state = model(ids[:, 7:37], segment_ids=segment_ids, state=state, return_state=True)
    continued, _ = model(ids[:, 37:], state=packed_state)
    for row, border in ((0, 10), (1, 25)):
        first, _ = model(ids[row : row + 1, : 7 + border])
        assert_equal(packed[row, :border], first[0, 7:])
        last, _ = model(ids[row : row + 1, 7 + border :])
        assert_equal(packed[row, border:], last[0, : 30 - border])
        assert_equal(continued[row], last[0, 30 - border :])


@torch.no_grad()
def test_rows_do_not_see_each_other(variant) -> None:
    model, ids = variant.model(), tokens(3, 70)
    together, _ = model(ids)
    for row in range(3):
        assert_equal(model(ids[row : row + 1])[0][0], together[row])
    assert_equal(model(ids.flip(0))[0], together.flip(0))


@torch.no_grad()
def test_float32_is_close_to_float64(variant) -> None:
    ids = tokens(2, 129)
    exact, _ = variant.model()(ids)
    rough, _ = variant.model(torch.float32)(ids)
    # a selection may fall differently at a near tie: the typical error, not the largest, is small
    error = (rough.double() - exact).abs().amax(-1).flatten()
    assert error.quantile(0.9) <= 1e-4 * exact.abs().max()


@pytest.mark.parametrize("noise", [0.3, 3.0])
def test_extreme_weights_stay_finite(variant, noise: float) -> None:
    """Strong decays and saturated gates: nothing overflows, forward or backward."""
    model, ids = variant.model(torch.float32, noise), tokens(2, 129)
    logits, _ = model(ids)
    assert logits.isfinite().all()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    assert all(g.isfinite().all() for g in gradients(model, loss))


def test_backward_is_deterministic(mixer) -> None:
    from_scratch = []
    for _ in range(2):
        model = Decoder(_default(mixer))
        from_scratch.append(gradients(model, weighted(model(tokens(2, 65))[0])))
    assert all(torch.equal(a, b) for a, b in zip(*from_scratch, strict=True))


def test_initialisation_sets_every_parameter(mixer) -> None:
    """From the seed alone; the global random state is left alone."""
    model = Decoder(_default(mixer))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(77.0)
    before = torch.random.get_rng_state()
    model.init_weights(seed=5)
    assert torch.equal(before, torch.random.get_rng_state())
    for name, parameter in model.named_parameters():
        assert parameter.abs().max() < 20, f"{name} was not initialised"
    other = Decoder(_default(mixer))
    other.init_weights(seed=5)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_learns_from_scratch(mixer) -> None:
    """The first loss is that of a uniform guess; on one small batch it falls well below."""
    torch.manual_seed(0)
    model, ids = Decoder(_default(mixer)), tokens(4, 33)
    optimiser = torch.optim.AdamW(model.decay_groups(0.1), lr=1e-2)
    losses = []
    for _ in range(30):
        logits, _ = model(ids[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(VOCAB), rel=0.05)
    assert losses[-1] < 0.6 * losses[0]


def _default(mixer: str) -> dict[str, Any]:
    from seqarch.architecture import resolve

    entry = {"x": {"mixer": mixer, "hidden": 32, "layers": 2}}
    return resolve("x", entry, {"d_model": 64, "n_layers": 2}, VOCAB, 256)
