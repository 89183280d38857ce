"""What a worker of network/network_sites.py does, at the first of two sites or at the second."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, Step, compress_replicas, compression_hook
from taugrad.compressors.bucket.compressor import Worker
from taugrad.compressors.bucket.ledger import Traffic
from taugrad.compressors.exchange.averaging import Averaging
from taugrad.compressors.exchange.lockstep import run
from taugrad.compressors.exchange.mesh import connected, most_bytes_of
from taugrad.compressors.exchange.patterns import pattern_for
from taugrad.compressors.exchange.sites import Sites
from taugrad.compressors.methods import read_config
from taugrad.compressors.ops import ops_for

from .network_step import DRAWN, WARM_UP, Given, drawn_gradients, timed

DENSE_STEPS = 4


def through_the_hook(line: str, form: Any, elements: int, steps: int) -> dict[str, Any]:
    """Seconds of each step of the slowest worker, and bytes over each link in a step, a mean of all.

    One step says little of bytes: gradients that take turns let what a threshold sends go up and down.
    """
    workers = dist.get_world_size()
    sites = Sites.of([range(workers // 2), range(workers // 2, workers)], workers)
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Given(elements))
    pattern: Any = "hierarchical" if form == "hierarchical" else "allgather"
    state = CompressionState(ddp, line, pattern=pattern, sites=sites.members if pattern == form else None)
    ddp.register_comm_hook(state, compression_hook)
    drawn = drawn_gradients(ddp.module.weights)
    step = passes(ddp, drawn)
    timed(step, min(WARM_UP, steps))
    received, before = state.totals.received_bytes, state.traffic.link_bytes.copy()
    seconds = timed(step, steps)
    links = np.zeros((workers, workers))
    links[dist.get_rank()] = state.traffic.link_bytes - before
    counted = np.array([state.totals.received_bytes - received, *links.flat])
    summed = torch.from_numpy(counted / steps)
    dist.all_reduce(summed)
    message, *rows = summed.tolist()
    message /= workers * (workers - 1)
    links = np.reshape(rows, (workers, workers))
    if line == "none":  # the transport's ring
        links = np.roll(np.eye(workers), 1, axis=1) * message * (workers - 1)
    return {"seconds": seconds, "message": [message], "links": links.tolist()}


def in_islands(line: str, elements: int, steps: int) -> dict[str, Any]:
    """The same where each site is an island: FSDP2 inside, shards between them."""
    workers, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (2, workers // 2), mesh_dim_names=("islands", "shards"))
    torch.manual_seed(0)
    model = Given(elements)
    drawn = drawn_gradients(model.weights)
    fully_shard(model, mesh=mesh["shards"])
    state = compress_replicas(model, mesh["islands"], line)
    step = passes(model, drawn)
    timed(step, min(WARM_UP, steps))
    before = state.totals.received_bytes
    seconds = timed(step, steps)
    links = torch.zeros((workers, workers), dtype=torch.float64)
    links[rank, (rank + workers // 2) % workers] = (state.totals.received_bytes - before) / steps
    dist.all_reduce(links)
    return {"seconds": seconds, "message": [], "links": links.tolist()}


def passes(model: nn.Module, drawn: list[Any]) -> Callable[[int], Callable[[], object]]:
    """A forward and a backward pass, for `timed`."""

    def prepare(step: int) -> Callable[[], object]:
        model.zero_grad()
        return lambda: model(drawn[step % DRAWN]).backward()

    return prepare


def sharded(line: str, elements: int, steps: int) -> dict[str, Any]:
    """The same of exchanges through owners of a part each."""
    carrier = connected(most_bytes=most_bytes_of(elements))
    torch.manual_seed(0)
    weights = list(Given(elements).weights)
    worker = Worker(ops_for(torch.device("cpu"), 1), dist.get_rank(), carrier.workers)
    sizes = {str(layer): weight.numel() for layer, weight in enumerate(weights)}
    method = read_config(line)
    pattern = pattern_for("sharded", method, method, worker, sizes)
    averaging = Averaging(carrier, pattern, pattern.names)
    drawn, traffic = drawn_gradients(weights), Traffic(carrier.workers)

    def exchange(gradients: list[torch.Tensor]) -> None:
        pending = averaging.begin(gradients)
        averaging.finish(run(averaging.complete(pending)), pending.record, Step(), traffic)

    def prepare(step: int) -> Callable[[], object]:
        return partial(exchange, [gradient.flatten().clone() for gradient in drawn[step % DRAWN]])

    timed(prepare, WARM_UP)
    before = traffic.link_bytes.copy()
    seconds = timed(prepare, steps)
    links = torch.zeros((carrier.workers, carrier.workers), dtype=torch.float64)
    links[carrier.rank] = torch.from_numpy((traffic.link_bytes - before) / steps)
    dist.all_reduce(links)
    carrier.close()
    return {"seconds": seconds, "message": [], "links": links.tolist()}


def measure(line: str, way: str, elements: int, steps: int) -> dict[str, Any]:
    """One of `network_sites.WAYS`."""
    if "dense" in way:  # which takes long, and always the same
        line, steps = "none", min(steps, DENSE_STEPS)
    if way == "sharded":
        return sharded(line, elements, steps)
    if "island" in way:
        return in_islands(line, elements, steps)
    return through_the_hook(line, "hierarchical" if way == "hierarchical" else "exact", elements, steps)
