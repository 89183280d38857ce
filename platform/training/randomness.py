"""Each worker's random numbers, also where one process runs several workers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .generators import GeneratorStates, seed_everything


class Randomness:
    """The generators of this process's workers; those of a single worker are the process's own."""

    def __init__(self, seed: int, ranks: Sequence[int]) -> None:
        """Seeds each worker differently, and identically whether it is simulated or not."""
        self._states: dict[int, GeneratorStates] = {}
        self._alone = len(ranks) == 1
        for rank in ranks:
            seed_everything(seed, rank)
            self._states[rank] = GeneratorStates.present()

    @contextmanager
    def of(self, rank: int) -> Iterator[None]:
        """Makes everything inside draw from a worker's generators."""
        if self._alone:
            yield
            return
        self._states[rank].restore()
        yield
        self._states[rank] = GeneratorStates.present()

    def state_dict(self) -> dict[str, Any]:
        """The state of all, as tensors and numbers."""
        states = {}
        for rank in self._states:
            with self.of(rank):
                states[str(rank)] = GeneratorStates.present().state_dict()
        return states

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Restores what `state_dict` returned; raises KeyError where a worker is missing."""
        for rank in self._states:
            self._states[rank] = GeneratorStates.load(states[str(rank)])
            self._states[rank].restore()
