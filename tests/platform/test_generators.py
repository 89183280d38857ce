"""The state of all generators: what is drawn after it is restored is what was drawn before."""

import io
import random

import numpy as np
import torch

from taugrad.platform.replica.generators import (
    Randomness,
    generator_states,
    restore_generators,
    seed_everything,
)


def draw() -> tuple[float, float, float, float]:
    of_numpy = np.random.standard_normal()  # noqa: NPY002 - the global generator is what is tested
    return random.gauss(), random.random(), of_numpy, float(torch.rand(()))


def test_what_a_checkpoint_holds_brings_the_same_numbers_again():
    seed_everything(3, 1)
    draw()  # half of a pair of normal numbers is kept for the next time
    file = io.BytesIO()
    torch.save(generator_states(), file)
    drawn = [draw() for _ in range(3)]
    file.seek(0)
    restore_generators(torch.load(file, weights_only=True))
    assert [draw() for _ in range(3)] == drawn


def test_generators_of_workers_are_independent():
    alone = {}
    for rank in range(3):
        with Randomness(5, [rank]).of(rank):
            alone[rank] = [draw(), draw()]
    assert len({numbers[0] for numbers in alone.values()}) == 3
    together, results = Randomness(5, range(3)), {rank: [] for rank in range(3)}
    for rank in (2, 0, 1, 1, 2, 0):
        with together.of(rank):
            results[rank].append(draw())
    assert results == alone
