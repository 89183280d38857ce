"""What real gradients take on the wire: bits an element beside the entropy of what is sent.

    python -m benchmarks.compress.gradients [--quick] [--write]

--write also puts the table into docs/methods.md.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from taugrad.compressors.bucket.compressor import Compressor, Worker
from taugrad.compressors.bucket.layout import Shard
from taugrad.compressors.bucket.summing import Received
from taugrad.compressors.methods import CompressedMethod, read_config
from taugrad.compressors.ops import ops_for
from taugrad.compressors.wire.forms import FORMS
from taugrad.compressors.wire.message import NonFinite
from taugrad.compressors.wire.update import Update
from taugrad.platform.data import load as load_data
from taugrad.platform.data.batches import epoch_order
from taugrad.platform.models.building import build
from taugrad.platform.spec.data import Mnist5k
from taugrad.platform.spec.models import LeNet

from ..harness.report import Options, Place, Report, Table, number, run_benchmark, say

LINES = (
    "wgt(tau=0.01)",
    "bgt(tau=0.05)",
    "qgt(tau=0.01)",
    "strom(tau=0.05) | packed32",
    "strom(tau=0.05) | bitmap",
    "strom(tau=0.05) | golomb_rice",
    "strom(tau=0.2) | golomb_rice",
    "qgt(tau=0.01) | golomb_rice | raw",
    "qgt(tau=0.01) | golomb_rice | huffman",
    "topk(density=0.02)",
    "wgt(tau=0.01) | quantile(bits=8)",
    "wgt(tau=0.01) | linear(bits=8)",
    "wgt(tau=0.01) | linear(bits=4)",
    "chunked_topk(keep=64) | quantile(bits=2) | chunked",
    "chunked_topk(keep=64) | quantile(bits=2) | golomb_rice",
    "linear(bits=8) | raw",
    "linear(bits=8) | huffman",
    "quantile(bits=4)",
    "entropy(floor=2) | huffman",
    "entropy(floor=6) | huffman",
    "fp8 | huffman",
    "fp16",
    "sign",
    "qsgd(bits=4)",
    "terngrad",
    "natural",
)
PLACE = Place(
    Path(__file__).resolve().parents[2] / "docs" / "methods.md",
    "<!-- benchmarks/compress/gradients.py writes from here -->",
    "<!-- to here -->",
)
INTRODUCTION = (
    "LeNet ({parameters:,} parameters) on 5,000 MNIST digits, one worker, batches of {batch}, {iterations} "
    "iterations with each method from the same weights. Figures are sums over iterations {first} to "
    "{iterations}, every {every}th. All parameters are one bucket. The bound treats positions as "
    "independent events with each layer's density, signs and symbols by their frequencies in each layer, "
    "and floats and tables as they are. If positions cluster within a layer, a code can be below the bound."
)


@dataclass
class Tally:
    """Sums over the iterations measured."""

    elements: int = 0
    sent: int = 0
    wire_bits: int = 0
    bound_bits: float = 0.0


def entropy_bits(counts: NDArray[np.int64]) -> float:
    """Bits that the best code for independent symbols of these frequencies takes, for all of them."""
    counts = counts[counts > 0]
    return float((counts * np.log2(counts.sum() / counts)).sum())


def bound(update: Update) -> float:
    """The entropy of what an update says, in bits."""
    total, traits, ends = 0.0, FORMS[update.form], np.cumsum(update.counts)
    sizes, begins = update.segments.sizes.tolist(), (ends - update.counts).tolist()
    for size, low, high in zip(sizes, begins, ends.tolist(), strict=True):
        sent = high - low
        if update.words is not None:
            total += entropy_bits(np.array([sent, size - sent]))
        if traits.has_tau:
            signs = int((update.words[low:high] & 1).sum())
            total += entropy_bits(np.array([signs, sent - signs]))
        if traits.symbols:
            total += entropy_bits(np.bincount(update.values[low:high]))
    tables = 8.0 * sum(table.nbytes for table in update.tables)
    return total + tables + (0.0 if traits.symbols or traits.has_tau else traits.paper_bits * update.k)


class Learner:
    """A LeNet that learns from what its own messages say."""

    def __init__(self, config: CompressedMethod) -> None:
        self.data = load_data(Mnist5k())
        torch.manual_seed(0)
        self.model = build(LeNet(), self.data.shape)
        self.parameters = list(self.model.named_parameters())
        shard = Shard.whole({name: parameter.numel() for name, parameter in self.parameters})
        self.compressor = Compressor(config, Worker(ops_for(torch.device("cpu"), 1)), shard)
        self.elements, self.iteration, self.epoch = shard.elements, 0, 0
        self.order = self.data.train_labels.numpy()[:0]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)

    def step(self, batch: int) -> tuple[int, Received]:
        """One iteration; returns the bytes of its payload and what it says."""
        if self.order.size < batch:
            self.order = epoch_order(len(self.data.train), 0, self.epoch)
            self.epoch += 1
        indices, self.order = torch.from_numpy(self.order[:batch]), self.order[batch:]
        self.optimizer.zero_grad()
        scores = self.model(self.data.train_inputs[indices])
        nn.functional.cross_entropy(scores, self.data.train_labels[indices]).backward()  # type: ignore[no-untyped-call]
        gradients = [_gradient(parameter) for _, parameter in self.parameters]
        payload = self.compressor.compress(gradients, self.iteration).payload.copy()
        received, total = self.compressor.read(payload), torch.zeros(self.elements)
        if isinstance(received, NonFinite):
            raise FloatingPointError(f"{self.compressor.method} diverged")
        self.compressor.total([received], 1, total)
        pieces = total.split([parameter.numel() for _, parameter in self.parameters])
        for (_, parameter), piece in zip(self.parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        self.optimizer.step()
        self.iteration += 1
        return payload.size, received


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.detach().clone().flatten()


def measure_method(line: str, batch: int, measured: range) -> Tally:
    """Trains with one method; says what was sent in the iterations that are measured, counted from 1."""
    learner, tally = Learner(read_config(line)), Tally()  # type: ignore[arg-type]
    for iteration in range(1, measured.stop):
        size, incoming = learner.step(batch)
        if iteration in measured:
            tally.elements += learner.elements
            tally.wire_bits += 8 * size
            tally.sent += sum(update.k for update in incoming)
            tally.bound_bits += sum(map(bound, incoming))
    return tally


def measure(batch: int, measured: range) -> Table:
    """One row a method."""
    rows: list[tuple[str, ...]] = []
    for line in LINES:
        say(f"{len(rows) + 1} of {len(LINES)}: {line}")
        tally = measure_method(line, batch, measured)
        wire, least = tally.wire_bits / tally.elements, tally.bound_bits / tally.elements
        over = 100 * (wire / least - 1)
        sent = number(100 * tally.sent / tally.elements)
        rows.append((f"`{line}`", sent, f"{wire:.4f}", f"{least:.4f}", f"{over:+.1f}"))
    return Table(
        "Bits an element of real gradients, headers and codebooks included",
        ("method", "sent %", "on the wire", "entropy bound", "over %"),
        rows,
    )


def main(options: Options) -> Report:
    # Residuals have filled when the first iteration is measured.
    batch, measured = (8, range(2, 5, 2)) if options.quick else (32, range(100, 401, 20))
    torch.set_num_threads(1)
    introduction = INTRODUCTION.format(
        parameters=Learner(read_config("fp16")).elements,  # type: ignore[arg-type]
        batch=batch,
        iterations=measured[-1],
        first=measured.start,
        every=measured.step,
    )
    return introduction, [measure(batch, measured)]


if __name__ == "__main__":
    run_benchmark(main, place=PLACE)
