"""Checksums, headers, elements written out and looks at gradients, on the emulated device."""

import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import in_turn

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.cpu.ordered_sum import ordered_sum_of_squares
from taugrad.compressors.ops.cpu.sampling import stratified_positions
from taugrad.compressors.ops.cuda import looking
from taugrad.compressors.ops.cuda.crc32 import Checksums
from taugrad.compressors.ops.cuda.faults import Faults
from taugrad.compressors.ops.cuda.payloads import Pieces, find_messages
from taugrad.compressors.ops.cuda.raw import read_raw, write_raw
from taugrad.compressors.ops.cuda.reports import Reports
from taugrad.compressors.ops.returns import Returns, run, together

TILE = 2**15
F32 = np.float32


@in_turn("source", ["crc32", "raw", "words", "looking", "payloads"])
def test_the_sources_compile(source: str, compiles: Callable[[str], None]) -> None:
    compiles(source)


@pytest.fixture(scope="module")
def checksums(device: Any) -> Checksums:
    return Checksums(device)


@in_turn("skew", range(5))
@in_turn("size", [32, 33, 34, 35, 36, 63, 64, 1000, TILE - 1, TILE, TILE + 1, 3 * TILE + 5, 300_001])
def test_checksums_are_those_of_zlib(size: int, skew: int, device: Any, checksums: Checksums) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + 8, np.uint8)
    message = data[skew : skew + size]
    remainder = device.zeros(1, np.uint32)
    checksums.add(message, remainder)
    due = zlib.crc32(message[:28].tobytes() + bytes(4) + message[32:].tobytes())
    assert ~int(remainder[0]) & 0xFFFFFFFF == due
    before = data.copy()
    checksums.seal(data, [skew], [skew + size])
    assert int.from_bytes(message[28:32].tobytes(), "little") == due
    data[skew + 28 : skew + 32] = before[skew + 28 : skew + 32]
    assert (data == before).all()


def test_messages_are_sealed_side_by_side(device: Any, checksums: Checksums) -> None:
    data = np.random.default_rng(1).integers(0, 256, 5000, np.uint8)
    ends = [32, 75, 107, 2000, 5000]
    starts = [0, *ends[:-1]]
    checksums.seal(data, starts, ends)
    for start, end in zip(starts, ends, strict=True):
        one = data[start:end].tobytes()
        assert int.from_bytes(one[28:32], "little") == zlib.crc32(one[:28] + bytes(4) + one[32:])


def header(length: int) -> bytes:
    return b"h" * 20 + length.to_bytes(8, "little") + b"c" * 4


def test_messages_are_found_by_their_lengths(device: Any) -> None:
    bodies = [b"", b"abc", b"0123456789"]
    whole = b"".join(header(len(body)) + body for body in bodies)
    cases = [
        whole,
        b"",
        whole[:-1],
        whole + b"x",
        header(2**64 - 1) + b"abc",
        header(2**63) + b"abc",
        header(0) * 4,
        header(0) * 5,
        header(0)[:31],
    ]
    stride = max(map(len, cases)) + 3
    rows = np.full((len(cases), stride), 0x77, np.uint8)
    for row, case in zip(rows, cases, strict=True):
        row[: len(case)] = np.frombuffer(case, np.uint8)
    found = find_messages(device, rows.reshape(-1), stride, [len(case) for case in cases], 4)
    good = found[0]
    assert not isinstance(good, str)
    assert [(one.begin, one.length) for one in good] == [(0, 0), (32, 3), (67, 10)]
    assert [one.header.tobytes() for one in good] == [header(len(body)) for body in bodies]
    assert [one.start.tobytes() for one in good] == [bytes(8), b"abc" + bytes(5), b"01234567"]
    assert found[1] == []
    assert len(found[6]) == 4
    assert [isinstance(each, str) for each in found] == [
        False,
        False,
        True,
        True,
        True,
        True,
        False,
        True,
        True,
    ]


def test_pieces_come_to_their_places(device: Any) -> None:
    out, pieces = device.zeros(200, np.uint8), Pieces()
    pieces.add(np.arange(100, dtype=np.uint8), 7)
    pieces.add(np.empty(0, np.uint8), 0)
    pieces.add(np.array([9, 8], np.uint8), 198)
    pieces.write_to(device, out)
    due = np.zeros(200, np.uint8)
    due[7:107], due[198:] = np.arange(100), (9, 8)
    assert (out == due).all()


FORMS = {"wgt": "<f4", "bgt": "i1", "strom": "i1", "qgt": "<i2"}


