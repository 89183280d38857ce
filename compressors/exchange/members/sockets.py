"""The sockets of members and of their coordinator: a ROUTER that listens, and a DEALER to each other process.

Whoever connects proves by CURVE that it has the run's key, and so does who listens; all others are refused,
and logged. Everything is encrypted.
"""

import logging
import socket
from contextlib import suppress
from ipaddress import ip_address

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from ..keys import key_pair, require_long_enough

COORDINATOR, MEMBER = 1 << 62, (1 << 62) + 1
"""In place of a rank, of which key pair the coordinator's is, and that of members."""
TICK_MS = 100
_LINGER_MS = 2000
_GONE_MS = 20_000
"""A host that acknowledges nothing for so long is gone: its name is looked up again, it may have moved."""
_OPENED, _CLOSED = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_AUTH

log = logging.getLogger("taugrad")


def address_of(listen: str) -> tuple[str, int]:
    """The host and port of HOST:PORT, [HOST]:PORT or PORT; raises ValueError."""
    host, _, port = listen.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{listen!r}: must be HOST:PORT, or PORT of 127.0.0.1")
    return host.strip("[]") or "127.0.0.1", int(port)


def is_endpoint(text: str) -> bool:
    """Whether a text, untrusted, says where a `Listener` is: a number in place of a name, and a port."""
    with suppress(ValueError):
        host, port = address_of(text)
        ip_address(host)
        return port > 0
    return False


def dealer(
    context: zmq.Context[zmq.Socket[bytes]], address: str, key: bytes, listener: int, identity: str
) -> zmq.Socket[bytes]:
    """Connects to who listens at HOST:PORT, and has the key pair of this rank."""
    host, port = address_of(address)
    connection = context.socket(zmq.DEALER)
    for option, value in ((zmq.SNDHWM, 0), (zmq.TCP_MAXRT, _GONE_MS), (zmq.CONNECT_TIMEOUT, _GONE_MS)):
        connection.setsockopt(option, value)
    connection.curve_publickey, connection.curve_secretkey = key_pair(key, MEMBER)
    connection.curve_serverkey = key_pair(key, listener)[0]
    connection.identity = identity.encode()
    connection.ipv6 = ":" in host or _has_no_ipv4_address(host)
    connection.connect(_endpoint(host, str(port)))
    return connection


