"""The CUDA sources: whether NVIDIA's compiler takes them, and what the emulator does not show by itself."""

from platform import machine

import numpy as np
import nvrtc
import pytest
import torch
from cases import in_turn
from emulator import EmulatedGpu
from needs import missing

from taugrad.compressors.ops.cuda.device import SOURCES


@pytest.mark.parametrize("architecture", ["sm_80", pytest.param("sm_90", marks=pytest.mark.long)])
@in_turn("source", sorted(path.stem for path in SOURCES.glob("*.cu")))
def test_the_source_compiles(source: str, architecture: str) -> None:
    if nvrtc.library() is None:
        what = "needs NVIDIA's runtime compiler (the package nvidia-cuda-nvrtc-cu12)"
        if machine() == "x86_64":
            missing(what)
        pytest.skip(what)  # for other CPUs pyproject.toml does not ask for it
    nvrtc.compile_source(SOURCES / f"{source}.cu", architecture)


@in_turn("nearest", [0, 1, 31, 32, 33, 69])
def test_a_block_looks_back_to_the_nearest_that_knows_its_place(gpu: EmulatedGpu, nearest: int) -> None:
    """The emulator runs blocks in order; here blocks before this one have only counted so far."""
    before, tile, counted, placed = 70, 4096, 1 << 62, 2 << 62
    amounts = np.random.default_rng(5).integers(0, 4097, before).astype(np.uint64)
    states = np.zeros(before + 3, np.uint64)
    states[0], states[1 : before + 1] = before, np.uint64(counted) | amounts
    # Blocks further back than the nearest must not be looked at.
    states[1 : nearest + 1] = np.uint64(counted | 4000)
    states[nearest + 1] = np.uint64(placed) | amounts[: nearest + 1].sum()
    n = (before + 1) * tile
    gradient = torch.zeros(n)
    gradient[-2:] = 1
    words, values = gpu.zeros(n, np.uint32), gpu.zeros(n, np.float32)
    residual, given = gpu.zeros(n, np.float32), gpu.array(gradient)
    part = np.array([residual.data_ptr(), given.data_ptr(), n, 0, 0, 0, 0, 0], np.int64)
    owners, taus = np.zeros(before + 1, np.uint32), np.array([0.3], np.float32)
    there, parts, owned, by = gpu.place_all([states, part, owners, taus])
    reports, squares = gpu.zeros(3, np.int64), gpu.zeros(before + 1, np.float64)
    gpu.launch("threshold", "wgt", 1, 256, parts, owned, by, words, values, there, reports, squares)
    total = int(amounts.sum())
    result, after = gpu.fetch_all([words, there])
    assert result[total : total + 2].tolist() == [(n - 2) << 1, (n - 1) << 1]
    assert np.count_nonzero(result) == 2
    assert int(after[before + 1]) == placed | (total + 2)
