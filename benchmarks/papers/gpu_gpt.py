"""A GPT of 28 million parameters on a GPU: loss, bytes and time on slow links, of local steps and DDP.

    python -m benchmarks.papers.gpu_gpt [--quick] [--write]

Four simulated workers in one process, trained on the same number of tokens by every method, in bfloat16 with
float32 weights. The text is the source code of the installed packages, split by file. It trains for about as
many minutes as the variable MINUTES says (8). A training writes its line to build/gpu_gpt.jsonl when it is
done; another visit continues. Without a GPU, `--quick` shows at a toy size that it works.
"""

import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from taugrad.compressors.bucket.compressor import Worker
from taugrad.compressors.bucket.ledger import Step, Traffic
from taugrad.compressors.exchange.averaging import Averaging
from taugrad.compressors.exchange.carrier import in_memory
from taugrad.compressors.exchange.lockstep import run_lockstep
from taugrad.compressors.exchange.patterns.allgather import AllGather
from taugrad.compressors.methods import read_config
from taugrad.compressors.ops import ops_for
from taugrad.platform.models.gpt import GptNetwork
from taugrad.platform.spec.models import Gpt

from ..harness.report import Table, number, publish, read_options, say

WORKERS, RATES = 4, {"100 Mbit": 1e8, "1 Gbit": 1e9}
SPARSE_LOCO = "chunked_topk(keep=64, decay=0.95) | quantile(bits=2) | chunked"
STROM = "strom(density(0.1, every=1)) | golomb_rice"
LINES = Path("build") / "gpu_gpt.jsonl"


