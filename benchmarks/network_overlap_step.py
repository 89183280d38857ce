"""One host of benchmarks/network_overlap.py: steps of a model, synchronized in several ways.

    python benchmarks/network_overlap_step.py RANK HOSTS ADDRESS STEPS LINES SYNCS

LINES is a JSON list of compressors' lines, SYNCS one of `sync` in a spec. Host 0 prints as JSON, for each
line and sync, milliseconds of each step of the slowest host, and its own means of what it waited and
overlapped.
"""

import json
import sys
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from taugrad.platform.data.feeding import Batch
from taugrad.platform.data.shape import Shape
from taugrad.platform.models import build
from taugrad.platform.models.config import NetworkInNetwork
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.base import Moment
from taugrad.platform.synchronization.building import build_synchronization
from taugrad.platform.tasks.classification import ClassificationTask
from taugrad.platform.training.batch_plan import Position

PORT = 29400
WARM_UP = 5
"""Steps in which connections speed up, rooms are learned and tau is found."""
SHARE, SIDE, CLASSES = 8, 24, 10
"""A host's part of a batch: images of SIDE x SIDE x 3."""


class Trained:
    """A model that is synchronized in one way."""

    def __init__(self, line: str, sync: dict[str, Any]) -> None:
        torch.manual_seed(0)
        self.model = build(NetworkInNetwork(dropout=0), Shape.image(3, SIDE, SIDE, CLASSES))
        spec = {"compressor": line, "sync": sync, "workers": {"count": dist.get_world_size()}}
        self._sync, _ = build_synchronization(
            RunSpec.model_validate(spec), self.model, ClassificationTask(), torch.device("cpu")
        )
        self.waited: list[float] = []
        self.overlapped: list[float] = []

    def iterate(self, batch: Batch, moment: Moment) -> float:
        """One step; the seconds it took."""
        dist.barrier()
        started = perf_counter()
        self._sync.iterate([batch], moment)
        seconds = perf_counter() - started
        step = self._sync.last_step
        self.waited.append(1000 * step.blocked_s)
        self.overlapped.append(1000 * step.overlap_s)
        return seconds


def measure(line: str, syncs: list[dict[str, Any]], steps: int) -> list[dict[str, Any]]:
    """What each way came to; they take turns in every step, with the same batch."""
    trained = [Trained(line, sync) for sync in syncs]
    generator = torch.Generator().manual_seed(dist.get_rank())
    seconds = torch.zeros((len(syncs), steps), dtype=torch.float64)
    for step in range(-WARM_UP, steps):
        inputs = torch.randn((SHARE, 3, SIDE, SIDE), generator=generator)
        batch = Batch(inputs, torch.randint(CLASSES, (SHARE,), generator=generator), 1.0)
        position = Position(0, step + WARM_UP, WARM_UP + steps, step + WARM_UP, SHARE * dist.get_world_size())
        for turn in range(len(syncs)):
            number = (step + turn) % len(syncs)
            taken = trained[number].iterate(batch, Moment(position, last=False, observe=False))
            if step >= 0:
                seconds[number, step] = taken
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    _must_be_alike(trained)
    return [
        {
            "ms": (1000 * taken).tolist(),
            "waited": sum(each.waited[WARM_UP:]) / steps,
            "overlapped": sum(each.overlapped[WARM_UP:]) / steps,
        }
        for taken, each in zip(seconds, trained, strict=True)
    ]


def _must_be_alike(trained: list[Trained]) -> None:
    """Ways with as many buckets do the same work: they come in pairs."""
    for late, early in zip(trained[::2], trained[1::2], strict=True):
        for one, other in zip(late.model.parameters(), early.model.parameters(), strict=True):
            if not torch.equal(one, other):
                raise RuntimeError("an exchange with overlap came to other weights than one without")


def main() -> None:
    rank, hosts, address, steps, lines, syncs = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{address}:{PORT}", rank=int(rank), world_size=int(hosts)
    )
    found = {line: measure(line, json.loads(syncs), int(steps)) for line in json.loads(lines)}
    if rank == "0":
        print(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
