"""Network namespaces of this machine: made, found again, removed with all that runs in them."""

import os
import signal
import subprocess
from contextlib import suppress
from time import sleep

from .topology import Link

PREFIX = "tg"
"""The prefix of namespaces: tg, the process that keeps them, and what each is, such as tg123-h0."""

_ATTEMPTS, _PAUSE_S = 10, 0.05
"""To remove one."""


class NetworkError(OSError):
    """A network cannot be made or does not work."""


def ip(arguments: str, tool: str = "ip") -> str:
    """Runs iproute2's `ip`, or its `tc`; raises NetworkError: it failed."""
    done = subprocess.run([tool, *arguments.split()], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"{tool} {arguments}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def name_of(keeper: int, what: str) -> str:
    """The namespace that a process keeps for a host or the middle."""
    return f"{PREFIX}{keeper}-{what}"


def namespaces() -> dict[str, int]:
    """Our namespaces, with the process that keeps or kept each."""
    keepers = {}
    for line in ip("netns list").splitlines():
        name = line.split()[0]
        keeper, dash, _ = name.removeprefix(PREFIX).partition("-")
        if name.startswith(PREFIX) and dash and keeper.isdigit():
            keepers[name] = int(keeper)
    return keepers


def remove(name: str) -> None:
    """Ends what runs in a namespace, and removes it; devices go with it."""
    for _ in range(_ATTEMPTS):  # it is busy while somebody else looks at it, or what ran there still ends
        with suppress(NetworkError):
            for pid in ip(f"netns pids {name}").split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        with suppress(NetworkError):
            ip(f"netns del {name}")
        if name not in namespaces():
            return
        sleep(_PAUSE_S)


def remove_all_of(keeper: int) -> None:
    """Removes the namespaces of one process."""
    for name, whose in namespaces().items():
        if whose == keeper:
            remove(name)


def remove_stale() -> None:
    """Removes namespaces whose process was killed before it could."""
    for name, keeper in namespaces().items():
        if not _runs(keeper):
            remove(name)


def _runs(pid: int) -> bool:
    """Whether a process runs; one that ends, or has ended, may stay listed for a while, without a program."""
    try:
        os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    return True


QUEUE_S = 0.05
"""Seconds of traffic that wait before a link; what comes on top is lost, as in a router."""
_BURST_S = 0.0005
"""What may go at once, above two frames: less makes the kernel miss the rate on fast links."""


def limit(namespace: str, device: str, link: Link, mtu: int) -> None:
    """Limits what leaves by a device, whose largest packet has `mtu` bytes."""
    burst = max(2 * (mtu + 18), int(link.rate * _BURST_S / 8))
    bucket = f"rate {link.rate:.0f}bit burst {burst} latency {QUEUE_S * 1000:g}ms"
    ip(f"-n {namespace} qdisc add dev {device} root tbf {bucket}", tool="tc")
