"""Connections between all processes, and a thread that sends and receives beside everything else.

Torch's process groups have operations that all workers make in the same order. Here nobody knows when, or
how much, another one sends next. So these are connections of their own: TCP, on the address where gloo
listens, opened with a secret that the process group hands round. The thread reads whatever arrives, also
from a worker that is far ahead, and keeps what could not leave yet.
"""

import logging
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic, perf_counter

import numpy as np

from taugrad.compressors.errors import CorruptMessage, PeerLost
from taugrad.compressors.spans import RECORDER
from taugrad.compressors.wire.message import is_refusal

from .mail import Inbox
from .message import ALIVE, ENDED, HEAD, UPDATE, Head, Message, read_head, read_update, signal

_SIGNS_OF_LIFE = 4
"""How many a worker gives in the time after which it counts as lost."""
_LEAVING_S = 5.0
"""How long a process that ends may go on handing over what it has sent."""

log = logging.getLogger("taugrad")


Enough = Callable[[Inbox, Mapping[int, int]], Sequence[int] | None]
"""Is told what has arrived, and by worker the step from which on it last said to make none before a drain.
Returns by sender the number before which messages are to be taken; None: not enough is there."""


@dataclass
class _Peer:
    """A connection to another worker; the thread's own but for `lost` and `ended`."""

    rank: int
    connection: socket.socket
    heard: float
    head: Head | None = None
    buffer: bytearray = field(default_factory=lambda: bytearray(HEAD.size))
    filled: int = 0
    began: float = 0.0
    """When the first bytes of what arrives did, in seconds of `perf_counter`."""
    lost: str = ""
    """Why the connection is no longer of use."""
    silent: bool = False
    events: int = selectors.EVENT_READ
    """What the thread waits for."""
    ended: int = 0
    """The step before which it last ended."""


