"""What workers of a process group tell one another before they are connected, through the group's store."""

import hashlib
import os
import socket
from collections import defaultdict
from datetime import timedelta
from itertools import count

import psutil
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.distributed_c10d import _get_default_store

from ..errors import reaching

_LOOPBACK = "127.0.0.1"
_PATIENCE = timedelta(minutes=30)
_TOLD: defaultdict[str, "count[int]"] = defaultdict(count)
"""How often workers told one another something, by group."""


def told_by_all(own: bytes, group: dist.ProcessGroup | None = None) -> list[bytes]:
    """What each worker of a group, by default all, says, by rank; all must call this in the same order.

    Raises PeerLost where one says nothing for longer than the timeout of the process group allows.
    """
    group = dist.group.WORLD if group is None else group
    assert group is not None
    name, patience = group.group_name, timeout_of(group)
    store = PrefixStore(f"taugrad/{name}/{next(_TOLD[name])}", _get_default_store())
    store.set(str(dist.get_rank(group)), own)  # type: ignore[arg-type]  # stubs know text only
    told = []
    for other in range(dist.get_world_size(group)):
        with reaching(other):
            store.wait([str(other)], patience)
            told.append(bytes(store.get(str(other))))
    return told


def backends_of(group: dist.ProcessGroup | None) -> dict[str, str]:
    """By the type of a device, what carries its tensors, such as nccl.

    The name of a group's backend does not tell: with none or several, it is "undefined" or their list.
    """
    return dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))


def transport_of(group: dist.ProcessGroup | None, device: torch.device) -> torch.device:
    """Where a group takes tensors from that lie on the host: the CPU, or `device` where it has NCCL alone."""
    return torch.device("cpu") if "cpu" in backends_of(group) else device


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """How long a worker may be silent, as `init_process_group` was told."""
    options = getattr(group._get_backend(transport_of(group, torch.device("cuda"))), "options", None)
    timeout: timedelta = getattr(options, "_timeout", _PATIENCE)
    return timeout


def places_of(group: dist.ProcessGroup | None = None, place: str | None = None) -> list[bytes]:
    """The place of each worker, by default its host's name, by rank, as digests; all call this together."""
    return told_by_all(hashlib.sha256((place or socket.gethostname()).encode()).digest(), group)


def own_address() -> str:
    """The address on which gloo listens: that of GLOO_SOCKET_IFNAME's interface, or that of the host's name.

    Raises ValueError where this machine has no such interface.
    """
    names = [name.strip() for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name.strip()]
    if not names:
        # That of the host's name, if it is one of this machine; else only this machine can connect.
        try:
            found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
        except OSError:
            return _LOOPBACK
        here = {each.address for addresses in psutil.net_if_addrs().values() for each in addresses}
        return next((str(address[0]) for *_, address in found if address[0] in here), _LOOPBACK)
    addresses = psutil.net_if_addrs().get(names[0], [])
    for family in (socket.AF_INET, socket.AF_INET6):
        for each in addresses:
            if each.family == family:
                return str(each.address)
    raise ValueError(f"GLOO_SOCKET_IFNAME = {names[0]}: this machine has no such interface with an address")
