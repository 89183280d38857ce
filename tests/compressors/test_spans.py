"""What is recorded while somebody asks for it, and the arithmetic of intervals."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taugrad.compressors.bucket.ledger import Step
from taugrad.compressors.reducers.pass_times import PassTimes
from taugrad.compressors.spans import RECORDER, Interval, Recorder, difference, duration, intersection, union

MOMENTS = 40
INTERVALS = st.lists(
    st.tuples(st.integers(0, MOMENTS), st.integers(0, MOMENTS)).map(lambda pair: (min(pair), max(pair))),
    max_size=8,
)


def moments(intervals: list[Interval]) -> np.ndarray:
    """Which of the unit intervals from 0 on lie in any of these."""
    held = np.zeros(MOMENTS, bool)
    for began, ended in intervals:
        held[int(began) : int(ended)] = True
    return held


@given(INTERVALS, INTERVALS)
def test_intervals_are_sets_of_moments(these: list[Interval], those: list[Interval]) -> None:
    one, other = union(these), union(those)
    for actual, expected in (
        (one, moments(these)),
        (intersection(one, other), moments(these) & moments(those)),
        (difference(one, other), moments(these) & ~moments(those)),
    ):
        assert (moments(actual) == expected).all()
        assert duration(actual) == expected.sum()
        assert all(a[1] <= b[0] for a, b in pairwise(actual))


def test_nothing_is_kept_unless_it_was_asked_for() -> None:
    recorder = Recorder()
    recorder.add("wait", "compute", 1.0, 2.0)
    assert recorder.stop() == []
    recorder.start()
    with recorder.computing("backward", "fc"):
        recorder.add("exchange", "wire", 1.0, 2.0)
    spans = recorder.stop()
    recorder.add("wait", "compute", 1.0, 2.0)
    assert [(span.name, span.lane, span.about) for span in spans] == [
        ("exchange", "wire", ""),
        ("backward", "compute", "fc"),
    ]
    assert recorder.stop() == []


def test_a_pass_whose_buckets_overlap_counts_every_moment_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, on a clock of ours.

    Bucket 0 is under way from 1 to 4, and decoded from 4 to 6 beside the pass. Bucket 1 is under way from 5
    to 9; its hook waits from 5 to 5.5 and returns at 7. Then the pass waits until 9, and for bucket 1's
    decoding until 12. So it waits 0.5 - 0.5 (bucket 0 is decoded meanwhile) + 2 of the 7 seconds under way.
    """
    clock = [0.0]
    monkeypatch.setattr("taugrad.compressors.reducers.pass_times.perf_counter", lambda: clock[0])
    step, times = Step(), PassTimes()
    RECORDER.start()
    times.began()
    times.began()
    clock[0] = 5.5
    times.held(5.0, 5.5)
    clock[0] = 6.0
    times.arrived(step, 1.0, 4.0, "bucket 0", decoding=[(4.0, 6.0)])
    clock[0] = 7.0
    times.left(step)
    assert step.exchange_s == 0  # nothing is written before all is done
    clock[0] = 12.0
    times.arrived(step, 5.0, 9.0, "bucket 1", decoding=[(9.0, 12.0)])
    spans = RECORDER.stop()
    assert (step.exchange_s, step.blocked_s, step.overlap_s) == (7.0, 2.0, 5.0)
    assert (step.decompress_s, step.overlapped_decode_s, step.decode_s) == (5.0, 1.5, 3.5)
    assert [(span.began, span.ended) for span in spans if span.name == "wait"] == [(7.0, 9.0)]
    decoding = [(span.lane, span.began, span.ended) for span in spans if span.name == "decode"]
    assert decoding == [("compute", 5.0, 5.5), ("compute", 9.0, 12.0), ("wire", 4.0, 5.0), ("wire", 5.5, 6.0)]


def test_what_is_compressed_between_rounds_is_compressing_and_not_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By hand: a ring's bucket of two hops, the second compressed from 6 to 8, half of that beside the pass.

    It is under way from 1 to 10, but for decoding from 5 to 6 and that; the hook returns at 7, and the pass
    waits from 8 to 10, and for the last decoding until 11.
    """
    clock = [7.0]
    monkeypatch.setattr("taugrad.compressors.reducers.pass_times.perf_counter", lambda: clock[0])
    step, times = Step(), PassTimes()
    times.began()
    times.left(step)
    times.arrived(
        step,
        1.0,
        10.0,
        "bucket 0",
        compressing=[(0.0, 1.0), (6.0, 8.0)],
        decoding=[(5.0, 6.0), (10.0, 11.0)],
    )
    assert (step.exchange_s, step.blocked_s, step.compress_s) == (6.0, 2.0, 1.0)
    assert (step.decompress_s, step.overlapped_decode_s) == (2.0, 1.0)
