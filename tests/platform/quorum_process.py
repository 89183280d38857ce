"""One worker whose rounds close with a quorum.

    python quorum_process.py RANK WORKERS FOLDER STEPS SYNC SLOW

SYNC is JSON; worker 2's steps take SLOW times as long as the others'. Worker 3 misses what worker 1 hands in
for round 20, and has to take over the agreed weights. It says `step N` after each iteration,
and in the middle, where all meet, how many rounds have closed without it, and a hash of the agreed weights.
What it learnt, what it keeps, and who was in which round are in FOLDER/result_RANK.pt at the end. An error is
its last line.
"""

import json
import sys
from pathlib import Path
from time import sleep

import torch
import torch.distributed as dist
from async_process import hashed
from async_training import batch, moment, training_of, weights

from taugrad.compressors.errors import PeerLost
from taugrad.platform.synchronization.quorum.free import FreeRounds
from taugrad.platform.synchronization.quorum.message import Kind, Received

STEP_S = 0.01
SLOW, DEAF = 2, 3
UNHEARD = 1, 20
"""Whose offer for which round never arrives at the deaf worker."""


def main(rank: int, workers: int, folder: Path, steps: int, sync: dict, slow: float) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), workers)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=workers)
    training = training_of(workers, sync, "strom(0.05, reduction='sum')")
    assert isinstance(training, FreeRounds)
    (replica,) = training._replicas
    learnt = torch.zeros(weights(training).numel()).double()
    start, step = weights(training).double(), replica.step

    def stepped(position: object) -> None:
        before = torch.cat(replica.weights()).double()
        step(position)
        learnt.add_(before - torch.cat(replica.weights()).double())
        sleep(STEP_S * (slow if rank == SLOW else 1))

    replica.step = stepped
    sort = training._mail._sort

    def sorted_out(arrived: Received) -> None:
        if rank != DEAF or arrived.kind is not Kind.OFFER or (arrived.sender, arrived.number) != UNHEARD:
            sort(arrived)

    training._mail._sort = sorted_out
    entries = []
    try:
        for number in range(steps):
            entries.append(training.iterate([batch(rank, number)], moment(number, steps)))
            print("step", number, flush=True)
            if 2 * (number + 1) == steps:
                training.sync_model()
                print("left_out", int(entries[-1].metrics[f"worker/{rank}/left_out"]), flush=True)
                print("hash", hashed(training), flush=True)
        training.sync_model()
    except PeerLost as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(3)
    # What a checkpoint has, and what was learnt since the last round.
    state, kept = training.own_state(), torch.cat(training._handed_in(0)).double()
    residuals = state["local"]["fragments"][0]["unsent"]["ranks"][str(rank)]["0"]["residuals"]
    kept += torch.cat([residuals[name] for name in training._names]).double()
    pending = state["replicas"][str(rank)]["pending"]
    if pending is not None:
        kept += torch.cat(pending).double()
    torch.save(
        {
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
        },
        folder / f"result_{rank}.pt",
    )
    print("hash", hashed(training), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        int(sys.argv[2]),
        Path(sys.argv[3]),
        int(sys.argv[4]),
        json.loads(sys.argv[5]),
        float(sys.argv[6]),
    )
