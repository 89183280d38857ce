"""A GPT under FSDP2 in islands: losses and bytes between them, beside HSDP, which sends whole gradients."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from taugrad.compressors import compress_replicas
from taugrad.platform.models.config import Gpt
from taugrad.platform.models.gpt import GptNetwork

from ..harness.report import Table, number, publish, read_options
from ..harness.trainings import Cells
from ..harness.workers import found_by

CONTEXT, BATCH = 32, 8
GPT = Gpt(layers=2, heads=2, width=64)
SIZES = ((2, 2), (2, 4))
"""Islands, and workers in each."""
HSDP = "HSDP"
CONTENDERS = (
    ("AdamW", HSDP),
    ("AdamW", "none"),
    ("AdamW", "wgt(2e-38) | packed32"),
    ("AdamW", "linear(8)"),
    ("SGD", HSDP),
    ("SGD", "strom(density(0.01), momentum=0.9) | golomb_rice"),
)
INTRODUCTION = (
    "A GPT of {parameters:,} parameters learns the bytes of Python's argparse, {batch} texts of {context} a "
    "worker and step, by AdamW (lr 0.002) or SGD (lr 0.1, momentum 0.9, which is a sparse compressor's). "
    "`HSDP` is `fully_shard` over both dimensions of the mesh. The others are `fully_shard` "
    "over the workers of an island, and `compress_replicas` between islands. `none` and `wgt(2e-38)` send "
    "everything. Over gloo on one machine; times are not measured."
)


def train(islands: int, workers: int, optimizer_name: str, method: str, steps: int) -> dict[str, Any]:
    """The losses of every step, over all workers, and the bytes that crossed between islands in a step."""
    mesh = init_device_mesh("cpu", (islands, workers), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = GptNetwork(GPT, CONTEXT, 256)
    inner = mesh if method == HSDP else mesh["shard"]
    for block in model.blocks:
        fully_shard(block, mesh=inner)
    fully_shard(model, mesh=inner)
    state = None if method == HSDP else compress_replicas(model, mesh["replicate"], method)
    if optimizer_name == "AdamW":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)
    else:
        momentum = 0.0 if "momentum" in method else 0.9
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    text = torch.tensor(list(Path(sys.modules["argparse"].__file__ or "").read_bytes()))
    drawing = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1), generator=drawing)
        lines = text[starts + torch.arange(CONTEXT + 1)]
        loss = cross_entropy(model(lines[:, :-1]).flatten(0, 1), lines[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        losses.append(mean.item())
    # A ring, which the ledger counts for `none`, is HSDP's way, too.
    crossed = torch.tensor(0 if state is None else state.totals.received_bytes)
    dist.all_reduce(crossed)
    return {"losses": losses, "bytes": crossed.item() / steps}


def measured(asked: dict[str, Any]) -> dict[str, Any]:
    """What worker 0 found of what is asked for."""
    results: dict[str, Any] = found_by(train, tuple(asked.values()), asked["islands"] * asked["workers"])[0]
    return results


def table_of(islands: int, workers: int, steps: int, cells: Cells) -> Table:
    """Losses and bytes of some islands."""
    results = []
    for optimizer, method in CONTENDERS:
        asked = {
            "islands": islands,
            "workers": workers,
            "optimizer": optimizer,
            "method": method,
            "steps": steps,
        }
        results.append(cells.of(asked, partial(measured, asked)))
    marks = [steps * part // 6 for part in (1, 2, 3, 4, 6)]
    average = max(1, steps // 15)
    whole = results[CONTENDERS.index(("AdamW", "none"))]["bytes"]
    rows = []
    for (optimizer, method), results_ in zip(CONTENDERS, results, strict=True):
        native = results[CONTENDERS.index((optimizer, HSDP))]["losses"]
        off = max(abs(a - b) for a, b in zip(results_["losses"], native, strict=True))
        curve = [f"{sum(results_['losses'][mark - average : mark]) / average:.3f}" for mark in marks]
        crossed = whole if method == HSDP else results_["bytes"]
        title = f"{optimizer}: {method if method == HSDP else f'`{method}`'}"
        counted = number(crossed / 1e3), f"{number(whole / crossed)}x"
        rows.append((title, *curve, f"{off:.1e}", *counted))
    notes = (
        f"Losses are means of {average} steps, of all workers. The difference is the largest of any step.",
        "Bytes are what arrives at all workers from other islands: our messages' by the ledgers, whole "
        "gradients' as a ring all-reduce moves them.",
    )
    columns = (
        "optimizer: exchange",
        *(f"loss at {mark}" for mark in marks),
        "off HSDP",
        "kB a step",
        "fewer",
    )
    return Table(f"{islands} islands of {workers} workers", columns, rows, notes)


def main(arguments: Sequence[str]) -> int:
    """Trains, and publishes."""
    parts = [f"{islands}x{workers}" for islands, workers in SIZES]
    options = read_options("platform.islands", __doc__.partition("\n")[0], arguments, parts)
    steps = 12 if options.quick else 300
    sizes = [size for size, part in zip(SIZES, parts, strict=True) if part in options.parts]
    cells = Cells("islands", quick=options.quick)
    tables = [table_of(*size, steps, cells) for size in (sizes[:1] if options.quick else sizes)]
    parameters = sum(parameter.numel() for parameter in GptNetwork(GPT, CONTEXT, 256).parameters())
    introduction = INTRODUCTION.format(parameters=parameters, batch=BATCH, context=CONTEXT)
    publish("islands", options, introduction, tables)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
