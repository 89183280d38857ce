"""What compression costs where users have it: on a model's buckets, and in a step of DDP.

    python -m benchmarks.compress.hook [--quick] [--write]

Each process has one thread, and the floor is torch's `residual += gradient` over the model's elements.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compression_hook
from taugrad.compressors.bucket.compressor import Compressor, Worker
from taugrad.compressors.bucket.layout import Shard
from taugrad.compressors.methods import CompressedMethod, read_config
from taugrad.compressors.ops import ops_for
from taugrad.compressors.ops.array import Bytes

from ..harness.report import Options, Report, Table, number, run_benchmark, verdict
from ..harness.workers import run_workers
from .gpu import resnet50_sizes

BUCKET_BYTES = 25 << 20
"""As DDP's."""
GOALS = {
    "strom(density(0.01)) | golomb_rice": (1.8, 0.8),
    "wgt(density(0.01))": (1.4, 0.4),
    "linear(bits=8)": (6, 4),  # by default, symbols are coded by their frequencies
    "linear(bits=8) | raw": (6, 4),
}
"""By method, at most so many floors to compress, and to decode."""
INTRODUCTION = (
    "Gradients are normal values; {gradients} different gradients are used in turn, and thresholds have "
    "settled before anything is timed. Times are multiples of the floor, torch's residual += gradient over "
    "all of the model's elements. Each is the least of {rounds} rounds, in which contenders and floor take "
    "turns, all in one thread."
)


@dataclass(frozen=True)
class Model:
    """The parameters of a network."""

    name: str
    sizes: list[int]

    @property
    def elements(self) -> int:
        """The number of elements of all parameters."""
        return sum(self.sizes)

    def buckets(self) -> list[list[int]]:
        """Sizes by bucket, the last parameters first, as DDP cuts them."""
        groups: list[list[int]] = [[]]
        for size in reversed(self.sizes):
            if 4 * sum(groups[-1]) >= BUCKET_BYTES:
                groups.append([])
            groups[-1].append(size)
        return groups


def gpt(layers: int = 6, width: int = 384, vocabulary: int = 65, context: int = 256) -> list[int]:
    """nanoGPT's network for characters, with biases."""
    block = [width, width, 3 * width * width, 3 * width, width * width, width]
    block += [width, width, 4 * width * width, 4 * width, 4 * width * width, width]
    return [vocabulary * width, context * width, *layers * block, width, width]


MODELS = (Model("ResNet-50", resnet50_sizes()), Model("GPT", gpt()))
QUICK_MODELS = (Model("GPT", gpt(layers=1, width=64)),)


@dataclass(frozen=True)
class Rounds:
    """How much to measure."""

    warm: int
    """Steps before anything is timed."""
    least: int
    seconds: float
    """The least seconds for a model and a method."""
    gradients: int = 4

    def run(self, works: Sequence[Callable[[int], float]]) -> list[float]:
        """The least seconds of each of some works, which take turns.

        Args:
            works: get the number of the round, and return what they took.
        """
        fastest, done, begun = [float("inf")] * len(works), 0, perf_counter()
        while done < self.least or perf_counter() - begun < self.seconds:
            fastest = [min(best, work(done)) for best, work in zip(fastest, works, strict=True)]
            done += 1
        return fastest


FULL_ROUNDS, QUICK_ROUNDS = Rounds(12, 12, 6.0), Rounds(3, 2, 0.0, 2)


def timed(work: Callable[[], object]) -> float:
    """The seconds that it takes."""
    begun = perf_counter()
    work()
    return perf_counter() - begun


BARE_NOTES = (
    "Why goals are missed: `linear(bits=8)` codes symbols by their frequencies: it counts them, measures "
    "each stream, as a message's length must be known before it is written, and writes the codes; "
    "`raw` is the same without. `wgt` has values to write beside positions, and its goal is lower than "
    "that of `strom`. Decoding fills the sum, so it writes every element of a bucket; in the file of "
    "2026-11-25 it only added what had arrived to a sum that was there.",
)


class Floor:
    """residual += gradient."""

    def __init__(self, elements: int) -> None:
        self._residual, self._gradient = torch.zeros(elements), torch.randn(elements)

    def __call__(self, turn: int) -> float:
        """The seconds of a pass, which finds in the caches what a pass before it has left there."""
        self._residual.add_(self._gradient)
        return timed(lambda: self._residual.add_(self._gradient))


class Bare:
    """A worker that compresses a model's buckets and reads its own messages, without DDP."""

    def __init__(self, model: Model, line: str, rounds: Rounds) -> None:
        method, self._iteration = read_config(line), 0
        assert isinstance(method, CompressedMethod)
        worker, self._compressors = Worker(ops_for(torch.device("cpu"), 1)), list[Compressor]()
        self._buckets = []
        for bucket, sizes in enumerate(model.buckets()):
            names = [f"{bucket}.{place}" for place in range(len(sizes))]
            steps = [torch.randn(sum(sizes)) * 0.01 for _ in range(rounds.gradients)]
            gradients = torch.zeros(sum(sizes))
            self._buckets.append((torch.split(gradients, sizes), gradients, steps, torch.zeros(sum(sizes))))
            shard = Shard.whole(dict(zip(names, sizes, strict=True)))
            self._compressors.append(Compressor(method, worker, shard))
        self._payloads: list[Bytes] = []
        for turn in range(rounds.warm):
            self.compress(turn)

    def compress(self, turn: int) -> float:
        """The seconds from gradients to payloads."""
        self._payloads = []
        for _, gradients, steps, _ in self._buckets:
            gradients.copy_(steps[turn % len(steps)])
        begun = perf_counter()
        for compressor, (parts, *_) in zip(self._compressors, self._buckets, strict=True):
            self._payloads.append(compressor.compress(parts, self._iteration).payload)
        self._iteration += 1
        return perf_counter() - begun

    def decode(self, turn: int) -> float:
        """The seconds from payloads to sums."""
        begun = perf_counter()
        given = zip(self._payloads, self._compressors, self._buckets, strict=True)
        for payload, compressor, (*_, total) in given:
            compressor.total([compressor.read(payload)], 1, total)
        return perf_counter() - begun


