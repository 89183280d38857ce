"""The link between workers: rate, one-way delay, and loss."""

import math
import re
from typing import Annotated

from pydantic import Field

from taugrad.platform.config import Config

_RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_FORM = "rate, delay one way and packets lost, such as 100mbit, 100mbit,20ms or 100mbit,20ms,0.1%"

HEADERS = 0.05
"""The share of a rate that TCP and IP headers take, with frames of 1,500 bytes."""
_SEGMENT_BYTES = 1448
_LEAST_TRIP_S = 1e-4
"""The time of a round trip if no delay is given."""
_MATHIS = math.sqrt(1.5)


class Link(Config):
    """Every worker's link to all others, the same in both directions."""

    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Bits a second, headers included."""
    delay: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Seconds one way, from worker to worker."""
    loss: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of packets lost."""
    headers: Annotated[float, Field(ge=0, lt=1)] = HEADERS
    """The share of the rate that headers take; 0 if the rate was measured as payload."""
    trunk: "Trunk | None" = None
    """The trunks between sites of workers; None if there is only one site."""

    @classmethod
    def parse(cls, text: str) -> "Link":
        """Reads `100mbit`, `100mbit,20ms` or `100mbit,20ms,0.1%`; units kbit, mbit, gbit; us, ms, s.

        Raises:
            ValueError: the text is not valid; the message says what is.
        """
        return cls(**_fields(text))

    def payload_rate(self, connections: int = 1) -> float:
        """Bytes per second that this number of TCP connections carry together.

        Loss limits one connection to about 1.22 segments / (round trip * sqrt(loss)) (Mathis et al. 1997).
        """
        whole = self.rate * (1 - self.headers) / 8
        if not self.loss:
            return whole
        trip = max(2 * self.delay, _LEAST_TRIP_S)
        return min(whole, connections * _MATHIS * _SEGMENT_BYTES / (trip * math.sqrt(self.loss)))

    def crossing(self, messages: int, workers: int) -> int:
        """Messages that leave a site over its trunk, if each worker sends `messages` to other sites."""
        return 0 if self.trunk is None else messages * self.trunk.workers_of_site(workers)

    def farthest(self, workers: int) -> "Link":
        """One connection between two sites: the lowest rate, and all delays added. In a site: the link."""
        if self.trunk is None or workers == 1:
            return self
        between = self.trunk.link
        least = min(self, between, key=lambda link: link.rate * (1 - link.headers))
        return Link(
            rate=least.rate,
            delay=self.delay + between.delay,
            loss=1 - (1 - self.loss) * (1 - between.loss),
            headers=least.headers,
        )

    def __str__(self) -> str:
        """As `parse` reads it, and what lies between sites."""
        unit = next(name for name in ("gbit", "mbit", "kbit") if self.rate >= _RATES[name] or name == "kbit")
        parts = [f"{self.rate / _RATES[unit]:.4g}{unit}", f"{1000 * self.delay:.4g}ms"]
        text = ",".join([*parts, f"{100 * self.loss:.4g}%"] if self.loss else parts)
        return text if self.trunk is None else f"{text}; {self.trunk.sites} sites, {self.trunk.link} between"


class Trunk(Config):
    """Every site's link to the other sites, which its workers share. Workers are spread evenly over sites."""

    link: Link
    """The link of a site; its delay is added to that of the workers' own links."""
    sites: Annotated[int, Field(ge=2)] = 2

    def workers_of_site(self, workers: int) -> int:
        """Workers at the largest site."""
        return -(-workers // self.sites)

    def others(self, workers: int) -> int:
        """Other sites that have workers."""
        return min(self.sites, workers) - 1


def _fields(text: str) -> dict[str, float]:
    number = r"(\d+(?:\.\d+)?)"
    match = re.fullmatch(
        rf"{number}(kbit|mbit|gbit)(?:,{number}(us|ms|s))?(?:,{number}%)?", text.replace(" ", "").lower()
    )
    if match is None:
        raise ValueError(f"link {text!r}: must be {_FORM}")
    rate, rate_unit, delay, delay_unit, loss = match.groups()
    fields = {
        "rate": float(rate) * _RATES[rate_unit],
        "delay": float(delay) * _TIMES[delay_unit] if delay else 0.0,
        "loss": float(loss) / 100 if loss else 0.0,
    }
    for name, valid, fits in (
        ("rate", "above 0", fields["rate"] > 0),
        ("delay", "at most 10 s", fields["delay"] <= 10),
        ("loss", "below 100%", fields["loss"] < 1),
    ):
        if not fits:
            raise ValueError(f"link {text!r}: {name} must be {valid}")
    return fields
