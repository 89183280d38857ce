"""Messages in the CPU's memory, one step at a time: what the tests of codecs and of devices share."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.cpu.ops import CPU
from taugrad.compressors.ops.interface import Ops
from taugrad.compressors.ops.results import Found
from taugrad.compressors.ops.returns import Returns, run
from taugrad.compressors.quantizers.base import Work
from taugrad.compressors.wire import message
from taugrad.compressors.wire.codecs import Codec, PlannedValues, plan_values
from taugrad.compressors.wire.codecs.base import Body, Head, Reading
from taugrad.compressors.wire.message import HEADER_BYTES, NonFinite
from taugrad.compressors.wire.update import Update

Bytes = NDArray[np.uint8]


def split(payload: Bytes, most: int) -> list[Bytes]:
    """The messages that a payload is made of."""
    (found,) = CPU.find_messages(payload, payload.size, [payload.size], most)
    if isinstance(found, str):
        raise CorruptMessage(found)
    return [payload[one.begin : one.begin + HEADER_BYTES + one.length] for one in found]


def write_all(
    updates: Sequence[Update], codecs: Sequence[str], symbols: str = "auto", ops: Ops = CPU
) -> list[Bytes]:
    """Each update's message."""
    returns = Returns(ops)
    payload = run(returns, message.write_all(updates, codecs, symbols, ops, returns))
    return split(ops.fetch(payload), len(updates))


def read_all(messages: Sequence[Bytes], elements: Sequence[int]) -> list[Update | NonFinite]:
    """What messages hold, read together."""
    payload, found, begin = np.concatenate(messages), [], 0
    for each in messages:
        found.append(Found(begin, each.size - HEADER_BYTES, each[:HEADER_BYTES], each[HEADER_BYTES:]))
        begin += each.size
    looks = Returns(CPU)
    faults = [CPU.faults(looks) for _ in messages]
    return run(looks, message.read_all(payload, found, elements, faults, CPU, looks))


def encode(codec: Codec, update: Update, symbols: str = "auto") -> tuple[Bytes, Head]:
    """The body that a codec writes, and the head to read it by."""
    written = message.write(update, codec.name, symbols)
    coded: Any = ("raw", "huffman")[int(written[6])]
    return written[HEADER_BYTES:], Head(update.form, update.n, update.k, update.tau, coded)


def decode(codec: Codec, body: Bytes, head: Head) -> Update:
    """What a codec reads."""
    looks = Returns(CPU)
    reading = Reading(CPU, looks, CPU.faults(looks))
    (update,) = run(looks, codec.read_all([Body(body, body)], [head], [reading]))
    return update


def planned(update: Update, symbols: str = "auto") -> PlannedValues:
    """How an update's values are going to be written."""
    returns = Returns(CPU)
    return run(returns, plan_values(update, symbols, CPU, returns))


def size(codec: Codec, update: Update, values: PlannedValues) -> int:
    """Bytes of a body, exactly, without writing it."""
    returns = Returns(CPU)
    measured = run(returns, codec.measure([update], CPU, returns))
    return measured.sizes[0] + (values.size if codec.with_values else 0)


def symbols_of(config: Any, residual: NDArray[np.float32] | None, gradient: NDArray[np.float32]) -> Any:
    """What a quantizer makes of residual + gradient."""
    returns = Returns(CPU)
    kept = None if residual is None else torch.from_numpy(residual)
    steps = config.apply(kept, torch.from_numpy(gradient), Work(CPU, returns, returns))
    return run(returns, steps).values
