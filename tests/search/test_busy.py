"""Whether a machine counts as busy, with made-up clocks."""

import os

from taugrad.search.busy import OthersWork


def test_only_what_other_processes_compute_counts():
    count = os.cpu_count()
    now = {"all": 100.0, "own": 5.0, "clock": 0.0}
    watch = OthersWork(*(lambda name=name: now[name] for name in now))
    now |= {"clock": 0.1, "all": 200.0}
    assert not watch.warning()  # too short to say anything
    now |= {"clock": 10.0, "all": 100 + 10.0 * count, "own": 5 + 9.0 * count}  # a tenth is others'
    assert not watch.warning()
    now |= {"own": 5 + 4.0 * count}
    assert f"other processes used {0.6 * count:.1f} of its {count} processors" in watch.warning()
