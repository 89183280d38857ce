"""A member's connections to the coordinator and to each other member.

A thread moves messages and lets the `Member` answer them, whatever the training does meanwhile.
"""

import logging
from collections.abc import Callable
from threading import Condition, RLock, Thread
from time import monotonic
from typing import Any

import numpy as np
import zmq

from ...errors import CorruptMessage, MemberRefused
from . import sockets
from .member import COORDINATOR, Member, Sends, Step
from .messages import Chunk, Hello, Want, from_bytes, to_bytes

QUIET_S = 5.0
"""What is waited for is told after so long."""
_REFUSED_S = 3.0
"""Who closes each connection for so long will not take one: one that is just started takes less."""
_REACH_S = 10.0
"""A member that cannot be connected to for so long, and has not left, is told. Nothing more is sent to it: it
asks later."""

log = logging.getLogger("taugrad")


class Session:
    """Runs a member's side of rounds between processes. Any thread may call it.

    Its thread refers to it, so that it is never collected: close it.

    Attributes:
        member: use it in `call`, or within `lock`.
    """

    def __init__(
        self, coordinator: str, key: bytes, hello: Hello, *, host: str, most_bytes: int, wait_s: float = 600.0
    ) -> None:
        """Connects, and says hello.

        Args:
            coordinator: HOST:PORT.
            key: the run's.
            hello: as `Member` takes it; `endpoint` is filled in.
            host: this machine's address, as the other members reach it.
            most_bytes: a longer message from a member closes its connection.
            wait_s: see `Member`.

        Raises:
            OSError: nothing can listen at `host`.
            ValueError: the key is too short, or `coordinator` is no address.
        """
        self.lock = RLock()
        self._changed, self._key, self._process = Condition(self.lock), key, hello.process
        self._listener = sockets.Listener(host, 0, key, sockets.MEMBER, most_bytes)
        self._address, self._is_in = coordinator, False
        self._coordinator = self._connect(coordinator, sockets.COORDINATOR)
        self._listener.watch(self._coordinator.socket)
        self._peers: dict[int, sockets.Connection] = {}
        """By incarnation."""
        self._out_of_reach = set[int]()
        """Incarnations; each is logged once."""
        hello = hello.model_copy(update={"endpoint": self._listener.address})
        self.member = Member(hello, monotonic(), wait_s=wait_s)
        self._closing, self._waits_for, self._logs_at = False, "", float("inf")
        self._thread = Thread(target=self._run, name="taugrad-member", daemon=True)
        self._thread.start()

    def _connect(self, address: str, listener: int) -> sockets.Connection:
        dealer = sockets.dealer(self._listener.context, address, self._key, listener, self._process)
        return sockets.Connection(dealer, monotonic())

    # What the training calls.

    def call(self, method: Callable[..., None], *arguments: Any) -> None:
        """Calls one of the member's methods, and sends what follows from it."""
        with self.lock:
            method(*arguments)
            self._wake()

    def next(self) -> Step | None:
        """See `Member.next`."""
        with self.lock:
            step = self.member.next()
            if step is not None:
                self._wake()  # the coordinator is told at once
            return step

    def wait(self, seconds: float) -> None:
        """Waits until something may have changed; raises MemberRefused where no wait helps."""
        with self._changed:
            self._changed.wait(seconds)
            if self._closing:
                raise MemberRefused("the connections to the other members are closed: see the log")
            self.member.require_progress(monotonic())
            if not self._is_in and monotonic() > self._coordinator.refused_since + _REFUSED_S:
                raise MemberRefused(
                    f"who listens at {self._address} closes each connection: it has another key, or is no "
                    "coordinator of members"
                )

    def close(self) -> None:
        """Sends what is left, for a few seconds at most, and ends."""
        with self.lock:
            self._wake()
            self._closing = True
        self._thread.join()

    def _wake(self) -> None:
        if not self._closing:
            self._listener.wake()

    # What follows runs in the thread.

    def _run(self) -> None:
        ends = False
        try:
            while not ends:
                self._listener.wait()
                with self._changed:
                    self._advance()
                    self._changed.notify_all()
                    ends = self._closing
        except Exception:
            log.exception("the connections to the other members failed")
        finally:
            with self.lock:
                self._closing = True
                self._listener.close(self._coordinator, *self._peers.values())

    def _advance(self) -> None:
        for endpoint in (self._coordinator.socket, self._listener.router):
            while endpoint.poll(0):
                *_, frame = endpoint.recv_multipart(copy=False)
                self._receive(frame, is_member=endpoint is self._listener.router)
        self._follow_connections(monotonic())
        self._send(self.member.tick(monotonic()))
        waits_for, now = self.member.waits_for, monotonic()
        if waits_for != self._waits_for:
            self._waits_for, self._logs_at = waits_for, now + QUIET_S
        elif waits_for and now > self._logs_at:
            self._logs_at = float("inf")
            log.warning("%s", waits_for)

    def _follow_connections(self, now: float) -> None:
        for connection in (self._coordinator, *self._peers.values()):
            connection.follow(now)
        self._is_in |= self._coordinator.closed_since == float("inf")
        slots = {} if self.member.view is None else {p.incarnation: p.slot for p in self.member.view.peers}
        for incarnation, connection in self._peers.items():
            if now > connection.closed_since + _REACH_S and incarnation not in self._out_of_reach:
                self._out_of_reach.add(incarnation)
                log.warning(
                    "the member of slot %s cannot connect to that of slot %s, which the coordinator hears: "
                    "others have to forward what they exchange",
                    slots.get(self.member.incarnation), slots.get(incarnation),
                )  # fmt: skip

    def _receive(self, frame: zmq.Frame, *, is_member: bool) -> None:
        try:
            data = np.frombuffer(frame.buffer, np.uint8)
            message = from_bytes(data, "another member" if is_member else "the coordinator")
            if is_member != isinstance(message, Chunk | Want):
                raise CorruptMessage(f"a {message.kind} from the wrong sender")
            sender = message.sender if isinstance(message, Chunk | Want) else COORDINATOR
            self._send(self.member.receive(sender, message, monotonic()))
        except CorruptMessage as problem:
            log.warning("%s", problem)

    def _send(self, sends: Sends) -> None:
        self._connect_peers()
        for to, message in sends:
            data = to_bytes(message)
            if to == COORDINATOR:
                sockets.send(self._coordinator.socket, data.data)
            elif to in self._peers and monotonic() < self._peers[to].closed_since + _REACH_S:
                self.member.sent_bytes += data.size
                sockets.send(self._peers[to].socket, data.data)

    def _connect_peers(self) -> None:
        """Connects to those that have joined, and closes the connections to those that have left."""
        view = self.member.view
        peers = {} if view is None else {p.incarnation: p for p in view.peers}
        peers.pop(self.member.incarnation, None)
        for incarnation in self._peers.keys() - peers.keys():
            self._peers.pop(incarnation).close()
        for incarnation in peers.keys() - self._peers.keys():
            self._peers[incarnation] = self._connect(peers[incarnation].endpoint, sockets.MEMBER)
