"""The threshold passes against the paper's pseudo code, bit for bit."""

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taugrad.compressors.bucket.adding import add_update
from taugrad.compressors.ops.cpu import avx512, threshold
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.ops.cpu.threshold import (
    SPARE,
    VALUE_DTYPE,
    WITHOUT_VALUES,
    PassResult,
    ThresholdRule,
)
from taugrad.compressors.ops.segments import Segments
from taugrad.compressors.wire.forms import Form
from taugrad.compressors.wire.update import Update

Pass = Callable[..., PassResult]
Floats = NDArray[np.float32]

RULES: tuple[ThresholdRule, ...] = ("wgt", "bgt", "qgt", "strom")
TAUS = (1e-30, 1e-12, 1e-3, 0.3, 1.0, 7e4, 1e30)
NAN, INF, LARGEST = float("nan"), float("inf"), float(np.finfo(np.float32).max)
CANARY = 0xA5


needs_avx512 = pytest.mark.skipif(not avx512.supported(), reason="this CPU has no AVX-512")
vectorized = pytest.mark.parametrize("vectorized", [False, pytest.param(True, marks=needs_avx512)])
every_pass = pytest.mark.parametrize(
    "run_pass",
    [
        pytest.param(partial(threshold.threshold_pass, vectorized=True), id="avx512", marks=needs_avx512),
        pytest.param(partial(threshold.threshold_pass, vectorized=False), id="portable"),
    ],
)
every_rule = in_turn("rule", RULES)


def specials(tau: float) -> list[float]:
    """Values at which a comparison, a rounding or a cap turns."""
    tau32 = np.float32(tau)
    below, above = np.nextafter(tau32, np.float32(0)), np.nextafter(tau32, np.float32(INF))
    magnitudes = [
        tau32,
        below,
        above,
        tau32 / 2,
        2 * tau32,
        254 * tau32,
        255 * tau32,
        256 * tau32,
        1e4 * tau32,
    ]
    magnitudes += [0.0, 1e-45, 1e-40, 1.1754944e-38, 1e30, LARGEST / 2, LARGEST]
    return [sign * float(magnitude) for magnitude in magnitudes for sign in (1, -1)]


def wild_array(
    rng: np.random.Generator, n: int, tau: float, spread: int, extra: Sequence[float] = ()
) -> Floats:
    """Values around tau * 10^spread, some exact multiples of tau, some special ones."""
    values = rng.standard_normal(n) * tau * 10.0**spread
    kind = rng.random(n)
    values = np.where(kind < 0.15, rng.integers(-300, 301, n) * tau, values)
    values = np.where(kind > 0.85, rng.choice([*specials(tau), *extra], n), values)
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def assert_bits_equal(found: NDArray[Any], expected: NDArray[Any]) -> None:
    """Fails where arrays differ in type or in any bit; -0.0 is not 0.0."""
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


class Fenced:
    """An array that starts at any element of a larger one, whose other bytes must stay as they are."""

    def __init__(self, size: int, dtype: Any, offset: int = 0) -> None:
        self._whole = np.full((offset + size + 40) * np.dtype(dtype).itemsize, CANARY, np.uint8).view(dtype)
        self._low, self._high = offset, offset + size
        self.array = self._whole[self._low : self._high]

    def assert_fence_stands(self) -> None:
        for outside in (self._whole[: self._low], self._whole[self._high :]):
            assert (outside.view(np.uint8) == CANARY).all()


