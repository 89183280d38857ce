"""Real workers whose rounds close with a quorum, of which one is slow, stopped for a while, or killed."""

import signal
import sys
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
from async_training import batch, hashed, moment, training_of, weights
from forked import Worker
from group import results, started_group, step_of

from taugrad.compressors.errors import PeerLost
from taugrad.platform.synchronization.quorum.message import Kind, Received

WORKERS, H = 4, 4
SYNC = {"mode": "weights", "every": H, "quorum": 0.75, "deadline": {"factor": 3, "least": 0.1, "most": 1.0}}
TIMEOUT_S = 120


STEP_S = 0.01
SLOW, DEAF = 2, 3
UNHEARD = 1, 20
"""Whose offer for which round never arrives at the deaf worker, which has to take over agreed weights."""


def work(rank: int, workers: int, _folder: Path, steps: str, slow: str) -> dict[str, Any]:
    """In each worker; worker 2's steps take `slow` times as long as the others'.

    It says `step N` after each iteration, and in the middle, where all meet, how many rounds closed without
    it, and a hash of the agreed weights. It returns what it learnt, what it keeps, and who was in which
    round.
    """
    training = training_of(workers, SYNC, "strom(0.05, reduction='sum')")
    (replica,) = training._replicas
    learnt = torch.zeros(weights(training).numel()).double()
    start, step = weights(training).double(), replica.step

    def stepped(position: object) -> None:
        before = torch.cat(replica.weights()).double()
        step(position)
        learnt.add_(before - torch.cat(replica.weights()).double())
        sleep(STEP_S * (float(slow) if rank == SLOW else 1))

    replica.step = stepped
    sort = training._mail._sort

    def sorted_out(arrived: Received) -> None:
        if rank != DEAF or arrived.kind is not Kind.OFFER or (arrived.sender, arrived.number) != UNHEARD:
            sort(arrived)

    training._mail._sort = sorted_out
    entries, count = [], int(steps)
    try:
        for number in range(count):
            entries.append(training.iterate([batch(rank, number)], moment(number, count)))
            print("step", number, flush=True)
            if 2 * (number + 1) == count:
                training.sync_model()
                print("left_out", int(entries[-1].metrics[f"worker/{rank}/left_out"]), flush=True)
                print("hash", hashed(training), flush=True)
        training.sync_model()
    except PeerLost as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(3)
    # What a checkpoint has, and what was learnt since the last round.
    state, kept = (
        training.own_state(),
        torch.cat(training.local.handed_in(training.local.fragments[0], 0)).double(),
    )
    residuals = state["local"]["fragments"][0]["unsent"]["ranks"][str(rank)]["0"]["residuals"]
    kept += torch.cat([residuals[name] for name in training._names]).double()
    pending = state["replicas"][str(rank)]["pending"]
    if pending is not None:
        kept += torch.cat(pending).double()
    print("hash", hashed(training), flush=True)
    return {
        "learnt": learnt,
        "kept": kept,
        "applied": start - weights(training).double(),
        "rounds": [each.metrics for each in entries if "round/members" in each.metrics],
        "caught_up_bytes": sum(each.metrics.get("round/caught_up_bytes", 0) for each in entries),
        "left_out": [
            each.metrics[f"worker/{rank}/left_out"]
            for each in entries
            if f"worker/{rank}/left_out" in each.metrics
        ],
        "totals": training.totals.state_dict(),
    }


def hashes(worker: Worker) -> list[str]:
    """Of the agreed weights: in the middle, and at the end."""
    return [line for line in worker.lines if line.startswith("hash")]


def check_nothing_is_lost(found: list[dict[str, Any]]) -> None:
    """Updates are added up, so that agreed weights have come as far as all that was sent."""
    missing = sum(each["learnt"] - each["kept"] for each in found) - found[0]["applied"]
    assert float(found[0]["applied"].abs().max()) > 0.1
    torch.testing.assert_close(missing, torch.zeros_like(missing), rtol=0, atol=2e-4)


@pytest.fixture
def workers(request, tmp_path):
    running = started_group("test_quorum_processes", "work", WORKERS, tmp_path, *request.param)
    yield running
    for worker in running:
        worker.kill()


@pytest.mark.parametrize("workers", [(200, 1.0)], indirect=True)
def test_a_stopped_worker_is_left_out_and_catches_up(workers, tmp_path):
    """The stopped one is worker 0, which closes rounds until then: another one takes over."""
    first, *others = workers
    first.wait_until(lambda: step_of(first) >= 5 * H, TIMEOUT_S)
    first.send_signal(signal.SIGSTOP)
    sleep(0.1)
    stopped_at = step_of(first)
    for other in others:
        other.wait_until(lambda other=other: step_of(other) >= stopped_at + 8 * H, TIMEOUT_S)
    first.send_signal(signal.SIGCONT)
    assert [worker.ended(TIMEOUT_S) for worker in workers] == [0] * WORKERS, [
        each.lines[-3:] for each in workers
    ]
    for worker in workers:
        assert len(hashes(worker)) == 2
        assert hashes(worker) == hashes(others[0])
    found = results(tmp_path, WORKERS)
    assert sum(found[0]["left_out"]) >= 7
    rounds = found[1]["rounds"]
    assert all(each["round/members"] + each["round/left_out"] == WORKERS for each in rounds)
    assert len(rounds) == 200 // H
    assert rounds[-1]["round/members"] >= 3
    # Worker 3 has missed an offer, and taken over weights from another one.
    assert found[0]["caught_up_bytes"] > 0
    assert all(each["totals"] == found[0]["totals"] for each in found)
    check_nothing_is_lost(found)


@pytest.mark.parametrize("workers", [(100, 8.0)], indirect=True)
def test_a_slow_worker_holds_nobody_up_and_is_heard_and_a_dead_one_is_left_out(workers, tmp_path):
    *_, slow, last = workers
    for worker in workers:
        worker.wait_until(lambda worker=worker: len(hashes(worker)) == 1, TIMEOUT_S)
    assert len({hashes(worker)[0] for worker in workers}) == 1
    # The slow one is in every second round or so: late, and then with what it has.
    (left_out,) = [int(line.split()[1]) for line in slow.lines if line.startswith("left_out")]
    assert 0 < left_out < 50 // H
    last.kill()
    assert [worker.ended(TIMEOUT_S) for worker in workers[:3]] == [3] * 3
    # They go on without it until all must meet. Who notices first ends, too, so that too few may be left for
    # a round of another one, which then ends where it is.
    said = [worker.lines[-1] for worker in workers[:3]]
    assert all(each.startswith("PeerLost: worker") for each in said)
    met = [
        worker
        for worker in workers[:3]
        if "evaluations and checkpoints need every worker" in worker.lines[-1]
    ]
    assert [step_of(worker) for worker in met] == [99] * len(met)
    assert any(worker.lines[-1].startswith("PeerLost: worker 3 is gone") for worker in met)
    others = [worker for worker in workers[:3] if worker not in met]
    assert all("workers are left, a round needs" in worker.lines[-1] for worker in others)
