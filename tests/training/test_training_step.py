"""One step: the loss, its gradient however the batch is cut, clipping, weight decay."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from seqarch.model import Decoder
from seqarch.tasks.batch import IGNORE, Batch
from seqarch.training.job import Job
from seqarch.training.loop import train
from seqarch.training.optimizer import make_optimizer
from seqarch.training.spec import Optimizer
from seqarch.training.step import LossSum, accumulate, clip_gradients, gradient_norm, mean_loss, split

PLAIN = torch.autocast("cpu", enabled=False)


@pytest.fixture
def model(make_spec: Callable[..., dict[str, Any]]) -> Decoder:
    model = Decoder(make_spec()["model"])
    model.init_weights(0)
    return model


def batch(rows: int = 6, ignored: float = 0.3) -> Batch:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 257, (rows, 17), generator=generator)
    targets = ids[:, 1:].clone()
    targets[torch.rand(targets.shape, generator=generator) < ignored] = IGNORE
    return Batch(ids[:, :-1], targets)


def gradients(model: Decoder, parts: list[Batch]) -> tuple[float, list[Tensor]]:
    model.zero_grad()
    loss = accumulate(LossSum(model), parts, PLAIN)
    return loss.item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("rows", [1, 2, 4, 5])
def test_micro_batches_change_nothing_but_rounding(model: Decoder, rows: int) -> None:
    whole = batch()
    loss, expected = gradients(model, [whole])
    parts = split(whole, rows)
    assert len({part.n_targets for part in parts}) > 1  # a mean of means would be another number
    cut_loss, found = gradients(model, parts)
    assert cut_loss == pytest.approx(loss, rel=1e-6)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_split_keeps_rows_segments_and_positions_in_order() -> None:
    plain = batch(5)
    place = torch.arange(16).expand(5, 16)
    full = Batch(plain.inputs, plain.targets, place // 4, place % 4)
    parts = split(full, 2)
    assert [len(part.inputs) for part in parts] == [2, 2, 1]
    for name in ("inputs", "targets", "segment_ids", "positions"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(full, name))
    assert split(plain, 2)[0].segment_ids is None


def test_the_loss_is_the_mean_over_targets_that_count(model: Decoder) -> None:
    one = batch()
    with torch.no_grad():
        logits, _ = model(one.inputs)
    logp = logits.double().log_softmax(-1)
    counted = one.targets != IGNORE
    picked = logp[counted].gather(1, one.targets[counted][:, None])
    expected = -picked.mean().item()
    assert gradients(model, [one])[0] == pytest.approx(expected, rel=1e-6)
    assert mean_loss(LossSum(model), split(one, 4), PLAIN) == pytest.approx(expected, rel=1e-6)
    assert expected == pytest.approx(math.log(257), rel=0.02)


def test_segments_reach_the_model(model: Decoder) -> None:
    plain = batch(2, ignored=0)
    place = torch.arange(16).expand(2, 16)
    masked = Batch(plain.inputs, plain.targets, place // 8, place % 8)
    assert mean_loss(LossSum(model), [masked], PLAIN) != mean_loss(LossSum(model), [plain], PLAIN)


def test_a_batch_without_targets_has_no_loss_and_no_gradient(model: Decoder) -> None:
    loss, found = gradients(model, [batch(ignored=2.0)])
    assert loss == 0
    assert all(not grad.any() for grad in found)


def test_validation_leaves_training_as_it_was(model: Decoder) -> None:
    model.train()
    mean_loss(LossSum(model), [batch()], PLAIN)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_clipping(model: Decoder) -> None:
    _, before = gradients(model, [batch()])
    parameters = list(model.parameters())
    norm = torch.sqrt(sum((grad.double() ** 2).sum() for grad in before))
    assert gradient_norm(parameters).item() == pytest.approx(norm.item(), rel=1e-5)
    for limit in (None, 2 * norm.item()):
        clip_gradients(parameters, limit, norm.item())
        assert all(torch.equal(p.grad, grad) for p, grad in zip(parameters, before, strict=True))
    clip_gradients(parameters, norm.item() / 2, norm.item())
    for parameter, grad in zip(parameters, before, strict=True):
        torch.testing.assert_close(parameter.grad, grad / 2, rtol=1e-4, atol=1e-8)


def test_only_matrices_decay(model: Decoder) -> None:
    optimizer = make_optimizer(model, Optimizer(weight_decay=0.5), learning_rate=0.1)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 1 - 0.1 * 0.5 if parameter.ndim > 1 else 1
        torch.testing.assert_close(parameter.detach(), before[name] * factor, msg=name)
    assert {parameter.ndim for parameter in model.parameters()} == {1, 2}


def test_the_optimiser_is_torchs(model: Decoder) -> None:
    """Our class only leaves the compiler out: its steps are bitwise those of torch.optim.AdamW."""
    twin = copy.deepcopy(model)
    ours = make_optimizer(model, Optimizer(), learning_rate=1e-2)
    theirs = torch.optim.AdamW(twin.decay_groups(0.1), lr=1e-2, betas=(0.9, 0.95), eps=1e-8, fused=True)
    for _ in range(3):
        for each, optimizer in ((model, ours), (twin, theirs)):
            optimizer.zero_grad()
            accumulate(LossSum(each), [batch()], PLAIN)
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_training_in_bfloat16_learns_the_same(make_job: Callable[..., Job]) -> None:
    losses = {}
    for precision in ("float32", "bfloat16"):
        job = make_job(precision, precision=precision)
        train(job)
        losses[precision] = pq.read_table(job.run / "metrics.parquet").column("loss").to_pylist()
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)


def test_a_run_in_micro_batches_and_with_masked_documents(make_job: Callable[..., Job]) -> None:
    """The options reach the loop: micro-batches leave the curve as it is, the mask does not."""

    def losses(run: Path) -> list[float]:
        return pq.read_table(run / "metrics.parquet").column("loss").to_pylist()

    whole, cut, masked = (
        make_job("a"),
        make_job("b", micro_batch_tokens=16),
        make_job("c", document_mask=True),
    )
    for job in (whole, cut, masked):
        train(job)
    assert losses(cut.run) == pytest.approx(losses(whole.run), rel=1e-4)
    assert losses(masked.run) != pytest.approx(losses(whole.run), rel=1e-4)
