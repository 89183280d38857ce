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
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Generic, TypeVar

from taugrad.compressors.errors import CorruptMessage

_SIGNS_OF_LIFE = 4
"""How many a worker gives in the time after which it counts as lost."""
_LEAVING_S = 5.0
"""How long a process that ends may go on handing over what it has sent."""

log = logging.getLogger("taugrad")

H = TypeVar("H")
"""What a head says, once it is read."""


@dataclass
class Peer(Generic[H]):
    """A connection to another worker; the thread's own but for `lost` and `silent`."""

    rank: int
    connection: socket.socket
    heard: float
    buffer: bytearray
    head: H | None = None
    filled: int = 0
    began: float = 0.0
    """When the first bytes of what arrives did, in seconds of `perf_counter`."""
    lost: str = ""
    """Why the connection is no longer of use."""
    silent: bool = False
    events: int = selectors.EVENT_READ
    """What the thread waits for."""


class Connections(ABC, Generic[H]):
    """This process's worker among the others, one a process. What goes between them, a subclass says.

    Everything on a connection is a head of a fixed length, and what it announces.
    """

    head_bytes: int
    """Of every head."""

    def __init__(
        self, rank: int, connections: Sequence[socket.socket | None], *, silent_after_s: float, waits: bool
    ) -> None:
        """Takes charge of connections; `_start` starts the thread.

        Args:
            rank: of this process's worker.
            connections: by rank, to each other worker.
            silent_after_s: how long a worker may be silent before it counts as lost.
            waits: a silent one is waited for all the same, and the log says so.
        """
        self.rank, self.workers = rank, len(connections)
        self._silent_after_s, self._waits = silent_after_s, waits
        self._changed = threading.Condition()
        self._leaving: list[deque[memoryview]] = [deque() for _ in connections]
        self._failure: Exception | None = None
        self._closing = False
        now = monotonic()
        self._peers = [
            Peer[H](other, connection, now, bytearray(self.head_bytes))
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

    def _start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Hands over what was sent, for some seconds at most, and ends."""
        with self._changed:
            self._closing = True
        self._wake_up()
        self._thread.join(_LEAVING_S + 1)

    def _wake_up(self) -> None:
        with suppress(OSError):  # it has been told often enough, or has ended
            self._wake.send(b"\0")

    @abstractmethod
    def _sign_of_life(self) -> bytes:
        """What a worker sends that has nothing to say."""

    @abstractmethod
    def _read_head(self, data: bytes) -> tuple[H, int]:
        """A head, and how many bytes follow it; raises CorruptMessage."""

    @abstractmethod
    def _arrived(self, peer: Peer[H], head: H, rest: bytearray) -> None:
        """Something is whole; the lock is held, and whoever waits is told afterwards."""

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
                self._leaving[peer.rank].append(memoryview(self._sign_of_life()))
            if now - peer.heard > self._silent_after_s and not peer.silent and not peer.lost:
                peer.silent = True
                if self._waits:
                    log.warning(
                        "worker %d has been silent for %g s; waiting", peer.rank, self._silent_after_s
                    )
                self._changed.notify_all()

    def _write(self, peer: Peer[H]) -> None:
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

    def _read(self, peer: Peer[H]) -> None:
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

    def _understand(self, peer: Peer[H]) -> None:
        """A head is whole, or what follows it."""
        rest = bytearray()
        try:
            if peer.head is None:
                peer.head, size = self._read_head(bytes(peer.buffer))
                if size:
                    peer.buffer, peer.filled = bytearray(size), 0
                    return
            else:
                rest = peer.buffer
            with self._changed:
                self._arrived(peer, peer.head, rest)
                self._changed.notify_all()
        except CorruptMessage as reason:
            raise CorruptMessage(f"what worker {peer.rank} sent: {reason}") from None
        peer.head, peer.buffer, peer.filled = None, bytearray(self.head_bytes), 0

    def _lose(self, peer: Peer[H], reason: str) -> None:
        self._selector.unregister(peer.connection)
        with self._changed:
            peer.lost = reason
            self._leaving[peer.rank].clear()
            self._changed.notify_all()
