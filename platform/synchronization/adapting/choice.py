"""Chooses how much to send over a link, and how often: as much as a share of the step's time allows.

As in Kimad (arXiv 2312.08053), it sends as many bytes as the measured link carries in the available time. The
share of elements and the local steps are chosen together, as in FedLuck (arXiv 2407.05125). As in `link.py`,
the arithmetic is only +, -, x and /.
"""

import math
from dataclasses import dataclass

from ..config import Adapt
from .link import LinkEstimate

STAYS = 1.2
"""A choice that would change by a smaller factor than this stays."""
STAYS_IF_LITTLE = 1.5
"""The same, if the time of a step would hardly change."""
LITTLE = 0.05
"""The share of a step's time that counts as hardly changed."""
GROWS = 4.0
"""The largest factor by which bytes grow from one decision to the next: if a link is much faster than what
was sent over it, little is known about its rate."""
_POSITION = 1.44
"""Bits that a position takes above log2 of the distance to the next one: 1 / ln 2."""
_HALVINGS = 60


@dataclass(frozen=True)
class Adaptation:
    """What is decided."""

    density: float
    """The share of elements to send."""
    local_steps: int = 1
    """Steps from one exchange to the next."""


@dataclass(frozen=True)
class Chooser:
    """Chooses within a run's bounds."""

    adapt: Adapt
    usual: float
    """The share that the method was given."""
    value_bits: float
    """Of an element sent, besides its position."""

    @property
    def _waits(self) -> float:
        """Seconds of waiting that there may be for each second of computing."""
        return self.adapt.wait / (1 - self.adapt.wait)

    def choose(self, link: LinkEstimate, now: Adaptation) -> Adaptation:
        """What to go on with after `now`.

        The link is as the latest windows show it, the last of them with `now`.
        """
        nbytes = link.mean(lambda window: window.nbytes)
        compute_s = link.mean(lambda window: window.compute_s)
        hidden_s = link.mean(lambda window: window.hidden_s)
        steps = self._local_steps(link, now, nbytes, compute_s, hidden_s)
        # What is hidden stays so: another second of exchange is another second of waiting.
        room_s = self._waits * compute_s * steps + hidden_s - link.delay_s
        # The delay may be more than all of it, and no density shortens that: bytes may add their share to it.
        room_s = max(room_s, self.adapt.wait * link.delay_s)
        ratio = min(GROWS, room_s * link.rate / nbytes)
        least, most = self.adapt.density
        density = min(most, max(least, self._density(now.density, ratio)))
        bytes_s = nbytes / link.rate
        costs_s = abs(self._bits(density) / self._bits(now.density) - 1) * bytes_s / steps
        is_little = costs_s < LITTLE * (compute_s + max(0.0, link.expected(nbytes) - hidden_s) / steps)
        stays = STAYS_IF_LITTLE if is_little else STAYS
        if now.density / stays < density < now.density * stays:
            density = now.density
        return Adaptation(density, steps)

    def _local_steps(
        self, link: LinkEstimate, now: Adaptation, nbytes: float, compute_s: float, hidden_s: float
    ) -> int:
        """The fewest in which the share that the method was given waits for no longer than it may."""
        if self.adapt.local_steps is None:
            return now.local_steps
        least, most = self.adapt.local_steps
        usual = nbytes * self._bits(self.usual) / self._bits(now.density)
        wanted = (link.expected(usual) - hidden_s) / (self._waits * compute_s)

        def whole(steps: float) -> int:
            return min(most, max(least, math.ceil(min(steps, float(most)))))

        stays = whole(wanted / STAYS) <= now.local_steps <= whole(wanted * STAYS)
        return now.local_steps if stays else whole(wanted)

    def _density(self, density: float, ratio: float) -> float:
        """The density, within the bounds, whose messages have this multiple of the bytes."""
        wanted = ratio * self._bits(density)
        low, high = self.adapt.density
        if wanted <= self._bits(low):
            return low
        if wanted >= self._bits(high):
            return high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._bits(middle) < wanted else (low, middle)
        return low

    def _bits(self, density: float) -> float:
        """About what a message takes of each element of the gradient, with positions in the best code."""
        # The logarithm on straight lines between powers of two: a library's may differ in its last bit.
        mantissa, exponent = math.frexp(density)
        return density * (self.value_bits + _POSITION - (exponent + 2 * (mantissa - 1)))
