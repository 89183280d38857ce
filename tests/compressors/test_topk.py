"""The exact k largest magnitudes against a stable sort, bit for bit."""

from typing import Any

import numpy as np
import pytest
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taugrad.compressors.method import LARGEST_TAU, SMALLEST_TAU
from taugrad.compressors.ops.cpu import avx512, topk
from taugrad.compressors.ops.cpu.rows import table
from taugrad.compressors.ops.cpu.sampling import stratified_positions
from taugrad.compressors.ops.cpu.threshold import SPARE
from taugrad.compressors.ops.cpu.topk import SAMPLE, sampled_magnitude, topk_pass, topk_rows

Floats = NDArray[np.float32]

NAN, INF, LARGEST = float("nan"), float("inf"), float(np.finfo(np.float32).max)
CANARY = 0xA5

vectorized = pytest.mark.parametrize(
    "vectorized",
    [
        pytest.param(
            True, marks=pytest.mark.skipif(not avx512.supported(), reason="this CPU has no AVX-512")
        ),
        False,
    ],
    ids=["avx512", "portable"],
)


class Fenced:
    """An array that starts at any element of a larger one, whose other bytes must stay as they are."""

    def __init__(self, size: int, dtype: Any, offset: int = 0) -> None:
        self._whole = np.full((offset + size + 40) * np.dtype(dtype).itemsize, CANARY, np.uint8).view(dtype)
        self._low, self._high = offset, offset + size
        self.array = self._whole[self._low : self._high]

    def assert_fence_stands(self) -> None:
        for outside in (self._whole[: self._low], self._whole[self._high :]):
            assert (outside.view(np.uint8) == CANARY).all()


def largest(total: Floats, k: int) -> list[int]:
    """Indices of the k largest magnitudes worth sending, by definition: sorted by (-|a|, index)."""
    order = sorted(range(total.size), key=lambda i: (-abs(float(total[i])), i))
    return sorted(i for i in order[:k] if abs(float(total[i])) >= SMALLEST_TAU)


def fast_largest(total: Floats, k: int) -> list[int]:
    """The same for long arrays."""
    magnitudes = np.abs(total)
    order = np.argsort(-magnitudes, kind="stable")[:k]
    return np.sort(order[magnitudes[order] >= np.float32(SMALLEST_TAU)]).tolist()  # type: ignore[no-any-return]


def check(
    residual: Floats, gradient: Floats, k: int, use: bool, offset: int = 0, base: int = 0, before: int = 0
) -> None:
    """Runs one pass behind `before` words and compares all that it says and writes."""
    n = residual.size
    with np.errstate(all="ignore"):
        total = residual + gradient
    finite = np.isfinite(total)
    kept = np.where(finite, total, residual)
    places = (largest if n < 2000 else fast_largest)(total, k) if finite.all() else []
    sent_values = kept[places]
    kept[places] = 0

    r, g = Fenced(n, np.float32, offset), Fenced(n, np.float32, (offset + 3) % 17)
    r.array[:], g.array[:] = residual, gradient
    words, values = (
        Fenced(before + n + SPARE, np.uint32, offset),
        Fenced(before + n + SPARE, np.float32, offset),
    )
    words.array[:before], values.array[:before] = 77, 0.5
    found = topk_pass(r.array, g.array, k, words.array, values.array, base=base, sent=before, vectorized=use)
    assert found.sent == before + len(places)
    assert found.nonfinite == (not finite.all())
    assert (words.array[:before] == 77).all()
    assert (values.array[:before] == 0.5).all()
    signs = (sent_values < 0).astype(int).tolist()
    expected = [(base + i) << 1 | sign for i, sign in zip(places, signs, strict=True)]
    assert words.array[before : found.sent].tolist() == expected
    assert values.array[before : found.sent].tobytes() == sent_values.tobytes()
    assert r.array.tobytes() == kept.tobytes()
    assert g.array.tobytes() == gradient.tobytes()
    tau = min(np.abs(sent_values), default=np.float32(SMALLEST_TAU))
    assert found.tau == min(tau, np.float32(LARGEST_TAU))
    assert isinstance(found.tau, np.float32)
    if (np.abs(kept) < 1e15).all():
        squares = float(np.square(kept, dtype=np.float64).sum())
        assert found.residual_squares == pytest.approx(squares, rel=1e-4, abs=1e-42)
    for fenced in (r, g, words, values):
        fenced.assert_fence_stands()


