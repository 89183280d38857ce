"""Real workers whose rounds close with a quorum, of which one is slow, stopped for a while, or killed."""

import signal
import sys
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
from async_training import batch, hashed, moment, training_of, weights
from group import started_group, step_of

from taugrad.compressors.errors import PeerLost
from taugrad.platform.synchronization.quorum.message import Kind, Received

WORKERS, H = 5, 4
SYNC = {"mode": "weights", "every": H, "quorum": 0.6, "deadline": {"factor": 3, "least": 0.1, "most": 1.0}}
TIMEOUT_S = 120


STEPS, MEETING, STEP_S = 132, 100, 0.01
SLOW, SLOWER, DEAF = 2, 20, 3
UNHEARD = 1, 15
"""Whose offer for which round never arrives at the deaf worker, which has to take over agreed weights."""


def work(rank: int, workers: int, folder: Path) -> None:
    """In each worker; worker 2's steps take SLOWER times as long as the others'.

    It says `step N` after each iteration. After MEETING of them, where all meet, it writes what it has learnt
    by then, what it keeps, and who was in which round.
    """
    training = training_of(workers, SYNC, "strom(0.05, reduction='sum')")
    (replica,) = training._replicas
    learnt = torch.zeros(weights(training).numel()).double()
    start, step = weights(training).double(), replica.step

    def stepped(position: object) -> None:
        before = torch.cat(replica.weights()).double()
        step(position)
        learnt.add_(before - torch.cat(replica.weights()).double())
        sleep(STEP_S * (SLOWER if rank == SLOW else 1))

    replica.step = stepped
    sort = training._mail._sort

    def sorted_out(arrived: Received) -> None:
        if rank != DEAF or arrived.kind is not Kind.OFFER or (arrived.sender, arrived.number) != UNHEARD:
            sort(arrived)

    training._mail._sort = sorted_out
    entries: list[dict[str, float]] = []
    try:
        for number in range(STEPS):
            entries.append(training.iterate([batch(rank, number)], moment(number, STEPS)).metrics)
            print("step", number, flush=True)
            if number + 1 == MEETING:
                training.sync_model()
                found = state_of(training, rank) | {
                    "learnt": learnt,
                    "applied": start - weights(training).double(),
                    "rounds": [each for each in entries if "round/members" in each],
                    "caught_up_bytes": sum(each.get("round/caught_up_bytes", 0) for each in entries),
                    "left_out": entries[-1][f"worker/{rank}/left_out"],
                }
                torch.save(found, folder / f"met_{rank}.pt")
                print("met", MEETING, flush=True)
                sleep(TIMEOUT_S if rank == 0 else 0)  # until it is killed
        training.sync_model()
    except PeerLost as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(3)


def state_of(training: Any, rank: int) -> dict[str, Any]:
    """What a checkpoint has, and what was learnt since the last round."""
    state = training.own_state()
    kept = torch.cat(training.local.handed_in(training.local.fragments[0], 0)).double()
    residuals = state["local"]["fragments"][0]["unsent"]["ranks"][str(rank)]["0"]["residuals"]
    kept += torch.cat([residuals[name] for name in training._names]).double()
    pending = state["replicas"][str(rank)]["pending"]
    if pending is not None:
        kept += torch.cat(pending).double()
    return {"kept": kept, "hash": hashed(training), "totals": training.totals.state_dict()}


@pytest.fixture
def workers(tmp_path):
    running = started_group("test_quorum_processes", "work", WORKERS, tmp_path)
    yield running
    for worker in running:
        worker.kill()


def test_slow_stopped_and_dead_workers_hold_nobody_up(workers, tmp_path):
    """Worker 0, which closes rounds, is stopped for a while: another one takes over. Later it is killed."""
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
    found = [torch.load(tmp_path / f"met_{rank}.pt", weights_only=True) for rank in range(WORKERS)]
    assert len({each["hash"] for each in found}) == 1
    assert all(each["totals"] == found[0]["totals"] for each in found)
    rounds = found[1]["rounds"]
    assert len(rounds) == MEETING // H
    assert all(each["round/members"] + each["round/left_out"] == WORKERS for each in rounds)
    assert rounds[-1]["round/members"] >= 3
    # Worker 0 was away, and took over weights; the slow one is in every second round or so: late, and then
    # with what it has.
    assert found[0]["left_out"] >= 5
    assert found[0]["caught_up_bytes"] > 0
    assert 0 < found[SLOW]["left_out"] < MEETING // H
    # Nothing is lost: updates are added up, so that agreed weights have come as far as all that was sent.
    missing = sum(each["learnt"] - each["kept"] for each in found) - found[0]["applied"]
    assert float(found[0]["applied"].abs().max()) > 0.1
    torch.testing.assert_close(missing, torch.zeros_like(missing), rtol=0, atol=2e-4)

    first.kill()
    assert [worker.ended(TIMEOUT_S) for worker in others] == [3] * len(others)
    # They go on without it until all must meet. Who notices first ends, too, so that too few may be left for
    # a round of another one, which then ends where it is.
    said = [worker.lines[-1] for worker in others]
    assert all(each.startswith("PeerLost: worker") for each in said)
    met = [worker for worker in others if "evaluations and checkpoints need every worker" in worker.lines[-1]]
    assert [step_of(worker) for worker in met] == [STEPS - 1] * len(met)
    assert any(worker.lines[-1].startswith("PeerLost: worker 0 is gone") for worker in met)
    left = [worker.lines[-1] for worker in others if worker not in met]
    assert all("workers are left, a round needs" in each for each in left)
