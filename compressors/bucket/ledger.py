"""What was sent, counted as it happens: paper bytes and wire bytes, elements and seconds.

Paper bytes are value bits only, as Anoosheh counts them. Wire bytes are what a worker really handed to the
carrier. Both are one worker's; the platform adds up those of all. docs/accounting.md has the definitions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

import numpy as np
import torch

from ..ops.parts import PartTally

BASELINE_BYTES = 4
"""Bytes per element, worker and step without compression (Anoosheh, section 3.1)."""


@dataclass
class Totals:
    """Sums over steps, of one worker; or of several, once they were added."""

    steps: int = 0
    skipped_steps: int = 0
    """Steps left out because a gradient was not finite."""
    elements: int = 0
    """Elements that could have been sent: parameters x steps, for each worker."""
    sent: int = 0
    """Elements sent."""
    paper_bits: int = 0
    wire_bytes: int = 0
    """Handed to the carrier: what goes to all workers counts once."""
    received_bytes: int = 0
    """What arrived from other workers."""
    messages: int = 0
    """From one worker to another."""

    @property
    def fraction(self) -> float:
        """Elements sent over elements."""
        return self.sent / self.elements if self.elements else 0.0

    @property
    def paper_bytes(self) -> float:
        """Value bits of the elements sent, in bytes."""
        return self.paper_bits / 8

    @property
    def bits_per_param(self) -> float:
        """Wire bits over elements."""
        return 8 * self.wire_bytes / self.elements if self.elements else 0.0

    @property
    def compression_ratio(self) -> float:
        """Baseline bytes over wire bytes; infinite when nothing went over the wire."""
        if not self.wire_bytes:
            return float("inf") if self.elements else 1.0
        return BASELINE_BYTES * self.elements / self.wire_bytes

    def add_all_reduce(self, nbytes: int, rank: int, workers: int) -> None:
        """Counts a worker's part in an all-reduce of so many bytes, as a ring moves them.

        The transport does not report it. Sums over all ranks are exact.
        """
        steps = 2 * (workers - 1)
        self.wire_bytes += nbytes
        self.received_bytes += (steps * nbytes + rank) // workers
        self.messages += steps

    def add(self, other: "Totals") -> None:
        """Adds another's sums to these."""
        for name in _names():
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def plus(self, other: "Totals") -> "Totals":
        """The sums of both."""
        totals = Totals(**self.state_dict())
        totals.add(other)
        return totals

    def state_dict(self) -> dict[str, int]:
        """The sums as plain numbers."""
        return {name: getattr(self, name) for name in _names()}

    @classmethod
    def from_state_dict(cls, state: dict[str, int]) -> "Totals":
        """The reverse of `state_dict`; a missing or unknown name is a ValueError."""
        expected = _names()
        if set(state) != set(expected):
            raise ValueError(f"a ledger has {sorted(expected)}, this one {sorted(state)}")
        return cls(**state)


@cache  # every step asks for them
def _names() -> tuple[str, ...]:
    return tuple(total.name for total in fields(Totals))


