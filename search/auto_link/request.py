"""The arguments of `taugrad auto --target`: a metric's value, and the link."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taugrad.platform.spec import refusal

from ..plan.link import Link

PROBE_SECONDS = 120.0


@dataclass(frozen=True)
class TargetRequest:
    """A target, and the link to reach it over.

    Attributes:
        metric: the name of the target's metric.
        value: the target.
        link: between the workers; None if it is measured.
        hosts: to measure it to, HOST or HOST:PORT.
        probe_seconds: for all probes together.
        sharing: how many workers share this machine.
        calibration: a file instead of measuring.
        plan_only: choose, and train nothing.
        output: a file for the chosen spec.
    """

    metric: str
    value: float
    link: Link | None = None
    hosts: tuple[str, ...] = ()
    probe_seconds: float = PROBE_SECONDS
    sharing: int = 1
    calibration: Path | None = None
    plan_only: bool = False
    output: Path | None = None

    def __post_init__(self) -> None:
        if not 0 < self.probe_seconds < math.inf:
            raise refusal(f"--probe-seconds {self.probe_seconds:g}: must be seconds, greater than 0")
        if self.sharing < 1:
            raise refusal(f"--share-of-machine {self.sharing}: must be at least 1")
        if self.output is not None and not self.output.absolute().parent.is_dir():
            raise refusal(f"-o {self.output}: there is no folder {self.output.parent}")

    @classmethod
    def read(
        cls, target: str | None, link: str | None, hosts: Sequence[str] = (), **options: Any
    ) -> "TargetRequest":
        """Reads the arguments of a command line; `target` is METRIC=NUMBER, `options` are other attributes.

        Raises:
            SpecError: an argument is not valid, or two contradict each other.
        """
        if target is None:
            raise refusal("--target: is missing; give one such as loss=1.9 or accuracy=0.95")
        if link is None and not hosts:
            raise refusal(
                f"--target {target}: needs --link, such as 100mbit,20ms, or --measure HOST; without a link "
                "give --budget or --tolerance"
            )
        if link is not None and hosts:
            raise refusal(f"--link {link} with --measure: give one of the two")
        metric, equals, text = target.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not metric or not equals or not math.isfinite(value):
            raise refusal(f"--target {target}: must be METRIC=NUMBER, such as loss=1.9 or accuracy=0.95")
        try:
            given = None if link is None else Link.parse(link)
        except ValueError as error:
            raise refusal(f"--link: {error}") from None
        return cls(metric, value, given, tuple(hosts), **options)
