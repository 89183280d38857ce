"""The exchange alone over links of a given rate and delay: compressed messages beside what people use.

    python -m benchmarks.network.network_exchange [--quick] [--write]

Hosts are network namespaces (benchmarks/network), which needs root. Can be stopped and continued:
build/network_exchange.jsonl has the cells that were measured.
"""

from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compression_hook

from ..harness.report import RESULTS, Options, Place, Report, Spread, Table, number, run_benchmark
from ..harness.trainings import Kept, kept_in
from ..harness.workers import run_workers
from . import Link, Network, uniform

BUILTIN = ("strom(density(0.01)) | golomb_rice", "wgt(density(0.01))")
BARE = "bare"
"""Exchanges nothing; fp16 and powersgd are torch's own hooks, others are compressors' lines."""
METHODS = (BARE, "none", "fp16", "powersgd", *BUILTIN)
LINKS = ("50mbit,0ms", "100mbit,0ms", "100mbit,20ms", "1gbit,0ms", "1gbit,5ms")
HOSTS = (2, 4)
ELEMENTS, QUICK_ELEMENTS = 7_600_000, 120_000
STEPS, QUICK_STEPS = 20, 3
GOALS = {("100mbit,0ms", 2): 130, ("100mbit,0ms", 4): 90, ("1gbit,0ms", 2): 25, ("1gbit,0ms", 4): 15}
"""Times faster than the float32 all-reduce, by link and hosts."""
PLACE = Place(
    RESULTS.parent / "network.md",
    "<!-- benchmarks/network/network_exchange.py writes from here -->",
    "<!-- to here -->",
)
INTRODUCTION = (
    "The time of a backward pass of {elements} elements in 12 tensors, under DDP over gloo, minus that of "
    "one that exchanges nothing (`bare`: autograd writes gradients, DDP copies them into buckets). Every "
    "host is a network namespace with one thread, and all share this machine's processors. Gradients are "
    "cubes of normal numbers, with a different scale in each tensor; three gradients are used in turn. "
    "Median of {steps} steps of the slowest host, after 6 steps that are not counted; in brackets the 10th "
    "to the 90th percentile. Delays are one way. Times faster: than `none`, DDP's all-reduce in float32."
)
TENSORS = 12
WARM_UP = 6
"""Steps in which DDP forms its buckets anew, connections speed up and tau is found."""
DRAWN = 3
"""Gradients that take turns."""
_RANK = 4
"""PowerSGD's."""


class Given(nn.Module):
    """Has the gradients that it is told to have: its loss is their product with its parameters."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        side = max(2, round((elements / TENSORS) ** 0.5))
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(side, side)) for _ in range(TENSORS)])

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """The sum of all products."""
        return torch.stack([(w * g).sum() for w, g in zip(self.weights, gradients, strict=True)]).sum()


def drawn_gradients(weights: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """This worker's: heavy tails, and layers of different scale, as gradients have them."""
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    return [
        [
            torch.randn(w.shape, generator=generator).pow_(3).mul_(10.0 ** (-layer / 4))
            for layer, w in enumerate(weights)
        ]
        for _ in range(DRAWN)
    ]


