"""A GPT of 28 million parameters on a GPU: loss, bytes and time on slow links, of local steps and DDP.

    python -m benchmarks.papers.gpu_gpt [--quick] [--write]

The platform trains four simulated workers in one process, on the same number of tokens by every method, in
bfloat16 with float32 weights. The text is the source code of Python's standard library. It trains for about
as many minutes as the variable MINUTES says (8). Can be stopped and continued: build/gpu_gpt.jsonl has the
trainings that were done. Without a GPU, `--quick` shows at a toy size that it works.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking import names

from ..harness.in_process import trained
from ..harness.report import Options, Report, Table, number, run_benchmark, say
from ..harness.trainings import Kept, kept_in

WORKERS, RATES = 4, {"100 Mbit": 1e8, "1 Gbit": 1e9}
SPARSE_LOCO = "chunked_topk(keep=64, decay=0.95) | quantile(bits=2) | chunked"
STROM = "strom(density(0.1, every=1)) | golomb_rice"


@dataclass(frozen=True)
class Size:
    """The size of the model and of a worker's batch."""

    layers: int
    width: int
    context: int
    batch: int


FULL, QUICK = Size(9, 512, 256, 32), Size(2, 32, 64, 4)


def _local(every: int, **fields: Any) -> dict[str, Any]:
    return {"mode": "weights", "every": every, **fields}


WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "16 bits, DDP": ("bf16", {"mode": "gradients", "pattern": "sharded"}),
    "DiLoCo, H = 30": ("none", _local(30, outer={"lr": 0.7, "momentum": 0.9, "nesterov": True})),
    "SparseLoCo, H = 15": (SPARSE_LOCO, _local(15)),
    "SparseLoCo, H = 30": (SPARSE_LOCO, _local(30)),
    **{f"strom 10%, H = {every}": (STROM, _local(every, unsent="1/n")) for every in (4, 15, 30)},
}
"""By name, the compressor and how workers synchronize."""


def spec_of(way: str, size: Size, steps: int) -> RunSpec:
    """A training, evaluated at its end."""
    line, sync = WAYS[way]
    network = {"layers": size.layers, "width": size.width, "heads": max(1, size.width // 64)}
    return RunSpec.model_validate(
        {
            "task": {"kind": "language_model"},
            "model": {"kind": "gpt", **network, "bias": True, "tied": False},
            "data": {"kind": "text", "context": size.context, "test_examples": 64 * size.batch},
            "training": {
                "iterations": steps,
                "evaluate_every": steps,
                "batch_per_worker": size.batch,
                "precision": "bf16",
                "optimizer": {"kind": "adamw", "lr": 6e-4, "betas": [0.9, 0.95], "weight_decay": 0.1},
                "schedule": {"kind": "cosine"},
                "warmup": {"iterations": min(100, steps), "start": 0.01},
                "clip": {"norm": 1.0},
            },
            "compressor": line,
            "sync": {"mode": "simulated", "of": sync},
            "workers": {"count": WORKERS, "device": "cuda" if torch.cuda.is_available() else "cpu"},
            "checkpoint": {"interval": 10**6},
        }
    )


def measured(way: str, size: Size, steps: int) -> dict[str, float]:
    """The loss, bytes that a worker has sent, and seconds of a training."""
    began = perf_counter()
    listener = trained(spec_of(way, size, steps))
    trainer = listener.trainer
    result = {
        "loss": listener.last[names.EVAL_LOSS],
        "sent": trainer.sync.totals.received_bytes / WORKERS,
        "parameters": float(sum(parameter.numel() for parameter in trainer.model.parameters())),
        "s": perf_counter() - began,
    }
    say(f"{way}: {result['loss']:.4f} nats, {result['sent'] / 1e6:,.1f} MB sent, {result['s']:.0f} s")
    return result


def steps_within(minutes: float, size: Size) -> int:
    """How many steps of each training fit, a multiple of 60, by short ones; the first one compiles."""
    _, short, long = (measured("strom 10%, H = 4", size, steps)["s"] for steps in (4, 4, 16))
    return max(60, int(60 * minutes / len(WAYS) / ((long - short) / 12)) // 60 * 60)


def main(options: Options) -> Report:
    gpu = torch.cuda.is_available()
    if not options.quick and not gpu:
        sys.exit("papers/gpu_gpt.py needs a GPU, and torch finds none here; --quick shows that it works")
    size = QUICK if options.quick else FULL
    kept = Kept(kept_in("gpu_gpt", quick=options.quick))
    dist.init_process_group("nccl" if gpu else "gloo", store=HashStore(), rank=0, world_size=1)
    minutes = float(os.environ.get("MINUTES", "8"))
    steps = kept.of(
        {"steps of": f"{size}"}, lambda: {"steps": 60 if options.quick else steps_within(minutes, size)}
    )["steps"]
    done = {
        way: kept.of({"name": way, "of": steps, "size": f"{size}"}, partial(measured, way, size, steps))
        for way in WAYS
    }
    dist.destroy_process_group()
    most = done["16 bits, DDP"]["sent"]
    rows = [
        (
            *(way, f"{row['loss']:.4f}", number(row["sent"] / 1e6), number(most / row["sent"])),
            *(number(8 * row["sent"] / rate) for rate in RATES.values()),
        )
        for way, row in done.items()
    ]
    columns = ("", "loss, nats a byte", "MB sent by a worker", "times fewer bytes")
    table = Table("Local steps on a GPU", (*columns, *(f"s at {rate}" for rate in RATES)), rows)
    tokens = steps * WORKERS * size.batch * size.context
    millions = done["16 bits, DDP"]["parameters"] / 1e6
    introduction = (
        f"GPT of {millions:.1f} million parameters, {steps:,} steps of {WORKERS} simulated "
        f"workers, {tokens / 1e6:,.1f} million bytes in all, AdamW; one seed. Seconds are of a worker's "
        "bytes on its link alone: gradients to the worker that sums a part and back, messages to each of the "
        "other workers."
    )
    return introduction, [table]


if __name__ == "__main__":
    run_benchmark(main)
