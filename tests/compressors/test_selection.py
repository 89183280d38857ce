"""The k-th largest by counting, against sorting."""

import numpy as np
import pytest
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st

from taugrad.compressors.ops.cpu.selection import ranked

magnitudes = st.lists(
    st.one_of(
        st.floats(0, width=32, allow_nan=False, allow_infinity=False),
        st.sampled_from([0.0, 1e-45, 1.0, float(np.float32(1) + np.float32(2**-23)), 3.4028234663852886e38]),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(magnitudes, st.data())
def test_any_rank_is_that_of_a_sorted_array(values: list[float], data: st.DataObject) -> None:
    array = np.abs(np.array(values, np.float32))
    rank = data.draw(st.integers(1, array.size))
    assert ranked(array, rank) == np.sort(array)[array.size - rank]


@in_turn("spread", [0.0, 1e-7, 1.0, 20.0])
def test_many_that_lie_close_are_told_apart(spread: float) -> None:
    rng = np.random.default_rng(0)
    array = np.exp(spread * rng.standard_normal(2**14)).astype(np.float32)
    before, ordered = array.copy(), np.sort(array)[::-1]
    for rank in (1, 2, 17, 164, 5000, 2**14 - 1, 2**14):
        assert ranked(array, rank) == ordered[rank - 1]
    assert np.array_equal(array, before)


@in_turn(("size", "rank"), [(0, 1), (3, 0), (3, 4), (3, -1)])
def test_a_rank_that_is_not_there_is_refused(size: int, rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} of {size}"):
        ranked(np.ones(size, np.float32), rank)
