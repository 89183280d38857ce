"""What the tests of codecs share: messages one by one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taugrad.compressors.ops.cpu.ops import CPU
from taugrad.compressors.ops.cpu.wire import find_messages
from taugrad.compressors.ops.returns import Returns, run
from taugrad.compressors.quantizers.base import Work
from taugrad.compressors.wire import message
from taugrad.compressors.wire.codecs import Codec, PlannedValues
from taugrad.compressors.wire.codecs.base import Head
from taugrad.compressors.wire.message import HEADER_BYTES
from taugrad.compressors.wire.update import Update

Bytes = NDArray[np.uint8]


def write_all(updates: Sequence[Update], codecs: Sequence[str], symbols: str = "auto") -> list[Bytes]:
    """Each update's message."""
    planned = message.plan_all(updates, codecs, symbols, CPU)
    return find_messages(message.write_planned([planned], CPU), len(updates))


def encode(codec: Codec, update: Update, symbols: str = "auto") -> tuple[Bytes, Head]:
    """The body that a codec writes, and the head to read it by."""
    written = message.write(update, codec.name, symbols)
    coded: Any = ("raw", "huffman")[int(written[6])]
    return written[HEADER_BYTES:], Head(update.form, update.n, update.k, update.tau, coded)


def decode(codec: Codec, body: Bytes, head: Head) -> Update:
    """What a codec reads."""
    (update,) = codec.read_all([body], [head], CPU)
    return update


def size(codec: Codec, update: Update, values: PlannedValues) -> int:
    """Bytes of a body, exactly, without writing it."""
    return codec.measure([update], CPU).sizes[0] + (values.size if codec.with_values else 0)


def symbols_of(config: Any, residual: NDArray[np.float32] | None, gradient: NDArray[np.float32]) -> Any:
    """What a quantizer makes of residual + gradient."""
    returns = Returns(CPU)
    kept = None if residual is None else torch.from_numpy(residual)
    steps = config.apply(kept, torch.from_numpy(gradient), Work(CPU, returns, returns))
    return run(returns, steps).values
