"""The threshold pass on the emulated device against the CPU's, bit for bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cases import in_turn

from taugrad.compressors.ops.cpu import threshold
from taugrad.compressors.ops.cpu.threshold import SPARE, VALUE_DTYPE, WITHOUT_VALUES, ThresholdRule
from taugrad.compressors.ops.cuda.reports import GradientType, Reports
from taugrad.compressors.ops.cuda.runtime import float_bits
from taugrad.compressors.ops.cuda.threshold import threshold_pass

RULES: tuple[ThresholdRule, ...] = ("wgt", "bgt", "qgt", "strom")
SIZES = (0, 1, 31, 32, 33, 1000, 4095, 4096, 4097, 70_001)
LARGEST = np.finfo(np.float32).max
TAU = 0.3
CANARY = 0xA5
every_rule = in_turn("rule", RULES)


def wild(rng: np.random.Generator, n: int, scale: float) -> Any:
    """Normal numbers, one in ten of them special: multiples of tau, its neighbours, the largest."""
    values = (rng.standard_normal(n) * scale).astype(np.float32)
    tau = np.float32(TAU)
    around = [np.nextafter(tau, np.float32(0)), tau, np.nextafter(tau, np.float32(9))]
    magnitudes = [0.0, 1e-45, 1e-39, 2 * TAU, 255 * tau, 256 * tau, 1e30, LARGEST, *around]
    specials = np.array([sign * np.float32(each) for each in magnitudes for sign in (1, -1)], np.float32)
    return np.where(rng.random(n) < 0.1, rng.choice(specials, n), values)


def fenced(device: Any, values: Any, offset: int) -> tuple[Any, Any]:
    """The values at an offset of an allocation whose other bytes are canaries; and the allocation."""
    itemsize = values.itemsize
    whole = device.place(np.full((values.size + 16) * itemsize, CANARY, np.uint8)).view(values.dtype)
    whole = whole[-(whole.ctypes.data // itemsize) % 4 :]  # aligned for four elements
    array = whole[offset : offset + values.size]
    array[:] = values
    return array, whole


def outside(array: Any, whole: Any) -> bytes:
    at = (array.ctypes.data - whole.ctypes.data) // whole.itemsize
    return bytes(whole[:at].tobytes() + whole[at + array.size :].tobytes())


def run_both(
    device: Any, rule: ThresholdRule, parameters: list[tuple[Any, Any]], offsets: tuple[int, int] = (0, 0)
) -> list[Any]:
    """Runs the pass over parameters one behind the other; asserts that the CPU's results are the same."""
    n = sum(residual.size for residual, _ in parameters)
    words, values = np.zeros(n + SPARE, np.uint32), np.zeros(n + SPARE, VALUE_DTYPE[rule])
    device_words = device.empty(n, np.uint32)
    device_values = device.empty(0 if rule in WITHOUT_VALUES else n, VALUE_DTYPE[rule])
    reports, expected, base, sent = Reports(device, len(parameters)), [], 5, 0
    for residual, gradient in parameters:
        moved, moved_whole = fenced(device, residual, offsets[0])
        added, _ = fenced(device, gradient, offsets[1])
        threshold_pass(device, rule, moved, added, TAU, device_words, device_values, reports, base=base)
        result = threshold.threshold_pass(
            rule, residual, gradient, np.float32(TAU), words, values, base=base, sent=sent, vectorized=False
        )
        assert moved.tobytes() == residual.tobytes()
        assert set(outside(moved, moved_whole)) == {CANARY}
        assert added.tobytes() == gradient.tobytes()
        expected.append(result)
        base, sent = base + residual.size, result.sent
    assert device_words[:sent].tobytes() == words[:sent].tobytes()
    if rule not in WITHOUT_VALUES:
        assert device_values[:sent].tobytes() == values[:sent].tobytes()
    assert set(device_words[sent:].tobytes()) <= {CANARY}
    found = reports.fetch()
    assert [report.sent for report in found] == [result.sent for result in expected]
    assert [report.nonfinite for report in found] == [result.nonfinite for result in expected]
    for report, (residual, _) in zip(found, parameters, strict=True):
        squares = float(np.square(residual[np.isfinite(residual)], dtype=np.float64).sum())
        if np.isfinite(residual).all():
            assert report.residual_squares == pytest.approx(squares, rel=1e-9)
    return expected


@every_rule
@in_turn("n", SIZES)
def test_any_size(device: Any, rule: ThresholdRule, n: int) -> None:
    rng = np.random.default_rng(n)
    run_both(device, rule, [(wild(rng, n, 0.1), wild(rng, n, 0.1))])


@every_rule
def test_parameters_of_a_bucket_are_chained_on_the_device(device: Any, rule: ThresholdRule) -> None:
    rng = np.random.default_rng(1)
    sizes = (700, 0, 1, 9000, 33)
    scales = (0.05, 0.2, 3.0, 0.1, 100.0)
    parameters = [(wild(rng, n, s), wild(rng, n, s)) for n, s in zip(sizes, scales, strict=True)]
    run_both(device, rule, parameters)


