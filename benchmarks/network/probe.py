"""What a link comes to: measured between two hosts, before anything else is."""

import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

_PORT = 9471
_ECHOES = 20
_LOSS_PACKETS = 1000
_STREAM_S = 2.0
_WARM_S = 0.5
"""Seconds at a stream's beginning in which TCP still looks for the rate."""
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Probe:
    """What was found from one host to another."""

    rate: float
    """Bits a second of payload through one TCP connection."""
    delay: float
    """Seconds one way: half of the median round trip of small packets."""
    loss: float
    """Share of small packets of which no echo came, one way."""

    def __str__(self) -> str:
        return (
            f"{self.rate / 1e6:.1f} Mbit/s, {1000 * self.delay:.2f} ms one way, {100 * self.loss:.2g}% lost"
        )


def probe(
    source: Callable[[Sequence[str]], list[str]],
    to: Callable[[Sequence[str]], list[str]],
    address: str,
) -> Probe:
    """Measures between two hosts; `source` and `to` make a command one that runs there.

    Raises subprocess.CalledProcessError: the hosts do not reach each other.
    """
    script = [sys.executable, __file__]
    served = subprocess.Popen(to([*script, "serve", address]), stdout=subprocess.PIPE, text=True)
    try:
        assert served.stdout is not None
        served.stdout.readline()
        told = subprocess.run(source([*script, "measure", address]), stdout=subprocess.PIPE, check=True)
    finally:
        served.kill()
        served.communicate()
    return Probe(**json.loads(told.stdout))


def _serve(address: str) -> None:
    """Echoes small packets; counts what a connection brings, and says how fast it came."""
    stream = socket.create_server((address, _PORT))
    packets = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    packets.bind((address, _PORT))
    threading.Thread(target=_echo, args=(packets,), daemon=True).start()
    print("ready", flush=True)
    while True:
        connection, _ = stream.accept()
        with connection:
            began = counted = 0.0
            begun, last = monotonic(), 0.0
            while chunk := connection.recv(_CHUNK):
                last = monotonic()
                if last - begun < _WARM_S:
                    began = last
                else:
                    counted += len(chunk)
            connection.sendall(struct.pack("d", 8 * counted / (last - began) if last > began > 0 else 0.0))


def _echo(packets: socket.socket) -> None:
    while True:
        data, sender = packets.recvfrom(64)
        packets.sendto(data, sender)


def _measure(address: str) -> dict[str, Any]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as packets:
        packets.connect((address, _PORT))
        packets.settimeout(2.0)
        trips = []
        while len(trips) < _ECHOES:
            began = monotonic()
            packets.send(struct.pack("d", began))
            try:
                while struct.unpack("d", packets.recv(64))[0] != began:
                    pass
            except TimeoutError:
                continue
            trips.append(monotonic() - began)
        came = threading.Thread(target=_count, args=(packets, counted := [0]), daemon=True)
        came.start()
        for _ in range(_LOSS_PACKETS):
            packets.send(b"12345678")
            sleep(0.0005)
        came.join(2 + 4 * max(trips))
    with socket.create_connection((address, _PORT), timeout=30) as stream:
        block, until = bytes(_CHUNK), monotonic() + _STREAM_S
        while monotonic() < until:
            stream.sendall(block)
        stream.shutdown(socket.SHUT_WR)
        rate = struct.unpack("d", stream.recv(8))[0]
    both_ways = counted[0] / _LOSS_PACKETS
    return {"rate": rate, "delay": sorted(trips)[_ECHOES // 2] / 2, "loss": 1 - both_ways**0.5}


def _count(packets: socket.socket, counted: list[int]) -> None:
    try:
        while counted[0] < _LOSS_PACKETS:
            packets.recv(64)
            counted[0] += 1
    except TimeoutError:
        return


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    else:
        print(json.dumps(_measure(sys.argv[2])))
