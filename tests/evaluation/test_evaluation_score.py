"""The scorer against models whose likelihoods are known."""

import math

import numpy as np
import pytest
import torch

from seqarch.evaluation.score import document_nll, sum_by_document
from seqarch.evaluation.windows import plan, positions

MODES = ("disjoint", "sliding")
V, BOS = 20, 0


class Bigram(torch.nn.Module):
    """p(next | present) from a table: hidden vectors are one-hot, the head is the table."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.table = table  # [V, V] logits

    def hidden(self, ids):
        return torch.nn.functional.one_hot(ids, len(self.table)).to(self.table.dtype), None

    def logits(self, hidden):
        return hidden @ self.table


@pytest.fixture
def documents():
    generator = np.random.default_rng(1)
    return [generator.integers(1, V, n) for n in (5, 0, 1, 31, 16, 8, 47)]


def random_bigram(dtype=torch.float64):
    return Bigram(torch.randn(V, V, generator=torch.Generator().manual_seed(0), dtype=dtype))


@pytest.mark.parametrize("mode", MODES)
def test_uniform_model_gives_ln_v(documents, mode):
    nll = document_nll(Bigram(torch.zeros(V, V)), documents, 8, mode, prefix=BOS)
    assert nll == pytest.approx([len(d) * math.log(V) for d in documents], rel=1e-6)
    assert nll[1] == 0.0


@pytest.mark.parametrize("mode", MODES)
def test_bigram_model_in_closed_form(documents, mode):
    model = random_bigram()
    log_p = torch.log_softmax(model.table, dim=-1).numpy()
    lengths = [len(d) for d in documents]
    place = np.split(positions(plan(lengths, 8, mode), sum(lengths)), np.cumsum(lengths)[:-1])
    expected = []
    for document, at in zip(documents, place, strict=True):
        before = np.concatenate([[BOS], document[:-1]]) if len(document) else document
        expected.append(-log_p[np.where(at == 0, BOS, before), document].sum())
    found = document_nll(model, documents, 8, mode, prefix=BOS)
    assert found == pytest.approx(expected, abs=1e-9)


def test_modes_agree_where_no_window_starts(documents):
    """One window a document: disjoint, sliding and any wider window are the same."""
    model = random_bigram()
    one = document_nll(model, documents, 64, "disjoint", prefix=BOS)
    assert document_nll(model, documents, 64, "sliding", prefix=BOS) == pytest.approx(one, abs=1e-9)
    assert document_nll(model, documents, 8, "disjoint", prefix=BOS)[3] != pytest.approx(one[3], abs=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_prefix_matters(documents, mode):
    model = random_bigram()
    assert not np.allclose(
        document_nll(model, documents, 8, mode, prefix=0), document_nll(model, documents, 8, mode, prefix=1)
    )


@pytest.mark.parametrize("mode", MODES)
def test_order_and_batching_change_no_document(documents, mode):
    model = random_bigram()
    base = document_nll(model, documents, 8, mode, prefix=BOS)
    order = np.random.default_rng(2).permutation(len(documents))
    shuffled = document_nll(model, [documents[i] for i in order], 8, mode, prefix=BOS)
    assert shuffled == pytest.approx(base[order], abs=1e-10)
    for batch_tokens in (1, 8, 17, 100):
        other = document_nll(model, documents, 8, mode, prefix=BOS, batch_tokens=batch_tokens)
        assert other == pytest.approx(base, abs=1e-10)


def test_no_document_gives_no_number():
    assert document_nll(random_bigram(), [], 8, prefix=BOS).shape == (0,)


def test_sums_are_accurate():
    n, term = 10_000_000, 0.1
    (total,) = sum_by_document(np.full(n, term), np.array([n]))
    assert total == pytest.approx(n * term, rel=1e-10)


def test_bfloat16_logits_are_normalised_in_float32(documents):
    model = random_bigram(torch.bfloat16)
    exact = Bigram(model.table.double())
    found = document_nll(model, documents, 8, prefix=BOS)
    assert found == pytest.approx(document_nll(exact, documents, 8, prefix=BOS), rel=1e-5)
