"""What went between workers: the counts of every round, and the traffic of each link."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..bucket.ledger import BASELINE_BYTES, Totals
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
        links = np.nonzero(~np.eye(len(self.nbytes), dtype=bool))
        rows = np.stack([*links, self.messages[links], self.nbytes[links]], axis=1).tolist()
        return "".join(f"{','.join(map(str, row))}\n" for row in [("from", "to", "messages", "bytes"), *rows])


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


_NUMBERS = ("wire_bytes", "sent", "paper_bits", "received_bytes", "messages")
_LINKS = ("link_bytes", "link_messages", "link_told")


class Traffic:
    """What went between workers.

    Attributes:
        workers: how many there are.
        sums: over all workers. Bytes are handed over once where they go to all; they include the numbers that
            are told before a round, which are no messages.
        link_bytes: int64 [workers, workers], bytes of messages from row to column. What goes between two
            workers of other processes, and not to all, is not known here and not in it.
        link_messages: likewise, how many messages.
        link_told: likewise, bytes of the numbers told with rounds.
    """

    def __init__(self, workers: int) -> None:
        self.workers, self.sums = workers, Totals()
        self.link_bytes, self.link_messages, self.link_told = np.zeros((3, workers, workers), np.int64)

    def add(self, other: "Traffic") -> None:
        """Adds another's sums to these."""
        self.sums.add(other.sums)
        for name in _LINKS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def state_dict(self) -> dict[str, Any]:
        """The sums as numbers and tensors."""
        return {
            "numbers": [getattr(self.sums, name) for name in _NUMBERS],
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
        self.sums = Totals(**dict(zip(_NUMBERS, map(int, state["numbers"]), strict=True)))

    def count(self, heads: Heads, sizes: NDArray[np.int64] | None) -> None:
        """Counts one round; raises RefusedUpdate where a worker has no update.

        Args:
            heads: of all workers.
            sizes: int64 [workers, workers], bytes from row to column with 0 for nothing and for what is not
                known here; None where nobody sends anything but to all.
        """
        others, to_all = ~np.eye(self.workers, dtype=bool), heads["to_all"]
        self.link_told += HEAD.itemsize * others
        self.sums.wire_bytes += HEAD.itemsize * self.workers + int(to_all[to_all > 0].sum())
        self.sums.received_bytes += HEAD.itemsize * int(others.sum())
        if sizes is not None:
            self._count_singles(heads)
            self.link_bytes += sizes
            self.link_messages += sizes > 0
        self._count(heads, np.maximum(to_all, 0)[:, None] * others, (to_all >= 0)[:, None] & others)

    def count_passed(self, sender: int, receiver: int, size: int, told: int) -> None:
        """Notes what was passed on over one link; `count_known` counts what all workers passed on."""
        self.link_bytes[sender, receiver] += size
        self.link_messages[sender, receiver] += size > 0
        self.link_told[sender, receiver] += told

    def count_known(self, known: Known) -> None:
        """Counts rounds in which workers only passed on; raises as `count` does."""
        self.sums.wire_bytes += known.told_bytes
        self.sums.received_bytes += known.told_bytes
        self._count_singles(known.heads)
        self._count(known.heads, 0, 0)

    def count_gathered(self, heads: Heads, lengths: NDArray[np.int64], sites: Sites) -> None:
        """Counts a round in which all send to all, as `compressors.exchange.buckets` carries it out.

        There a worker without an update sends a message that says so: the lengths, int64 [workers], are of
        the messages as they go, and sites say over which links. Raises as `count` does.
        """
        self.sums.wire_bytes += int(lengths @ sites.times_handed_over)
        self._count(heads, sites.over_links(lengths), sites.over_links(np.ones_like(lengths)))

    def count_all_reduce(self, heads: Heads) -> None:
        """Counts a round in which whole gradients go to all, as the DDP hook leaves them to all-reduce.

        What that receives is counted by the formula of a ring; raises as `count` does.
        """
        nbytes, steps = BASELINE_BYTES * heads["elements"], 2 * (self.workers - 1)
        self.sums.wire_bytes += int(nbytes.sum())
        self.sums.received_bytes += steps * int(nbytes.sum()) // self.workers
        self.sums.messages += steps * self.workers
        ranks = np.arange(self.workers)
        after = (ranks + 1) % self.workers
        self.link_bytes[ranks, after] += steps * nbytes // self.workers
        self.link_messages[ranks, after] += steps
        self._count(heads, 0, 0)

    def _count_singles(self, heads: Heads) -> None:
        """What went to single workers."""
        self.sums.wire_bytes += int(heads["single_bytes"].sum())
        self.sums.received_bytes += int(heads["single_bytes"].sum())
        self.sums.messages += int(heads["single_messages"].sum())

    def _count(self, heads: Heads, link_bytes: NDArray[Any] | int, link_messages: NDArray[Any] | int) -> None:
        """What goes over each link, and the heads' numbers; raises where one says that it has no update."""
        self.sums.received_bytes += int(np.sum(link_bytes))
        self.sums.messages += int(np.sum(link_messages))
        self.link_bytes += link_bytes
        self.link_messages += link_messages
        self.sums.sent += int(heads["elements"].sum())
        self.sums.paper_bits += int(heads["paper_bits"].sum())
        refusing = np.flatnonzero(heads["refused"] >= 0)
        if refusing.size:
            raise RefusedUpdate(int(refusing[0]), int(heads["refused"][refusing[0]]))