def check_passes(
    run_pass: Pass,
    reference: ModuleType,
    rule: ThresholdRule,
    tau: float,
    steps: Sequence[Sequence[Floats]],
    offset: int,
) -> None:
    """Runs steps over several parameters, each pass writing behind the one before, and compares all."""
    tau32 = np.float32(tau)
    sizes = [gradient.size for gradient in steps[0]]
    residuals = [Fenced(size, np.float32, offset) for size in sizes]
    for residual in residuals:
        residual.array[:] = 0
    expected_residuals = [np.zeros(size, np.float32) for size in sizes]
    for gradients in steps:
        words = Fenced(sum(sizes) + SPARE, np.uint32, offset)
        values = Fenced(1 if rule in WITHOUT_VALUES else sum(sizes) + SPARE, VALUE_DTYPE[rule], offset)
        base = sent = 0
        expected_words: list[int] = []
        expected_values: list[NDArray[Any]] = [np.empty(0, VALUE_DTYPE[rule])]
        for i, gradient in enumerate(gradients):
            moved = Fenced(gradient.size, np.float32, (3 * offset + i) % 19)
            moved.array[:] = gradient
            result = run_pass(
                rule, residuals[i].array, moved.array, tau32, words.array, values.array, base=base, sent=sent
            )
            outcome = reference.run(rule, expected_residuals[i], gradient, tau32, base)
            expected_residuals[i] = outcome.kept
            expected_words += outcome.words
            expected_values.append(outcome.values(rule))
            assert result.sent == len(expected_words)
            assert result.nonfinite == outcome.nonfinite
            assert_bits_equal(residuals[i].array, outcome.kept)
            assert_bits_equal(moved.array, gradient)
            base, sent = base + gradient.size, result.sent
        assert words.array[:sent].tolist() == expected_words
        if rule not in WITHOUT_VALUES:
            assert_bits_equal(values.array[:sent], np.concatenate(expected_values))
        for fenced in (words, values, *residuals):
            fenced.assert_fence_stands()


@every_pass
@every_rule
@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=3),
    tau=st.sampled_from(TAUS),
    spread=st.integers(-3, 3),
    broken=st.booleans(),
    offset=st.integers(0, 17),
)
def test_passes_do_what_the_paper_says(
    run_pass: Pass,
    rule: ThresholdRule,
    transcription: ModuleType,
    seed: int,
    sizes: list[int],
    tau: float,
    spread: int,
    broken: bool,
    offset: int,
) -> None:
    rng = np.random.default_rng(seed)
    extra = (NAN, INF, -INF) if broken else ()
    steps = [[wild_array(rng, size, tau, spread, extra) for size in sizes] for _ in range(3)]
    check_passes(run_pass, transcription, rule, tau, steps, offset)


@every_pass
@every_rule
@settings(max_examples=80, deadline=None)
@given(
    values=st.lists(st.floats(width=32), max_size=40),
    tau=st.floats(2.0**-126, 2.0**119, width=32),
    offset=st.integers(0, 17),
)
def test_passes_do_what_the_paper_says_of_any_floats(
    run_pass: Pass,
    rule: ThresholdRule,
    transcription: ModuleType,
    values: list[float],
    tau: float,
    offset: int,
) -> None:
    gradient = np.array(values, np.float32)
    check_passes(run_pass, transcription, rule, tau, [[gradient], [gradient[::-1].copy()]], offset)


@every_pass
@every_rule
@in_turn("n", [1024, 16_384, 16_385, 33_003])
def test_passes_do_what_the_paper_says_over_several_blocks(
    run_pass: Pass, rule: ThresholdRule, n: int, transcription: ModuleType
) -> None:
    rng = np.random.default_rng(n)
    gradient = wild_array(rng, n, 1e-3, -1)
    check_passes(run_pass, transcription, rule, 1e-3, [[gradient]], offset=5)


@every_pass
@every_rule
@in_turn(("scale", "fraction"), [(0.0, 0.0), (0.5, 0.0), (1.0, 1.0), (-3.0, 1.0)])
def test_none_and_all_are_sent(
    run_pass: Pass, rule: ThresholdRule, scale: float, fraction: float, transcription: ModuleType
) -> None:
    for n in (1, 15, 16, 17, 128, 129, 1000):
        gradient = np.full(n, scale * 0.25, np.float32)
        words, values = np.empty(n + SPARE, np.uint32), np.empty(n + SPARE, VALUE_DTYPE[rule])
        result = run_pass(
            rule, np.zeros(n, np.float32), gradient, np.float32(0.25), words, values, base=0, sent=0
        )
        # strom sends what exceeds tau, the others what reaches it.
        assert result.sent == (0 if rule == "strom" and scale == 1 else fraction * n)
        check_passes(run_pass, transcription, rule, 0.25, [[gradient]] * 2, offset=1)