@in_turn("offset", range(4))
@in_turn("other", range(4))
def test_any_alignment(device: Any, offset: int, other: int) -> None:
    rng = np.random.default_rng(2)
    for n in (0, 1, 3, 4, 5, 4093, 8192):
        run_both(device, "qgt", [(wild(rng, n, 0.1), wild(rng, n, 0.2))], (offset, other))


@every_rule
def test_none_all_and_clusters_are_sent(device: Any, rule: ThresholdRule) -> None:
    n = 20_000
    clustered = np.zeros(n, np.float32)
    clustered[4000:4200] = -TAU * 2
    clustered[12_287:12_289] = TAU * 3
    for gradient in (np.full(n, 0.01, np.float32), np.full(n, -2, np.float32), clustered):
        run_both(device, rule, [(np.zeros(n, np.float32), gradient)])


@every_rule
@in_turn("broken", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_flagged_and_changes_no_other(
    device: Any, rule: ThresholdRule, broken: float
) -> None:
    rng = np.random.default_rng(3)
    for at in (0, 31, 4095, 4096, 4999):
        gradient = np.minimum(wild(rng, 5000, 0.2), np.float32(1e30))
        gradient[at] = broken
        (result,) = run_both(device, rule, [(np.full(5000, 0.1, np.float32), gradient)])
        assert result.nonfinite
    residual, gradient = np.full(9, LARGEST, np.float32), np.full(9, LARGEST, np.float32)
    (result,) = run_both(device, rule, [(residual, gradient)])
    assert (result.sent, result.nonfinite) == (0, True)


@in_turn("gradient_type", ["float16", "bfloat16"])
def test_short_gradients_are_widened(device: Any, gradient_type: GradientType) -> None:
    """All 65536 of them, as torch widens them."""
    bits = np.random.default_rng(4).permutation(np.arange(65_536, dtype=np.uint16))
    tensor = torch.from_numpy(bits.view(np.int16)).view(getattr(torch, gradient_type))
    gradient = tensor.float().numpy()
    for offset in (0, 1):
        residual, found = np.zeros(bits.size, np.float32), device.zeros(bits.size, np.float32)
        words, values = np.zeros(bits.size + SPARE, np.uint32), np.zeros(bits.size + SPARE, np.float32)
        result = threshold.threshold_pass(
            "wgt", residual, gradient, np.float32(TAU), words, values, vectorized=False
        )
        short, _ = fenced(device, bits, offset)
        reports = Reports(device, 1)
        device_words, device_values = device.empty(bits.size, np.uint32), device.empty(bits.size, np.float32)
        threshold_pass(
            device, "wgt", found, short, TAU, device_words, device_values, reports,
            gradient_type=gradient_type,
        )  # fmt: skip
        assert found.tobytes() == residual.tobytes()
        (report,) = reports.fetch()
        assert (report.sent, report.nonfinite) == (result.sent, True)
        assert device_words[: report.sent].tobytes() == words[: report.sent].tobytes()
        assert device_values[: report.sent].tobytes() == values[: report.sent].tobytes()


@in_turn("nearest", [0, 1, 31, 32, 33, 69])
def test_a_block_looks_back_to_the_nearest_that_knows_its_place(device: Any, nearest: int) -> None:
    """The emulator runs blocks in order; here blocks before this one have only counted so far."""
    before, tile, counted, placed = 70, 4096, 1 << 62, 2 << 62
    amounts = np.random.default_rng(5).integers(0, 4097, before).astype(np.uint64)
    states = np.zeros(before + 3, np.uint64)
    states[0], states[1 : before + 1] = before, np.uint64(counted) | amounts
    # Blocks further back than the nearest must not be looked at.
    states[1 : nearest + 1] = np.uint64(counted | 4000)
    states[nearest + 1] = np.uint64(placed) | amounts[: nearest + 1].sum()
    n = (before + 1) * tile
    gradient = np.zeros(n, np.float32)
    gradient[-2:] = 1
    words, values = device.zeros(n, np.uint32), device.zeros(n, np.float32)
    device.launch(
        "threshold", "wgt_float32", 1, 256, device.zeros(n, np.float32), gradient, n,
        float_bits(TAU), 0, words, values, states, Reports(device, 1).begin(),
    )  # fmt: skip
    total = int(amounts.sum())
    assert words[total : total + 2].tolist() == [(n - 2) << 1, (n - 1) << 1]
    assert np.count_nonzero(words) == 2
    assert int(states[before + 1]) == placed | (total + 2)


def test_there_is_room_for_the_passes_said(device: Any) -> None:
    reports = Reports(device, 1)
    reports.begin()
    with pytest.raises(ValueError, match="room for 1"):
        reports.begin()


def test_the_source_compiles(compiles: Callable[[str], None]) -> None:
    compiles("threshold")
