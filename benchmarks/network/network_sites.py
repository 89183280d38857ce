"""The exchange between two sites that a slow link joins: `exact`, `hierarchical`, `sharded`, and islands.

    python -m benchmarks.network.network_sites [--quick] [--write]

Hosts are network namespaces (benchmarks/network), which needs root. Can be stopped and continued:
build/network_sites.jsonl has the cells that were measured.
"""

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

from ..harness.report import RESULTS, Options, Place, Report, Spread, Table, number, run_benchmark
from ..harness.trainings import Kept, kept_in
from ..harness.workers import run_workers
from . import Link, Network, two_sites
from .network_exchange import DRAWN, WARM_UP, Given, drawn_gradients, timed

LINE = "wgt(density(0.01))"
WAYS = ("exact", "hierarchical", "sharded", "islands", "dense", "dense islands")
INSIDE = "1gbit"
CELLS = ((2, "50mbit,0ms"), (2, "50mbit,20ms"), (2, "100mbit,0ms"), (4, "50mbit,0ms"))
"""Hosts at each of the two sites, and the link between these."""
QUICK_CELLS = ((2, "50mbit,0ms"),)
ELEMENTS, QUICK_ELEMENTS = 7_600_000, 2_000_000
STEPS, QUICK_STEPS = 20, 5
DENSE_STEPS = 4
PLACE = Place(
    RESULTS.parent / "network.md",
    "<!-- benchmarks/network/network_sites.py writes from here -->",
    "<!-- to here: sites -->",
)
INTRODUCTION = (
    "Two sites of hosts with links of " + INSIDE + ", connected by one slow link that all their traffic "
    "shares. `" + LINE + "`, {elements} elements in 12 tensors, gradients as in the benchmark "
    "network_exchange. `exact` and `hierarchical` are forms of exchange of `allgather`: a step is a forward "
    "and a backward pass under DDP with hardly any computing. `sharded` exchanges the same gradients after "
    "the backward pass; its step is that exchange alone, including compression. With `islands` each site is "
    "one: FSDP2 shards the model over its hosts, gathers weights and reduces gradients there in 32 bits, and "
    "shards are exchanged between the sites. `dense` is DDP's all-reduce, and `dense islands` sends shards "
    "in whole. Median of {steps} steps (dense: 4) of the slowest host; in brackets 10th and 90th percentile. "
    "Every host is a network namespace with one thread, and all share this machine's processors."
)


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
    """One of `WAYS`."""
    if "dense" in way:  # which takes long, and always the same
        line, steps = "none", min(steps, DENSE_STEPS)
    if way == "sharded":
        return sharded(line, elements, steps)
    if "island" in way:
        return in_islands(line, elements, steps)
    return through_the_hook(line, "hierarchical" if way == "hierarchical" else "exact", elements, steps)


def measured(at_each: int, between: str, steps: int, elements: int) -> dict[str, Any]:
    """All ways on one network."""
    with Network(two_sites(at_each, Link.parse(INSIDE), Link.parse(between))) as network:
        probe = network.probe(0, at_each)
        asked = [{"line": LINE, "way": way, "elements": elements, "steps": steps} for way in WAYS]
        results = run_workers(measure, asked, 2 * at_each, network.hosts)
    return {"rate": probe.rate, "probe": str(probe), "ways": dict(zip(WAYS, results, strict=True))}


def rows_of(cell: dict[str, Any]) -> list[tuple[str, ...]]:
    at_each = cell["at_each"]
    ranks = np.arange(2 * at_each)
    crosses = (ranks[:, None] < at_each) != (ranks[None, :] < at_each)
    base = float(np.median(cell["ways"]["exact"]["seconds"]))
    message = float(np.mean(cell["ways"]["exact"]["message"]))
    rows = []
    for way, results in cell["ways"].items():
        crossing = float(np.array(results["links"])[crosses].sum()) / 2
        formula = formulas(way, at_each, message, cell["elements"])
        middle = float(np.median(results["seconds"]))
        rows.append(
            (
                *(str(at_each), cell["between"], cell["probe"], f"`{way}`"),
                number(crossing / 1000),
                "" if formula is None else number(formula / 1000),
                number(1000 * 8 * crossing / cell["rate"]),
                str(Spread.of([1000 * value for value in results["seconds"]])),
                number(base / middle),
            )
        )
    return rows


def formulas(way: str, at_each: int, message: float, elements: int) -> float | None:
    """Bytes that cross the slow link in one direction; None where they depend on what owners send back."""
    whole, hosts = 4 * elements, 2 * at_each
    return {
        "exact": at_each * at_each * message,
        "hierarchical": at_each * message,
        "islands": message,
        "dense": 2 * (hosts - 1) / hosts * whole,
        "dense islands": whole,
    }.get(way)


def main(options: Options) -> Report:
    steps, elements = (QUICK_STEPS, QUICK_ELEMENTS) if options.quick else (STEPS, ELEMENTS)
    kept = Kept(kept_in("network_sites", quick=options.quick))
    rows: list[tuple[str, ...]] = []
    for at_each, between in QUICK_CELLS if options.quick else CELLS:
        asked = {"at_each": at_each, "between": between, "steps": steps, "elements": elements}
        cell = kept.of({**asked, "compared": ", ".join(WAYS)}, partial(measured, **asked))
        rows += rows_of(cell)
    table = Table(
        "A step between two sites",
        (
            *("hosts at each", "between", "found by the probe", "exchange", "KB one way", "formula"),
            *("ms on the link", "ms a step", "times faster"),
        ),
        rows,
        (
            "KB one way: what crosses the slow link in a step, by the ledger, mean of steps and both ways. "
            "Formula, with m hosts at each site, messages of M bytes, P elements: m m M for `exact`, m M for "
            "`hierarchical`, M for `islands`, 4P for `dense islands`, and (2m - 1)/m 4P for `dense`, a ring. "
            "Shards' messages differ from M, since an island's mean has other values. On the link: the time "
            "that these bytes take at the rate of the probe. Times faster: than `exact`.",
        ),
    )
    return INTRODUCTION.format(elements=f"{elements:,}", steps=steps), [table]


if __name__ == "__main__":
    run_benchmark(main, place=PLACE, network=True)
