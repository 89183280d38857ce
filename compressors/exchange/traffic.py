"""What went between workers: the counts of every round, and the traffic of each link."""

import csv
import io
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..bucket.ledger import BASELINE_BYTES
from .sites import Sites

NUMBER_BYTES = 8
MOST_WORKERS = 64
"""Of which each link is shown: 4,032 of them."""


@dataclass(frozen=True)
class Links:
    """Sums over a run, and over all its processes."""

    messages: NDArray[np.int64]
    """int64 [workers, workers], from row to column; the numbers told before a round are none."""
    nbytes: NDArray[np.int64]
    """int64 [workers, workers], of messages and of the numbers told: what the ledger counts as received."""

    def to_csv(self) -> str:
        """Columns from, to, messages, bytes: a row for each ordered pair of ranks."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("from", "to", "messages", "bytes"))
        for sender, receiver in np.argwhere(~np.eye(len(self.nbytes), dtype=bool)).tolist():
            link = sender, receiver
            writer.writerow((*link, int(self.messages[link]), int(self.nbytes[link])))
        return text.getvalue()


class Head(NamedTuple):
    """The numbers with which a worker's message to every other one begins."""

    to_all: int
    """Bytes of what goes to all; -1 for nothing."""
    elements: int
    paper_bits: int
    refused: int
    """Which parameter was not finite; -1 for none."""
    single_bytes: int
    """Bytes of what goes to single workers."""
    single_messages: int
    """How many messages that is."""


HEAD = np.dtype([(name, np.int64) for name in Head._fields])
"""A `Head` in an array."""
Heads = NDArray[np.void]
"""HEAD [workers], by rank."""


@dataclass(frozen=True)
class Known:
    """What all workers know after rounds in which they only passed on. Nothing is sent."""

    heads: Heads
    """Of all these rounds together; nothing in them went to all."""
    told_bytes: int
    """Of the numbers that all workers told in these rounds."""


class RefusedUpdate(Exception):
    """A gradient was not finite; all workers learn of it in the same round.

    Attributes:
        rank: the first worker that met it.
        ordinal: of its first parameter affected.
    """

    def __init__(self, rank: int, ordinal: int) -> None:
        self.rank, self.ordinal = rank, ordinal
        super().__init__(f"parameter {ordinal} of worker {rank} is not finite")


_NUMBERS = ("wire_bytes", "elements", "paper_bits", "received_bytes", "messages")
_LINKS = ("link_bytes", "link_messages", "link_told")