def power_sgd(state: powerSGD_hook.PowerSGDState, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Torch's hook, one bucket after the other.

    Its callbacks start collectives of their own. With several buckets and gloo they do so in another order on
    each worker, and then all wait for ever: seen on links with a delay.
    """
    mean = powerSGD_hook.powerSGD_hook(state, bucket)
    mean.wait()
    return mean


def nothing(_: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Leaves a bucket as it is."""
    done: Future[torch.Tensor] = Future()
    done.set_result(bucket.buffer())
    return done


def timed(
    prepare: Callable[[int], Callable[[], object]], steps: int, after: Callable[[], object] = lambda: None
) -> list[float]:
    """Seconds of each step of the slowest worker; `prepare` returns what is timed, `after` is not."""
    seconds = torch.zeros(steps, dtype=torch.float64)
    for step in range(steps):
        work = prepare(step)
        dist.barrier()
        started = perf_counter()
        work()
        seconds[step] = perf_counter() - started
        after()
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    times: list[float] = seconds.tolist()
    return times


def measure(method: str, elements: int, steps: int) -> dict[str, Any]:
    """Seconds of each backward pass, of the slowest worker, and worker 0's parts of them."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Given(elements))
    state = None
    if method == BARE:
        ddp.register_comm_hook(None, nothing)
    elif method == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif method == "powersgd":
        peer = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=_RANK, start_powerSGD_iter=2)
        ddp.register_comm_hook(peer, power_sgd)
    elif method != "none":
        state = CompressionState(ddp, method)
        ddp.register_comm_hook(state, compression_hook)
    drawn = drawn_gradients(ddp.module.weights)
    parts: list[dict[str, float]] = []

    def prepare(step: int) -> Callable[[], object]:
        ddp.zero_grad()
        backward: Callable[[], object] = ddp(drawn[step % DRAWN]).backward
        return backward

    def note_parts() -> None:
        if state is not None:
            last = state.last_step
            parts.append(
                {
                    "compress": last.compress_s,
                    "decompress": last.decompress_s,
                    "exchange": last.exchange_s,
                    "bytes": last.wire_bytes,
                }
            )

    timed(prepare, WARM_UP)
    return {"seconds": timed(prepare, steps, note_parts), "parts": parts}


def measured(link: str, hosts: int, steps: int, elements: int) -> dict[str, Any]:
    """All methods on one network."""
    with Network(uniform(hosts, Link.parse(link))) as network:
        probe = str(network.probe())
        asked = [{"method": method, "elements": elements, "steps": steps} for method in METHODS]
        results = run_workers(measure, asked, hosts, network.hosts)
    return {"probe": probe, "methods": dict(zip(METHODS, results, strict=True))}


def rows_of(cell: dict[str, Any]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """A cell's lines of the first table, and of the second one."""
    times, parts = [], []
    bare = float(np.median(cell["methods"][BARE]["seconds"]))
    base = float(np.median(cell["methods"]["none"]["seconds"])) - bare
    half = float(np.median(cell["methods"]["fp16"]["seconds"])) - bare
    link, hosts = cell["link"], cell["hosts"]
    for method, results in cell["methods"].items():
        exchange = np.array(results["seconds"]) - bare
        middle = float(np.median(exchange))
        if method == BARE:
            times.append((link, str(hosts), cell["probe"], method, number(1000 * bare), "", ""))
            continue
        goal = GOALS.get((link, hosts)) if method == BUILTIN[0] else None
        met = "" if goal is None else f" (goal {goal}: {'met' if base / middle >= goal else 'missed'})"
        times.append(
            (
                *(link, str(hosts), cell["probe"], f"`{method}`"),
                str(Spread.of((1000 * exchange).tolist())),
                f"{number(base / middle)}{met}",
                number(half / middle),
            )
        )
        if results["parts"]:
            mean = {
                name: float(np.median([parts[name] for parts in results["parts"]]))
                for name in results["parts"][0]
            }
            parts.append(
                (
                    *(link, str(hosts), f"`{method}`"),
                    *(number(1000 * mean[name]) for name in ("compress", "exchange", "decompress")),
                    number(mean["bytes"] / hosts / 1000),
                )
            )
    return times, parts


def main(options: Options) -> Report:
    steps, elements = (QUICK_STEPS, QUICK_ELEMENTS) if options.quick else (STEPS, ELEMENTS)
    cells = [("100mbit,5ms", 2)] if options.quick else [(link, hosts) for hosts in HOSTS for link in LINKS]
    kept = Kept(kept_in("network_exchange", quick=options.quick))
    rows: list[tuple[str, ...]] = []
    shares: list[tuple[str, ...]] = []
    for link, hosts in cells:
        asked = {"link": link, "hosts": hosts, "steps": steps, "elements": elements}
        cell = kept.of(asked, partial(measured, **asked))
        more, more_shares = rows_of(cell)
        rows += more
        shares += more_shares
    tables = [
        Table(
            "The exchange",
            ("link", "hosts", "found by the probe", "method", "ms", "times faster", "than fp16"),
            rows,
            (
                "`bare`: the whole pass. The probe's rate is of the payload of one connection: headers take "
                "about 4% on slow links.",
            ),
        ),
        Table(
            "Where a step's time goes",
            ("link", "hosts", "method", "compress ms", "exchange ms", "decompress ms", "KB sent by a host"),
            shares,
            (
                "Of host 0. Exchange is from handing a message over to having everybody's: waiting for "
                "others who still compress is in it, and so is what runs beside the backward pass.",
            ),
        ),
    ]
    return INTRODUCTION.format(elements=f"{elements:,}", steps=steps), tables


if __name__ == "__main__":
    run_benchmark(main, place=PLACE, network=True)
