"""An interrupted run: workers end after one iteration, with a checkpoint from which it resumes exactly."""

import threading
import time
from pathlib import Path

import pytest
import specs
from recorder import Recorder, saved_in, trainer_of

from taugrad.platform.launching.run_status import READING, RunStatus
from taugrad.platform.launching.worker.interruption import Interruption

WORKERS = 4


def test_workers_in_lockstep_end_after_the_same_iteration():
    """Each exchange waits for all workers: one that ended alone would leave the others in it."""
    status, lock, ends = RunStatus(), threading.Lock(), {}
    exchange = threading.Barrier(WORKERS)

    def asked() -> bool:
        with lock:
            return status.is_interrupted()

    def work(rank: int) -> None:
        def propose(begun: int) -> int | None:
            with lock:
                return status.propose_last(rank, begun, WORKERS)

        with Interruption(1, asked, propose) as interruption:
            done = 0
            while True:
                time.sleep(0.002 * rank)
                exchange.wait(30)
                done += 1
                if interruption.ends_after(done):
                    ends[rank] = done
                    return

    workers = [threading.Thread(target=work, args=(rank,)) for rank in range(WORKERS)]
    for worker in workers:
        worker.start()
    time.sleep(0.2)
    assert not status.interrupt()  # nobody has said that training has begun
    for worker in workers:
        worker.join(60)
    assert not exchange.broken
    assert len(ends) == WORKERS
    assert len(set(ends.values())) == 1
    assert min(ends.values()) > 1


def test_workers_that_are_started_anew_agree_among_themselves():
    status = RunStatus()
    assert status.propose_last(0, 30, 2) is None  # and then this group has died
    status.add_stage(READING)
    assert status.propose_last(1, 21, 2) is None
    assert status.propose_last(0, 22, 2) == status.propose_last(1, 21, 2) == 22


def test_a_worker_that_hears_no_answer_goes_on():
    def fail(*_: object) -> None:
        raise ConnectionError

    with Interruption(1, fail, fail) as interruption:  # type: ignore[arg-type]
        assert not any(map(interruption.ends_after, range(1, 9)))


class Interrupted(Recorder):
    """Is interrupted after an iteration."""

    def __init__(self, folder: Path, last: int) -> None:
        super().__init__(folder)
        self.last = last

    def ends_after(self, iteration: int) -> bool:
        return iteration >= self.last


MODES = {
    "gradients": {},
    "weights": {"sync": {"mode": "simulated", "of": {"mode": "weights", "every": 4}}},
    "async": {
        "sync": {"mode": "simulated", "of": {"mode": "async"}},
        "training": specs.DIGITS["training"] | {"optimizer": {"kind": "sgd", "momentum": 0}},
    },
}


@pytest.mark.parametrize("last", [7, 23])
@pytest.mark.parametrize("mode", MODES)
def test_it_resumes_exactly_where_it_stopped(mode, last, alone, tmp_path):
    spec = specs.digits(
        compressor="strom(tau=0.01) | golomb_rice", workers={"count": 3}, checkpoint={"interval": 1000},
        **MODES[mode],
    )  # fmt: skip
    whole = trainer_of(spec)
    whole.fit()
    first = trainer_of(spec)
    first.listener = Interrupted(tmp_path, last)
    first.fit()
    assert first.interrupted
    assert (first.done, first.listener.checkpoints) == (last, [last])
    second = trainer_of(spec, saved=saved_in(tmp_path / str(last), 0))
    second.fit()
    assert [whole.interrupted, second.interrupted] == [False, False]
    for name, weights in whole.model.state_dict().items():
        assert weights.equal(second.model.state_dict()[name]), name
    assert second.sync.totals.state_dict().keys() == whole.sync.totals.state_dict().keys()
    assert first.listener.losses + second.listener.losses == whole.listener.losses
    assert second.sync.totals.wire_bytes == whole.sync.totals.wire_bytes
    assert second.evaluation == whole.evaluation


def test_one_answer_that_does_not_come_is_asked_for_again():
    answers = iter([RuntimeError("slow"), False, RuntimeError("slow"), True])

    def asked() -> bool:
        answer = next(answers, True)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with Interruption(1, asked, lambda begun: begun) as interruption:
        for iteration in range(1, 10_000):
            if interruption.ends_after(iteration):
                return
            time.sleep(0.01)
    pytest.fail("it never ended")
