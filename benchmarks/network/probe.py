"""What a link comes to: measured between two hosts as `taugrad plan` does, and its loss by small packets."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import sleep

from taugrad.search.plan.probing import answer, measure

_PORT = 9471
_LOSS_PACKETS = 1000


@dataclass(frozen=True)
class Probe:
    """What was found from one host to another."""

    rate: float
    """Bits a second of payload through one TCP connection."""
    delay: float
    """Seconds one way: half of the median round trip of small messages."""
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
    """Answers measurements, and echoes small packets."""
    packets = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    packets.bind((address, _PORT))
    threading.Thread(target=_echo, args=(packets,), daemon=True).start()
    answer(_PORT, lambda _: print("ready", flush=True))


def _echo(packets: socket.socket) -> None:
    while True:
        data, sender = packets.recvfrom(64)
        packets.sendto(data, sender)


def _measure(address: str) -> dict[str, float]:
    link = measure(address, _PORT)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as packets:
        packets.connect((address, _PORT))
        packets.settimeout(2.0)
        came = threading.Thread(target=_count, args=(packets, counted := [0]), daemon=True)
        came.start()
        for _ in range(_LOSS_PACKETS):
            packets.send(b"12345678")
            sleep(0.0005)
        came.join(2 + 8 * link.delay)
    both_ways = counted[0] / _LOSS_PACKETS
    return {"rate": link.rate, "delay": link.delay, "loss": 1 - both_ways**0.5}


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
