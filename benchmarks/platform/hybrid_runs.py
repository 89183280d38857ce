"""A few steps of real or simulated workers, for platform/hybrid.py: bytes, messages, memory."""

import gc
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from taugrad.platform.data.feeding import Batch
from taugrad.platform.data.shape import Shape
from taugrad.platform.models.building import build
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.base import Moment
from taugrad.platform.synchronization.build import build_synchronization
from taugrad.platform.tasks.builtin import ClassificationTask
from taugrad.platform.training.batch_plan import Position

from ..harness.workers import found_by

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
class Measured:
    """One step; of memory the last one of them, of bytes and messages their mean."""

    received: float
    """Bytes, mean of the workers."""
    messages: float
    """Of all workers."""
    peak: float
    """Bytes of memory above what a process had before the model, the largest's; 0 for simulated workers."""


def measure(cases: Sequence[Case]) -> list[Measured]:
    """Takes the steps of cases of equally many processes, in processes that end with this call."""
    (processes,) = {case.spec.processes for case in cases}
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "1000000"
    fields = [(case.spec.model_dump_json(), asdict(case.shape), case.examples, case.steps) for case in cases]
    by_rank = found_by(_work, (fields,), processes)
    return [_measured(case, ranks) for case, ranks in zip(cases, zip(*by_rank, strict=True), strict=True)]


def _measured(case: Case, ranks: Sequence[dict[str, Any]]) -> Measured:
    """One step, from what each process has found."""
    first = ranks[0]
    return Measured(
        received=first["received"] / case.spec.workers.count,
        messages=first["messages"],
        peak=max(rank["peak"] for rank in ranks) if len(ranks) > 1 else 0.0,
    )


def _work(fields: Sequence[tuple[str, dict[str, object], int, int]]) -> list[dict[str, object]]:
    _warm_up(RunSpec.model_validate_json(fields[0][0]))
    results = []
    for text, shape, examples, steps in fields:
        spec = RunSpec.model_validate_json(text)
        results.append(_steps(Case(spec, TypeAdapter(Shape).validate_python(shape), examples, steps)))
    return results


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
    for step in range(case.steps):
        _RESET.write_text("5", encoding="ascii")
        position = Position(0, step, case.steps, step, batch_size, case.steps)
        entry = sync.iterate(batches, Moment(position, last=False, observe=False)).step
        peak = _memory("VmHWM") - before
        counted.append((entry.received_bytes, entry.messages))
    measured = counted[1:] or counted
    return {
        "received": sum(received for received, _ in measured) / len(measured),
        "messages": sum(messages for _, messages in measured) / len(measured),
        "peak": peak,
    }


def _batch(case: Case, worker: int) -> Batch:
    generator = torch.Generator().manual_seed(worker)
    inputs = torch.randn(case.examples, *case.shape.inputs, generator=generator)
    return Batch(inputs, torch.randint(case.shape.outputs, (case.examples,), generator=generator), 1.0)


def _memory(name: str) -> int:
    """Bytes in this process's status: VmRSS, what it has, or VmHWM, the most since a reset."""
    match = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    assert match, f"{_STATUS} has no {name}"
    return 1024 * int(match[1])