@in_turn("form", FORMS)
@in_turn("n", [0, 1, 31, 33, 1000, 2048, 5000])
@in_turn("share", [0.0, 0.5, 1.0])
def test_elements_are_written_out(form: Any, n: int, share: float, device: Any) -> None:
    rng = np.random.default_rng(n)
    dense = np.where(rng.random(n) < share, rng.choice([-1, 1], n), 0)
    if form == "qgt":
        dense *= rng.integers(1, 256, n)
    elements = (dense * 0.7).astype(F32) if form == "wgt" else dense.astype(FORMS[form])
    at = np.nonzero(dense)[0]
    words = (at << 1 | (dense[at] < 0)).astype(np.uint32)
    values = {"wgt": elements[at], "qgt": np.abs(dense[at]).astype(np.uint8)}.get(form, np.empty(0, np.uint8))
    for skew in (0, 1):
        room = device.zeros(elements.nbytes + skew, np.uint8)
        write_raw(device, form, words, values, room[skew:])
        assert room[skew:].tobytes() == elements.tobytes()
        faults = Faults(device)
        found_words, found = read_raw(device, form, room[skew:], n, at.size, faults)
        faults.check()
        assert (found_words == words).all()
        assert found.tobytes() == values.tobytes()
        for wrong in {max(at.size - 1, 0), min(at.size + 1, n)} - {at.size}:
            faults = Faults(device)
            read_raw(device, form, room[skew:], n, wrong, faults)
            with pytest.raises(CorruptMessage, match="as many elements"):
                faults.check()


@in_turn(("form", "level"), [("bgt", 2), ("strom", -128), ("qgt", 256), ("qgt", -32768)])
def test_levels_that_a_form_does_not_have_are_found(form: Any, level: int, device: Any) -> None:
    body, faults = np.array([0, level, 1], FORMS[form]).view(np.uint8), Faults(device)
    read_raw(device, form, body, 3, 2, faults)
    with pytest.raises(CorruptMessage, match="a level is more"):
        faults.check()


@in_turn("n", [0, 1, 31, 33, 4096, 4097, 70_001])
def test_looks_at_a_gradient(n: int, device: Any) -> None:
    values = np.random.default_rng(n).standard_normal(n).astype(F32)
    total, found = device.zeros(1, np.float64), device.zeros(1, np.int32)
    looking.add_squares(device, values, total)
    assert total[0] == pytest.approx(math.fsum(float(each) ** 2 for each in values), rel=1e-12)
    looking.find_nonzero(device, values, found, gradient_type="float32")
    assert found[0] == (n > 0)
    looking.find_nonzero(
        device, np.full(n, -0.0, F32), zeros := device.zeros(1, np.int32), gradient_type="float32"
    )
    assert zeros[0] == 0
    if not n:
        return
    ordered = device.zeros(1, np.float64)
    looking.ordered_sum_of_squares(device, values, ordered)
    assert ordered[0] == ordered_sum_of_squares(values)
    m = min(n, 300)
    taken = device.empty(m, F32)
    looking.sample(device, values, taken)
    assert (taken == values[stratified_positions(n, m)]).all()
    for broken in (np.nan, np.inf):
        values[n // 2] = broken
        reports = Reports(device, 2)
        for _ in range(2):
            looking.count_nonfinite(device, values, reports, gradient_type="float32")
            values[n // 2] = 1
        assert [each.nonfinite for each in reports.fetch()] == [True, False]


@in_turn("n", [1, 255, 256, 4097, 70_001])
def test_the_order_of_a_sum_is_the_definitions(n: int) -> None:
    values = np.random.default_rng(n).standard_normal(n).astype(F32)

    def tile_sum(tile: list[float]) -> float:
        lanes = [0.0] * 256
        for i, number in enumerate(tile):
            lanes[i % 256] += number
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [lanes[i] + lanes[i + half] for i in range(half)]
        return lanes[0]

    sums = [float(each) ** 2 for each in values]
    first = True
    while len(sums) > 1 or first:
        sums, first = [tile_sum(sums[i : i + 4096]) for i in range(0, len(sums), 4096)], False
    assert ordered_sum_of_squares(values) == sums[0]


def test_works_wait_together(device: Any) -> None:
    returns, log = Returns(device), []

    def work(number: int, steps: int) -> Any:
        for step in range(steps):
            slot = returns.take(5000, np.int32)  # more than an array has room for
            slot.array[0] = number
            yield
            assert slot.values[0] == number
            log.append((step, number))
        return number * 10

    assert run(returns, together([work(0, 2), work(1, 0), work(2, 3)])) == [0, 10, 20]
    assert log == [(0, 0), (0, 2), (1, 0), (1, 2), (2, 2)]
