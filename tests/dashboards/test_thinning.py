"""Thinned lines keep their spikes, ends and order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from taugrad.dashboards.thinning import thinned


@given(
    st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=1, max_size=300),
    st.integers(4, 60),
)
def test_a_thinned_line_is_a_part_of_it_with_both_extremes(values, most):
    steps, array = np.arange(len(values)) * 3, np.array(values)
    got_steps, got = thinned((steps, array), most)
    assert len(got) <= max(most, 1)
    assert np.all(np.diff(got_steps) > 0)
    assert np.array_equal(got, array[got_steps // 3], equal_nan=True)
    assert {got_steps[0], got_steps[-1]} == {steps[0], steps[-1]}
    finite = array[~np.isnan(array)]
    if finite.size and len(values) > most and not np.isnan(array).any():
        assert got.max() == finite.max()
        assert got.min() == finite.min()