@dataclass
class Step(Totals):
    """One synchronization of all buckets; several, if gradients were not cleared between them."""

    residual_squares: float = 0.0
    """Sum of squares of this worker's residual."""
    keeps_residuals: bool = False
    """Whether there is any residual."""
    compress_s: float = 0.0
    exchange_s: float = 0.0
    """The time while any message was under way, from handing it over until everybody's had arrived; may
    overlap with the backward pass."""
    blocked_s: float = 0.0
    """The part of exchange_s in which the worker waited."""
    decompress_s: float = 0.0
    """Decoding and adding up, in whichever thread."""
    overlapped_decode_s: float = 0.0
    """The part of decompress_s that another thread did while the worker did something else."""
    layers: list[PartTally] = field(default_factory=list)
    """This worker's elements by parameter, of each synchronization."""
    nonfinite: list[tuple[str, int]] = field(default_factory=list)
    """Parameter and rank of gradients that were not finite."""

    @property
    def overlap_s(self) -> float:
        """The part of exchange_s in which the worker did something else."""
        return max(0.0, self.exchange_s - self.blocked_s)

    @property
    def decode_s(self) -> float:
        """The part of decompress_s that the worker did itself, or waited for."""
        return self.decompress_s - self.overlapped_decode_s

    @property
    def skipped(self) -> bool:
        """Whether the optimizer must leave this step out, on every worker."""
        return bool(self.nonfinite)

    @property
    def taus(self) -> list[float]:
        """The tau of each of this worker's parameters that has one."""
        return [layer.tau for layer in self.layers if layer.tau is not None]

    @property
    def mean_tau(self) -> float | None:
        """The mean of taus over this worker's elements; None without any."""
        weights = sum(layer.elements for layer in self.layers if layer.tau is not None)
        taus = sum(layer.tau * layer.elements for layer in self.layers if layer.tau is not None)
        return taus / weights if weights else None

    def metrics(self, workers: int) -> dict[str, float]:
        """For logs, as docs/reference/metrics.md lists them; without an exchange there is no ratio."""
        metrics: dict[str, float] = {
            "comm/fraction": self.fraction,
            "comm/elements": self.sent,
            "comm/paper_bytes": self.paper_bytes,
            "comm/wire_bytes": self.wire_bytes,
            "comm/received_bytes": self.received_bytes / workers,
            "comm/messages": self.messages,
            "comm/bits_per_param": self.bits_per_param,
        }
        if self.wire_bytes:
            metrics["comm/compression_ratio"] = self.compression_ratio
        if self.mean_tau is not None:
            metrics["comm/tau"] = self.mean_tau
        return metrics

    def skip(self, parameter: str, rank: int) -> None:
        """Notes a gradient that was not finite: every worker leaves this step out."""
        self.nonfinite.append((parameter, rank))
        self.skipped_steps = self.steps

    def count_layers(self, tallies: Iterable[PartTally]) -> None:
        """Adds this worker's elements by parameter."""
        for tally in tallies:
            self.layers.append(tally)
            self.residual_squares += tally.residual_squares


_TRAFFIC_SUMS = ("wire_bytes", "sent", "paper_bits", "received_bytes", "messages")
_LINKS = ("link_bytes", "link_messages")


class Traffic:
    """What a worker sent to others, and received from them.

    Attributes:
        workers: how many there are everywhere.
        sums: of the worker. Bytes are handed over once where they go to several.
        link_bytes: int64 [workers], bytes that it sent to each.
        link_messages: likewise, how many messages.
    """

    def __init__(self, workers: int) -> None:
        self.workers, self.sums = workers, Totals()
        self.link_bytes, self.link_messages = np.zeros((2, workers), np.int64)

    def count_sent(self, nbytes: int, receivers: Sequence[int]) -> None:
        """Counts a message, handed over once for all its receivers."""
        self.sums.wire_bytes += nbytes
        self.sums.messages += len(receivers)
        self.link_bytes[receivers] += nbytes
        self.link_messages[receivers] += 1

    def add(self, other: "Traffic") -> None:
        """Adds another's sums to these."""
        self.sums.add(other.sums)
        for name in _LINKS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def state_dict(self) -> dict[str, Any]:
        """The sums as numbers and tensors."""
        return {
            "numbers": [getattr(self.sums, name) for name in _TRAFFIC_SUMS],
            **{name: torch.from_numpy(getattr(self, name).copy()) for name in _LINKS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave; raises ValueError where it is of other workers."""
        links = [state[name].numpy().astype(np.int64) for name in _LINKS]
        if any(row.shape != (self.workers,) for row in links):
            raise ValueError(f"the links of {len(links[0])} workers, this run has {self.workers}")
        self.sums = Totals()
        self.add_sums(state)
        self.link_bytes, self.link_messages = links

    def add_sums(self, state: Mapping[str, Any]) -> None:
        """Adds all but the links, which may be those of another number of workers."""
        self.sums.add(Totals(**dict(zip(_TRAFFIC_SUMS, map(int, state["numbers"]), strict=True))))
