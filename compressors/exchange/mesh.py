"""The carrier between processes: every worker listens, and connects to all others, over ZeroMQ.

A ROUTER listens on the address that the process group uses; a DEALER leads to each other worker. One thread
reads what arrives and files it; ZeroMQ's own thread moves the bytes, without Python's lock. Addresses travel
through the process group's store. Whoever connects says who it is: by a password that the workers of the run
share through the store, or, if they have a key, by its own half of a key pair (CURVE), which also encrypts.
Everybody else is refused, and the log says so.

A worker is gone when its connection ends: all that it had sent is filed before. If it ended because it lost
another worker, its last words say so, and whoever waits for it names that other worker, too.
"""

import hmac
import logging
import secrets
from contextlib import suppress
from threading import Lock, Thread, current_thread
from time import monotonic

import numpy as np
import torch.distributed as dist
import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from ..errors import PeerLost, WorkersDisagree
from .addresses import own_address, timeout_of, told_by_all
from .carrier import Carrier, Payload, in_memory
from .keys import KEY, KEY_FILE, key_pair

_HELLO, _ALIVE, _LAST_WORDS = "hello", "", "lost"
"""Tags of the mesh itself."""
_DOMAIN = b"taugrad"
_PASSWORD_BYTES = 16
_SIGNS_OF_LIFE = 4
"""How many a worker gives in the time after which it would be lost."""
_LEAVING_MS = 5000
"""How long a process may take at its end to send what is left."""
_LONGEST_TICK_S = 1.0
_SMALL = 1 << 13
"""Bytes up to which ZeroMQ hands out parts of a larger buffer, which begin anywhere in memory."""
_REFUSED = {
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL,
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL,
    zmq.Event.HANDSHAKE_FAILED_AUTH,
}

log = logging.getLogger("taugrad")


def most_bytes_of(elements: int) -> int:
    """More than any message about so many elements has."""
    return 12 * elements + (1 << 20)


