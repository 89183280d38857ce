"""The connections of the mode `async`: they deliver each sender's updates in order."""

import socket
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import numpy as np

from taugrad.compressors.errors import PeerLost
from taugrad.compressors.spans import RECORDER
from taugrad.compressors.wire.message import is_refusal

from .connections import Connections, Peer
from .mail import Inbox
from .message import ALIVE, ENDED, HEAD, UPDATE, Head, Message, read_head, read_update, signal

Enough = Callable[[Inbox, Mapping[int, int]], Sequence[int] | None]
"""Gets what has arrived and, by worker, the step before which it last said that it stops until a drain.
Returns, by sender, the number before which messages are taken; None if not enough has arrived."""


class Mesh(Connections[Head]):
    """This process's worker among the others, one a process."""

    head_bytes = HEAD.size

    def __init__(
        self,
        rank: int,
        connections: Sequence[socket.socket | None],
        *,
        silent_after_s: float,
        waits: bool,
        most_bytes: int,
    ) -> None:
        """Takes charge of connections, and starts the thread.

        Args:
            rank: of this process's worker.
            connections: by rank, to each other worker.
            silent_after_s: how long a worker may be silent before it counts as lost.
            waits: a silent one is waited for all the same, and the log says so.
            most_bytes: that the payload of a message may have.
        """
        super().__init__(rank, connections, silent_after_s=silent_after_s, waits=waits)
        self._most_bytes = most_bytes
        self._inbox = Inbox(self.workers)
        self._ended = {peer.rank: 0 for peer in self._peers}
        """By worker, the step before which it last ended."""
        self._start()

    def send(self, pieces: Sequence[bytes]) -> None:
        """Starts to send these bytes to every other worker; does not wait."""
        with self._changed:
            for peer in self._peers:
                if not peer.lost:
                    self._leaving[peer.rank].extend(memoryview(piece) for piece in pieces if piece)
        self._wake_up()

    def take(self, enough: Enough) -> list[Message]:
        """Waits for enough messages, and returns each sender's in order.

        Raises:
            PeerLost: a worker is gone, or has been silent for too long.
            CorruptMessage: a worker sent something that is not a message.
        """
        with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                if (lost := self._lost()) is not None:
                    # A worker that refuses its gradient says so before it ends.
                    refusals = [each for each in self._inbox.take() if is_refusal(each.payload)]
                    if refusals:
                        return refusals[:1]
                    raise lost
                wanted = enough(self._inbox, self._ended)
                if wanted is not None:
                    return self._inbox.take(wanted)
                self._changed.wait()

    def begin(self, step: int) -> None:
        """Called when all workers are drained and continue with this step."""
        with self._changed:
            self._inbox.begin(step)

    def _lost(self) -> PeerLost | None:
        for peer in self._peers:
            if peer.lost:
                return PeerLost(peer.rank, peer.lost)
            if peer.silent and not self._waits:
                return PeerLost(peer.rank, f"has been silent for {self._silent_after_s:g} s")
        return None

    def _sign_of_life(self) -> bytes:
        return signal(ALIVE)

    def _read_head(self, data: bytes) -> tuple[Head, int]:
        head = read_head(data, self._most_bytes)
        return head, head.rest(self.workers)

    def _arrived(self, peer: Peer[Head], head: Head, rest: bytearray) -> None:
        if head.kind == UPDATE:
            RECORDER.add("exchange", "wire", peer.began, perf_counter(), f"from worker {peer.rank}")
            arrived = np.frombuffer(rest, np.uint8)
            self._inbox.put(read_update(peer.rank, head, arrived, self.workers))
        elif head.kind == ENDED:
            self._ended[peer.rank] = head.number
