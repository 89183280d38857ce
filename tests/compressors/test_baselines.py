"""Methods of the field's surveys, against slow transcriptions of their papers, and their messages' bytes."""

import numpy as np
import pytest
from cases import in_turn
from workbench import SIZES, Floats, Worker, random_gradients

F32 = np.float32


def blocks_of(values: Floats, block: int) -> list[Floats]:
    """Views of a parameter's blocks."""
    return [values[low : low + (block or values.size)] for low in range(0, values.size, block or values.size)]


def rounded_up(width: float, bits: int) -> F32:
    """The next float32 above whose last `bits` + 1 bits are 0."""
    spare = (1 << (bits + 1)) - 1
    up: F32 = np.array([(int(F32(width).view(np.uint32)) + spare) & ~spare], np.uint32).view(F32)[0]
    return up


# EF-SignSGD (arXiv:1901.09847).


@in_turn("block", [0, 40, 1000])
def test_sign_is_algorithm_1(block: int) -> None:
    """p = g + e; the update is (||p||_1 / d) sign(p); e = p - update."""
    worker, errors = Worker(f"sign(block={block})"), [np.zeros(n, F32) for n in SIZES]
    for seed in range(5):
        gradients = random_gradients(seed)
        step = worker.step(gradients)
        for i, gradient in enumerate(gradients):
            update, p = np.empty_like(gradient), gradient + errors[i]
            for of_block, into in zip(blocks_of(p, block), blocks_of(update, block), strict=True):
                width = rounded_up(2 * np.abs(of_block, dtype=np.float64).mean(), 1)
                into[:] = np.copysign(width / 2, of_block)
                assert width / 2 == pytest.approx(np.abs(of_block).mean(), rel=1e-6)
            errors[i] = p - update
            assert np.array_equal(step.decoded[i], update)
            assert np.array_equal(worker.residual(i), errors[i])


# Bytes that never change.

GIVEN = np.array([1.5, -0.25, 0.0, -3.25], F32)
# 28 bytes of header: "tg", version 2, form 9 (linear), codec 4 (all elements), flags, the bits of a symbol;
# n = k = 4, bytes of body, CRC-32. The body: u32 block, the blocks' lows, their widths, symbols.
# sign: |.| has the mean 1.25: low -2.5, width 2.5; symbols 1, 0, 1, 0.
GOLDEN = {
    "sign": "74 67 02 09 04 00 01 00 04 00 00 00 04 00 00 00 0d 00 00 00 00 00 00 00 {crc}"
    "00 00 00 00 00 00 20 c0 00 00 20 40 05",
}


@in_turn("line", list(GOLDEN))
def test_golden_messages(line: str) -> None:
    payload = Worker(line, (4,)).step([GIVEN]).payloads[0]
    due = bytes.fromhex(GOLDEN[line].format(crc=payload[24:28].hex()))
    assert payload.hex(" ") == due.hex(" ")
