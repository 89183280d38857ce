"""All random number generators as one (Python's, NumPy's and torch's), and each worker's own.

One process may run several workers, whose random numbers are those that they would have by themselves.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

States = dict[str, Any]
"""The states of all generators at one moment, as tensors and numbers."""


def seed_everything(seed: int, rank: int) -> None:
    """Seeds all generators, differently on every worker."""
    words = np.random.SeedSequence([seed, rank]).generate_state(4, np.uint32)
    random.seed(int(words[0]))
    np.random.seed(words[1])  # noqa: NPY002 - user code may draw from it
    torch.manual_seed(int(words[2]) << 32 | int(words[3]))


def generator_states() -> States:
    """Those of now."""
    version, words, gauss = random.getstate()
    _, key, position, has_gauss, numpy_gauss = np.random.get_state()  # noqa: NPY002 - as above
    states = {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "key": torch.from_numpy(np.asarray(key, np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "gauss": float(numpy_gauss),
        },
        "torch": torch.get_rng_state(),
    }
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def restore_generators(states: States) -> None:
    """Sets the generators to these states, on a machine without a GPU the others; raises KeyError."""
    python, numpy = states["python"], states["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    key = numpy["key"].numpy().astype(np.uint32)
    np.random.set_state(  # noqa: NPY002 - as above
        ("MT19937", key, numpy["position"], numpy["has_gauss"], numpy["gauss"])
    )
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


class Randomness:
    """The generators of this process's workers; those of a single worker are the process's own."""

    def __init__(self, seed: int, ranks: Sequence[int]) -> None:
        """Seeds each worker differently, and identically whether it is simulated or not."""
        self._states: dict[int, States] = {}
        self._alone = len(ranks) == 1
        for rank in ranks:
            seed_everything(seed, rank)
            self._states[rank] = generator_states()

    @contextmanager
    def of(self, rank: int) -> Iterator[None]:
        """Makes everything inside draw from a worker's generators."""
        if self._alone:
            yield
            return
        restore_generators(self._states[rank])
        yield
        self._states[rank] = generator_states()

    def state_dict(self) -> dict[str, Any]:
        """The states of all, for a checkpoint."""
        if self._alone:
            return {str(rank): generator_states() for rank in self._states}
        return {str(rank): states for rank, states in self._states.items()}

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Restores what `state_dict` returned; raises KeyError where a worker is missing."""
        for rank in self._states:
            self._states[rank] = states[str(rank)]
            restore_generators(self._states[rank])