@every_pass
@every_rule
@in_turn("broken", [NAN, INF, -INF])
def test_an_element_that_is_not_finite_is_flagged_and_changes_no_other(
    run_pass: Pass, rule: ThresholdRule, broken: float, transcription: ModuleType
) -> None:
    rng = np.random.default_rng(1)
    first = wild_array(rng, 50, 0.3, 0)
    first[np.abs(first) > 1e30] = 0
    for at in (0, 15, 16, 31, 47, 48, 49):
        second = np.full(50, 0.01, np.float32)
        second[at] = broken
        check_passes(run_pass, transcription, rule, 0.3, [[first], [second], [first]], offset=0)


@every_pass
@every_rule
def test_a_sum_that_overflows_is_neither_sent_nor_kept(run_pass: Pass, rule: ThresholdRule) -> None:
    for n in (1, 16, 40):
        residual, gradient = np.full(n, 0.1, np.float32), np.zeros(n, np.float32)
        residual[-1] = gradient[-1] = LARGEST
        words, values = np.zeros(n + SPARE, np.uint32), np.zeros(n + SPARE, VALUE_DTYPE[rule])
        result = run_pass(rule, residual, gradient, np.float32(0.3), words, values, base=0, sent=0)
        assert (result.sent, result.nonfinite) == (0, True)
        assert residual[-1] == np.float32(LARGEST)


@every_pass
@every_rule
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.one_of(st.integers(0, 300), st.sampled_from([5000, 40_000])),
    tau=st.sampled_from([1e-6, 1e-3, 1.0, 1e6]),
    spread=st.integers(-3, 3),
)
def test_residual_squares_are_those_of_the_residual(
    run_pass: Pass, rule: ThresholdRule, seed: int, n: int, tau: float, spread: int
) -> None:
    rng = np.random.default_rng(seed)
    residual = (rng.standard_normal(n) * tau * 0.3).astype(np.float32)
    gradient = (rng.standard_normal(n) * tau * 10.0**spread).astype(np.float32)
    words, values = np.empty(n + SPARE, np.uint32), np.empty(n + SPARE, VALUE_DTYPE[rule])
    result = run_pass(rule, residual, gradient, np.float32(tau), words, values, base=0, sent=0)
    assert result.residual_squares == pytest.approx(
        float(np.square(residual, dtype=np.float64).sum()), rel=1e-4
    )


@every_pass
@every_rule
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 200),
    tau=st.sampled_from([1e-30, 1e-3, 1.0]),
    spread=st.integers(-2, 2),
)
def test_nothing_is_lost_over_many_steps(
    run_pass: Pass, rule: ThresholdRule, seed: int, n: int, tau: float, spread: int
) -> None:
    """What was sent and what is kept is the sum of the gradients, but for two roundings a step."""
    rng = np.random.default_rng(seed)
    tau32, half_ulp, tiny = np.float32(tau), 2.0**-24, 2.0**-149
    residual = np.zeros(n, np.float32)
    words, values = np.empty(n + SPARE, np.uint32), np.empty(n + SPARE, VALUE_DTYPE[rule])
    given_N, sent_N, bound_N = np.zeros(n), np.zeros(n), np.zeros(n)
    any_sent = 0
    for _ in range(60):
        gradient = (rng.standard_normal(n) * tau * 10.0**spread).astype(np.float32)
        before = residual.astype(np.float64)
        result = run_pass(rule, residual, gradient, tau32, words, values, base=0, sent=0)
        any_sent += result.sent
        taken = words[: result.sent]
        if rule == "wgt":
            amounts = values[: result.sent].astype(np.float64)
        else:
            levels = values[: result.sent] if rule == "qgt" else np.ones(result.sent)
            amounts = (levels.astype(np.float32) * tau32) * (1.0 - 2.0 * (taken & 1))
        sent_N[taken >> 1] += amounts
        given_N += gradient
        bound_N += half_ulp * (np.abs(before + gradient) + np.abs(residual)) + tiny
    error_N = np.abs(sent_N + residual - given_N)
    assert (error_N <= bound_N * (1 + 1e-6)).all()
    assert any_sent or spread < 0


