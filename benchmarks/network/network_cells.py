"""Trainings over links of a rate and a delay by the platform's trainer, each measured once and kept.

Neither Ray nor MLflow takes part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Event, Thread
from time import perf_counter, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from taugrad.compressors.reducers import all_reduce
from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking import names

from ..harness.in_process import Following, fit
from ..harness.report import environment, say
from ..harness.trainings import Kept, key_of
from ..harness.workers import run_workers
from . import Link, Network, uniform

WINDOW_S = 0.1
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Narrow:
    """In place of torch.distributed: all-reduces in 16 bits, as torch's fp16_compress_hook makes them."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def all_reduce(self, buffer: Tensor, group: dist.ProcessGroup, *, async_op: bool) -> "Widened":
        """Begins one; the buffer has its result when the future has."""
        assert async_op
        work = dist.all_reduce(buffer.to(self._dtype), group=group, async_op=True)
        assert work is not None
        return Widened(work, buffer)


class Widened:
    """An all-reduce in 16 bits whose result is 32 bits wide."""

    def __init__(self, work: dist.Work, buffer: Tensor) -> None:
        self._work, self._buffer = work, buffer

    def get_future(self) -> Future[list[Tensor]]:
        """See `torch.distributed.Work`."""
        narrow: Future[list[Tensor]] = self._work.get_future()
        return narrow.then(lambda done: [self._buffer.copy_(done.value()[0])])

    def wait(self) -> bool:
        """See `torch.distributed.Work`."""
        return bool(self._work.wait())


class Timing(Following):
    """Notes when each step was done, how long evaluations took, and the peak rate."""

    def __init__(self, slept: float) -> None:
        """`slept`: seconds for which worker 0 sleeps before each step."""
        super().__init__()
        self._slept = slept if dist.get_rank() == 0 else 0.0
        self.peak = 0.0
        """The highest rate of this host in a tenth of a second, bit/s."""
        self._over = Event()
        self.done: list[float] = []
        self.evaluating = 0.0
        self.began = 0.0

    def stage(self, name: str) -> None:
        """Begins to watch when the first step does."""
        if name == "first iteration":
            trainer = self.trainer
            trainer.sync.iterate = self._noting(trainer.sync.iterate)  # type: ignore[method-assign]
            trainer.evaluated = self._timing(trainer.evaluated)  # type: ignore[method-assign]
            dist.barrier()
            self.began = perf_counter()
            Thread(target=self._watch_link, daemon=True).start()

    def _watch_link(self) -> None:
        seen = [(perf_counter(), _bytes_sent())]
        while not self._over.wait(WINDOW_S / 5):
            seen.append((perf_counter(), _bytes_sent()))
            while seen[-1][0] - seen[1][0] >= WINDOW_S:
                del seen[0]
            if (seconds := seen[-1][0] - seen[0][0]) >= WINDOW_S:
                self.peak = max(self.peak, 8 * (seen[-1][1] - seen[0][1]) / seconds)

    def finished(self) -> None:
        """Ends watching the link."""
        self._over.set()

    def _noting(self, iterate: Callable[..., float]) -> Callable[..., float]:
        def noted(*arguments: Any) -> float:
            sleep(self._slept)
            loss = iterate(*arguments)
            self.done.append(perf_counter())
            return loss

        return noted

    def _timing(self, evaluate: Callable[[], Any]) -> Callable[[], Any]:
        def timed() -> Any:
            began = perf_counter()
            metrics = evaluate()
            self.evaluating += perf_counter() - began
            return metrics

        return timed


def _bytes_sent() -> int:
    """By this host, on all its links."""
    lines = (line.split(":") for line in Path("/proc/self/net/dev").read_text().splitlines()[2:])
    return sum(int(numbers.split()[8]) for name, numbers in lines if name.strip() != "lo")


def train(text: str, half: str, slept: float) -> dict[str, Any]:
    """Trains a spec, which is JSON: when its steps were done, and its results.

    `half`: nothing, or fp16 or bf16, in which all-reduces are, as torch's hooks make them. `slept`: the
    seconds for which worker 0 sleeps before each step.
    """
    all_reduce.dist = Narrow(DTYPES[half]) if half else dist  # type: ignore[assignment]
    listener = Timing(slept)
    trainer = fit(text, listener)
    listener.finished()
    ended = perf_counter()  # after the last evaluation, which is among those that are timed
    return {
        "done": [round(moment - listener.began, 5) for moment in listener.done],
        "computing": [round(seconds, 5) for seconds in listener.series(names.TIME_COMPUTE)],
        "seconds": ended - listener.began,
        "evaluating": listener.evaluating,
        "peak": listener.peak,
        "steps": trainer.done,
        "reached": trainer.reached,
        "wire": trainer.sync.totals.wire_bytes,
        "received": trainer.sync.totals.received_bytes,
    }


@dataclass(frozen=True)
class Asked:
    """A training over a link."""

    spec: RunSpec
    half: str = ""
    """What its all-reduces are in, where it has any: `fp16` or `bf16`; empty: float32."""
    time: int = 1
    """The first time that it is measured, or a later one."""
    slept: float = 0.0
    """Seconds that worker 0 sleeps in each step, as if it computed as much longer."""

    @property
    def key(self) -> str:
        """The key of what is computed, however long worker 0 sleeps."""
        again = f" {self.time}" if self.time > 1 else ""
        return key_of(self.spec) + self.half + again + (" slowed" if self.slept else "")


AT_ONCE = 6
"""So many trainings are done on one network, by the same processes."""


def over(link: str, asked: Sequence[Asked], kept: Kept) -> list[dict[str, Any]]:
    """The trainings over a link; those that are not known are done, some at a time."""
    missing = [cell for cell in asked if kept.known(_of(link, cell)) is None]
    for first in range(0, len(missing), AT_ONCE):
        batch = missing[first : first + AT_ONCE]
        for cell, results in zip(batch, over_link(link, batch), strict=True):
            kept.add({**_of(link, cell), **results})
    return [kept.of(_of(link, cell), dict) for cell in asked]


def _of(link: str, cell: Asked) -> dict[str, Any]:
    return {"link": link, "key": cell.key}


def over_link(link: str, asked: Sequence[Asked]) -> list[dict[str, Any]]:
    """Trainings by a host for each worker on one network, and what its probe found."""
    (hosts,) = {cell.spec.workers.count for cell in asked}
    say(f"{len(asked)} trainings over {link}")
    trainings = [
        {"text": cell.spec.model_dump_json(), "half": cell.half, "slept": cell.slept} for cell in asked
    ]
    with Network(uniform(hosts, Link.parse(link))) as network:
        probe = str(network.probe())
        results = run_workers(train, trainings, hosts, network.hosts)
    said = {"probe": probe, "date": datetime.now().astimezone().date().isoformat(), "machine": environment()}
    lines = [{"line": cell.half or str(cell.spec.compressor), "slept": cell.slept} for cell in asked]
    return [{**line, **said, **result} for line, result in zip(lines, results, strict=True)]
