"""The connections of workers whose rounds close with a quorum."""

import socket
from collections.abc import Iterable, Sequence
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from ..asynchronous.connections import Connections, Peer
from .message import HEAD, Head, Kind, Received, check, read_head, written

_SILENT_S = 10.0
"""Seconds of silence after which a worker is not asked for anything, if another one can be asked."""


class Post(Connections[Head]):
    """The connections of this process's worker. A worker that is gone is left out; this is not an error.

    Attributes:
        link_bytes: int64 [workers], bytes of messages that this worker has sent to each other one.
        link_messages: int64 [workers], how many messages.
    """

    head_bytes = HEAD.size

    def __init__(
        self, rank: int, connections: Sequence[socket.socket | None], *, most_bytes: int, replaces: bool
    ) -> None:
        """Takes charge of connections, and starts the thread.

        Args:
            rank: of this process's worker.
            connections: by rank, to each other worker.
            most_bytes: the largest size of a body.
            replaces: whether an offer replaces an earlier one that has not left yet. It may where a worker
                that misses an offer takes over the round's result instead.
        """
        super().__init__(rank, connections, silent_after_s=_SILENT_S, waits=False)
        self._most_bytes, self._replaces = most_bytes, replaces
        self._inbox: list[Received] = []
        self._offers: list[memoryview | None] = [None] * self.workers
        """The latest offer on its way to each worker."""
        self.link_bytes: NDArray[np.int64] = np.zeros(self.workers, np.int64)
        self.link_messages: NDArray[np.int64] = np.zeros(self.workers, np.int64)
        self._start()

    @property
    def lost(self) -> dict[int, str]:
        """Workers that are gone, and why."""
        return {peer.rank: peer.lost for peer in self._peers if peer.lost}

    @property
    def silent(self) -> set[int]:
        """Workers from which nothing has arrived for a while, including those that are gone."""
        return {peer.rank for peer in self._peers if peer.silent or peer.lost}

    def send(self, to: Iterable[int], kind: Kind, number: int, body: bytes = b"") -> int:
        """Starts to send a message; does not wait.

        Returns:
            The number of bytes.
        """
        message = memoryview(written(kind, number, body))
        with self._changed:
            for peer in self._peers:
                if peer.rank in to and not peer.lost:
                    self._put(peer.rank, message, kind)
        self._wake_up()
        return len(message)

    def _put(self, rank: int, message: memoryview, kind: Kind) -> None:
        leaving = self._leaving[rank]
        if kind is Kind.OFFER and self._replaces:
            for place, each in enumerate(leaving):
                if each is self._offers[rank]:
                    del leaving[place]
                    self._count(rank, -1, -len(each))
                    break
            self._offers[rank] = message
        leaving.append(message)
        if kind is not Kind.READY:
            self._count(rank, 1, len(message))

    def _count(self, rank: int, messages: int, nbytes: int) -> None:
        self.link_messages[rank] += messages
        self.link_bytes[rank] += nbytes

    def take(self, wait_s: float) -> list[Received]:
        """Waits until something has arrived, and returns it, each sender's messages in order.

        Args:
            wait_s: the longest time to wait, in seconds. It ends early if a worker is lost.

        Raises:
            CorruptMessage: a worker sent something that is not a message.
        """
        end, lost = monotonic() + wait_s, len(self.lost)
        with self._changed:
            while not self._inbox and self._failure is None and len(self.lost) == lost:
                left = end - monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            if self._failure is not None:
                raise self._failure
            inbox, self._inbox = self._inbox, []
            return inbox

    def _sign_of_life(self) -> bytes:
        return written(Kind.ALIVE, 0)

    def _read_head(self, data: bytes) -> tuple[Head, int]:
        head = read_head(data, self._most_bytes)
        return head, head.size

    def _arrived(self, peer: Peer[Head], head: Head, rest: bytearray) -> None:
        check(head, rest)
        if head.kind is not Kind.ALIVE:
            body = np.frombuffer(rest, np.uint8)
            self._inbox.append(Received(peer.rank, head.kind, head.number, body))
