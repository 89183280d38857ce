"""Adding what is sent to dense arrays on the emulated device, against the CPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import in_turn

from taugrad.compressors.ops.cpu import sparse
from taugrad.compressors.ops.cuda import sparse_add

SIZES = (0, 1, 31, 32, 33, 1000, 16_384, 16_385, 70_001)


def words_among(n: int, p: float) -> Any:
    rng = np.random.default_rng(n)
    chosen = np.flatnonzero(rng.random(n) < p)
    return (chosen << 1 | rng.integers(0, 2, chosen.size)).astype(np.uint32)


@in_turn("n", SIZES)
def test_sums_are_those_of_the_cpu(device: Any, n: int) -> None:
    rng = np.random.default_rng(n)
    words, tau = words_among(n, 0.3), np.float32(0.1)
    levels = rng.integers(1, 256, words.size).astype(np.uint8)
    values = (rng.standard_normal(words.size) * 10.0 ** rng.integers(-42, 30, words.size)).astype(np.float32)
    dense = (rng.standard_normal(n) * 10.0 ** rng.integers(-42, 3, n)).astype(np.float32)
    placed = device.place(words)
    for on_cpu, add in (
        (
            lambda to: sparse.add_taus(words, tau, to),
            lambda to: sparse_add.add_taus(device, placed, float(tau), 0, to),
        ),
        (
            lambda to: sparse.add_levels(words, levels, tau, to),
            lambda to: sparse_add.add_levels(device, placed, device.place(levels), float(tau), 0, to),
        ),
        (
            lambda to: sparse.add_values(words, values, to),
            lambda to: sparse_add.add_values(device, placed, device.place(values), 0, to),
        ),
    ):
        expected, found = dense.copy(), device.place(dense)
        on_cpu(expected)
        add(found)
        assert device.fetch(found).tobytes() == expected.tobytes()


def test_values_must_be_as_many_as_words_and_positions_outside_are_passed_over(device: Any) -> None:
    words, dense = device.place(np.array([2, 8, 4_000_000_000], np.uint32)), device.zeros(4, np.float32)
    with pytest.raises(ValueError, match="needed"):
        sparse_add.add_levels(device, words, device.zeros(2, np.uint8), 1.0, 0, dense)
    with pytest.raises(ValueError, match="needed"):
        sparse_add.add_values(device, words, device.zeros(3, np.float64), 0, dense)
    sparse_add.add_taus(device, words, 1.0, 0, dense)
    assert device.fetch(dense).tolist() == [0, 1, 0, 0]
    sparse_add.add_taus(device, words, 1.0, -1, dense)
    assert device.fetch(dense).tolist() == [1, 1, 0, 1]
    sparse_add.add_taus(device, words, 1.0, 2, dense)
    assert device.fetch(dense).tolist() == [1, 1, 0, 2]


@in_turn("source", ["sparse_add", "words"])
def test_it_compiles_for_every_architecture(compiles: Callable[[str], None], source: str) -> None:
    compiles(source)
