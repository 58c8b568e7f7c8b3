"""Batches: the same for every world size, resumable by one integer, masks where documents begin."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqarch.files import write_json
from seqarch.tasks.batch import IGNORE, Batch
from seqarch.tasks.language_modelling import LanguageModelling, Validation, make_batch
from seqarch.tokens.sampler import SamplerError

T, B, BOS = 8, 12, 0


def write_set(folder: Path, domain: str, lengths: list[int], start: int) -> Path:
    """Documents of counting numbers from `start`: every window is known by its contents; one shard."""
    ids, offsets = [], [0]
    for length in lengths:
        ids += [BOS, *range(start, start + length)]
        start += length
        offsets.append(len(ids))
    folder.mkdir(parents=True)
    np.array(ids, dtype="<u2").tofile(folder / "00000.bin")
    np.array(offsets, dtype="<i8").tofile(folder / "00000.idx")
    counts = {"n_tokens": len(ids), "n_docs": len(lengths), "n_bytes": len(ids)}
    common = {"dtype": "uint16", "vocab_size": 2**16, "bos_id": BOS, "tokenizer_sha256": "0" * 64}
    files = [{"name": "00000.bin", "sha256": "", **counts}]
    write_json(
        folder / "manifest.json", {"domain": domain, "split": "train", **common, **counts, "files": files}
    )
    return folder / "manifest.json"


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sets")
    return {
        "a": write_set(folder / "a", "a", [3, 50, 7, 1, 300], start=1),
        "b": write_set(folder / "b", "b", [20] * 9, start=10_000),
    }


def data(manifests: dict[str, Path], **change: object) -> LanguageModelling:
    options: dict = {"weights": None, "sequence_length": T, "batch_sequences": B, "seed": 0} | change
    return LanguageModelling(manifests, **options)


@given(step=st.integers(0, 10**9), world_size=st.sampled_from([1, 2, 3, 4, 6, 12]), seed=st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_every_world_size_sees_the_same_global_batches(
    manifests: dict[str, Path], step: int, world_size: int, seed: int
) -> None:
    task = data(manifests, seed=seed, weights={"a": 0.7, "b": 0.3}, document_mask=True)
    whole = task.batch(step)
    parts = [task.batch(step, rank, world_size) for rank in range(world_size)]
    for name in ("inputs", "targets", "segment_ids", "positions"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
    assert parts[0].inputs.shape == (B // world_size, T)


def test_resuming_is_one_integer(manifests: dict[str, Path]) -> None:
    ran, resumed = data(manifests), data(manifests)
    batches = [ran.batch(step) for step in range(20)]
    for step in range(10, 20):
        assert torch.equal(resumed.batch(step).inputs, batches[step].inputs)
    assert resumed.epochs(20) == ran.epochs(20)


def test_targets_are_the_next_tokens(manifests: dict[str, Path]) -> None:
    batch = data(manifests).batch(0)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert batch.segment_ids is None
    assert batch.positions is None
    assert batch.n_targets == B * T


def test_an_epoch_predicts_each_target_once(manifests: dict[str, Path]) -> None:
    """366 tokens in `a`: 45 windows of 8 targets; 5 targets are left over and reported."""
    task = data({"a": manifests["a"]}, batch_sequences=9)
    targets = torch.cat([task.batch(step).targets.flatten() for step in range(5)])
    ids = np.fromfile(manifests["a"].with_name("00000.bin"), dtype="<u2")
    assert sorted(targets.tolist()) == sorted(ids[1 : 45 * T + 1].tolist())
    assert task.describe() == {"a": {"n_windows": 45, "n_leftover": 5, "share": 1.0}}
    assert task.epochs(5) == {"a": 1.0}


def test_document_mask_by_hand() -> None:
    windows = np.array([[5, 6, 0, 7, 0, 0, 8, 9, 1], [0, 2, 3, 4, 5, 6, 7, 8, 0]])
    batch = make_batch(windows, mask_bos=BOS)
    assert batch.segment_ids is not None
    assert batch.positions is not None
    assert batch.segment_ids.tolist() == [[0, 0, 1, 1, 2, 3, 3, 3], [1] * 8]
    assert batch.positions.tolist() == [[0, 1, 0, 1, 0, 0, 1, 2], list(range(8))]
    assert batch.targets.tolist() == windows[:, 1:].tolist()  # the end of a document is predicted, too


def test_document_mask_changes_no_token(manifests: dict[str, Path]) -> None:
    plain, masked = data(manifests).batch(3), data(manifests, document_mask=True).batch(3)
    assert torch.equal(plain.inputs, masked.inputs)
    assert torch.equal(plain.targets, masked.targets)
    assert masked.segment_ids is not None
    assert masked.segment_ids.dtype == torch.int64


@pytest.mark.parametrize(("step", "rank", "world_size"), [(-1, 0, 1), (0, 2, 2), (0, -1, 2), (0, 0, 5)])
def test_impossible_ranks(manifests: dict[str, Path], step: int, rank: int, world_size: int) -> None:
    with pytest.raises(SamplerError, match="expected step ≥ 0"):
        data(manifests).batch(step, rank, world_size)


def test_golden_batch(manifests: dict[str, Path]) -> None:
    """The data order of a seed is part of published results."""
    task = data(manifests, seed=17, weights={"a": 2.0, "b": 1.0}, batch_sequences=6)
    assert task.batch(0).inputs[:, 1].tolist() == GOLDEN[0]
    assert task.batch(10**6).inputs[:, 1].tolist() == GOLDEN[1]


GOLDEN = [[55, 10008, 221, 93, 10168, 189], [93, 10160, 213, 125, 10153, 69]]


# --- validation ---------------------------------------------------------------------------------------


def test_validation_is_fixed_and_balanced(manifests: dict[str, Path]) -> None:
    validation = Validation(manifests, n_tokens=160, sequence_length=T, batch_sequences=3)
    batches = list(validation)
    inputs = torch.cat([batch.inputs for batch in batches])
    assert [len(batch.inputs) for batch in batches] == [3, 3, 3, 3, 3, 3, 2]
    assert validation.n_tokens == 160 == sum(batch.n_targets for batch in batches)
    from_b = (inputs >= 10_000).any(dim=1)
    assert from_b.sum() == 10  # as many windows of either
    assert len(torch.unique(inputs, dim=0)) == 20
    assert torch.equal(inputs, torch.cat([batch.inputs for batch in validation]))
    assert inputs.tolist() != sorted(inputs.tolist())  # spread over the documents


def test_validation_takes_what_the_smallest_domain_has(manifests: dict[str, Path]) -> None:
    validation = Validation(
        manifests, n_tokens=10**6, sequence_length=T, batch_sequences=50, document_mask=True
    )
    windows_of_b = (9 * 21 - 1) // T
    assert validation.n_tokens == 2 * windows_of_b * T
    assert all(batch.segment_ids is not None for batch in validation)


def test_validation_without_a_window(manifests: dict[str, Path]) -> None:
    with pytest.raises(SamplerError, match="the smallest, 'b', has 23"):
        Validation(manifests, n_tokens=15, sequence_length=T, batch_sequences=4)
    with pytest.raises(SamplerError, match="split off for validation"):
        Validation(manifests, n_tokens=10**6, sequence_length=200, batch_sequences=4)


def test_batches_move_and_count() -> None:
    targets = torch.tensor([[1, IGNORE, 2]])
    batch = Batch(
        torch.zeros(1, 3, dtype=torch.int64), targets, segment_ids=torch.ones(1, 3, dtype=torch.int64)
    )
    moved = batch.to("meta")
    assert batch.n_targets == 2
    assert moved.inputs.device.type == moved.targets.device.type == "meta"
    assert moved.segment_ids is not None
    assert moved.segment_ids.device.type == "meta"
    assert moved.positions is None
