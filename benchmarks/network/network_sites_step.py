"""What a worker of network/network_sites.py does, at the first of two sites or at the second."""

from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compressed_allgather
from taugrad.compressors.exchange.mesh import connected, most_bytes_of
from taugrad.compressors.exchange.patterns import Setting, Sharded, Spent
from taugrad.compressors.exchange.rounds import Participant
from taugrad.compressors.exchange.runner import ProcessRunner
from taugrad.compressors.exchange.sites import Sites
from taugrad.compressors.exchange.traffic import Traffic
from taugrad.compressors.method import read_config

from .network_step import DRAWN, WARM_UP, Given, drawn_gradients


def through_the_hook(line: str, form: Any, elements: int, steps: int) -> dict[str, Any]:
    """Seconds of each backward pass of the slowest worker, and bytes over each link in the last one."""
    workers = dist.get_world_size()
    sites = Sites.of([range(workers // 2), range(workers // 2, workers)], workers)
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Given(elements))
    state = CompressionState(
        ddp, line, exchange=form, sites=sites.members if form == "hierarchical" else None
    )
    ddp.register_comm_hook(state, compressed_allgather)
    drawn = drawn_gradients(ddp.module.weights)
    seconds = torch.zeros(steps, dtype=torch.float64)
    messages = []
    for step in range(-WARM_UP, steps):
        ddp.zero_grad()
        loss = ddp(drawn[step % DRAWN])
        dist.barrier()
        before = np.zeros(()) if state.exchange.link_bytes is None else state.exchange.link_bytes.copy()
        started = perf_counter()
        loss.backward()
        taken = perf_counter() - started
        if step >= 0:
            seconds[step] = taken
            # To all others goes the same: received by all, over the links that there are.
            messages.append(state.last_step.received_bytes / (workers * (workers - 1)))
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    if state.exchange.link_bytes is None:
        links = np.where(np.eye(workers, dtype=bool), 0, messages[-1])
    else:
        links = state.exchange.link_bytes - before
    return {"seconds": seconds.tolist(), "message": messages[-1:], "links": links.tolist()}


def sharded(line: str, elements: int, steps: int) -> dict[str, Any]:
    """The same of exchanges through owners of a part each."""
    runner = ProcessRunner(torch.device("cpu"), connected(most_bytes=most_bytes_of(elements)))
    torch.manual_seed(0)
    weights = list(Given(elements).weights)
    setting = Setting(
        [str(layer) for layer in range(len(weights))],
        [torch.zeros(weight.numel()) for weight in weights],
        rank=dist.get_rank(),
        workers=runner.workers,
    )
    method = read_config(line)
    pattern = Sharded(method, method, setting, owners=runner.workers)
    drawn = drawn_gradients(weights)
    seconds = torch.zeros(steps, dtype=torch.float64)
    for step in range(-WARM_UP, steps):
        gradients = [each.flatten().clone() for each in drawn[step % DRAWN]]
        traffic = Traffic(runner.workers)
        dist.barrier()
        started = perf_counter()
        pattern.spent = Spent()
        pattern.assemble(runner.run([Participant(pattern.rounds(gradients, step + WARM_UP))], traffic))
        pattern.commit()
        if step >= 0:
            seconds[step] = perf_counter() - started
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    links = runner.links(traffic)
    return {"seconds": seconds.tolist(), "message": [], "links": links.nbytes.tolist()}


def sites(line: str, ways: list[str], elements: int, steps: int) -> dict[str, Any]:
    """Both of a compressor's line; a way is a form of exchange, or sharded."""
    return {
        way: sharded(line, elements, steps)
        if way == "sharded"
        else through_the_hook(line, way, elements, steps)
        for way in ways
    }
