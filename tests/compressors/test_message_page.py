"""docs/reference/messages.md is exact: a decoder written from it agrees with ours, damage included."""

import random
import struct
from types import ModuleType

import numpy as np
import pytest

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.wire.message import HEADER_BYTES, NonFinite

DAMAGED = 10_000
LARGEST_N = 20_000
"""The page's decoder takes its time: messages about more elements are left out."""


def read_by_both(decoder: ModuleType, fuzzing: ModuleType, data: bytes, sizes: tuple[int, ...]) -> bool:
    """Whether both readers take a message; fails unless they find the same in it."""
    try:
        ours = fuzzing.read(np.frombuffer(data, np.uint8), sizes)
    except CorruptMessage as reason:
        try:
            found = decoder.decode(data, [*sizes])
        except decoder.Invalid:
            return False
        pytest.fail(f"the page allows {found}, but ours says: {reason}")
    theirs = decoder.decode(data, [*sizes])
    if isinstance(ours, NonFinite):
        assert theirs == ours.ordinal
        return True
    positions, amounts = theirs
    elements = [each for where, _ in ours.places() for each in np.arange(sum(sizes))[where].tolist()]
    assert positions == elements
    # Amounts are added, so that the sign of a zero is lost.
    due, found = np.array(amounts, np.float32), ours.amounts(CPU)
    assert (due + np.float32(0)).tobytes() == (found + np.float32(0)).tobytes()
    return True


def test_what_methods_write_and_what_is_left_of_it_after_damage(
    page_decoder: ModuleType, fuzzing: ModuleType
) -> None:
    rng, ready = random.Random(8), fuzzing.originals(8)
    written = [each for payload in ready for each in payload.messages if sum(each[1]) < LARGEST_N]
    assert all(read_by_both(page_decoder, fuzzing, *each) for each in written)
    short = [each for each in written if len(each[0]) < 400]
    taken = 0
    for _ in range(DAMAGED):
        data, sizes = rng.choice(short)
        found = bytes(fuzzing.sealed(fuzzing.damaged(data, rng.choice(short)[0], rng), rng))
        if len(found) >= HEADER_BYTES and rng.random() < 0.5:
            due = struct.unpack_from("<I", found, 8)[0]
            if 0 < due - sum(sizes) + sizes[-1] < LARGEST_N:
                sizes = (*sizes[:-1], due - sum(sizes) + sizes[-1])
        taken += read_by_both(page_decoder, fuzzing, found, sizes)
    assert DAMAGED / 20 < taken < DAMAGED
