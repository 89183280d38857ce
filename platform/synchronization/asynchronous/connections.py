"""TCP connections between all processes, and a thread that sends and receives in the background.

The operations of torch's process groups must be called by all workers in the same order. Here, nobody knows
when another worker sends next, or how much. So there are separate TCP connections, on the address on which
gloo listens. They are opened with a secret that the process group distributes. The thread reads whatever
arrives, also from a worker that is far ahead, and keeps what could not be sent yet.
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
"""Number of signs of life that a worker sends in the time after which it would count as lost."""
_LEAVING_S = 5.0
"""How long a process may take at its end to send what is left, in seconds."""

log = logging.getLogger("taugrad")

H = TypeVar("H")
"""The type of a head that was read."""


@dataclass
class Peer(Generic[H]):
    """A connection to another worker. Only the thread uses it, except for `lost` and `silent`."""

    rank: int
    connection: socket.socket
    heard: float
    buffer: bytearray
    head: H | None = None
    filled: int = 0
    began: float = 0.0
    """When the first bytes of the current message arrived, in seconds of `perf_counter`."""
    lost: str = ""
    """Why the connection cannot be used any more; empty if it can."""
    silent: bool = False
    events: int = selectors.EVENT_READ
    """The events that the thread waits for."""


class Connections(ABC, Generic[H]):
    """The connections of this process's worker; there is one worker in each process.

    Everything on a connection is a head of a fixed length, followed by as many bytes as the head says. A
    subclass defines the messages.
    """

    head_bytes: int
    """Of every head."""

    def __init__(
        self, rank: int, connections: Sequence[socket.socket | None], *, silent_after_s: float, waits: bool
    ) -> None:
        """Takes charge of connections; `_start` starts the thread.

        Args:
            rank: of this process's worker.
            connections: to each other worker, by rank.
            silent_after_s: how long a worker may be silent before it counts as lost.
            waits: whether to wait for a silent worker all the same; the log says so.
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
        """Sends what is left, for a few seconds at most, and ends the thread."""
        with self._changed:
            self._closing = True
        self._wake_up()
        self._thread.join(_LEAVING_S + 1)

    def _wake_up(self) -> None:
        with suppress(OSError):  # the thread has enough wake-ups to read, or has ended
            self._wake.send(b"\0")

    @abstractmethod
    def _sign_of_life(self) -> bytes:
        """The message that a worker sends if it has nothing else to send."""

    @abstractmethod
    def _read_head(self, data: bytes) -> tuple[H, int]:
        """A head, and how many bytes follow it; raises CorruptMessage."""

    @abstractmethod
    def _arrived(self, peer: Peer[H], head: H, rest: bytearray) -> None:
        """Called with each whole message. The lock is held; waiting threads are notified afterwards."""

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
                # This process itself was stopped, so the silence says nothing about the others.
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
