"""Exchanges messages between all workers, through torch.distributed (gloo or NCCL).

Messages have different lengths, and no worker knows the others' lengths. Through gloo, a message is sent at
once, with its length before it: the receiver has posted a larger buffer steps earlier (`mailbox.py`), and
gloo accepts a shorter message. NCCL needs equal lengths on both sides: lengths are sent first there.

If slow links connect sites of workers, a message goes to each other site once, and is forwarded there
(`sites.py`).
"""

import hashlib
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from ..ops.array import Bytes
from .gathering import SIZE_BYTES, Exact, Gathering
from .mailbox import Expected, Mailbox
from .sealing import Seal
from .sites import Sites

ExchangeForm = Literal["exact", "hierarchical"]

_ROOM, _ROOM_BYTES = 2, 4096
"""The size of a receiver's buffer: this factor times the longest message, plus this many bytes. It costs
memory only."""


class Exchange:
    """Chooses how messages are sent, and remembers how long they are.

    Attributes:
        capacities: by bucket, the bytes of the longest message of the previous exchange, the same number on
            every worker.
        sites: for hierarchical, the sites of the workers; None until the first exchange if hosts decide.
        link_bytes: int64 [workers, workers], what went from row to column so far, lengths included; None in
            the form exact: there the transport decides over which links bytes go.
        link_messages: likewise, how many messages that was.
    """

    def __init__(
        self,
        form: ExchangeForm,
        sites: Sites | None = None,
        key: bytes | None = None,
    ) -> None:
        self.form, self.sites = form, sites
        self._key = key
        self._seal: Seal | None = None
        self._turns: dict[int, int] = {}
        self.capacities: dict[int, int] = {}
        self.link_bytes: NDArray[np.int64] | None = None
        self.link_messages: NDArray[np.int64] | None = None
        self._mailbox: Mailbox | None = None

    def start(
        self, message: Bytes | Tensor, bucket: int, group: dist.ProcessGroup, device: torch.device
    ) -> Gathering:
        """Starts to exchange messages of different lengths.

        Args:
            message: uint8, this worker's, in the CPU's memory.
            bucket: the unique number of the bucket that it is about.
            group: the process group; all workers must call this in the same order.
            device: the device on which the transport needs its buffers: the CPU for gloo, the GPU for NCCL.
        """
        own = self._sealed(torch.as_tensor(message), bucket)
        usual = self.capacities.get(bucket)
        if self.form == "hierarchical":
            return self._between_sites(own, bucket, group)
        if device.type == "cpu":
            mailbox = self._mailbox = self._mailbox or Mailbox(group)
            if usual is not None:
                mailbox.expect(bucket, room_for(usual))  # after a checkpoint was loaded; else it is ready
                return Expected(own, group, mailbox, bucket)
        return Exact(own, group, device)

    def meet(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """Before the first exchange: checks that all workers have the same key, if messages get tags.

        All must call this at the same point.

        Raises:
            WorkersDisagree: on every worker, if one has another key.
        """
        if self._key is not None and self._seal is None:
            self._seal = Seal.meet(self._key, group, device)

    @property
    def is_authenticated(self) -> bool:
        """Whether messages get tags, which only a holder of the key can make."""
        return self._key is not None

    def _sealed(self, own: Tensor, bucket: int) -> Tensor:
        """A message as it is sent: with its tag, if messages get any."""
        if self._key is None:
            return own
        assert self._seal is not None, "workers meet before their first exchange"
        turn = self._turns[bucket] = self._seal.turn(bucket)
        return torch.from_numpy(self._seal.sealed(own.numpy(), bucket, turn))

    def opened(self, gathering: Gathering, bucket: int) -> tuple[Tensor, Sequence[int]]:
        """What has arrived about a bucket; if messages get tags, they are checked.

        Args:
            gathering: of this exchange about the bucket, complete.
            bucket: its number.

        Returns:
            uint8 [workers, longest or more], row r begins with worker r's message, and the messages' lengths.

        Raises:
            CorruptMessage: a message does not have its tag.
        """
        rows = gathering.rows()
        if self._seal is None:
            return rows, gathering.sizes
        return rows, self._seal.check_rows(rows, gathering.sizes, bucket, self._turns[bucket])

    def opened_each(self, gathering: Gathering, bucket: int) -> Sequence[Tensor]:
        """`opened`, but each worker's message, uint8."""
        if self._seal is None:
            return gathering.messages()
        rows, sizes = self.opened(gathering, bucket)
        return [row[:size] for row, size in zip(rows, sizes, strict=True)]

    def _between_sites(self, own: Tensor, bucket: int, group: dist.ProcessGroup) -> Gathering:
        if self._mailbox is None:
            self.sites = self.sites or Sites.by_place(places_of(group))
            self._mailbox = Mailbox(group, self.sites)
        # Much may follow later of what is not known yet; to send lengths first would also cost a delay.
        self._mailbox.expect(bucket, room_for(self.capacities.get(bucket, 0)))
        return Expected(own, group, self._mailbox, bucket)

    def learn(self, bucket: int, sizes: Sequence[int]) -> None:
        """Records how long the messages about a bucket were."""
        if self.form == "hierarchical":
            self._count_links(sizes)
        self.capacities[bucket] = longest = max(sizes)
        if self._mailbox is not None:
            self._mailbox.expect(bucket, room_for(longest))

    def links_state(self) -> dict[str, Tensor]:
        """What was sent over each link so far, for `load_links_state`; nothing if links are not known."""
        if self.link_bytes is None or self.link_messages is None:
            return {}
        return {
            "link_bytes": torch.from_numpy(self.link_bytes.copy()),
            "link_messages": torch.from_numpy(self.link_messages.copy()),
        }

    def load_links_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `links_state` returned; what went before in another form is not known."""
        if self.form == "hierarchical" and "link_bytes" in state:
            self.link_bytes = state["link_bytes"].numpy().copy()
            self.link_messages = state["link_messages"].numpy().copy()

    def _count_links(self, sizes: Sequence[int]) -> None:
        assert self.sites is not None
        if self.link_bytes is None or self.link_messages is None:
            self.link_bytes, self.link_messages = np.zeros((2, len(sizes), len(sizes)), np.int64)
        self.link_bytes += self.sites.over_links(np.array(sizes) + SIZE_BYTES)
        self.link_messages += self.sites.over_links(np.ones(len(sizes), np.int64))


def room_for(longest: int) -> int:
    """The size of a receiver's buffer, by the longest message of the previous exchange."""
    return _ROOM * longest + _ROOM_BYTES


def places_of(group: dist.ProcessGroup | None = None, place: str | None = None) -> list[bytes]:
    """The place of each worker, by rank, as digests; all must call this together.

    Args:
        group: the workers', of gloo; by default all.
        place: this worker's; by default the name of its host.
    """
    own = hashlib.sha256((place or socket.gethostname()).encode()).digest()
    everybody = [torch.empty(len(own), dtype=torch.uint8) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everybody, torch.frombuffer(bytearray(own), dtype=torch.uint8), group=group)
    return [bytes(each.tolist()) for each in everybody]
