"""Real workers that go on without one that is slow or stopped for a while, and notice when one is killed."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import pytest
import torch
from async_training import Learnt, batch, hashed, kept, step_context, training_of, weights
from forked import Worker
from group import run_group, started_group, step_of

from taugrad.compressors.errors import PeerLost
from taugrad.compressors.exchange.carrier import Payload
from taugrad.platform.synchronization.quorum.message import MessageKind

WORKERS, H = 5, 4
SYNC = {"mode": "weights", "every": H, "quorum": 0.6, "deadline": {"factor": 3, "least": 0.1, "most": 1.0}}
TIMEOUT_S = 120


STEPS, MEETING, STEP_S = 80, 60, 0.01
SLOW, SLOWER, DEAF = 2, 20, 3
UNHEARD = 1, 12
"""Whose offer for which round never arrives at the deaf worker, which has to take over agreed weights."""


@contextmanager
def saying_who_is_lost() -> Iterator[None]:
    """Ends this worker with code 3 where it has lost another one."""
    try:
        yield
    except PeerLost as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(3)


def work(rank: int, workers: int, folder: Path) -> None:
    """In each worker; worker 2's steps take SLOWER times as long as the others'.

    It says `step N` after each iteration. After MEETING of them, where all meet, it writes what it has learnt
    by then, what it keeps, and who was in which round.
    """
    training = training_of(workers, SYNC, "strom(0.05, reduction='sum')")
    learnt, start = Learnt(training), weights(training).double()
    sort = training._inbox._sort

    def sorted_out(sender: int, kind: MessageKind, number: int, body: Payload) -> None:
        if rank != DEAF or kind is not MessageKind.OFFER or (sender, number) != UNHEARD:
            sort(sender, kind, number, body)

    training._inbox._sort = sorted_out
    entries: list[dict[str, float]] = []
    with saying_who_is_lost():
        for number in range(STEPS):
            entries.append(training.iterate([batch(rank, number)], step_context(number, STEPS)).metrics)
            sleep(STEP_S * (SLOWER if rank == SLOW else 1))
            print("step", number, flush=True)
            if number + 1 == MEETING:
                training.sync_model()
                results = {
                    "kept": kept(training),
                    "hash": hashed(training),
                    "totals": training.totals.state_dict(),
                    "learnt": learnt.sum,
                    "applied": start - weights(training).double(),
                    "rounds": [entry for entry in entries if "round/members" in entry],
                    "caught_up_bytes": sum(entry.get("round/caught_up_bytes", 0) for entry in entries),
                    "left_out": entries[-1][f"worker/{rank}/left_out"],
                }
                torch.save(results, folder / f"met_{rank}.pt")
                print("met", MEETING, flush=True)
                sleep(TIMEOUT_S if rank == 0 else 0)  # until it is killed
        training.sync_model()


@pytest.fixture
def start(tmp_path):
    """Starts so many workers with a function of this module."""
    running = []

    def start_all(function, count):
        running.extend(started_group("test_lost_workers", function, count, tmp_path))
        return running

    yield start_all
    for worker in running:
        worker.kill()


def test_slow_stopped_and_dead_workers_do_not_block_rounds(start, tmp_path):
    """Worker 0, which closes rounds, is stopped for a while: another one takes over. Later it is killed."""
    workers = start("work", WORKERS)
    first, *others = workers
    first.wait_until(lambda: step_of(first) >= 3 * H, TIMEOUT_S)
    first.send_signal(signal.SIGSTOP)
    sleep(0.1)
    stopped_at = step_of(first)
    for other in others:
        other.wait_until(lambda other=other: step_of(other) >= stopped_at + 6 * H, TIMEOUT_S)
    first.send_signal(signal.SIGCONT)
    for worker in workers:
        worker.wait_until(lambda worker=worker: f"met {MEETING}" in worker.lines, TIMEOUT_S)
    saved = [torch.load(tmp_path / f"met_{rank}.pt", weights_only=True) for rank in range(WORKERS)]
    assert len({notes["hash"] for notes in saved}) == 1
    assert all(notes["totals"] == saved[0]["totals"] for notes in saved)
    rounds = saved[1]["rounds"]
    assert len(rounds) == MEETING // H
    assert all(row["round/members"] + row["round/left_out"] == WORKERS for row in rounds)
    assert rounds[-1]["round/members"] >= 3
    # Worker 0 was away, and took over weights; the slow one is in every second round or so: late, and then
    # with what it has.
    assert saved[0]["left_out"] >= 5
    assert saved[0]["caught_up_bytes"] > 0
    assert 0 < saved[SLOW]["left_out"] < MEETING // H
    # Nothing is lost: updates are added up, so that agreed weights have come as far as all that was sent.
    missing = sum(notes["learnt"] - notes["kept"] for notes in saved) - saved[0]["applied"]
    assert float(saved[0]["applied"].abs().max()) > 0.1
    torch.testing.assert_close(missing, torch.zeros_like(missing), rtol=0, atol=2e-4)

    first.kill()
    assert [worker.ended(TIMEOUT_S) for worker in others] == [3] * len(others)
    # They go on without it until all must meet. Who notices first ends, too, so that too few may be left for
    # a round of another one, which then ends where it is.
    said = [worker.lines[-1] for worker in others]
    assert all(text.startswith("PeerLost: worker") for text in said)
    met = [worker for worker in others if "evaluations and checkpoints need every worker" in worker.lines[-1]]
    assert [step_of(worker) for worker in met] == [STEPS - 1] * len(met)
    assert any(worker.lines[-1].startswith("PeerLost: worker 0 is gone") for worker in met)
    left = [worker.lines[-1] for worker in others if worker not in met]
    assert all("workers are left, a round needs" in text for text in left)


LATE, ROUNDS = 2, 4


def work_of_a_stalled_worker(rank: int, workers: int, folder: Path) -> dict[str, torch.Tensor]:
    """In each worker; to the last one, messages come late, as they do where a machine is busy.

    It ends its first round after the others, and hands in at the start of the second. It hears that it is in
    that round one step later, and the offer of worker 1 one more step later.
    """
    training = training_of(workers, SYNC, "strom(0.05, reduction='sum')")
    learnt, start = Learnt(training), weights(training).double()
    inbox, waiting = training._inbox, []
    poll, sort = inbox.poll, inbox._sort
    now = 0

    def wait_for_decision(number: int) -> None:
        while not any(message[1:3] == (MessageKind.DECISION, number) for message in waiting):
            poll(0.05)

    def poll_late(wait_s: float) -> None:
        poll(wait_s)
        if now == H + 1:
            wait_for_decision(1)
        here = waiting[:] if wait_s or now > H else []
        if now == H + 1:
            here = [message for message in here if message[:2] != (1, MessageKind.OFFER)]
        for message in here:
            waiting[:] = [other for other in waiting if other is not message]
            sort(*message)

    if rank == LATE:
        inbox._sort, inbox.poll = lambda *message: waiting.append(message), poll_late
    members = []
    for now in range(ROUNDS * H):
        if now == H - 1 and rank == LATE:
            wait_for_decision(0)
        while now == H and rank != LATE and LATE not in inbox.offers[1]:
            poll(0.05)
        members.append(training.iterate([batch(rank, now)], step_context(now, ROUNDS * H)).metrics)
    training.sync_model()
    return {
        "learnt": learnt.sum,
        "kept": kept(training),
        "applied": start - weights(training).double(),
        "members": torch.tensor([member["round/members"] for member in members if "round/members" in member]),
    }


def test_no_step_is_lost_between_a_decision_and_the_offers_that_it_names(tmp_path):
    """A worker that knows that it is in a round cannot learn anything more for it."""
    workers = run_group("test_lost_workers", "work_of_a_stalled_worker", 3, tmp_path)
    assert workers[0]["members"].tolist()[:2] == [2, 3]
    missing = sum(worker["learnt"] - worker["kept"] for worker in workers) - workers[0]["applied"]
    torch.testing.assert_close(missing, torch.zeros_like(missing), rtol=0, atol=2e-4)


# Without rounds: the mode async.


THREE, BEHIND, FREE_STEPS = 3, 10, 120
FREE = {"mode": "async", "most_behind": BEHIND, "on_dead": "wait", "dead_after": 0.5}


def work_freely(rank: int, workers: int, _folder: Path) -> None:
    """In each worker: says `step N` after each step, and in the middle, where all are drained, a hash."""
    training = training_of(workers, FREE)
    with saying_who_is_lost():
        for number in range(FREE_STEPS):
            training.iterate([batch(rank, number)], step_context(number, FREE_STEPS))
            print("step", number, flush=True)
            sleep(0.02)
            if 2 * (number + 1) == FREE_STEPS:
                training.sync_model()
                print("hash", hashed(training), flush=True)
        training.sync_model()


def reach(worker: Worker, step: int) -> None:
    worker.wait_until(lambda: step_of(worker) >= step, TIMEOUT_S)


def test_a_stopped_worker_is_waited_for_and_a_killed_one_is_noticed(start):
    workers = start("work_freely", THREE)
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
        reach(worker, FREE_STEPS // 2 + 5)
    hashes = [next(line for line in worker.lines if line.startswith("hash")) for worker in workers]
    assert len(set(hashes)) == 1

    slow.kill()
    assert [other.ended(TIMEOUT_S) for other in others] == [3, 3]
    # Also where whoever notices first ends, and that is what the other one notices.
    assert all(other.lines[-1].startswith("PeerLost: worker 2 is gone") for other in others)
