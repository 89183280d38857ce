"""All random number generators as one: Python's, NumPy's and torch's."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


def seed_everything(seed: int, rank: int) -> None:
    """Seeds all generators, differently on every worker."""
    words = np.random.SeedSequence([seed, rank]).generate_state(4, np.uint32)
    random.seed(int(words[0]))
    np.random.seed(words[1])  # noqa: NPY002 - user code may draw from it
    torch.manual_seed(int(words[2]) << 32 | int(words[3]))


@dataclass(frozen=True, eq=False)
class GeneratorStates:
    """The states of all generators at one moment."""

    python: tuple[Any, ...]
    numpy: Any
    """As `numpy.random.set_state` takes it."""
    torch: Tensor
    cuda: Tensor | None
    """Of torch's generator on the GPU; None where there is none."""

    @classmethod
    def present(cls) -> "GeneratorStates":
        """Those of now."""
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
        numpy_state = np.random.get_state()  # noqa: NPY002 - user code may draw from it
        return cls(random.getstate(), numpy_state, torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Sets the generators to these states; a machine without a GPU passes over that one's."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002 - user code may draw from it
        torch.set_rng_state(self.torch)
        if self.cuda is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(self.cuda)

    def state_dict(self) -> dict[str, Any]:
        """The states as tensors and numbers."""
        version, python_words, python_gauss = self.python
        _, key, position, has_gauss, gauss = self.numpy
        state = {
            "python": {"version": version, "words": torch.tensor(python_words), "gauss": python_gauss},
            "numpy": {
                "key": torch.from_numpy(key.astype(np.int64)),
                "position": int(position),
                "has_gauss": int(has_gauss),
                "gauss": float(gauss),
            },
            "torch": self.torch,
        }
        return state if self.cuda is None else {**state, "cuda": self.cuda}

    @classmethod
    def load(cls, state: dict[str, Any]) -> "GeneratorStates":
        """The states that `state_dict` gave; raises KeyError where one is missing."""
        python, numpy_state = state["python"], state["numpy"]
        key = numpy_state["key"].numpy().astype(np.uint32)
        return cls(
            (python["version"], tuple(python["words"].tolist()), python["gauss"]),
            ("MT19937", key, numpy_state["position"], numpy_state["has_gauss"], numpy_state["gauss"]),
            state["torch"],
            state.get("cuda"),
        )


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
