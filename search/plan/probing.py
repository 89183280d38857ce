"""Measures a link: `taugrad plan --answer` on one machine, `taugrad plan --measure` on the other."""

import socket
import struct
from collections.abc import Callable
from statistics import median
from time import monotonic

from .link import Link

PORT = 9472
_PINGS = 20
_WARM_S, _STREAM_S = 0.5, 2.0
"""How long TCP looks for the rate, and how long is counted after that."""
_TIMEOUT_S = 30.0
_CHUNK = 1 << 18
_PING, _STREAM = b"p", b"s"
_WORD = struct.Struct("!d")


class ProbeError(ValueError):
    """A machine does not answer; the message names it, and the command to start on it."""


def answer(port: int, ready: Callable[[int], None] = lambda _: None, *, once: bool = False) -> None:
    """Answers measurements on all interfaces, until it is interrupted, or `once`.

    `ready` is called with the port when it listens; port 0 is a free one. Raises OSError if it is taken.
    """
    with socket.create_server(("", port)) as server:
        ready(server.getsockname()[1])
        while True:
            try:
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(_TIMEOUT_S)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    _serve(connection)
            except OSError:
                continue  # the client has disconnected, or its network is away
            if once:
                return


def _serve(connection: socket.socket) -> None:
    """Sends back every ping, then counts what arrives, and tells the rate in bits per second."""
    while (kind := connection.recv(1)) == _PING:
        connection.sendall(kind)
    began, counted, began_at, last = monotonic(), 0, 0.0, 0.0
    while kind and (chunk := connection.recv(_CHUNK)):
        last = monotonic()
        if last - began < _WARM_S:
            began_at = last
        else:
            counted += len(chunk)
    connection.sendall(_WORD.pack(8 * counted / (last - began_at) if last > began_at > 0 else 0.0))


def measure(host: str, port: int = PORT) -> Link:
    """Measures the link to a machine: payload rate of one TCP connection, and half of a small round trip.

    The rate includes the effect of loss. Raises ProbeError if the machine does not answer.
    """
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            trips = []
            for _ in range(_PINGS):
                began = monotonic()
                connection.sendall(_PING)
                if not connection.recv(1):
                    raise ConnectionError("it closed the connection")
                trips.append(monotonic() - began)
            connection.sendall(_STREAM)
            block, until = bytes(_CHUNK), monotonic() + _WARM_S + _STREAM_S
            while monotonic() < until:
                connection.sendall(block)
            connection.shutdown(socket.SHUT_WR)
            answer_bytes = connection.recv(_WORD.size, socket.MSG_WAITALL)
    except OSError as error:
        raise ProbeError(
            f"{host}:{port}: does not answer ({error}); start `taugrad plan --answer {port}` there"
        ) from None
    rate = _WORD.unpack(answer_bytes)[0] if len(answer_bytes) == _WORD.size else 0.0
    if rate <= 0:
        raise ProbeError(f"{host}:{port}: sent no rate; the link is too slow to measure in {_STREAM_S:g} s")
    return Link(rate=rate, delay=median(trips) / 2, headers=0.0)


def slowest(links: "list[Link]") -> Link:
    """The worst case of several links: the lowest rate and the longest delay."""
    return Link(rate=min(link.rate for link in links), delay=max(link.delay for link in links), headers=0.0)
