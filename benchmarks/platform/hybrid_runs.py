"""A few steps of real or simulated workers, for platform/hybrid.py: bytes, messages, memory, times."""

import gc
import json
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from taugrad.compressors.spans import RECORDER, Span
from taugrad.platform.data.feeding import Batch
from taugrad.platform.data.shape import Shape
from taugrad.platform.models import build
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.base import Moment
from taugrad.platform.synchronization.build import build_synchronization
from taugrad.platform.synchronization.hybrid.mode import HybridTraining
from taugrad.platform.tasks.classification import ClassificationTask
from taugrad.platform.training.batch_plan import Position

from ..harness.workers import run_workers

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Case:
    """What to measure."""

    spec: RunSpec
    shape: Shape
    examples: int
    """Of each worker."""
    steps: int
    """The first one is not measured."""


@dataclass(frozen=True)
class Bar:
    """What a worker did for a while, in seconds since the step began."""

    worker: int
    lane: str
    label: str
    began: float
    ended: float


@dataclass(frozen=True)
class Measured:
    """One step; of times and memory the last one of them, of bytes and messages their mean."""

    received: float
    """Bytes, mean of the workers."""
    messages: float
    """Of all workers."""
    peak: float
    """Bytes of memory above what a process had before the model, the largest's; 0 for simulated workers."""
    exchange_s: float
    """Of activations in flight, worker 0's; 0 without any."""
    blocked_s: float
    """The part of it that worker 0 waited."""
    bars: list[Bar]


def measure(cases: Sequence[Case]) -> list[Measured]:
    """Takes the steps of cases of equally many processes, in processes that end with this call."""
    (processes,) = {case.spec.processes for case in cases}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"}
    with tempfile.TemporaryDirectory(prefix="taugrad-") as name:
        folder = Path(name)
        fields = [
            (case.spec.model_dump_json(), asdict(case.shape), case.examples, case.steps) for case in cases
        ]
        run_workers(_work, (fields, processes, folder), processes)
        by_rank = [
            json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(processes)
        ]
    return [_measured(case, ranks) for case, ranks in zip(cases, zip(*by_rank, strict=True), strict=True)]


def _measured(case: Case, ranks: Sequence[dict[str, Any]]) -> Measured:
    """One step, from what each process has found."""
    first = ranks[0]
    bars = [Bar(**bar) for rank in ranks for bar in rank["bars"]]
    began = min((bar.began for bar in bars), default=0.0)
    return Measured(
        received=first["received"] / case.spec.workers.count,
        messages=first["messages"],
        peak=max(rank["peak"] for rank in ranks) if len(ranks) > 1 else 0.0,
        exchange_s=first["exchange_s"],
        blocked_s=first["blocked_s"],
        bars=[replace(bar, began=bar.began - began, ended=bar.ended - began) for bar in bars],
    )


def _work(
    rank: int, fields: Sequence[tuple[str, dict[str, object], int, int]], processes: int, folder: Path
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    _warm_up(RunSpec.model_validate_json(fields[0][0]))
    found = []
    for text, shape, examples, steps in fields:
        spec = RunSpec.model_validate_json(text)
        found.append(_steps(Case(spec, TypeAdapter(Shape).validate_python(shape), examples, steps)))
    (folder / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _warm_up(like: RunSpec) -> None:
    """Steps of a small net: what libraries set up once belongs to no case."""
    tree = like.model_dump(mode="json") | {"model": {"kind": "lenet"}}
    for sync in ({"mode": "sharded"}, {"mode": "hybrid"}):
        mode = sync if like.sync.mode != "simulated" else {"mode": "simulated", "of": sync}
        small = Case(RunSpec.model_validate(tree | {"sync": mode}), Shape.image(1, 28, 28, 10), 4, 2)
        _steps(small)


def _steps(case: Case) -> dict[str, object]:
    spec, device = case.spec, torch.device("cpu")
    gc.collect()
    before = _memory("VmRSS")
    torch.manual_seed(spec.seed)
    model = build(spec.model, case.shape)
    sync, _ = build_synchronization(spec, model, ClassificationTask(), device)
    del model
    batch_size = case.examples * sync.workers
    batches = [_batch(case, worker) for worker in sync.ranks]
    counted, peak = [], 0
    spans: list[Span] = []
    for step in range(case.steps):
        RECORDER.start()
        _RESET.write_text("5", encoding="ascii")
        position = Position(0, step, case.steps, step, batch_size, case.steps)
        entry = sync.iterate(batches, Moment(position, last=False, observe=False)).step
        peak = _memory("VmHWM") - before
        spans = RECORDER.stop()
        counted.append((entry.received_bytes, entry.messages))
    measured = counted[1:] or counted
    courses = sync.courses if isinstance(sync, HybridTraining) else []
    return {
        "received": sum(received for received, _ in measured) / len(measured),
        "messages": sum(messages for _, messages in measured) / len(measured),
        "peak": peak,
        "exchange_s": courses[0].exchange_s if courses else 0.0,
        "blocked_s": courses[0].blocked_s if courses else 0.0,
        "bars": [
            asdict(Bar(sync.ranks[0], span.lane, _label(span), span.began, span.ended))
            for span in spans
            if courses and len(sync.ranks) == 1 and span.name != "wait"
        ],
    }


def _label(span: Span) -> str:
    """What was computed, such as `fc forward`; or what was on its way, such as `features`."""
    return span.about if span.lane == "wire" else f"{span.about} {span.name}".strip()


def _batch(case: Case, worker: int) -> Batch:
    generator = torch.Generator().manual_seed(worker)
    inputs = torch.randn(case.examples, *case.shape.inputs, generator=generator)
    return Batch(inputs, torch.randint(case.shape.outputs, (case.examples,), generator=generator), 1.0)


def _memory(name: str) -> int:
    """Bytes in this process's status: VmRSS, what it has, or VmHWM, the most since a reset."""
    found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    assert found, f"{_STATUS} has no {name}"
    return 1024 * int(found[1])


def longest(bars: Sequence[Bar]) -> float:
    """When the last of them ended."""
    return max((bar.ended for bar in bars), default=0.0)
