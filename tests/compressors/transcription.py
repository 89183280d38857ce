"""Anoosheh's pseudo code (section 2.1) as the project settled it, element by element in float32.

Slow on purpose, and written without a look at the kernels: it is what they are checked against. An
element is sent when |residual + gradient| >= tau. QGT sends whole multiples of tau of the magnitude,
at most 255, and keeps the sign. An element whose sum is not finite is neither sent nor kept. Strom
(section 2.6) sends +tau or -tau, as BGT does, but only where the magnitude exceeds tau.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass
class Outcome:
    """What a pass sent, kept and met."""

    kept: Floats
    """float32 [n], the new residual."""
    words: list[int] = field(default_factory=list)
    """position << 1 | sign of each element sent."""
    sent: list[np.float32] = field(default_factory=list)
    """The signed amount that each element sent stands for."""
    levels: list[int] = field(default_factory=list)
    """qgt: multiples of tau."""
    nonfinite: bool = False

    @property
    def positions(self) -> list[int]:
        return [word >> 1 for word in self.words]

    def values(self, rule: str) -> NDArray[np.generic]:
        """What stands beside the words."""
        if rule == "wgt":
            return np.array(self.sent, np.float32)
        return np.array(self.levels if rule == "qgt" else [], np.uint8)

    def dense(self) -> Floats:
        """float32 [n], what was sent at each position and zero elsewhere."""
        dense = np.zeros(self.kept.size, np.float32)
        dense[self.positions] = self.sent
        return dense


def run(rule: str, residual: Floats, gradient: Floats, tau: np.float32, base: int = 0) -> Outcome:
    """One pass over one parameter; leaves its arguments alone."""
    outcome = Outcome(residual.copy())
    with np.errstate(all="ignore"):
        for i in range(residual.size):
            total = np.float32(residual[i] + gradient[i])
            if not np.isfinite(total):
                outcome.nonfinite = True
                continue
            sends = abs(total) > tau if rule == "strom" else abs(total) >= tau
            if not sends:
                outcome.kept[i] = total
                continue
            negative = bool(total < 0)
            if rule == "wgt":
                amount = total
            elif rule in ("bgt", "strom"):
                amount = -tau if negative else tau
            else:
                level = int(min(np.floor(np.float32(abs(total) / tau)), 255))
                outcome.levels.append(level)
                amount = np.float32(np.float32(level) * tau)
                amount = -amount if negative else amount
            outcome.words.append((base + i) << 1 | negative)
            outcome.sent.append(amount)
            outcome.kept[i] = np.float32(total - amount)
    return outcome


def _largest(total: Floats, k: int) -> NDArray[np.int64]:
    """Ascending positions of the k largest magnitudes; of equal ones the first."""
    order = np.lexsort((np.arange(total.size), -np.abs(total)))
    return np.sort(order[:k])


def topk(total: Floats, density: float) -> NDArray[np.int64]:
    """What topk sends of a parameter: a share of its elements, at least one."""
    return _largest(total, max(1, int(density * total.size)))


def chunked_topk(total: Floats, chunk: int, keep: int) -> NDArray[np.int64]:
    """What chunked_topk sends: the largest of every chunk, the last of which may be shorter."""
    found = [low + _largest(total[low : low + chunk], keep) for low in range(0, total.size, chunk)]
    return np.concatenate(found)


@dataclass
class MomentumCorrection:
    """Deep Gradient Compression, section 3.2 and Algorithm 3's masking, for one parameter and a rule."""

    rule: str
    tau: np.float32
    momentum: float
    velocity: Floats
    accumulated: Floats

    def step(self, gradient: Floats) -> Floats:
        """u = m u + g; v = v + u; what is sent leaves v, and its u begins anew."""
        self.velocity = np.float32(self.momentum) * self.velocity + gradient
        outcome = run(self.rule, self.accumulated, self.velocity, self.tau)
        self.accumulated = outcome.kept
        self.velocity[outcome.positions] = 0
        return outcome.dense()
