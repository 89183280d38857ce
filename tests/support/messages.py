"""What the tests of messages and quantizers share."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.ops.readback import Readback
from taugrad.compressors.ops.segments import Segments
from taugrad.compressors.quantizers.base import Given, Quantized, Work, quantization_of
from taugrad.compressors.wire import message
from taugrad.compressors.wire.update import Update

Bytes = NDArray[np.uint8]


def write(update: Update, codec: str = "auto", symbols: str = "auto", threads: int = 1) -> Bytes:
    """The message of a codec; `every` is what stands for one where there are no positions."""
    return message.write_all([(update, "auto" if codec == "every" else codec)], symbols, threads)


def quantized(config: Any, residual: NDArray[np.float32] | None, gradient: NDArray[np.float32]) -> Quantized:
    """What a quantizer makes of residual + gradient of one parameter."""
    readback = Readback(CPU)
    kept = None if residual is None else torch.from_numpy(residual)
    made: Quantized = quantization_of(config).apply(
        [Given(kept, torch.from_numpy(gradient))], Work(CPU, readback, readback)
    )
    return made


def update_of(form: Any, made: Quantized) -> Update:
    """Of one parameter that is sent whole."""
    n = np.array([made.values.size])
    bits = np.array(made.bits)
    segments = Segments.side_by_side(n.tolist())
    return Update(form, segments, None, n, made.values, bits=bits, block=made.block, tables=made.tables)
