"""Adam's moments in local steps: each worker's own, or averaged over workers (DES-LOC); with restarts, too.

    python -m benchmarks.compress.moments [--quick] [--write]

Can be stopped and continued: build/moments.jsonl has the trainings that were done.
"""

from collections.abc import Mapping
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from taugrad.compressors import LocalSteps
from taugrad.platform.data.text import load_text
from taugrad.platform.models.gpt import GptNetwork
from taugrad.platform.spec.data import Text
from taugrad.platform.spec.models import Gpt

from ..harness.report import Options, Report, Table, interval, number, run_benchmark
from ..harness.trainings import Kept, kept_in
from ..harness.workers import run_workers

WORKERS, EVERY, BATCH, RATE = 4, 12, 4, 3e-3
RESTART_EVERY = 4 * EVERY
"""Steps after which one worker, the next each time, begins with empty moments."""
TEXT = Text(context=64)
OWN = "each worker's own"
RHYTHMS: Mapping[str, Mapping[str, int]] = {
    OWN: {},
    "averaged, first moments in each 3rd exchange, second in each 6th": {
        "exp_avg": 3 * EVERY,
        "exp_avg_sq": 6 * EVERY,
    },
    "averaged in each exchange": {"exp_avg": EVERY, "exp_avg_sq": EVERY},
}
FROM_ANOTHER = "each worker's own; one that begins takes another's"
"""As `Members(moments=True)` does."""
INTRODUCTION = (
    "{workers} workers, a GPT of 2 x 64 with a context of 64 bytes, {batch} examples of each in a step, "
    "{steps} steps, AdamW with a rate of {rate:g} and betas of 0.9 and 0.99; the source of Python's standard "
    "library. Weights are averaged in each {every}th step, without compression; moments, too, whole in "
    "float32, where a row says so (arXiv 2505.22549). With restarts, a worker begins with empty moments in "
    "each {restart}th step, right after an exchange: one after the other, as members do that are killed and "
    "have no checkpoint. The loss is that of the agreed weights on held-out text, in nats a byte: mean of "
    "{seeds} seeds. Difference: to each worker's own moments in the same part of the table, by seed, with a "
    "95% interval."
)


def train(
    moments_every: Mapping[str, int], restarts: bool, takes: bool, seed: int, steps: int
) -> dict[str, float]:
    """A worker's training: the loss, and bits an element and step."""
    rank, parts = dist.get_rank(), load_text(TEXT)
    torch.manual_seed(seed)
    model = GptNetwork(Gpt(layers=2, heads=4, width=64), TEXT.context, 256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.99), weight_decay=0.1)
    local = LocalSteps(model, optimizer, every=EVERY, moments_every=moments_every)
    drawing = np.random.default_rng((seed, rank))
    for step in range(1, steps + 1):
        inputs, targets = parts.train.batch(drawing.integers(len(parts.train), size=BATCH), None)
        loss_of(model, inputs, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        local.step()
        if restarts and step % RESTART_EVERY == 0:
            begin_anew(optimizer, step // RESTART_EVERY % WORKERS, takes=takes)
    with local.agreed(), torch.no_grad():
        inputs, targets = parts.test.batch(np.arange(len(parts.test)), None)
        loss = float(loss_of(model, inputs, targets))
    return {"loss": loss, "bits": local.totals.bits_per_param}


def loss_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy, in nats."""
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def begin_anew(optimizer: torch.optim.Optimizer, rank: int, *, takes: bool) -> None:
    """Empties one worker's moments, or lets it take those of the next one."""
    if takes:
        for state in optimizer.state.values():
            for name in sorted(state):
                sent = state[name].clone()
                dist.broadcast(sent, (rank + 1) % WORKERS)
                if dist.get_rank() == rank:
                    state[name].copy_(sent)
    elif dist.get_rank() == rank:
        optimizer.state.clear()


def trained(**asked: Any) -> dict[str, float]:
    """What `train` says, by workers that end with this call."""
    results: dict[str, float] = run_workers(train, [asked], WORKERS)[0]
    return results


def table(cells: Kept, steps: int, seeds: int) -> Table:
    """All rows, without restarts and with them."""
    rows = []
    for restarts in (False, True):
        ways = [(name, every, False) for name, every in RHYTHMS.items()]
        ways += [(FROM_ANOTHER, {}, True)] if restarts else []
        own: list[float] = []
        for name, every, takes in ways:
            given = {"moments_every": every, "restarts": restarts, "takes": takes, "steps": steps}
            found = [
                cells.of(
                    {"moments": name, "restarts": restarts, "seed": seed, "steps": steps},
                    partial(trained, seed=seed, **given),
                )
                for seed in range(seeds)
            ]
            losses = [cell["loss"] for cell in found]
            own = own or losses
            differences = [loss - other for loss, other in zip(losses, own, strict=True)]
            rows.append(
                (
                    "yes" if restarts else "no", name, f"{fmean(losses):.3f}",
                    "" if name == OWN else interval(differences), number(found[0]["bits"]),
                )
            )  # fmt: skip
    columns = ("restarts", "moments", "loss", "difference", "bits an element and step")
    return Table("Moments in local steps", columns, rows)


def main(options: Options) -> Report:
    steps, seeds = (2 * RESTART_EVERY, 2) if options.quick else (600, 5)
    load_text(TEXT)  # workers find it in the cache
    introduction = INTRODUCTION.format(
        workers=WORKERS, batch=BATCH, steps=steps, rate=RATE, every=EVERY, restart=RESTART_EVERY,
        seeds=seeds,
    )  # fmt: skip
    return introduction, [table(Kept(kept_in("moments", quick=options.quick)), steps, seeds)]


if __name__ == "__main__":
    run_benchmark(main)