@vectorized
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_k_largest_of_any_floats_are_sent(vectorized: bool, data: st.DataObject) -> None:
    element = st.one_of(
        st.floats(width=32), st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-40, 2.0**-126, LARGEST])
    )
    residual = np.array(data.draw(st.lists(element, max_size=60)), np.float32)
    gradient = np.array(
        data.draw(st.lists(element, min_size=residual.size, max_size=residual.size)), np.float32
    )
    k = data.draw(st.integers(0, residual.size + 3))
    check(
        residual, gradient, k, vectorized, data.draw(st.integers(0, 16)), data.draw(st.integers(0, 99)), k % 5
    )


@vectorized
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(0, 500),
    share=st.floats(0, 1),
    levels=st.sampled_from([1, 2, 5, 10**6]),
    zeros=st.sampled_from([0.0, 0.5, 0.99]),
)
def test_ties_go_to_the_lower_indices(
    vectorized: bool, seed: int, n: int, share: float, levels: int, zeros: float
) -> None:
    rng = np.random.default_rng(seed)
    gradient = rng.integers(-levels, levels + 1, n).astype(np.float32)
    gradient[rng.random(n) < zeros] = -0.0
    check(np.zeros(n, np.float32), gradient, round(share * n), vectorized)


def hills(n: int, rng: np.random.Generator) -> Floats:
    """Small noise, and a few blocks that are larger by far than all else."""
    values = rng.standard_normal(n)
    for start in (0, n // 3, n - 700):
        values[start : start + 700] *= 1e6
    return values.astype(np.float32)


def hidden(n: int, rng: np.random.Generator) -> Floats:
    """Large exactly where the sample does not look."""
    values = (rng.standard_normal(n) * 1e3).astype(np.float32)
    values[stratified_positions(n, SAMPLE)] = 1e-3
    return values


def shown(n: int, rng: np.random.Generator) -> Floats:
    """Large exactly where the sample looks: its guess is far too high."""
    values = rng.standard_normal(n).astype(np.float32)
    values[::7] = -0.0
    values[stratified_positions(n, SAMPLE)] = rng.standard_normal(SAMPLE) * 1e3
    return values


def sparse(n: int, rng: np.random.Generator) -> Floats:
    """Hardly anything but zeros."""
    values = np.zeros(n, np.float32)
    values[rng.integers(0, n, 50)] = rng.standard_normal(50)
    return values


def denormal(n: int, rng: np.random.Generator) -> Floats:
    """Around the smallest tau."""
    return (rng.standard_normal(n) * 2.0**-126).astype(np.float32)


def equal(n: int, rng: np.random.Generator) -> Floats:
    """One magnitude, both signs."""
    return rng.choice(np.array([0.25, -0.25], np.float32), n)


def huge(n: int, rng: np.random.Generator) -> Floats:
    """Above the largest tau that a message may name."""
    return (rng.uniform(0.5, 1, n) * 1e38).astype(np.float32)


@vectorized
@in_turn("shape", [hills, hidden, shown, sparse, denormal, equal, huge])
@in_turn("k", [0, 1, 60, 1234, 30_000, 60_011, 60_012, 70_000])
def test_the_sample_changes_nothing(vectorized: bool, shape: Any, k: int) -> None:
    rng = np.random.default_rng(k)
    gradient = shape(60_011, rng)
    check(np.zeros_like(gradient), gradient, k, vectorized, offset=3, base=1000, before=2)


@vectorized
def test_a_guess_that_is_too_high_is_mended(vectorized: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    for guess in (SMALLEST_TAU, 0.5, 3.0, LARGEST_TAU):
        monkeypatch.setattr(topk, "_low_guess", lambda *_, guess=guess: np.float32(guess))
        gradient = (rng.standard_normal(SAMPLE + 1000)).astype(np.float32)  # of less, all is looked at
        gradient[::5] = -0.0
        check(np.full(gradient.size, -0.0, np.float32), gradient, 1000, vectorized)
        gradient[0] = NAN
        check(np.zeros(gradient.size, np.float32), gradient, 1000, vectorized)


@vectorized
@in_turn("guess", [None, 0.5, 3.0, LARGEST_TAU])
@in_turn("threads", [1, 2])
def test_many_parameters_at_once_are_as_one_after_the_other(
    vectorized: bool, guess: float | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(6)
    shapes = [(hills, 5000), (shown, 60_011), (equal, 20), (hidden, 30_000), (sparse, 40_000), (hills, 2200)]
    gradients = [shape(n, rng) for shape, n in shapes] + [np.empty(0, np.float32), hidden(17_000, rng)]
    gradients[4][123] = INF
    ks = [50, 3000, 7, 60_000, 100, 0, 5, 900]
    residuals = [rng.standard_normal(each.size).astype(np.float32) for each in gradients]
    if guess is not None:
        monkeypatch.setattr(topk, "_low_guess", lambda *_: np.float32(guess))
    bases = np.cumsum([0, *(each.size for each in gradients)])[:-1].tolist()
    room = sum(each.size for each in gradients) + SPARE

    words, values, kept = np.empty(room, np.uint32), np.empty(room, np.float32), [*map(np.copy, residuals)]
    addresses = [[each.ctypes.data for each in some] for some in (kept, gradients)]
    rows = table(*addresses, [each.size for each in gradients], bases)
    found = topk_rows(rows, ks, words, values, threads=threads, vectorized=vectorized)

    expected_words, expected_values = np.empty(room, np.uint32), np.empty(room, np.float32)
    sent = 0
    for i, (residual, gradient) in enumerate(zip(residuals, gradients, strict=True)):
        alone = topk_pass(
            residual, gradient, ks[i], expected_words, expected_values, base=bases[i], sent=sent,
            vectorized=vectorized,
        )  # fmt: skip
        sent = alone.sent
        assert (found.ends[i], found.nonfinite[i]) == (sent, alone.nonfinite)
        assert found.taus[i] == alone.tau
        assert found.residual_squares[i] == pytest.approx(alone.residual_squares, rel=1e-6)
        assert kept[i].tobytes() == residual.tobytes()
    assert words[:sent].tobytes() == expected_words[:sent].tobytes()
    assert values[:sent].tobytes() == expected_values[:sent].tobytes()
    assert [bad for bad in found.nonfinite if bad] == [True]


def test_the_guess_is_rarely_too_high() -> None:
    rng = np.random.default_rng(2)
    values = rng.standard_normal(200_000).astype(np.float32)
    zeros = np.zeros_like(values)
    for k in (1, 20, 200, 2000, 20_000, 180_000):
        for _ in range(10):
            rng.shuffle(values)
            reached = np.count_nonzero(np.abs(values) >= topk._low_guess(values, zeros, k))
            assert reached >= k


@vectorized
@in_turn("broken", [NAN, INF, -INF])
@in_turn("n", [1, 16, 50, 20_000])
def test_where_a_sum_is_not_finite_nothing_is_sent(vectorized: bool, broken: float, n: int) -> None:
    rng = np.random.default_rng(n)
    residual = rng.standard_normal(n).astype(np.float32)
    for at in {0, n // 2, n - 1}:
        for k in (0, 1, n):
            gradient = rng.standard_normal(n).astype(np.float32)
            gradient[at] = broken
            check(residual, gradient, k, vectorized)
    overflowing = np.full(n, LARGEST, np.float32)
    check(overflowing, overflowing, 1, vectorized)


@vectorized
def test_threads_change_nothing(vectorized: bool) -> None:
    gradient = hills(300_000, np.random.default_rng(0))
    outputs = []
    for threads in (1, 2, 3):
        residual = np.zeros_like(gradient)
        words, values = np.empty(300_000 + SPARE, np.uint32), np.empty(300_000 + SPARE, np.float32)
        found = topk_pass(residual, gradient, 3000, words, values, threads=threads, vectorized=vectorized)
        sent = words[: found.sent].tobytes(), values[: found.sent].tobytes()
        outputs.append((found.tau, *sent, residual.tobytes()))
    assert outputs[0] == outputs[1] == outputs[2]


@vectorized
def test_passes_follow_one_another(vectorized: bool) -> None:
    rng = np.random.default_rng(0)
    sizes, ks = (30, 0, 100, 7), (5, 3, 0, 7)
    total = rng.standard_normal(sum(sizes)).astype(np.float32)
    words, values = np.empty(total.size + SPARE, np.uint32), np.empty(total.size + SPARE, np.float32)
    base = sent = 0
    expected: list[int] = []
    for size, k in zip(sizes, ks, strict=True):
        part = total[base : base + size]
        expected += [base + i for i in largest(part, k)]
        found = topk_pass(
            np.zeros(size, np.float32), part, k, words, values, base=base, sent=sent, vectorized=vectorized
        )
        base, sent = base + size, found.sent
    assert (words[:sent] >> 1).tolist() == expected
    assert values[:sent].tolist() == total[expected].tolist()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), n=st.integers(1, 300), k=st.integers(0, 40), scale=st.integers(-40, 30)
)
def test_nothing_is_lost(seed: int, n: int, k: int, scale: int) -> None:
    rng = np.random.default_rng(seed)
    residual, gradient = (rng.standard_normal((2, n)) * 10.0**scale).astype(np.float32)
    total = residual + gradient
    words, values = np.empty(n + SPARE, np.uint32), np.empty(n + SPARE, np.float32)
    found = topk_pass(residual, gradient, k, words, values)
    restored = residual.copy()
    restored[words[: found.sent] >> 1] += values[: found.sent]
    assert restored.tolist() == total.tolist()
    assert found.sent <= k


def test_a_negative_k_is_refused() -> None:
    empty = np.empty(0, np.float32)
    with pytest.raises(ValueError, match="0 or more"):
        topk_pass(empty, empty, -1, np.empty(16, np.uint32), np.empty(16, np.float32))


@in_turn(("density", "rank"), [(0.0, 1), (0.001, 1), (0.01, 1), (0.07, 7), (0.071, 8), (1.0, 100)])
def test_a_sample_of_all_gives_the_exact_magnitude(density: float, rank: int) -> None:
    rng = np.random.default_rng(1)
    residual, gradient = rng.standard_normal((2, 100)).astype(np.float32)
    expected = np.sort(np.abs(residual + gradient))[::-1][rank - 1]
    for sample in (100, 101, SAMPLE):
        assert sampled_magnitude(residual, gradient, density, sample) == expected


def test_a_sample_estimates_the_magnitude() -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal(300_000).astype(np.float32)
    for density in (0.001, 0.01, 0.1, 0.9):
        tau = sampled_magnitude(values, np.zeros_like(values), density)
        # Within five standard deviations of a binomial count.
        assert abs(np.mean(np.abs(values) >= tau) - density) < 5 * np.sqrt(density / SAMPLE)


def test_a_sampled_magnitude_is_a_valid_tau() -> None:
    def of(*values: float) -> np.float32:
        array = np.array(values, np.float32)
        tau = sampled_magnitude(array, np.zeros_like(array), 0.5)
        assert isinstance(tau, np.float32)
        return tau

    assert of() == of(0.0) == of(NAN) == of(1e-40, 0.0) == np.float32(SMALLEST_TAU)
    assert of(LARGEST, -LARGEST) == np.float32(LARGEST_TAU)
    assert of(NAN, INF, -INF, 2.0, -3.0) == 3.0
    assert of(NAN, 2.0, -3.0, 4.0) == 3.0
    nothing = np.empty(0, np.float32)
    for density, sample in ((-0.1, 5), (1.1, 5), (NAN, 5), (0.5, 0)):
        with pytest.raises(ValueError, match="density"):
            sampled_magnitude(nothing, nothing, density, sample)
