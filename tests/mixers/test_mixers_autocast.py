"""Every mixer trains under torch.autocast, as `train.precision: bfloat16` does."""

import pytest
import torch
import torch.nn.functional as F

from seqarch.architecture import resolve
from seqarch.mixers import registry
from seqarch.model import Decoder


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("name", registry.names())
def test_a_training_step_in_bfloat16(name: str, documents: bool) -> None:
    """Nearly the same loss and gradients as in float32; the ops' own sums stay in float32 (one in bfloat16
    would not fit the state that it is added to)."""
    model = Decoder(resolve("x", {"x": {"mixer": name}}, {"d_model": 64, "n_layers": 2}, 50, 256))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 50, (2, 201), generator=generator)
    segments = torch.arange(200).expand(2, -1) // 77 if documents else None
    losses, gradients = [], []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            logits, _ = model(ids[:, :-1], segment_ids=segments)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    # Where bfloat16 makes a tie, Top-1 may choose another element or chunk.
    assert F.cosine_similarity(*gradients, dim=0) > (0.9 if name.startswith("top1") else 0.99)


@pytest.mark.parametrize("name", registry.names())
def test_scoring_in_bfloat16(name: str) -> None:
    """Without gradients, and a step after the prompt: other paths than training's."""
    model = Decoder(resolve("x", {"x": {"mixer": name}}, {"d_model": 64, "n_layers": 2}, 50, 256)).eval()
    ids = torch.randint(0, 50, (2, 101), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        whole, _ = model(ids)
        _, state = model(ids[:, :-1], return_state=True)
        last, _ = model.step(ids[:, -1], state)
    torch.testing.assert_close(last.float(), whole[:, -1].float(), rtol=0.1, atol=0.1)