@dataclass(frozen=True)
class Size:
    """The size of the model and of a worker's batch."""

    layers: int
    width: int
    context: int
    batch: int
    text: int
    """Bytes of source code, at most."""

    def network(self) -> GptNetwork:
        """nanoGPT's, on bytes."""
        heads = max(1, self.width // 64)
        config = Gpt(layers=self.layers, width=self.width, heads=heads, bias=True, tied=False)
        return GptNetwork(config, self.context, 256)


FULL, QUICK = Size(9, 512, 256, 32, 64_000_000), Size(2, 32, 64, 4, 400_000)


@dataclass(frozen=True)
class Way:
    """How workers agree: by 16-bit gradients in every step (no method), or by weights after some steps."""

    name: str
    method: str | None = None
    every: int = 1
    lr: float = 1.0
    """The learning rate of the outer optimizer, SGD."""
    momentum: float = 0.0
    """Nesterov's."""
    unsent: float = 0.0
    """The part of what a worker has not sent yet that it goes on with."""


WAYS = (
    Way("16 bits, DDP"),
    Way("DiLoCo, H = 30", "none", 30, 0.7, 0.9),
    Way("SparseLoCo, H = 15", SPARSE_LOCO, 15),
    Way("SparseLoCo, H = 30", SPARSE_LOCO, 30),
    Way("strom 10%, H = 4", STROM, 4, unsent=1 / WORKERS),
    Way("strom 10%, H = 15", STROM, 15, unsent=1 / WORKERS),
    Way("strom 10%, H = 30", STROM, 30, unsent=1 / WORKERS),
)


def texts(size: Size) -> tuple[Tensor, Tensor]:
    """Training and test bytes, uint8: of twenty files one is a test."""
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    total, root = 0, Path(torch.__file__).parent.parent
    for path in sorted(root.rglob("*.py")):
        if total >= size.text:
            break
        data = path.read_bytes()
        total += len(data)
        parts[crc32(str(path.relative_to(root)).encode()) % 20 == 0].append(data)
    train, test = (torch.from_numpy(np.frombuffer(b"".join(part), np.uint8).copy()) for part in parts)
    return train, test


class Training:
    """Four workers that train one model."""

    def __init__(
        self, way: Way, size: Size, data: tuple[Tensor, Tensor], device: torch.device, steps: int
    ) -> None:
        self.way, self.size, self.device, self.steps = way, size, device, steps
        self.train, self.test = (part.to(device) for part in data)
        self.models = []
        for _ in range(WORKERS):
            torch.manual_seed(0)
            self.models.append(size.network().to(device))
        names = [name for name, _ in self.models[0].named_parameters()]
        self.base = [parameter.detach().clone() for parameter in self.models[0].parameters()]
        self.parameters = sum(parameter.numel() for parameter in self.base)
        rate = {"lr": 6e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
        self.inner = [torch.optim.AdamW(model.parameters(), **rate) for model in self.models]  # type: ignore[arg-type]
        self.outer = torch.optim.SGD(self.base, way.lr, way.momentum, nesterov=way.momentum > 0)
        self.traffic, self.averagings = Traffic(WORKERS), list[Averaging]()
        if way.method is not None:
            sizes = {name: base.numel() for name, base in zip(names, self.base, strict=True)}
            method, ops = read_config(way.method), ops_for(self.base[0].device)
            for carrier in in_memory(WORKERS):
                pattern = AllGather(method, Worker(ops, carrier.rank, WORKERS), sizes)
                self.averagings.append(Averaging(carrier, pattern, names))
        self.sent = 0
        """Bytes that a worker has sent."""

    def _batches(self, text: Tensor, seed: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        within = torch.arange(self.size.context + 1, device=self.device)
        while True:
            starts = torch.randint(
                text.numel() - self.size.context - 1, (self.size.batch, 1), generator=generator
            )
            yield text[starts.to(self.device) + within].long()

    def _loss(self, model: GptNetwork, tokens: Tensor) -> Tensor:
        """Mean over the next tokens, in nats."""
        with torch.autocast(self.device.type, torch.bfloat16):
            scores = model(tokens[:, :-1])
        return cross_entropy(scores.float().flatten(0, 1), tokens[:, 1:].flatten())

    def _agree_on_gradients(self) -> None:
        """All-reduce of 16 bits, in a ring."""
        for group in zip(*(model.parameters() for model in self.models), strict=True):
            gradients = [parameter.grad for parameter in group if parameter.grad is not None]
            mean = sum(gradient.to(torch.bfloat16).float() for gradient in gradients) / WORKERS
            for gradient in gradients:
                gradient.copy_(mean)
        self.sent += 2 * 2 * (WORKERS - 1) * self.parameters // WORKERS

    def _starts(self, rank: int) -> list[Tensor]:
        """What a worker goes on from: the agreed weights, and a part of what it has not sent yet."""
        if not self.way.unsent:
            return self.base
        unsent = zip(self.base, self.averagings[rank].pattern.unsent(), strict=True)
        return [base - self.way.unsent * kept.view_as(base) for base, kept in unsent]

    @torch.no_grad()
    def _agree_on_weights(self) -> None:
        """The mean of what workers have moved, through the outer optimizer."""
        exchanges, records, step = [], [], Step()
        for rank, (model, averaging) in enumerate(zip(self.models, self.averagings, strict=True)):
            moved = zip(self._starts(rank), model.parameters(), strict=True)
            pending = averaging.begin([(start - end).view(-1) for start, end in moved])
            exchanges.append(averaging.complete(pending))
            records.append(pending.record)
        results = zip(self.averagings, run_lockstep(exchanges), records, strict=True)
        mean, *_ = [averaging.finish(*result, step, self.traffic) for averaging, *result in results]
        assert mean is not None
        for base, part in zip(self.base, mean.split([base.numel() for base in self.base]), strict=True):
            base.grad = part.view_as(base)
        self.outer.step()
        for rank, model in enumerate(self.models):
            for parameter, start in zip(model.parameters(), self._starts(rank), strict=True):
                parameter.copy_(start)
        self.sent += step.wire_bytes * (WORKERS - 1) // WORKERS

    def run(self, steps: int | None = None) -> None:
        """Trains; by default to the end."""
        batches = [self._batches(self.train, 1 + rank) for rank in range(WORKERS)]
        for step in range(steps or self.steps):
            done = step / self.steps
            rate = 6e-4 * min(1.0, (step + 1) / 100, 0.1 + 0.45 * (1 + math.cos(math.pi * done)))
            for model, optimizer, batch in zip(self.models, self.inner, batches, strict=True):
                optimizer.zero_grad()
                self._loss(model, next(batch)).backward()
                optimizer.param_groups[0]["lr"] = rate
            if self.way.method is None:
                self._agree_on_gradients()
            for model, optimizer in zip(self.models, self.inner, strict=True):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            if self.way.method is not None and (step + 1) % self.way.every == 0:
                self._agree_on_weights()

    @torch.no_grad()
    def evaluate(self) -> float:
        """The loss of what all agree on, on 64 batches of the test files."""
        if self.way.method is not None:
            for parameter, base in zip(self.models[0].parameters(), self.base, strict=True):
                parameter.copy_(base)
        batches = self._batches(self.test, 0)
        return sum(float(self._loss(self.models[0], next(batches))) for _ in range(64)) / 64


def steps_within(minutes: float, size: Size, data: Any, device: torch.device) -> int:
    """How many steps of each training fit, a multiple of 60, by a short one."""
    training = Training(WAYS[4], size, data, device, 1000)
    training.run(4)
    began = perf_counter()
    training.run(12)
    of_step = (perf_counter() - began) / 12
    return max(60, int(60 * minutes / len(WAYS) / of_step) // 60 * 60)


def main(arguments: Sequence[str]) -> None:
    options = read_options("papers.gpu_gpt", __doc__.partition("\n")[0], arguments)
    if not options.quick and not torch.cuda.is_available():
        sys.exit("papers/gpu_gpt.py needs a GPU, and torch finds none here; --quick shows that it works")
    size = QUICK if options.quick else FULL
    device = torch.device("cpu" if options.quick else "cuda")
    lines = LINES.with_stem("gpu_gpt_quick") if options.quick else LINES
    lines.parent.mkdir(exist_ok=True)
    data = texts(size)
    if options.quick or not lines.exists():
        steps = (
            60 if options.quick else steps_within(float(os.environ.get("MINUTES", "8")), size, data, device)
        )
        lines.write_text(json.dumps({"steps": steps, **asdict(size)}) + "\n")
    header, *done = map(json.loads, lines.read_text().splitlines())
    for way in WAYS[len(done) :]:
        began = perf_counter()
        training = Training(way, size, data, device, header["steps"])
        training.run()
        record = {"name": way.name, "loss": training.evaluate(), "sent": training.sent}
        record |= {"parameters": training.parameters, "s": perf_counter() - began}
        done.append(record)
        with lines.open("a") as file:
            file.write(json.dumps(record) + "\n")
        say(
            f"{way.name}: {record['loss']:.4f} nats, {record['sent'] / 1e6:,.1f} MB sent, {record['s']:.0f} s"
        )
    rows = [
        (
            row["name"],
            f"{row['loss']:.4f}",
            number(row["sent"] / 1e6),
            number(done[0]["sent"] / row["sent"]),
            *[number(8 * row["sent"] / rate) for rate in RATES.values()],
        )
        for row in done
    ]
    columns = (
        "",
        "loss, nats a byte",
        "MB sent by a worker",
        "times fewer bytes",
        *[f"s at {rate}" for rate in RATES],
    )
    tokens = header["steps"] * WORKERS * size.batch * size.context
    millions = done[0]["parameters"] / 1e6
    introduction = (
        f"GPT of {millions:.1f} million parameters, {header['steps']:,} steps of {WORKERS} simulated "
        f"workers, {tokens / 1e6:,.1f} million bytes in all, AdamW; one seed. Seconds are of a worker's "
        "bytes on its link alone: an all-reduce in a ring, messages to each of the other workers."
    )
    publish("gpu_gpt", options, introduction, [Table("Local steps on a GPU", columns, rows)])


if __name__ == "__main__":
    main(sys.argv[1:])
