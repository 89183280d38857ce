"""Each worker's random numbers, also where one process runs several workers."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from .checkpoint import random_state, restore_random_state, seed_everything


class Randomness:
    """The generators of this process's workers; those of a single worker are the process's own."""

    def __init__(self, seed: int, ranks: Sequence[int]) -> None:
        """Seeds each worker otherwise, and the same whether it is simulated or not."""
        self._states: dict[int, tuple[Any, ...]] = {}
        self._alone = len(ranks) == 1
        for rank in ranks:
            seed_everything(seed, rank)
            self._states[rank] = _present()

    @contextmanager
    def of(self, rank: int) -> Iterator[None]:
        """Has everything inside draw from a worker's generators."""
        if self._alone:
            yield
            return
        _set(self._states[rank])
        yield
        self._states[rank] = _present()

    def state_dict(self) -> dict[str, Any]:
        """The state of all, as tensors and numbers."""
        states = {}
        for rank in self._states:
            with self.of(rank):
                states[str(rank)] = random_state()
        return states

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave; raises KeyError where a worker is missing."""
        for rank in self._states:
            restore_random_state(states[str(rank)])
            self._states[rank] = _present()


def _present() -> tuple[Any, ...]:
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda  # noqa: NPY002 - user code


def _set(state: tuple[Any, ...]) -> None:
    python, numpy_state, torch_state, cuda = state
    random.setstate(python)
    np.random.set_state(numpy_state)  # noqa: NPY002 - user code may draw from it
    torch.set_rng_state(torch_state)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda)
