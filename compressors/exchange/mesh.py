"""The carrier between processes, over ZeroMQ: a ROUTER socket, and a DEALER socket to each other worker.

One thread receives messages and files them; ZeroMQ's own thread moves the bytes, without Python's lock.
Addresses are exchanged through the process group's store. A connecting worker authenticates itself: by a
password that the workers share through the store, or, if they have a key, by its key pair (CURVE), which also
encrypts. All other connections are refused, and logged.

A worker is lost when its connection closes; all that it sent before is filed first. If it closed because it
lost another worker, it announces that loss, and the error names that other worker.
"""

import hmac
import logging
import resource
import secrets
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock, Thread, current_thread
from time import monotonic

import numpy as np
import psutil
import torch
import torch.distributed as dist
import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from ..errors import CompressionError, PeerLost, WorkersDisagree
from .addresses import all_gather_bytes, listening_address, reachable_address, timeout_of
from .carrier import Carrier, Payload, in_memory
from .keys import KEY, KEY_FILE, key_pair

_HELLO_TAG, _HEARTBEAT_TAG, _LOSS_TAG = "hello", "", "lost"
"""Tags of the mesh itself."""
_DOMAIN = b"taugrad"
_PASSWORD_BYTES = 16
_HEARTBEATS = 4
"""That a worker sends in the time after which it would be lost."""
_LINGER_MS = 5000
"""How long a process may take at its end to send what is left."""
_LONGEST_POLL_S = 1.0
_SMALL = 1 << 13
"""Bytes up to which ZeroMQ hands out parts of a larger buffer, which begin anywhere in memory."""
_FILES, _FILES_A_PEER = 12, 3
"""Open files (sockets and events) that ZeroMQ needs for a mesh, and for each other worker in it."""
_REFUSED = {
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL,
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL,
    zmq.Event.HANDSHAKE_FAILED_AUTH,
}

log = logging.getLogger("taugrad")


def most_bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """An upper bound of the size of a message about tensors, in bytes."""
    # A tensor shorter than its quantizer's block still has a whole table: at most 2^16 means of 2 bytes.
    return sum(12 * tensor.numel() + (1 << 17) for tensor in tensors) + (1 << 20)


