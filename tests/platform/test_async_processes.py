"""Real workers in the mode async of which one is stopped for a while, and later killed."""

import signal
import sys
from pathlib import Path
from time import sleep

import pytest
from async_training import batch, hashed, moment, training_of
from forked import Worker
from group import started_group, step_of

from taugrad.compressors.errors import PeerLost

WORKERS, BEHIND, STEPS = 3, 10, 120
TIMEOUT_S = 120


SYNC = {"mode": "async", "most_behind": BEHIND, "on_dead": "wait", "dead_after": 0.5}


def work(rank: int, workers: int, _folder: Path) -> None:
    """In each worker: says `step N` after each step, and in the middle, where all are drained, a hash."""
    training = training_of(workers, SYNC)
    try:
        for number in range(STEPS):
            training.iterate([batch(rank, number)], moment(number, STEPS))
            print("step", number, flush=True)
            sleep(0.02)
            if 2 * (number + 1) == STEPS:
                training.sync_model()
                print("hash", hashed(training), flush=True)
        training.sync_model()
    except PeerLost as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(3)


@pytest.fixture
def workers(tmp_path):
    started = started_group("test_async_processes", "work", WORKERS, tmp_path)
    yield started
    for worker in started:
        worker.kill()


def reach(worker: Worker, step: int) -> None:
    worker.wait_until(lambda: step_of(worker) >= step, TIMEOUT_S)


def test_a_stopped_worker_is_waited_for_and_a_killed_one_is_noticed(workers):
    *others, slow = workers
    reach(slow, 5)
    slow.send_signal(signal.SIGSTOP)
    sleep(0.1)
    stopped_at = step_of(slow)
    for other in others:
        reach(other, stopped_at + BEHIND - 1)
    sleep(1)
    # They may be ahead of what they have received by BEHIND, and it may have sent more than it has said.
    assert all(step_of(other) <= stopped_at + 2 + BEHIND for other in others)
    slow.send_signal(signal.SIGCONT)
    for worker in workers:
        reach(worker, STEPS // 2 + 5)
    hashes = [next(line for line in worker.lines if line.startswith("hash")) for worker in workers]
    assert len(set(hashes)) == 1

    slow.kill()
    assert [other.ended(TIMEOUT_S) for other in others] == [3, 3]
    # Also where whoever notices first ends, and that is what the other one notices.
    assert all(other.lines[-1].startswith("PeerLost: worker 2 is gone") for other in others)
