"""Weights as what is sent (Oland-Raj, section 4): self-contained packages, decoded by their own metadata."""

import math

import numpy as np
import pytest
import torch
from cases import in_turn
from torch import Tensor, nn

from taugrad.compressors import chain
from taugrad.compressors.bucket.compressor import Compressor
from taugrad.compressors.bucket.layout import Part
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.rules.base import Context
from taugrad.compressors.wire.message import HEADER_BYTES, NonFinite
from taugrad.compressors.wire.update import Update

PAPERS_NET = ((784, 392), (392, 50), (50, 10))
"""Section 3: fully connected layers on MNIST."""


def layers(scale: float = 1.0) -> list[tuple[str, Tensor]]:
    torch.manual_seed(1)
    named = []
    for i, (inputs, outputs) in enumerate(PAPERS_NET):
        layer = nn.Linear(inputs, outputs)
        nn.init.normal_(layer.weight, std=scale / math.sqrt(inputs))
        named += [(f"{i}.weight", layer.weight.detach()), (f"{i}.bias", layer.bias.detach())]
    return named


def package(line: str, named: list[tuple[str, Tensor]]) -> tuple[np.ndarray, Update]:
    """The bytes, and what a receiver that knows nothing but the shapes makes of them."""
    sender, receiver = Compressor(chain(line)), Compressor(chain(line))
    names, sizes = [name for name, _ in named], [weights.numel() for _, weights in named]
    parts = [Part(name, weights.flatten()) for name, weights in named]
    payload = sender.compress(parts, sender.layout(names, sizes), Context()).payload
    incoming = receiver.read(payload.copy(), receiver.layout(names, sizes))
    assert not isinstance(incoming, NonFinite)
    (update,) = incoming
    return payload, update


@in_turn("line", ["entropy(decay=0) | huffman", "entropy(floor=5, decay=0)", "entropy(decay=0) | raw"])
def test_every_weight_comes_back_as_its_bins_centre(line: str) -> None:
    named = layers()
    _, update = package(line, named)
    (_, steps), amounts = update.tables, update.amounts(CPU)
    for (_, weights), bits, step, at in zip(named, update.bits, steps, update.offsets.symbols, strict=True):
        flat = weights.flatten().numpy()
        # 2^b bins between the layer's own extremes; half a bin's width off at most, and rounding.
        width = (float(flat.max()) - float(flat.min())) / 2**bits
        assert step == pytest.approx(width, rel=1e-6)
        assert np.abs(amounts[at] - flat).max() <= width / 2 * (1 + 1e-3)


def test_a_layers_bits_are_its_entropy_and_the_floor() -> None:
    named = layers()
    for floor in (2, 5, 6):
        _, update = package(f"entropy(floor={floor}, fraction=1, decay=0)", named)
        for (_, weights), bits in zip(named, update.bits, strict=True):
            flat = weights.flatten().double().numpy()
            bins = np.minimum((flat - flat.min()) / (flat.max() - flat.min()) * 16, 15).astype(int)
            p = np.bincount(bins) / flat.size
            entropy = -sum(q * math.log2(q) for q in p if q > 0)
            assert abs(bits - (entropy + floor)) <= 0.5 + 1e-2


def test_huffman_takes_less_than_the_bits_and_at_least_the_entropy() -> None:
    """Section 5.1: coding the quantized weights shortens them at every setting."""
    named = layers()[:1]
    payload, update = package("entropy(decay=0) | huffman", named)
    symbols, bits = update.values, int(update.bits[0])
    p = np.bincount(symbols) / symbols.size
    entropy = -sum(q * math.log2(q) for q in p if q > 0)
    taken = 8 * (payload.size - HEADER_BYTES) / symbols.size
    assert entropy <= taken <= 1.01 * entropy
    assert taken < bits


@in_turn("size", [1, 2, 3, 10])
@in_turn("values", [(0.25,), (-1.0, 1.0), (0.0,)])
def test_tiny_and_constant_layers_are_packages_too(size: int, values: tuple[float, ...]) -> None:
    weights = torch.tensor([values[i % len(values)] for i in range(size)])
    _, update = package("entropy(decay=0) | huffman", [("w", weights)])
    error = np.abs(update.amounts(CPU) - weights.numpy())
    spread = float(weights.max() - weights.min())
    assert error.max() <= spread / 2 ** int(update.bits[0]) / 2
    if spread == 0:
        assert (error == 0).all()
