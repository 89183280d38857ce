"""Weight patches on a device: the same changes, digests, patches and weights as on the CPU."""

from typing import Any

import numpy as np
import pytest
import torch
from cases import in_turn

from taugrad.compressors import apply_patch, make_patch, patch_weights
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.ops.cpu.patching import CpuPatching
from taugrad.compressors.ops.cuda.patching import CudaPatching
from taugrad.compressors.ops.patching import Piece, Steps

TYPES = [(torch.uint8, True), (torch.int16, True), (torch.int32, False), (torch.int64, True)]


def pairs(share: float, seed: int) -> tuple[list[Piece], list[Piece]]:
    """Pieces of every width, among them empty and odd ones, and what they become."""
    rng = np.random.default_rng(seed)
    before, after = list[Piece](), list[Piece]()
    for number, size in enumerate([5000, 1, 0, 4096, 13, 9000, 0]):
        dtype, floats = TYPES[(number + seed) % 4]
        info = torch.iinfo(dtype)
        old = torch.from_numpy(
            rng.integers(info.min, info.max, size, endpoint=True, dtype=f"i{8}" if info.min else "u8").astype(
                np.int64
            )
        )
        new = torch.where(
            torch.from_numpy(rng.random(size) < share), old + torch.from_numpy(rng.integers(-3, 4, size)), old
        )
        first = int(rng.integers(0, 5000))
        before.append(Piece(old.to(dtype), first, floats))
        after.append(Piece(new.to(dtype), first, floats))
    return before, after


def on(device: Any, pieces: list[Piece]) -> list[Piece]:
    return [Piece(each.tensor.to(device.device), each.first, each.floats) for each in pieces]


@in_turn("share", [0.0, 0.01, 0.4, 1.0])
def test_changes_and_digests_are_those_of_the_cpu(share: float, device: Any) -> None:
    ours, theirs = CpuPatching(CPU), CudaPatching(device)
    before, after = pairs(share, int(10 * share))
    there, others = on(device, before), on(device, after)
    assert theirs.digest(there) == ours.digest(before)
    assert theirs.digest([]) == []
    for digested in (False, True):
        changes = ours.compare(before, after, digested=digested)
        found = theirs.compare(there, others, digested=digested)
        for mine, other in zip(changes, found, strict=True):
            assert (mine.changed, mine.digest, mine.change) == (other.changed, other.digest, other.change)
            assert mine.words.tolist() == other.words.tolist()
            assert mine.steps.tolist() == other.steps.tolist()
    steps = [Steps(each.words, each.steps) for each in changes]
    taken, due = theirs.take_steps(there, steps), ours.take_steps(before, steps)
    assert [each.change for each in taken] == [each.change for each in due]
    theirs.scatter(there, taken)
    ours.scatter(before, due)
    for mine, other, last, change in zip(before, there, after, changes, strict=True):
        assert mine.tensor.equal(other.tensor.cpu())
        assert not change.words.size or mine.tensor.equal(last.tensor)


def test_patches_are_those_of_the_cpu(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    before = {
        "a": torch.randn(300, 40, generator=generator).bfloat16(),
        "b": torch.randn(500, generator=generator),
        "c": torch.arange(5),
        "d": torch.randn(7, 100, generator=generator).to(torch.float8_e5m2),
    }
    after = {
        "a": torch.where(torch.rand(300, 40, generator=generator) < 0.03, before["a"] * 1.01, before["a"]),
        "b": before["b"] * 1.001,
        "c": before["c"] - 9,
        "d": before["d"],
    }
    due = make_patch(before, after)
    if device.device.type == "cpu":
        monkeypatch.setattr(patch_weights, "patching_for", lambda *_: CudaPatching(device))
    there, others = (
        {name: each.to(device.device) for name, each in state.items()} for state in (before, after)
    )
    assert make_patch(there, others) == due
    weights = {name: each.clone() for name, each in there.items()}
    apply_patch(weights, due)
    for name, each in weights.items():
        assert each.cpu().view(torch.uint8).equal(after[name].view(torch.uint8))
    for name, _, values in due.sparse(there):
        assert values.device == there[name].device