class Mesh(Carrier):
    """The carrier of this process among the workers of a process group.

    Its thread refers to the mesh, so that it is never collected: close it, such as by `weakref.finalize`.
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
        """Connects to all other workers and waits for their connections; all workers must call this.

        Args:
            group: the workers'; by default all.
            most_bytes: a longer message closes its connection before memory is taken for it.
            key: that all workers share, if messages are to be encrypted and authenticated.
            silent_after_s: a worker without heartbeats for so long is lost. By default a worker is lost if a
                message of it is waited for longer than the timeout of the process group; or another worker in
                its place, if that one sends no heartbeats.
            patient: a worker without heartbeats is only `silent`, and logged.

        Raises:
            WorkersDisagree: on every worker, if their keys differ.
            CompressionError: on every worker, if one may not open enough files.
            PeerLost: a worker does not connect in time.
        """
        group = dist.group.WORLD if group is None else group
        assert group is not None
        super().__init__(dist.get_rank(group), dist.get_world_size(group))
        self._timeout_s = timeout_of(group).total_seconds()
        self._silent_after_s, self._patient = silent_after_s, patient
        self._limit_s = self._timeout_s if silent_after_s is None else silent_after_s
        self._resumed_at = monotonic()
        self._last_message_at = dict.fromkeys(self.others, self._resumed_at)
        self._silent: set[int] = set()
        self._announced: dict[int, PeerLost] = {}
        """By rank, the loss that a worker announced."""
        self._connections: dict[int, int] = {}
        """By the descriptor of a connection, the rank whose messages come over it."""
        self._closing, self._accepting = False, True
        self._locks = {to: Lock() for to in self.others}
        self._dealers: dict[int, zmq.Socket[bytes]] = {}
        self._thread = Thread(target=self._run, name="taugrad-mesh", daemon=True)
        self._publics = [b"-" if key is None else key_pair(key, rank)[0] for rank in range(self.workers)]
        address = self._exchange_addresses(group)
        self._context = zmq.Context(io_threads=1)
        self._router = self._listen(address, most_bytes, key)
        self._wake, self._woken = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        self._woken.bind("inproc://wake")
        self._wake.connect("inproc://wake")
        self._monitor = self._router.get_monitor_socket(zmq.EVENT_DISCONNECTED | sum(_REFUSED))
        self._zap_socket = self._context.socket(zmq.REP)
        self._zap_socket.bind("inproc://zeromq.zap.01")  # where ZeroMQ asks who may connect
        try:
            self._connect_all(group, key)
        except BaseException:
            self.close()
            raise

    def _exchange_addresses(self, group: dist.ProcessGroup) -> str:
        """The address to listen on, once all workers have the same key and may open enough files."""
        limit, free = _open_files()
        public = self._publics[self.rank].decode()
        record = "\n".join((listening_address(), socket.gethostname(), public, str(limit), str(free)))
        records = [record.decode().split("\n") for record in all_gather_bytes(record.encode(), group)]
        addresses, hosts, publics, limits, frees = zip(*records, strict=True)
        if [public.encode() for public in publics] != self._publics:
            raise WorkersDisagree(
                f"they do not have the same key; give all of them the same {KEY_FILE}, or {KEY}"
            )
        needed = _FILES + _FILES_A_PEER * len(self.others)
        for worker, (limit, free) in enumerate(zip(map(int, limits), map(int, frees), strict=True)):
            if free < needed:
                raise CompressionError(
                    f"worker {worker} may open {free} more files, and connections to {len(self.others)} "
                    f"other workers take {needed}: set its limit of open files (RLIMIT_NOFILE, `ulimit -n`), "
                    f"now {limit}, to {limit - free + needed} at least"
                )
        return reachable_address(addresses, hosts, self.rank)

    def _connect_all(self, group: dist.ProcessGroup, key: bytes | None) -> None:
        """Exchanges endpoints, connects to all other workers, and waits for their connections."""
        endpoint = self._router.get(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        password = secrets.token_hex(_PASSWORD_BYTES).encode()
        records = all_gather_bytes(b" ".join((endpoint.rstrip(b"\0"), password)), group)
        endpoints, passwords = zip(*(record.split(b" ") for record in records), strict=True)
        self._password = passwords[0]
        self._thread.start()
        for to in self.others:
            self._dealers[to] = self._connect(endpoints[to], to, key)
            self.send(to, _HELLO_TAG, np.empty(0, np.uint8))
        for source in self.others:
            try:
                self.receive(source, _HELLO_TAG).result(self._timeout_s)
            except TimeoutError:
                raise PeerLost(source, f"has not connected for {self._timeout_s:g} s") from None

    def _listen(self, address: str, most_bytes: int, key: bytes | None) -> zmq.Socket[bytes]:
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.RCVHWM, 0)
        router.setsockopt(zmq.MAXMSGSIZE, most_bytes)
        router.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        if key is None:
            router.plain_server = True
        else:
            router.curve_server = True
            router.curve_publickey, router.curve_secretkey = key_pair(key, self.rank)
        router.ipv6 = ":" in address
        router.bind(f"tcp://[{address}]:*" if ":" in address else f"tcp://{address}:*")
        return router

    def _connect(self, endpoint: bytes, to: int, key: bytes | None) -> zmq.Socket[bytes]:
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.SNDHWM, 0)
        if key is None:
            dealer.plain_username, dealer.plain_password = str(self.rank).encode(), self._password
        else:
            dealer.curve_publickey, dealer.curve_secretkey = key_pair(key, self.rank)
            dealer.curve_serverkey = self._publics[to]
        dealer.ipv6 = b"[" in endpoint
        dealer.connect(endpoint.decode())
        return dealer

    def send(self, to: int, tag: str, payload: Payload) -> None:
        with self._locks[to]:
            if to not in self._dealers:
                return
            with suppress(zmq.Again):  # where ZeroMQ has given the connection up, it would wait for ever
                self._dealers[to].send_multipart([tag.encode(), payload.data], zmq.NOBLOCK, copy=False)
                return
        self._mark_lost(to, PeerLost(to, "has refused this worker's connection"))

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
            self._disconnect(to, _LINGER_MS)
        self._wake.close(0)
        self._context.term()  # waits for what is left

    def _disconnect(self, to: int, linger_ms: int = 0) -> None:
        with self._locks[to]:
            dealer = self._dealers.pop(to, None)
        if dealer is not None:
            dealer.close(linger_ms)

    # What follows runs in the thread.

    def _run(self) -> None:
        reason = "cannot be received from any more: this worker has closed its connections"
        try:
            self._serve()
        except Exception as error:  # raised by the futures that wait
            log.exception("the connections to the other workers failed")
            reason = f"cannot be received from any more: {error}"
        finally:
            for endpoint in (self._router, self._monitor, self._zap_socket, self._woken):
                endpoint.close(0)
            self._accepting, before = False, next(iter(self.lost.values()), None)
            for source in self.others:
                self._mark_lost(source, before or PeerLost(source, reason))

    def _serve(self) -> None:
        poll_s = min(_LONGEST_POLL_S, self._limit_s / (2 * _HEARTBEATS))
        poller = zmq.Poller()
        for endpoint in (self._router, self._monitor, self._zap_socket, self._woken):
            poller.register(endpoint, zmq.POLLIN)
        before, next_heartbeat = monotonic(), monotonic() + self._limit_s / _HEARTBEATS
        while not self._closing:
            ready = dict(poller.poll(round(1000 * poll_s)))
            if self._router in ready:
                self._read()
            if self._monitor in ready:
                self._read_monitor()
            if self._zap_socket in ready:
                self._authenticate()
            now = monotonic()
            if now - before < poll_s / 2:
                continue
            if now - before > self._limit_s / 2:
                self._resumed_at = now  # this process was stopped: silence says nothing about the others
            before = now
            if self._silent_after_s is None:
                self._mark_late(now)
            if now >= next_heartbeat:
                next_heartbeat = now + self._limit_s / _HEARTBEATS
                for other in self.others:
                    self.send(other, _HEARTBEAT_TAG, np.empty(0, np.uint8))
                if self._silent_after_s is not None:
                    self._mark_silent(now, self._silent_after_s)

    def _read(self) -> None:
        """Files all that has arrived."""
        now = monotonic()
        with suppress(zmq.Again):
            while True:
                _, tag_frame, frame = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
                source, tag = int(frame.get("User-Id")), tag_frame.bytes.decode()
                if tag == _HELLO_TAG:
                    self._connections[int(frame.get(zmq.SRCFD))] = source
                self._last_message_at[source] = now
                self._silent.discard(source)
                if tag == _LOSS_TAG:
                    worker, _, reason = frame.bytes.decode().partition(" ")
                    self._announced[source] = PeerLost(int(worker), reason)
                elif tag != _HEARTBEAT_TAG:
                    payload = np.frombuffer(frame.buffer, np.uint8)
                    self._file(source, tag, payload.copy() if payload.size < _SMALL else payload)

    def _announce_loss(self, problem: PeerLost) -> None:
        if not self._accepting:
            return
        announcement = np.frombuffer(f"{problem.worker} {problem.reason}".encode(), np.uint8)
        for other in self.others:
            self.send(other, _LOSS_TAG, announcement)

    def _read_monitor(self) -> None:
        """Marks workers whose connections have closed, and logs refused connections."""
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
                first = next(iter(self.lost.values()), closed)  # it may not have announced its loss yet
                self._mark_lost(source, self._announced.get(source, first))
                self._disconnect(source)

    def _authenticate(self) -> None:
        """Answers a request of ZeroMQ's authentication protocol (ZAP, RFC 27)."""
        version, request, _, address, _, mechanism, *credentials = self._zap_socket.recv_multipart()
        rank = self._rank_of(mechanism, credentials)
        if rank is None:
            log.warning("refused a connection from %s: it does not have this run's key", address.decode())
        status = [b"400", b"no", b""] if rank is None else [b"200", b"yes", str(rank).encode()]
        self._zap_socket.send_multipart([version, request, *status, b""])

    def _rank_of(self, mechanism: bytes, credentials: list[bytes]) -> int | None:
        """The rank that the credentials prove; None if they prove none."""
        if mechanism == b"CURVE":
            public = z85.encode(credentials[0])
            return self._publics.index(public) if public in self._publics else None
        name, password = credentials
        valid = hmac.compare_digest(password, self._password) and name.isdigit()
        return int(name) if valid and int(name) in self.others else None

    def _mark_late(self, now: float) -> None:
        with self._lock:
            late = {
                source
                for (source, _), waiting in self._waiting.items()
                if now - max(waiting[0][1], self._resumed_at) > self._timeout_s
            }
        if not late:
            return
        # A late worker may itself wait for one that sends no heartbeats.
        heard = self._last_message_at
        late |= {other for other in heard.keys() - self.lost if now - heard[other] > self._timeout_s / 2}
        reason = (
            f"has sent nothing for {self._timeout_s:g} s, the process group's timeout: its process "
            "hangs, is stopped, or cannot be reached"
        )
        problem = PeerLost(min(late, key=heard.__getitem__), reason)
        for source in late:
            self._mark_lost(source, problem)

    def _mark_silent(self, now: float, silent_after_s: float) -> None:
        for other in self.others:
            if (
                now - max(self._last_message_at[other], self._resumed_at) <= silent_after_s
                or other in self.silent
            ):
                continue
            self._silent.add(other)
            if self._patient:
                log.warning("worker %d has been silent for %g s; waiting", other, silent_after_s)
            else:
                self._mark_lost(other, PeerLost(other, f"has been silent for {silent_after_s:g} s"))


def _open_files() -> tuple[int, int]:
    """The most files that this process may have open, and how many more it may open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize, sys.maxsize
    return limit, max(limit - psutil.Process().num_fds(), 0)


def connected(
    group: dist.ProcessGroup | None = None,
    *,
    most_bytes: int,
    key: bytes | None = None,
    silent_after_s: float | None = None,
    patient: bool = False,
) -> Carrier:
    """A mesh, or for a group of one worker the carrier in memory. For arguments and errors see `Mesh`."""
    if dist.get_world_size(group) == 1:
        return in_memory(1)[0]
    return Mesh(group, most_bytes=most_bytes, key=key, silent_after_s=silent_after_s, patient=patient)
