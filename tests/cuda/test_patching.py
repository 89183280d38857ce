"""Weight patches on a device: the same changes, digests, patches and weights as on the CPU."""

from typing import Any

import numpy as np
import pytest
import torch
from cases import in_turn

from taugrad.compressors import apply_patch, make_patch
from taugrad.compressors.patches import weights as bit_patterns
from taugrad.compressors.patches.kernels import Piece
from taugrad.compressors.patches.kernels.cpu import CpuPatching
from taugrad.compressors.patches.kernels.cuda import CudaPatching

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
    return [Piece(piece.bits.to(device.device), piece.first, piece.floats) for piece in pieces]


@in_turn("share", [0.0, 0.01, 0.4, 1.0])
def test_changes_and_digests_are_those_of_the_cpu(share: float, device: Any) -> None:
    ours, theirs = CpuPatching(1), CudaPatching(device)
    before, after = pairs(share, int(10 * share))
    there, others = on(device, before), on(device, after)
    assert theirs.digest(there) == ours.digest(before)
    assert theirs.digest([]) == []
    for digested in (False, True):
        changes = ours.compare(before, after, digested=digested)
        results = theirs.compare(there, others, digested=digested)
        for mine, other in zip(changes, results, strict=True):
            assert (mine.digest, mine.change) == (other.digest, other.change)
            assert mine.steps.positions.tolist() == other.steps.positions.tolist()
            assert mine.steps.steps.tolist() == other.steps.steps.tolist()
    steps = [change.steps for change in changes]
    taken, due = theirs.take_steps(there, steps), ours.take_steps(before, steps)
    assert [change for _, change in taken] == [change for _, change in due]
    theirs.scatter(there, steps, [bits for bits, _ in taken])
    ours.scatter(before, steps, [bits for bits, _ in due])
    for mine, other, last in zip(before, there, after, strict=True):
        assert mine.bits.equal(other.bits.cpu())
        assert mine.bits.equal(last.bits)


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
        monkeypatch.setattr(bit_patterns, "patching_for", lambda *_: CudaPatching(device))
    there, others = (
        {name: tensor.to(device.device) for name, tensor in state.items()} for state in (before, after)
    )
    assert make_patch(there, others) == due
    weights = {name: tensor.clone() for name, tensor in there.items()}
    apply_patch(weights, due)
    for name, tensor in weights.items():
        assert tensor.cpu().view(torch.uint8).equal(after[name].view(torch.uint8))
    for name, _, values in due.sparse(there):
        assert values.device == there[name].device