def send(connection: zmq.Socket[bytes], data: memoryview) -> None:
    """Sends over a DEALER, without waiting.

    ZeroMQ gives up a connection whose other end speaks another protocol, such as a proxy that answers with an
    error. What is sent then is dropped, and the connection is made again.
    """
    with suppress(zmq.Again):
        connection.send(data, zmq.NOBLOCK, copy=False)
        return
    endpoint = connection.get(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    address = endpoint.rstrip(b"\0").decode()
    connection.disconnect(address)
    connection.connect(address)


def _has_no_ipv4_address(host: str) -> bool:
    """Whether a name has addresses, and all are of IPv6: ZeroMQ looks for those of one family."""
    with suppress(OSError):
        return all(family == socket.AF_INET6 for family, *_ in socket.getaddrinfo(host, None))
    return False


def _endpoint(host: str, port: str) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


class Connection:
    """A DEALER that knows whether it is connected. One thread uses it.

    Attributes:
        socket: the DEALER.
        closed_since: when it began to be without a connection; infinite while it has one.
        refused_since: since when each connection was closed before it was made, as by one that has another
            key; infinite if none was, or one was made.
    """

    def __init__(self, socket: zmq.Socket[bytes], now: float) -> None:
        """Takes over the socket."""
        self.socket, self.closed_since, self.refused_since = socket, now, float("inf")
        self._monitor = socket.get_monitor_socket(_OPENED | _CLOSED | _REFUSED)

    def follow(self, now: float) -> None:
        """Notes what has happened."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            was_open = self.closed_since == float("inf")
            if event & _OPENED:
                self.closed_since = self.refused_since = float("inf")
            else:
                self.closed_since = min(self.closed_since, now)
            if event & _REFUSED or (event == zmq.EVENT_DISCONNECTED and not was_open):
                self.refused_since = min(self.refused_since, now)
            elif event == zmq.EVENT_CLOSED:  # nobody listens
                self.refused_since = float("inf")

    def close(self, linger_ms: int = 0) -> None:
        """Closes the socket; it sends what is left for so long."""
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(linger_ms)


class Listener:
    """A ROUTER socket to which those connect that have the run's key. One thread uses it.

    Attributes:
        context: of all sockets of this process's side.
        router: the socket.
        address: HOST:PORT, at which it listens.
    """

    def __init__(self, host: str, port: int, key: bytes, rank: int, most_bytes: int) -> None:
        """Listens, with a rank's key pair; at port 0, at any that is free.

        A longer message closes its connection. Raises OSError where it cannot listen there, and ValueError
        where the key is too short.
        """
        require_long_enough(key)
        self._member = key_pair(key, MEMBER)[0]
        self.context = zmq.Context(io_threads=1)
        self.router = self.context.socket(zmq.ROUTER)
        self.router.curve_server = True
        self.router.curve_publickey, self.router.curve_secretkey = key_pair(key, rank)
        for option, value in (
            (zmq.MAXMSGSIZE, most_bytes), (zmq.RCVHWM, 0), (zmq.ROUTER_HANDOVER, 1), (zmq.LINGER, _LINGER_MS),
            (zmq.ZAP_DOMAIN, b"taugrad"),
        ):  # fmt: skip
            self.router.setsockopt(option, value)
        self._zap = self.context.socket(zmq.REP)
        self._zap.bind("inproc://zeromq.zap.01")
        self._wake, self._woken = self.context.socket(zmq.PAIR), self.context.socket(zmq.PAIR)
        self._woken.bind("inproc://wake")
        self._wake.connect("inproc://wake")
        self.router.ipv6 = ":" in host
        self._poller = zmq.Poller()
        for endpoint in (self.router, self._zap, self._woken):
            self._poller.register(endpoint, zmq.POLLIN)
        try:
            self.router.bind(_endpoint(host, str(port or "*")))
        except zmq.ZMQError as problem:
            self.close()
            raise OSError(f"cannot listen at {host}:{port}: {problem}") from None
        bound = self.router.get(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        self.address = bound.rstrip(b"\0").decode().removeprefix("tcp://")

    def watch(self, endpoint: zmq.Socket[bytes]) -> None:
        """Lets `wait` return when there is something to receive from another socket, too."""
        self._poller.register(endpoint, zmq.POLLIN)

    def wait(self) -> None:
        """Waits until there is something to receive, until `wake`, or for a moment."""
        ready = dict(self._poller.poll(TICK_MS))
        while self._woken in ready and self._woken.poll(0):
            self._woken.recv()
        while self._zap.poll(0):
            self._authenticate()

    def wake(self) -> None:
        """Lets `wait` return; other threads call it one at a time."""
        with suppress(zmq.Again):
            self._wake.send(b"", zmq.NOBLOCK)

    def close(self, *others: zmq.Socket[bytes] | Connection) -> None:
        """Sends what is left to send, for a moment at most; closes others of the context, too."""
        for endpoint in (self._zap, self._woken, self._wake):
            endpoint.close(0)
        for other in (self.router, *others):
            other.close(_LINGER_MS)
        self.context.term()

    def _authenticate(self) -> None:
        """Answers a request of ZeroMQ's authentication protocol (ZAP, RFC 27)."""
        version, request, _, address, _, mechanism, *credentials = self._zap.recv_multipart()
        allowed = mechanism == b"CURVE" and z85.encode(credentials[0]) == self._member
        if not allowed:
            log.warning("refused a connection from %s: it does not have this run's key", address.decode())
        status = [b"200", b"yes", b"member"] if allowed else [b"400", b"no", b""]
        self._zap.send_multipart([version, request, *status, b""])
