"""Random draws for an example, from the run's seed, the epoch and the example's number. Needs no torch."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Draw:
    """What chance in an example follows from, besides its number: augmentation, where a text is cut."""

    seed: int
    epoch: int
    """Counted from 0."""

    def of(self, index: int) -> np.random.Generator:
        """An example's own random numbers, the same on every worker and after a resume."""
        return np.random.default_rng([self.seed, self.epoch, index])
