"""A member as a process, for tests: it trains a small model until it gets SIGTERM, and then leaves.

    member_process.py HOST:PORT KEY_FILE CHECKPOINT LOG [OPTIONS]

It appends a line of round, ballot and digest to LOG after each round, and saves CHECKPOINT then. At its end
it appends what became of it, as JSON. With "island" in OPTIONS, [RANK, SIZE, FILE], it is a process of an
island, which meets the others by the file, and rank 0 has the lines.
"""

import json
import os
import signal
import sys
import zlib
from dataclasses import asdict
from pathlib import Path
from time import sleep

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from taugrad.compressors import LocalSteps, Members, Outer
from taugrad.compressors.exchange.tensors import to_bytes


def make(members: Members, **options: object) -> tuple[nn.Module, torch.optim.Optimizer, LocalSteps]:
    model = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Tanh(), nn.Linear(30, 5))
    if dist.is_initialized():
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    local = LocalSteps(
        model, optimizer, every=3, method="strom(density(0.2, every=1)) | golomb_rice", unsent="1/n",
        outer=Outer(lr=0.7, momentum=0.9, nesterov=True), members=members, **options,
    )  # fmt: skip
    return model, optimizer, local


def train(model: nn.Module, optimizer: torch.optim.Optimizer, drawing: torch.Generator) -> None:
    inputs = torch.randn(8, 20, generator=drawing)
    nn.functional.cross_entropy(model(inputs), inputs[:, :5].argmax(1)).backward()
    optimizer.step()
    optimizer.zero_grad()


def bits(local: LocalSteps) -> int:
    """A checksum of the agreed state."""
    agreed = local._rounds.agreed
    return zlib.crc32(to_bytes([*agreed.weights, *agreed.momentum, *agreed.buffers.values()]).data)


def noticed(notices: list[int]) -> bool:
    """Whether this process, or another one of its island, is told to end."""
    if not dist.is_initialized():
        return bool(notices)
    count = torch.tensor(len(notices))
    dist.all_reduce(count)
    return bool(count)


def main(coordinator: str, key_file: str, checkpoint: str, log: str, options: str = "{}") -> None:
    torch.set_num_threads(1)
    key, within = Path(key_file).read_bytes(), {"round_within": 10, "leave_within": 20}
    members = Members(coordinator, key=key, max_members=4, silent_after=3, **within)
    kept = json.loads(options)
    if island := kept.pop("island", None):
        rank, size, file = island
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    model, optimizer, local = make(members, **kept)
    if Path(checkpoint).exists():
        local.load_state_dict(torch.load(checkpoint, weights_only=True))
    local.join()
    notices: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: notices.append(1))
    drawing = torch.Generator()
    drawing.seed()
    leases = local.lease if options == "{}" else lambda: 0
    leases()
    with open(log, "a", buffering=1) as lines:
        while not noticed(notices):
            train(model, optimizer, drawing)
            sleep(0.02)
            if local.step():
                if session := local._rounds._session:  # else another process logs
                    ballot = session.member.applied.ballot
                    lines.write(f"{local.membership.round} {ballot} {bits(local)}\n")
                torch.save(local.state_dict(), f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)
                leases()
        local.leave()
        lines.write(json.dumps(asdict(local.membership)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
