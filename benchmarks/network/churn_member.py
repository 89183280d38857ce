"""What a host of network/churn.py does: trains a GPT, one step in so many seconds at least.

    python -m benchmarks.network.churn_member SETTINGS

SETTINGS is `Settings` as JSON. A host appends what happens to its log, a line of JSON each; see `Log`.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import LocalSteps, Members, PeerLost
from taugrad.platform.models.gpt import GptNetwork
from taugrad.platform.spec.models import Gpt

CONTEXT = 32
COMPRESSOR = "strom(density(0.05, every=1)) | golomb_rice"


@dataclass(frozen=True)
class Settings:
    """What a host does."""

    kind: Literal["members", "fixed", "ddp"]
    host: int
    at: str
    """HOST:PORT of the coordinator; in a fixed group, of the store."""
    folder: str
    """That of the training, which all hosts see."""
    pace_s: float
    """The least time of a step."""
    every: int = 8
    """Steps in a round."""
    layers: int = 4
    width: int = 128
    batch: int = 4
    moments: bool = False
    """Whether a new member takes the optimizer's state, too."""
    checkpoint_s: float = 60.0
    """DDP's; the others save one in each round."""
    hosts: int = 0
    """In a fixed group, how many there are."""
    start: int = -1
    """In a fixed group, the round with which all begin; -1: anew."""

    def checkpoint(self, number: int | None = None) -> Path:
        """A file of this host's; of a round, or the latest."""
        return Path(self.folder, f"{self.host}.pt" if number is None else f"{self.host}-{number}.pt")


class Log:
    """A host's lines. Each has `at` (the time), `event`, and the bytes that the host has received so far.

    | event | when | further fields |
    | --- | --- | --- |
    | begins | Python has imported everything, and the model is made | |
    | in | it trains, from the agreed weights | `state` |
    | exchange | the examples are in the agreed weights | `state`, `examples`, `loss`, a member's counts |
    """

    def __init__(self, settings: Settings) -> None:
        self._path = Path(settings.folder, f"{settings.host}.log")

    def write(self, event: str, **fields: Any) -> None:
        line = {"at": time(), "event": event, "received": received_bytes(), **fields}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def received_bytes() -> int:
    """What this host's device has received, headers included."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.strip().startswith("net0:"))


class Training:
    """A model that takes steps of at least so many seconds.

    Attributes:
        model: a GPT.
        optimizer: AdamW.
        log: of this host.
    """

    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(1)
        self._settings, self.log = settings, Log(settings)
        self.model = GptNetwork(Gpt(layers=settings.layers, width=settings.width), CONTEXT, 256)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
        self._drawing = torch.Generator()
        self._drawing.seed()
        self._losses: list[float] = []

    def step(self, model: nn.Module) -> None:
        """A step of the optimizer, and sleep for the rest of its time."""
        until = monotonic() + self._settings.pace_s
        starts = torch.randint(
            len(self._text) - CONTEXT - 1, (self._settings.batch, 1), generator=self._drawing
        )
        words = self._text[starts + torch.arange(CONTEXT + 1)]
        loss = nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._losses.append(loss.item())
        sleep(max(0.0, until - monotonic()))

    def note_exchange(self, state: int, **fields: Any) -> None:
        """Logs that all steps since the last exchange are in the agreed weights."""
        losses, self._losses = self._losses, []
        examples, loss = self._settings.batch * len(losses), sum(losses) / max(1, len(losses))
        self.log.write("exchange", state=state, examples=examples, loss=loss, **fields)

    def forget(self) -> None:
        """Forgets the steps since the last exchange: they are in no weights."""
        self._losses = []


def save(path: Path, state: dict[str, Any]) -> None:
    """Saves a checkpoint, so that one that is half written is never read."""
    unfinished = path.with_suffix(".new")
    torch.save(state, unfinished)
    os.replace(unfinished, path)


def run_member(settings: Settings) -> None:
    """Trains as a member, until a notice."""
    training = Training(settings)
    key = Path(settings.folder, "key").read_bytes()
    members = Members(settings.at, key=key, moments=settings.moments)
    local = LocalSteps(
        training.model, training.optimizer, every=settings.every, method=COMPRESSOR, unsent="1/n",
        members=members,
    )  # fmt: skip
    notices: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: notices.append(1))
    if (path := settings.checkpoint()).exists():
        saved = torch.load(path, weights_only=True)
        training.optimizer.load_state_dict(saved["optimizer"])
        local.load_state_dict(saved["local"])
    training.log.write("begins")
    local.join()
    training.log.write("in", state=local.membership.round)
    joins, dropped = local.membership.joins, local.membership.dropped
    while not notices:
        training.step(training.model)
        if not local.step():
            continue
        membership = local.membership
        if membership.dropped > dropped:
            training.forget()
        elif membership.joins == joins:  # after another join, they are in its next update
            counts = {name: getattr(membership, name) for name in ("joins", "missed", "dropped")}
            training.note_exchange(membership.round, **counts)
        joins, dropped = membership.joins, membership.dropped
        save(path, {"local": local.state_dict(), "optimizer": training.optimizer.state_dict()})
    local.leave()


def run_fixed(settings: Settings) -> None:
    """Trains in a group that is fixed, until a worker is lost."""
    training = Training(settings)
    training.log.write("begins")
    dist.init_process_group(
        "gloo", init_method=f"tcp://{settings.at}", rank=settings.host, world_size=settings.hosts
    )
    local = LocalSteps(
        training.model, training.optimizer, every=settings.every, method=COMPRESSOR, unsent="1/n"
    )
    number = max(settings.start, 0)
    if number:
        saved = torch.load(settings.checkpoint(number), weights_only=True)
        training.optimizer.load_state_dict(saved["optimizer"])
        local.load_state_dict(saved["local"])
    training.log.write("in", state=number)
    while True:
        training.step(training.model)
        if local.step():
            number += 1
            training.note_exchange(number)
            state = {"local": local.state_dict(), "optimizer": training.optimizer.state_dict()}
            save(settings.checkpoint(number), state)
            settings.checkpoint(number - 3).unlink(missing_ok=True)


def run_ddp(settings: Settings) -> None:
    """Trains by DDP with 16-bit gradients, as a worker that torchrun starts."""
    dist.init_process_group("gloo")
    training, path, number = Training(settings), Path(settings.folder, "ddp.pt"), 0
    training.log.write("begins")
    if path.exists():
        saved = torch.load(path, weights_only=True)
        training.model.load_state_dict(saved["model"])
        training.optimizer.load_state_dict(saved["optimizer"])
        number = saved["number"]
    model = DistributedDataParallel(training.model)
    model.register_comm_hook(None, fp16_compress_hook)
    training.log.write("in", state=number)
    saved_in = time() // settings.checkpoint_s
    while True:
        training.step(model)
        number += 1
        if number % settings.every == 0:
            training.note_exchange(number)
        now_in = time() // settings.checkpoint_s
        if now_in > saved_in and dist.get_rank() == 0:
            state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
            save(path, {**state, "number": number})
        saved_in = now_in


def main(text: str) -> None:
    settings = Settings(**json.loads(text))
    run: dict[str, Callable[[Settings], None]] = {"members": run_member, "fixed": run_fixed, "ddp": run_ddp}
    try:
        run[settings.kind](settings)
    except PeerLost as lost:
        sys.exit(str(lost))


if __name__ == "__main__":
    main(sys.argv[1])