def strom_turns_at(tau: np.float32) -> Floats:
    """tau itself and its neighbours, of both signs, over whole vectors and a tail."""
    around = [np.nextafter(tau, np.float32(0)), tau, np.nextafter(tau, np.float32(INF))]
    return np.tile(np.array([sign * each for each in around for sign in (1, -1)], np.float32), 7)


@every_pass
def test_strom_keeps_what_equals_tau_and_bgt_sends_it(run_pass: Pass) -> None:
    tau = np.float32(0.3)
    gradient = strom_turns_at(tau)
    n, sent = gradient.size, {}
    for rule in ("bgt", "strom"):
        words, values = np.zeros(n + SPARE, np.uint32), np.zeros(1, np.uint8)
        residual = np.zeros(n, np.float32)
        result = run_pass(rule, residual, gradient, tau, words, values, base=0, sent=0)
        sent[rule] = (words[: result.sent] >> 1).tolist()
    assert sent["bgt"] == [i for i in range(n) if i % 6 >= 2]
    assert sent["strom"] == [i for i in range(n) if i % 6 >= 4]


@every_rule
@vectorized
@in_turn("threads", [2, 3])
@in_turn(("n", "tau"), [(2**18 + 77, 1.0), (2**17 + 1, 1e-9), (2**17, 1e9), (99, 1.0)])
def test_threads_change_nothing(
    rule: ThresholdRule, vectorized: bool, threads: int, n: int, tau: float
) -> None:
    rng = np.random.default_rng([n, threads])
    gradient, before = (rng.standard_normal((2, n)) * 0.8).astype(np.float32)
    gradient[n // 3], gradient[-2] = NAN, INF
    tau32, found = np.float32(tau), []
    for count in (1, threads):
        residual = before.copy()
        words, values = np.zeros(n + SPARE + 5, np.uint32), np.zeros(n + SPARE + 5, VALUE_DTYPE[rule])
        words[:5], values[:5] = 7, 7
        result = threshold.threshold_pass(
            rule,
            residual,
            gradient,
            tau32,
            words,
            values,
            base=11,
            sent=5,
            threads=count,
            vectorized=vectorized,
        )
        assert result.nonfinite
        found.append((result, words[: result.sent], values[: result.sent], residual))
    (one, *arrays), (many, *same) = found
    assert many.sent == one.sent
    assert many.residual_squares == pytest.approx(one.residual_squares, rel=1e-6)
    for alone, shared in zip(arrays, same, strict=True):
        assert_bits_equal(shared, alone)
    assert (arrays[0][:5] == 7).all()


@every_rule
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(0, 200), tau=st.sampled_from([1e-30, 1e-3, 1.0, 1e30]))
def test_updates_are_added_as_what_they_stand_for(
    rule: ThresholdRule, transcription: ModuleType, seed: int, n: int, tau: float
) -> None:
    rng = np.random.default_rng(seed)
    gradient = np.clip(wild_array(rng, n, tau, 0), -1e37, 1e37)
    outcome = transcription.run(rule, np.zeros(n, np.float32), gradient, np.float32(tau))
    words = np.array(outcome.words, np.uint32)
    form: Form = "f32" if rule == "wgt" else rule
    segments = Segments((0,), np.array([3]), np.array([n]))
    taus = None if rule == "wgt" else np.full(1, tau, np.float32)
    update = Update(form, segments, words, np.array([words.size]), outcome.values(rule), taus)
    dense = (rng.standard_normal(n) * tau).astype(np.float32)
    expected = dense.copy()
    expected[outcome.positions] += np.array(outcome.sent, np.float32)
    total = torch.cat([torch.ones(3), torch.from_numpy(dense)])
    add_update(update, total, CPU)
    assert_bits_equal(total.numpy()[3:], expected)
    assert total[:3].tolist() == [1, 1, 1]
