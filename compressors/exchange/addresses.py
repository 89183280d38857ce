"""Small data that the workers of a process group share through its store, and the address of each worker."""

import hashlib
import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import TypeVar

import psutil
import torch
import torch.distributed as dist

from ..errors import UNKNOWN_WORKER, PeerLost, reaching
from ..torch_internals import PrefixStore, TCPStore, backend_options, default_store, underlying

T = TypeVar("T")

_LOOPBACK = "127.0.0.1"
_MARGIN_S = 1.0
"""After which a store itself would have told that a worker is late."""
_DEFAULT_TIMEOUT = timedelta(minutes=30)
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
"""In order of preference."""


def all_gather_bytes(data: bytes, group: dist.ProcessGroup | None = None) -> list[bytes]:
    """Gathers bytes from all workers of a group, by default all workers, in order of rank.

    All workers must call this in the same order. The store counts the calls, not the process: a worker that
    joins a new process group counts as one that has survived an earlier one.

    Raises:
        PeerLost: a worker, or the store, has sent nothing for the timeout of the process group.
    """
    group = dist.group.WORLD if group is None else group
    assert group is not None
    rank, workers, timeout = dist.get_rank(group), dist.get_world_size(group), timeout_of(group)
    calls = PrefixStore(f"taugrad/{group.group_name}", default_store())
    number = answered(lambda: calls.add(f"calls of {rank}", 1), timeout)
    store, gathered = PrefixStore(str(number), calls), list[bytes]()

    def get(key: str) -> bytes:
        store.wait([key], timeout)
        return bytes(store.get(key))

    answered(lambda: store.set(str(rank), data), timeout)  # type: ignore[arg-type]  # stubs know text only
    for worker in range(workers):
        with reaching(worker):
            gathered.append(answered(partial(get, str(worker)), timeout))
    return gathered


def answered(ask: Callable[[], T], timeout: timedelta) -> T:
    """Asks a process group's store, in a thread; returns what it answers, or raises what it raises.

    A store whose host is stopped, or cannot be reached, lets its clients wait for ever.

    Raises:
        PeerLost: it has not answered within the timeout, nor said that a worker is late.
    """
    answer = Future[T]()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # raised where it was asked
            answer.set_exception(error)

    Thread(target=run, name="taugrad-store", daemon=True).start()
    if wait([answer], timeout.total_seconds() + _MARGIN_S).not_done:
        reason = f"has sent nothing for {timeout.total_seconds():g} s: the process group's store hangs"
        raise PeerLost(UNKNOWN_WORKER, f"{reason}, is stopped, or cannot be reached")
    return answer.result()


def backends_of(group: dist.ProcessGroup | None) -> dict[str, str]:
    """By the type of a device, what carries its tensors, such as nccl.

    The name of a group's backend does not tell: with none or several, it is "undefined" or their list.
    """
    return dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))


def transport_of(group: dist.ProcessGroup | None, device: torch.device) -> torch.device:
    """Where a group takes tensors from that lie on the host: the CPU, or `device` where it has NCCL alone."""
    return torch.device("cpu") if "cpu" in backends_of(group) else device


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """How long a worker may be silent: the timeout of the group or of the default group, whichever is less.

    The groups of a device mesh have torch's default of 30 minutes.
    """
    default = dist.group.WORLD
    return min(_timeout_of(group), _timeout_of(group if default is None else default))


def _timeout_of(group: dist.ProcessGroup) -> timedelta:
    options = backend_options(group, transport_of(group, torch.device("cuda")))
    timeout: timedelta = getattr(options, "_timeout", _DEFAULT_TIMEOUT)
    return timeout


def places_of(group: dist.ProcessGroup | None = None, place: str | None = None) -> list[bytes]:
    """Gathers digests of the workers' places, by default the names of their hosts, in order of rank."""
    return all_gather_bytes(hashlib.sha256((place or socket.gethostname()).encode()).digest(), group)


def listening_address() -> str:
    """The address on which this worker listens, as far as it knows alone; see `reachable_address`.

    Returns:
        That of GLOO_SOCKET_IFNAME's interface, if it is set; or that by which this host reaches the process
        group's store, of either family; or 127.0.0.1.

    Raises:
        ValueError: this machine has no such interface.
    """
    if name := _interface():
        if not (addresses := _addresses_of(name)):
            raise ValueError(
                f"GLOO_SOCKET_IFNAME = {name}: this machine has no such interface with an address"
            )
        return addresses[0]
    store = underlying(default_store())
    return (source_address(store.host) if isinstance(store, TCPStore) else None) or _LOOPBACK


def reachable_address(addresses: Sequence[str], hosts: Sequence[str], rank: int) -> str:
    """The address on which this worker listens, so that all others reach it.

    A host whose name is 127.0.1.1, as Debian has it, reaches a store on itself by loopback. It then listens
    where it reaches the others.

    Args:
        addresses: `listening_address` of all workers, by rank.
        hosts: the names of their hosts.
        rank: this worker's.
    """
    if _interface() or not _is_loopback(addresses[rank]):
        return addresses[rank]
    for address in addresses:
        if not _is_loopback(address) and (source := source_address(address)):
            return source
    if len(set(hosts)) > 1:  # the store is a file, or is reached through a tunnel
        local = {address for name in psutil.net_if_addrs() for address in _addresses_of(name)}
        return next(filter(local.__contains__, _resolved(socket.gethostname())), _LOOPBACK)
    return addresses[rank]


def _interface() -> str:
    """The first interface that GLOO_SOCKET_IFNAME names, or nothing."""
    names = (name.strip() for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(","))
    return next(filter(None, names), "")


def _addresses_of(interface: str) -> list[str]:
    """An interface's addresses: IPv4 first, link-local ones last."""
    addresses = [entry for entry in psutil.net_if_addrs().get(interface, []) if entry.family in _FAMILIES]
    addresses.sort(key=lambda entry: (entry.address.startswith("fe80:"), _FAMILIES.index(entry.family)))
    return [str(entry.address) for entry in addresses]


def _resolved(host: str) -> list[str]:
    """The addresses of a host's name, IPv4 first."""
    try:
        infos = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_DGRAM)
    except OSError:
        return []
    infos = [info for info in infos if info[0] in _FAMILIES]
    return [str(info[4][0]) for info in sorted(infos, key=lambda info: _FAMILIES.index(info[0]))]


def source_address(host: str) -> str | None:
    """The address of this machine by which it reaches a host; None if there is no route to it."""
    for address in _resolved(host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # of UDP: nothing is sent
            return str(probe.getsockname()[0])
    return None


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
