"""How the processes connect: they exchange addresses and a secret through torch's process group."""

import hmac
import os
import secrets
import socket
from time import monotonic

import psutil
import torch
import torch.distributed as dist

from ...training.resuming import gathered

_LOOPBACK = "127.0.0.1"
_PATIENCE_S = 120.0
_SECRET_BYTES = 16
_RANK_BYTES = 4


def connected(device: torch.device) -> list[socket.socket | None]:
    """A connection to each other worker of the default process group; all of them must call this together.

    Args:
        device: through which the process group sends.

    Returns:
        The connections by rank; None for this worker itself.

    Raises:
        OSError: a worker could not be reached.
    """
    rank, workers = dist.get_rank(), dist.get_world_size()
    address = own_address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((address, 0))
        listener.listen(workers)
        told = gathered(f"{secrets.token_hex(_SECRET_BYTES)} {listener.getsockname()[1]} {address}", device)
        secret = bytes.fromhex(told[0].split()[0])
        found: list[socket.socket | None] = [None] * workers
        end = monotonic() + _PATIENCE_S
        for other in range(rank):
            _, port, host = told[other].split()
            found[other] = _call(host, int(port), secret, rank, end)
        while any(each is None for each in found[rank + 1 :]):
            caller, connection = _answer(listener, secret, end)
            if caller is not None and rank < caller < workers and found[caller] is None:
                found[caller] = connection
            else:
                connection.close()  # not one of our workers
    for each in found:
        if each is not None:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def own_address() -> str:
    """The address on which gloo listens: that of GLOO_SOCKET_IFNAME's interface, or this machine only."""
    names = [name.strip() for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name.strip()]
    if not names:
        return _LOOPBACK
    addresses = psutil.net_if_addrs().get(names[0], [])
    for family in (socket.AF_INET, socket.AF_INET6):
        for each in addresses:
            if each.family == family:
                return str(each.address)
    raise ValueError(f"GLOO_SOCKET_IFNAME = {names[0]}: this machine has no such interface with an address")


def _call(host: str, port: int, secret: bytes, rank: int, end: float) -> socket.socket:
    try:
        connection = socket.create_connection((host, port), timeout=max(0.1, end - monotonic()))
    except OSError as error:
        raise type(error)(f"no connection to the worker at {host}, port {port}: {error}") from None
    connection.sendall(secret + rank.to_bytes(_RANK_BYTES, "little"))
    return connection


def _answer(listener: socket.socket, secret: bytes, end: float) -> tuple[int | None, socket.socket]:
    """The next caller's rank, if it knows the secret."""
    listener.settimeout(max(0.1, end - monotonic()))
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        raise TimeoutError(f"not all workers have connected within {_PATIENCE_S:g} s") from None
    connection.settimeout(5)
    said = b""
    try:
        while len(said) < _SECRET_BYTES + _RANK_BYTES:
            more = connection.recv(_SECRET_BYTES + _RANK_BYTES - len(said))
            if not more:
                return None, connection
            said += more
    except OSError:
        return None, connection
    known = hmac.compare_digest(said[:_SECRET_BYTES], secret)
    return (int.from_bytes(said[_SECRET_BYTES:], "little") if known else None), connection
