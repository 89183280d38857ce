"""Chooses how much to send over a link, and how often: as much as a share of the step's time allows.

As in Kimad (arXiv 2312.08053), it sends as many bytes as the measured link carries in the available time. The
share of elements and the local steps are chosen together, as in FedLuck (arXiv 2407.05125). The arithmetic is
only +, -, x and / in float64, so every worker gets the same bits from the same exchanges, on any machine.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..config import Adapt

JUMP = 2.0
"""If an exchange takes this many times more or less than expected, in total or without the delay, the link
has changed: what was known of its rate is forgotten at once."""
CHANCE = 0.15
"""An exchange may differ from what is expected by this share without a reason."""
KEPT = 12
"""The largest number of windows."""
FADES = 0.7
"""The weight of a window, relative to the next one's."""
SPREAD = 1.5
"""How many times more bytes one window must have than another to tell delay and rate apart."""
MOST_DELAY = 0.98
"""The largest delay, as a share of the shortest exchange; the rest is for its bytes."""


class Window(NamedTuple):
    """A window: the mean of its exchanges, over all workers."""

    nbytes: float
    """Bytes that arrived at a worker."""
    exchange_s: float
    """Seconds from when the last worker sent until everybody had received everything."""
    wait_s: float
    """The part of it in which a worker had to wait."""
    compute_s: float
    """Seconds of a step in which the slowest worker did not wait."""

    @property
    def hidden_s(self) -> float:
        """The part of the exchange that overlapped with computing."""
        return self.exchange_s - self.wait_s


class LinkEstimate:
    """The link as the latest windows show it: an exchange takes delay + bytes / rate.

    Windows of different numbers of bytes tell the two apart. While there are none, the delay is taken to be
    what it was, and the rate follows.

    Attributes:
        delay_s: seconds.
        rate: bytes a second; 0 before the first window.
    """

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.rate = 0.0
        self._windows: list[Window] = []
        """The latest last; all of the same link, as far as can be seen."""
        self._mixed = False
        """Whether the link may have changed within the only window."""

    def expected(self, nbytes: float) -> float:
        """Seconds of an exchange."""
        return self.delay_s + nbytes / self.rate

    def add(self, window: Window) -> None:
        """Takes in the latest window; its bytes and its exchange are above 0."""
        if self._mixed:
            self._windows, self._mixed = [], False
        elif self._windows and self._is_of_another_link(window):
            self._forget(window)
            self._mixed = not self._windows
        self._windows = [*self._windows, window][-KEPT:]
        self._fit()

    def mean(self, of: Callable[[Window], float]) -> float:
        """The mean of windows with about as many bytes as the latest, which counts most."""
        latest = self._windows[-1].nbytes
        alike = [window for window in self._windows if latest / SPREAD < window.nbytes < latest * SPREAD]
        return _weighted([of(window) for window in alike])

    def _is_of_another_link(self, window: Window) -> bool:
        expected, exchange_s = self.expected(window.nbytes), window.exchange_s
        if CHANCE * expected >= abs(exchange_s - expected):
            return False
        for known in (0.0, self.delay_s):
            if not (expected - known) / JUMP <= exchange_s - known <= (expected - known) * JUMP:
                return True
        return False

    def _forget(self, window: Window) -> None:
        """Forgets what does not go with a window.

        If one delay and one rate explain this window and the last one, the link has not changed, only the
        number of bytes, and the delay had not been known. If fewer bytes took no less time, the delay is
        long. Otherwise the rate is assumed to have changed; if that is wrong, the next windows show it.
        """
        last = self._windows[-1]
        fewer, more = sorted((last, window))
        differ = more.nbytes > SPREAD * fewer.nbytes
        if (
            differ
            and fewer.exchange_s < more.exchange_s
            and fewer.exchange_s * more.nbytes >= more.exchange_s * fewer.nbytes
        ):
            self._windows, self.delay_s = [last], 0.0
            return
        if differ and window == fewer and window.exchange_s >= last.exchange_s:
            self.delay_s = MOST_DELAY * last.exchange_s
        self._windows = []

    def _fit(self) -> None:
        """A straight line through the windows, by least squares."""
        windows = self._windows
        shortest = MOST_DELAY * min(window.exchange_s for window in windows)
        nbytes = _weighted([window.nbytes for window in windows])
        seconds = _weighted([window.exchange_s for window in windows])
        if max(windows).nbytes > SPREAD * min(windows).nbytes:
            variance = _weighted([(window.nbytes - nbytes) * (window.nbytes - nbytes) for window in windows])
            covariance = _weighted(
                [(window.nbytes - nbytes) * (window.exchange_s - seconds) for window in windows]
            )
            slope = covariance / variance
            differs_s = slope * (max(windows).nbytes - min(windows).nbytes)
            if differs_s > CHANCE * seconds or not self.delay_s:
                self.delay_s = max(0.0, seconds - nbytes * slope)
        self.delay_s = min(self.delay_s, shortest)
        self.rate = nbytes / (seconds - self.delay_s)

    def state_dict(self) -> dict[str, Any]:
        """All of it, as plain numbers."""
        return {
            "delay_s": self.delay_s,
            "rate": self.rate,
            "windows": [list(window) for window in self._windows],
            "mixed": self._mixed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.delay_s, self.rate = float(state["delay_s"]), float(state["rate"])
        self._windows = [Window(*map(float, window)) for window in state["windows"]]
        self._mixed = bool(state["mixed"])


def _weighted(values: Sequence[float]) -> float:
    """Their mean; the last one counts most."""
    total = weights = 0.0
    for value in values:
        total, weights = FADES * total + value, FADES * weights + 1.0
    return total / weights


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