class Mesh(Carrier):
    """This process's worker among those of a process group.

    The thread refers to the mesh: whoever opens one closes it, such as by `weakref.finalize`.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        most_bytes: int,
        key: bytes | None = None,
        silent_after_s: float | None = None,
        patient: bool = False,
    ) -> None:
        """Connects to the others, and waits until all are connected; all must call this together.

        Args:
            group: the workers'; by default all.
            most_bytes: a message that is longer ends its connection before memory is taken for it.
            key: that all workers share, if messages are to be encrypted and authenticated.
            silent_after_s: a worker that gives no signs of life for so long is lost. By default a worker is
                lost if a message of it is waited for longer than the timeout of the process group allows; or
                another one in its place, if that gives no signs of life.
            patient: a worker that gives no sign of life is only `silent`, and the log says so.

        Raises:
            WorkersDisagree: on every worker, if their keys differ.
            PeerLost: a worker does not connect in time.
        """
        group = dist.group.WORLD if group is None else group
        assert group is not None
        super().__init__(dist.get_rank(group), dist.get_world_size(group))
        self._timeout_s = timeout_of(group).total_seconds()
        self._silent_after_s, self._patient = silent_after_s, patient
        self._limit_s = self._timeout_s if silent_after_s is None else silent_after_s
        self._awake_at = monotonic()
        self._heard = dict.fromkeys(self.others, self._awake_at)
        self._silent: set[int] = set()
        self._last_words: dict[int, PeerLost] = {}
        """Whom other workers have lost, by these."""
        self._connections: dict[int, int] = {}
        """By the descriptor of a connection, whose messages come over it."""
        self._closing, self._hears = False, True
        self._locks = {to: Lock() for to in self.others}
        self._ways: dict[int, zmq.Socket[bytes]] = {}
        self._thread = Thread(target=self._run, name="taugrad-mesh", daemon=True)
        self._context = zmq.Context(io_threads=1)
        self._ears = self._listen(most_bytes, key)
        self._wake, self._woken = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        self._woken.bind("inproc://wake")
        self._wake.connect("inproc://wake")
        self._monitor = self._ears.get_monitor_socket(zmq.EVENT_DISCONNECTED | sum(_REFUSED))
        self._door = self._context.socket(zmq.REP)
        self._door.bind("inproc://zeromq.zap.01")  # where ZeroMQ asks whom to let in
        try:
            self._open(group, key)
        except BaseException:
            self.close()
            raise

    def _open(self, group: dist.ProcessGroup, key: bytes | None) -> None:
        """Tells the others where this worker listens, and connects to all of them."""
        address = self._ears.get(zmq.LAST_ENDPOINT)
        assert isinstance(address, bytes)
        public = b"-" if key is None else key_pair(key, self.rank)[0]
        told = told_by_all(
            b" ".join((address.rstrip(b"\0"), secrets.token_hex(_PASSWORD_BYTES).encode(), public)), group
        )
        addresses, passwords, publics = zip(*(each.split(b" ") for each in told), strict=True)
        self._password = passwords[0]
        self._publics = [b"-" if key is None else key_pair(key, rank)[0] for rank in range(self.workers)]
        if list(publics) != self._publics:
            raise WorkersDisagree(
                f"they do not have the same key; give all of them the same {KEY_FILE}, or {KEY}"
            )
        self._thread.start()
        for to in self.others:
            self._ways[to] = self._connect(addresses[to], to, key)
            self.send(to, _HELLO, np.empty(0, np.uint8))
        for source in self.others:
            try:
                self.receive(source, _HELLO).result(self._timeout_s)
            except TimeoutError:
                raise PeerLost(source, f"has not connected for {self._timeout_s:g} s") from None

    def _listen(self, most_bytes: int, key: bytes | None) -> zmq.Socket[bytes]:
        ears = self._context.socket(zmq.ROUTER)
        ears.setsockopt(zmq.RCVHWM, 0)
        ears.setsockopt(zmq.MAXMSGSIZE, most_bytes)
        ears.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        if key is None:
            ears.plain_server = True
        else:
            ears.curve_server = True
            ears.curve_publickey, ears.curve_secretkey = key_pair(key, self.rank)
        host = own_address()
        ears.ipv6 = ":" in host
        ears.bind(f"tcp://[{host}]:*" if ":" in host else f"tcp://{host}:*")
        return ears

    def _connect(self, address: bytes, to: int, key: bytes | None) -> zmq.Socket[bytes]:
        way = self._context.socket(zmq.DEALER)
        way.setsockopt(zmq.SNDHWM, 0)
        if key is None:
            way.plain_username, way.plain_password = str(self.rank).encode(), self._password
        else:
            way.curve_publickey, way.curve_secretkey = key_pair(key, self.rank)
            way.curve_serverkey = self._publics[to]
        way.ipv6 = b"[" in address
        way.connect(address.decode())
        return way

    def send(self, to: int, tag: str, payload: Payload) -> None:
        with self._locks[to]:
            if to in self._ways:
                self._ways[to].send_multipart([tag.encode(), payload.data], copy=False)

    @property
    def silent(self) -> set[int]:
        return self._silent | super().silent

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._thread.ident is None:
            self._run()  # it ends at once
        elif current_thread() is not self._thread:
            with suppress(zmq.Again):  # it has ended by itself
                self._wake.send(b"", zmq.NOBLOCK)
            self._thread.join()
        for to in self.others:
            self._let_go(to, _LEAVING_MS)
        self._wake.close(0)
        self._context.term()  # waits for what is left

    def _let_go(self, to: int, leaving_ms: int = 0) -> None:
        with self._locks[to]:
            way = self._ways.pop(to, None)
        if way is not None:
            way.close(leaving_ms)

    # What follows runs in the thread.

    def _run(self) -> None:
        reason = "cannot be heard any more: this worker has closed its connections"
        try:
            self._serve()
        except Exception as error:  # whoever waits is told
            log.exception("the connections to the other workers failed")
            reason = f"cannot be heard any more: {error}"
        finally:
            for own in (self._ears, self._monitor, self._door, self._woken):
                own.close(0)
            self._hears, before = False, next(iter(self.lost.values()), None)
            for source in self.others:
                self._lose(source, before or PeerLost(source, reason))

    def _serve(self) -> None:
        tick_s = min(_LONGEST_TICK_S, self._limit_s / (2 * _SIGNS_OF_LIFE))
        poller = zmq.Poller()
        for each in (self._ears, self._monitor, self._door, self._woken):
            poller.register(each, zmq.POLLIN)
        before, next_sign = monotonic(), monotonic()
        while not self._closing:
            ready = dict(poller.poll(round(1000 * tick_s)))
            if self._ears in ready:
                self._read()
            if self._monitor in ready:
                self._watch()
            if self._door in ready:
                self._admit()
            now = monotonic()
            if now - before < tick_s / 2:
                continue
            if now - before > self._limit_s / 2:
                self._awake_at = now  # this process itself was stopped: silence says nothing about the others
            before = now
            if self._silent_after_s is None:
                self._look_for_late(now)
            if now >= next_sign:
                next_sign = now + self._limit_s / _SIGNS_OF_LIFE
                for other in self.others:
                    self.send(other, _ALIVE, np.empty(0, np.uint8))
                if self._silent_after_s is not None:
                    self._look_for_silent(now, self._silent_after_s)

    def _read(self) -> None:
        """Files all that has arrived."""
        now = monotonic()
        with suppress(zmq.Again):
            while True:
                _, tag_frame, frame = self._ears.recv_multipart(zmq.NOBLOCK, copy=False)
                source, tag = int(frame.get("User-Id")), tag_frame.bytes.decode()
                if tag == _HELLO:
                    self._connections[int(frame.get(zmq.SRCFD))] = source
                self._heard[source] = now
                self._silent.discard(source)
                if tag == _LAST_WORDS:
                    worker, _, reason = frame.bytes.decode().partition(" ")
                    self._last_words[source] = PeerLost(int(worker), reason)
                elif tag != _ALIVE:
                    payload = np.frombuffer(frame.buffer, np.uint8)
                    self._file(source, tag, payload.copy() if payload.size < _SMALL else payload)

    def _mourn(self, problem: PeerLost) -> None:
        if not self._hears:
            return
        said = np.frombuffer(f"{problem.worker} {problem.reason}".encode(), np.uint8)
        for other in self.others:
            self.send(other, _LAST_WORDS, said)

    def _watch(self) -> None:
        """Learns whose connection has ended, and who was refused."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)
            if event["event"] in _REFUSED:
                log.warning(
                    "refused a connection to %s: not a worker of this run", event["endpoint"].decode()
                )
                continue
            source = self._connections.pop(event["value"], None)
            if source is not None:
                self._read()  # what it had sent
                closed = PeerLost(source, "is gone: its connection was closed")
                first = next(iter(self.lost.values()), closed)  # last words may not have left its process
                self._lose(source, self._last_words.get(source, first))
                self._let_go(source)

    def _admit(self) -> None:
        """Answers whether somebody may connect (ZeroMQ's RFC 27)."""
        version, request, _, address, _, mechanism, *credentials = self._door.recv_multipart()
        rank = self._rank_by(mechanism, credentials)
        if rank is None:
            log.warning("refused a connection from %s: it does not have this run's key", address.decode())
        status = [b"400", b"no", b""] if rank is None else [b"200", b"yes", str(rank).encode()]
        self._door.send_multipart([version, request, *status, b""])

    def _rank_by(self, mechanism: bytes, credentials: list[bytes]) -> int | None:
        """The rank of who connects; None for a stranger."""
        if mechanism == b"CURVE":
            said = z85.encode(credentials[0])
            return self._publics.index(said) if said in self._publics else None
        name, password = credentials
        known = hmac.compare_digest(password, self._password) and name.isdigit()
        return int(name) if known and int(name) in self._heard else None

    def _look_for_late(self, now: float) -> None:
        with self._lock:
            late = {
                source
                for (source, _), waiting in self._waiting.items()
                if now - max(waiting[0][1], self._awake_at) > self._timeout_s
            }
        if not late:
            return
        # Who is late may itself wait for a worker that gives no signs of life.
        there = self._heard.keys() - self.lost
        late |= {each for each in there if now - self._heard[each] > self._timeout_s / 2}
        reason = (
            f"has sent nothing for {self._timeout_s:g} s, the process group's timeout: its process "
            "hangs, is stopped, or cannot be reached"
        )
        problem = PeerLost(min(late, key=self._heard.__getitem__), reason)
        for source in late:
            self._lose(source, problem)

    def _look_for_silent(self, now: float, silent_after_s: float) -> None:
        for other in self.others:
            if now - max(self._heard[other], self._awake_at) <= silent_after_s or other in self.silent:
                continue
            self._silent.add(other)
            if self._patient:
                log.warning("worker %d has been silent for %g s; waiting", other, silent_after_s)
            else:
                self._lose(other, PeerLost(other, f"has been silent for {silent_after_s:g} s"))


def connected(
    group: dist.ProcessGroup | None = None,
    *,
    most_bytes: int,
    key: bytes | None = None,
    silent_after_s: float | None = None,
    patient: bool = False,
) -> Carrier:
    """A mesh; a worker that is alone needs none. For arguments and errors see `Mesh`."""
    if dist.get_world_size(group) == 1:
        return in_memory(1)[0]
    return Mesh(group, most_bytes=most_bytes, key=key, silent_after_s=silent_after_s, patient=patient)