@dataclass
class Traffic:
    """What went between workers."""

    workers: int
    wire_bytes: int = 0
    """Handed to the transport by all workers: what goes to all counts once, the numbers told before a round
    included."""
    elements: int = 0
    paper_bits: int = 0
    received_bytes: int = 0
    """Arrived at all workers together, the numbers told included."""
    messages: int = 0
    """Over all links, the numbers told not included."""
    link_bytes: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """int64 [workers, workers], bytes of messages from row to column. What goes between two workers of other
    processes, and not to all, is not known here and not in it."""
    link_messages: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """int64 [workers, workers], how many messages; likewise."""
    link_told: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """int64 [workers, workers], bytes of the numbers told with rounds; those told to one alone likewise."""

    def __post_init__(self) -> None:
        if not self.link_bytes.size:
            for name in _LINKS:
                setattr(self, name, np.zeros((self.workers, self.workers), np.int64))

    def add(self, other: "Traffic") -> None:
        """Adds another's sums to these."""
        for name in (*_NUMBERS, *_LINKS):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def state_dict(self) -> dict[str, Any]:
        """The sums as numbers and tensors."""
        return {
            "numbers": [getattr(self, name) for name in _NUMBERS],
            **{name: torch.from_numpy(getattr(self, name).copy()) for name in _LINKS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave; raises ValueError where it is of other workers."""
        links = [state[name].numpy().astype(np.int64) for name in _LINKS]
        if any(each.shape != (self.workers, self.workers) for each in links):
            raise ValueError(f"the links of {len(links[0])} workers, this run has {self.workers}")
        self.load_sums(state)
        self.link_bytes, self.link_messages, self.link_told = links

    def load_sums(self, state: dict[str, Any]) -> None:
        """Takes over all but the links, which may be those of another number of workers."""
        for name, number in zip(_NUMBERS, state["numbers"], strict=True):
            setattr(self, name, int(number))

    def count(self, heads: Heads, sizes: NDArray[np.int64] | None) -> None:
        """Counts one round; raises RefusedUpdate where a worker has no update.

        Args:
            heads: of all workers.
            sizes: int64 [workers, workers], bytes from row to column with 0 for nothing and for what is not
                known here; None where nobody sends anything but to all.
        """
        others, told, to_all = ~np.eye(self.workers, dtype=bool), HEAD.itemsize, heads["to_all"]
        self.link_told += told * others
        self.wire_bytes += told * self.workers + int(to_all[to_all > 0].sum())
        self.received_bytes += told * int(others.sum())
        self._count_numbers(heads)
        link_bytes = np.where(others, np.maximum(to_all, 0)[:, None], 0)
        self._count_links(link_bytes, np.where(others, (to_all >= 0)[:, None], 0))
        if sizes is not None:
            self.wire_bytes += int(heads["single_bytes"].sum())
            self.received_bytes += int(heads["single_bytes"].sum())
            self.messages += int(heads["single_messages"].sum())
            self.link_bytes += sizes
            self.link_messages += sizes > 0
        _look_for_refusals(heads)

    def count_passed(self, sender: int, receiver: int, size: int, told: int) -> None:
        """Notes what was passed on over one link; `count_known` counts what all workers passed on."""
        self.link_bytes[sender, receiver] += size
        self.link_messages[sender, receiver] += size > 0
        self.link_told[sender, receiver] += told

    def count_known(self, known: Known) -> None:
        """Counts rounds in which workers only passed on; raises as `count` does."""
        sent = int(known.heads["single_bytes"].sum()) + known.told_bytes
        self.wire_bytes += sent
        self.received_bytes += sent
        self._count_numbers(known.heads)
        self.messages += int(known.heads["single_messages"].sum())
        _look_for_refusals(known.heads)

    def count_gathered(self, heads: Heads, lengths: NDArray[np.int64], sites: Sites) -> None:
        """Counts a round in which all send to all, as `compressors.exchange.buckets` carries it out.

        There a worker without an update sends a message that says so; raises as `count` does.

        Args:
            heads: of all workers.
            lengths: int64 [workers], of the messages as they go.
            sites: where the workers are, which says over which links messages go.
        """
        self.wire_bytes += int(lengths @ sites.times_handed_over)
        self._count_numbers(heads)
        self._count_links(sites.over_links(lengths), sites.over_links(np.ones_like(lengths)))
        _look_for_refusals(heads)

    def count_all_reduce(self, heads: Heads) -> None:
        """Counts a round in which whole gradients go to all, as the DDP hook leaves them to all-reduce.

        What that receives is counted by the formula of a ring; raises as `count` does.
        """
        elements = int(heads["elements"].sum())
        steps = 2 * (self.workers - 1)
        self.wire_bytes += BASELINE_BYTES * elements
        self._count_numbers(heads)
        self.received_bytes += steps * BASELINE_BYTES * elements // self.workers
        self.messages += steps * self.workers
        ranks = np.arange(self.workers)
        after = (ranks + 1) % self.workers
        self.link_bytes[ranks, after] += steps * BASELINE_BYTES * heads["elements"] // self.workers
        self.link_messages[ranks, after] += steps
        _look_for_refusals(heads)

    def _count_numbers(self, heads: Heads) -> None:
        self.elements += int(heads["elements"].sum())
        self.paper_bits += int(heads["paper_bits"].sum())

    def _count_links(self, link_bytes: NDArray[np.int64], link_messages: NDArray[np.int64]) -> None:
        self.received_bytes += int(link_bytes.sum())
        self.messages += int(link_messages.sum())
        self.link_bytes += link_bytes
        self.link_messages += link_messages


def _look_for_refusals(heads: Heads) -> None:
    refusing = np.flatnonzero(heads["refused"] >= 0)
    if refusing.size:
        raise RefusedUpdate(int(refusing[0]), int(heads["refused"][refusing[0]]))