class Mesh:
    """This process's worker among the others, one a process."""

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
        self.rank, self.workers = rank, len(connections)
        self._silent_after_s, self._waits, self._most_bytes = silent_after_s, waits, most_bytes
        self._changed = threading.Condition()
        self._inbox = Inbox(self.workers)
        self._leaving: list[deque[memoryview]] = [deque() for _ in connections]
        self._failure: Exception | None = None
        self._closing = False
        now = monotonic()
        self._peers = [
            _Peer(other, connection, now)
            for other, connection in enumerate(connections)
            if connection is not None
        ]
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        for own in (self._wake, self._woken, *(peer.connection for peer in self._peers)):
            own.setblocking(False)
        for peer in self._peers:
            self._selector.register(peer.connection, selectors.EVENT_READ, peer)
        self._thread = threading.Thread(target=self._run, name="messages", daemon=True)
        self._thread.start()

    def send(self, pieces: Sequence[bytes]) -> None:
        """These bytes begin their way to every other worker; does not wait."""
        with self._changed:
            for peer in self._peers:
                if not peer.lost:
                    self._leaving[peer.rank].extend(memoryview(piece) for piece in pieces if piece)
        self._wake_up()

    def take(self, enough: Enough) -> list[Message]:
        """Each sender's messages in their order, once there are enough.

        Raises:
            PeerLost: a worker is gone, or has been silent for too long.
            CorruptMessage: a worker sent what is no message.
        """
        with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                if (lost := self._lost()) is not None:
                    # A worker that refuses its gradient says so before it goes.
                    refusals = [each for each in self._inbox.take() if is_refusal(each.payload)]
                    if refusals:
                        return refusals[:1]
                    raise lost
                wanted = enough(self._inbox, {peer.rank: peer.ended for peer in self._peers})
                if wanted is not None:
                    return self._inbox.take(wanted)
                self._changed.wait()

    def begin(self, step: int) -> None:
        """All are drained, and go on with this step."""
        with self._changed:
            self._inbox.begin(step)

    def close(self) -> None:
        """Hands over what was sent, for some seconds at most, and ends."""
        with self._changed:
            self._closing = True
        self._wake_up()
        self._thread.join(_LEAVING_S + 1)

    def _lost(self) -> PeerLost | None:
        for peer in self._peers:
            if peer.lost:
                return PeerLost(peer.rank, peer.lost)
            if peer.silent and not self._waits:
                return PeerLost(peer.rank, f"has been silent for {self._silent_after_s:g} s")
        return None

    def _wake_up(self) -> None:
        with suppress(OSError):  # it has been told often enough, or has ended
            self._wake.send(b"\0")

    # What follows runs in the thread.

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # whoever waits is told
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        finally:
            for peer in self._peers:
                peer.connection.close()
            self._wake.close()
            self._woken.close()
            self._selector.close()

    def _serve(self) -> None:
        interval = self._silent_after_s / _SIGNS_OF_LIFE
        next_sign, before, closing_at = monotonic() + interval, monotonic(), None
        while True:
            for key, events in self._selector.select(min(interval, 1.0)):
                if key.data is None:
                    self._woken.recv(4096)
                elif events & selectors.EVENT_READ:
                    self._read(key.data)
            now = monotonic()
            if now - before > self._silent_after_s / 2:
                # This process was stopped itself: that says nothing about the others.
                for peer in self._peers:
                    peer.heard += now - before
            before = now
            with self._changed:
                if now >= next_sign:
                    next_sign = now + interval
                    self._give_sign_of_life(now)
                for peer in self._peers:
                    self._write(peer)
                if self._closing:
                    closing_at = closing_at or now
                    left = any(self._leaving[peer.rank] for peer in self._peers if not peer.lost)
                    if not left or now - closing_at > _LEAVING_S:
                        return

    def _give_sign_of_life(self, now: float) -> None:
        for peer in self._peers:
            if not self._leaving[peer.rank] and not peer.lost:
                self._leaving[peer.rank].append(memoryview(signal(ALIVE)))
            if now - peer.heard > self._silent_after_s and not peer.silent and not peer.lost:
                peer.silent = True
                if self._waits:
                    log.warning(
                        "worker %d has been silent for %g s; waiting", peer.rank, self._silent_after_s
                    )
                self._changed.notify_all()

    def _write(self, peer: _Peer) -> None:
        leaving = self._leaving[peer.rank]
        while leaving and not peer.lost:
            try:
                sent = peer.connection.send(leaving[0])
            except BlockingIOError:
                break
            except OSError as error:
                self._lose(peer, f"is gone: {error.strerror}")
                return
            if sent == len(leaving[0]):
                leaving.popleft()
            else:
                leaving[0] = leaving[0][sent:]
        if not peer.lost:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if leaving else 0)
            if events != peer.events:
                peer.events = events
                self._selector.modify(peer.connection, events, peer)

    def _read(self, peer: _Peer) -> None:
        while not peer.lost:
            try:
                count = peer.connection.recv_into(memoryview(peer.buffer)[peer.filled :])
            except BlockingIOError:
                return
            except OSError as error:
                self._lose(peer, f"is gone: {error.strerror}")
                return
            if not count:
                self._lose(peer, "is gone: its connection was closed")
                return
            if peer.head is None and not peer.filled:
                peer.began = perf_counter()
            peer.filled, peer.heard = peer.filled + count, monotonic()
            if peer.silent:
                with self._changed:
                    peer.silent = False
            if peer.filled == len(peer.buffer):
                self._understand(peer)

    def _understand(self, peer: _Peer) -> None:
        """A head is whole, or what follows it."""
        if peer.head is None:
            try:
                head = read_head(bytes(peer.buffer), self._most_bytes)
            except CorruptMessage as reason:
                raise CorruptMessage(f"what worker {peer.rank} sent: {reason}") from None
            if rest := head.rest(self.workers):
                peer.head, peer.buffer, peer.filled = head, bytearray(rest), 0
                return
        else:
            head = peer.head
        with self._changed:
            if head.kind == UPDATE:
                RECORDER.add("exchange", "wire", peer.began, perf_counter(), f"from worker {peer.rank}")
                rest_of_it = np.frombuffer(peer.buffer, np.uint8)
                self._inbox.put(read_update(peer.rank, head, rest_of_it, self.workers))
            elif head.kind == ENDED:
                peer.ended = head.number
            self._changed.notify_all()
        peer.head, peer.buffer, peer.filled = None, bytearray(HEAD.size), 0

    def _lose(self, peer: _Peer, reason: str) -> None:
        self._selector.unregister(peer.connection)
        with self._changed:
            peer.lost = reason
            self._leaving[peer.rank].clear()
            self._changed.notify_all()
