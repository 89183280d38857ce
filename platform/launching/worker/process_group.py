"""The workers' torch process group.

Ray's TorchTrainer would make one, but the store in which its workers meet listens on every address
of the machine. Ours listens only where the workers are.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psutil
import ray.util
import torch
import torch.distributed as dist
from ray.train import get_context
from ray.train.collective import broadcast_from_rank_zero
from torch._C._distributed_c10d import TCPStore

from taugrad.compressors.exchange.addresses import places_of
from taugrad.compressors.exchange.sites import Sites

from ...spec import RunSpec
from ...spec.synchronization import real

_PATIENCE = timedelta(minutes=30)


@contextmanager
def process_group(device: torch.device) -> Iterator[tuple[int, int]]:
    """Joins all workers of this Ray Train run in torch's default process group, for as long as it lasts.

    GPUs have NCCL, other devices gloo. Yields this worker's rank and the number of workers.
    """
    context = get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    address = own_address()
    bind_gloo_to(address)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=128) if rank == 0 else None
    host, port = broadcast_from_rank_zero(None if listener is None else listener.getsockname()[:2])
    store = TCPStore(
        host,
        port,
        workers,
        is_master=rank == 0,
        timeout=_PATIENCE,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
    )
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=workers
    )
    try:
        yield rank, workers
        # Nobody leaves while another still waits for an exchange's last callback.
        dist.barrier()
    finally:
        dist.destroy_process_group()


def own_address() -> str:
    """The address of this worker's node in Ray's cluster."""
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def bind_gloo_to(address: str) -> None:
    """Makes gloo listen on the same interface as Ray, unless GLOO_SOCKET_IFNAME is set.

    By itself gloo takes the address of the machine's name, which on many machines (Debian's, for one) is a
    loopback address: workers on other machines could not reach it.
    """
    interface = interface_of(address)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def interface_of(address: str) -> str | None:
    """The network interface that has an IP address, such as `eth0`; None where none has it."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(candidate.address.partition("%")[0] == address for candidate in addresses):
            return name
    return None


def with_sites(spec: RunSpec) -> RunSpec:
    """The spec with the workers' sites by their nodes, if it asks for sites or hosts and does not name them.

    All workers must call this together, in torch's process group.
    """
    sync = spec.sync
    if sync.is_simulated or not real(sync).asks_for_hosts:
        return spec
    sites = Sites.by_place(places_of(place=own_address())).members
    return spec.model_copy(update={"sync": sync.model_copy(update={"sites": sites})})