class Weighted(nn.Module):
    """Parameters whose gradients are given."""

    def __init__(self, sizes: Sequence[int], gradients: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(size) for size in sizes)
        self._gradients = [[torch.randn(size) * 0.01 for size in sizes] for _ in range(gradients)]

    def forward(self, turn: int) -> Tensor:
        """A sum whose derivatives are the gradients of a step."""
        gradients = self._gradients[turn % len(self._gradients)]
        pairs = zip(self.weights, gradients, strict=True)
        return torch.stack([torch.dot(weight, gradient) for weight, gradient in pairs]).sum()


def bare_table(models: Sequence[Model], rounds: Rounds) -> Table:
    """Compressing and reading one's own messages."""
    rows = []
    for model in models:
        floor = Floor(model.elements)
        for line, (most, most_decode) in GOALS.items():
            bare = Bare(model, line, rounds)
            least, compress, decode = rounds.run([floor, bare.compress, bare.decode])
            rows.append(
                (
                    *(model.name, f"{model.elements:,}", f"{len(model.sizes)} in {len(model.buckets())}"),
                    *(f"`{line}`", f"{1e3 * least:.3g}"),
                    *(number(compress / least), verdict(compress / least, most)),
                    *(number(decode / least), verdict(decode / least, most_decode)),
                )
            )
    columns = (
        *("model", "elements", "tensors in buckets", "method", "floor, ms"),
        *("compress", "goal", "decode", "goal"),
    )
    return Table("A model's buckets, in floors", columns, rows, BARE_NOTES)


STEPS = ("DDP alone", "torch's allreduce_hook", "none", *list(GOALS)[:2])
"""The first two without us: the second shows what any hook in Python costs."""
PARTS = ("step", "compress", "blocked", "exchange", "decompress")


def steps_of(sizes: Sequence[int], given: Mapping[str, Any]) -> dict[str, list[float]]:
    """One of two workers: backward passes of every contender in turn, and where their time went."""
    rounds = Rounds(**given)
    torch.manual_seed(dist.get_rank())
    contenders = {}
    for line in STEPS:
        ddp = DistributedDataParallel(Weighted(sizes, rounds.gradients))
        state = None if line in STEPS[:2] else CompressionState(ddp, line, threads=1)
        if state is not None:
            ddp.register_comm_hook(state, compression_hook)
        elif line == STEPS[1]:
            ddp.register_comm_hook(None, allreduce_hook)
        contenders[line] = ddp, state
    by_line: dict[str, list[list[float]]] = {line: [] for line in STEPS}
    for turn in range(rounds.warm + 2 * rounds.least):
        for line, (ddp, state) in contenders.items():
            loss = ddp(turn)
            ddp.zero_grad(set_to_none=False)
            dist.barrier()
            seconds = timed(loss.backward)
            split = [0.0] * 4
            if state is not None:
                last = state.last_step
                split = [last.compress_s, last.blocked_s, last.exchange_s, last.decompress_s]
            if turn >= rounds.warm:
                by_line[line].append([seconds, *split])
    return {line: np.median(np.array(rows), axis=0).tolist() for line, rows in by_line.items()}


def step_table(models: Sequence[Model], rounds: Rounds) -> Table:
    """A backward pass of two workers, and its parts."""
    rows = []
    for model in models:
        (seconds,) = run_workers(steps_of, [{"sizes": model.sizes, "given": asdict(rounds)}], 2)
        bare = seconds[STEPS[0]][0]
        for line in STEPS:
            shown = line if line in STEPS[:2] else f"`{line}`"
            ratio = number(seconds[line][0] / bare)
            split = ["" if line in STEPS[:2] else f"{1e3 * part:.3g}" for part in seconds[line][1:]]
            rows.append((model.name, shown, f"{1e3 * seconds[line][0]:.3g}", ratio, *split))
    columns = ("model", "hook", "backward, ms", "to DDP alone", *(f"{part}, ms" for part in PARTS[1:]))
    notes = (
        "Medians of worker 0. Gradients are given, so a backward pass is little more than its exchange; on "
        'loopback, only the two cores that both workers share limit it. "Exchange" is the time from telling '
        'a length until everybody\'s message has arrived, in parallel to other work. "Blocked" is the part '
        "of it in which the pass waited.",
    )
    return Table("A backward pass of two workers", columns, rows, notes)


def main(options: Options) -> Report:
    models, rounds = (QUICK_MODELS, QUICK_ROUNDS) if options.quick else (MODELS, FULL_ROUNDS)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    introduction = INTRODUCTION.format(gradients=rounds.gradients, rounds=f"{rounds.least} or more")
    return introduction, [bare_table(models, rounds), step_table(models, rounds)]


if __name__ == "__main__":
    run_benchmark(main)
