"""What the tests of messages and quantizers share."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taugrad.compressors.methods.quantizers import Quantized, QuantizerInput
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.ops.interface import Batch, Readback
from taugrad.compressors.ops.parts import Part
from taugrad.compressors.wire import message
from taugrad.compressors.wire.update import Segments, Update

Bytes = NDArray[np.uint8]


def segments_of(sizes: Sequence[int]) -> Segments:
    """Parameters that fill a bucket."""
    lengths = np.array(sizes, np.int64)
    return Segments(tuple(range(len(sizes))), np.cumsum(lengths) - lengths, lengths)


def words_of(positions: Sequence[int]) -> NDArray[np.uint32]:
    """Packed words, all with plus."""
    return np.array(positions, np.uint32) << np.uint32(1)


def fenced(size: int, write: Callable[[Bytes], object]) -> Bytes:
    """What is written over bytes that must not be trusted, at an odd address, between others to be left."""
    room = np.full(size + 18, 0xA5, np.uint8)
    write(room[9 : size + 9])
    assert (np.delete(room, np.s_[9 : size + 9]) == 0xA5).all()
    return room[9 : size + 9]


def write(update: Update, codec: str = "auto", symbols: str = "auto", threads: int = 1) -> Bytes:
    """The message of a codec; `every` is what stands for one where there are no positions."""
    return message.write_all([(update, "auto" if codec == "every" else codec)], symbols, threads)


def quantized(
    config: Any,
    residual: NDArray[np.float32] | None,
    gradient: NDArray[np.float32],
    name: str = "p",
    iteration: int = 0,
) -> Quantized:
    """What a quantizer makes of residual + gradient of one parameter."""
    kept = None if residual is None else torch.from_numpy(residual)
    part = Part(name, torch.from_numpy(gradient), kept)
    batch = Batch.of([kept], [part.gradient])
    made: Quantized = config.apply(QuantizerInput(batch, CPU, Readback(CPU), [part], iteration))
    return made


def update_of(form: Any, made: Quantized) -> Update:
    """Of one parameter that is sent whole."""
    n = np.array([made.values.size])
    bits = np.array(made.bits)
    return Update(
        form, segments_of(n.tolist()), None, n, made.values, bits=bits, block=made.block, tables=made.tables
    )
