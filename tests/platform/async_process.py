"""One worker in the mode async: `python async_process.py RANK WORKERS FOLDER STEPS SYNC`, SYNC as JSON.

It says `step N` on its standard output after each of its steps, and in the middle, where all are drained, a
hash of its weights; an error is its last line.
"""

import hashlib
import json
import sys
from pathlib import Path
from time import sleep

import torch
import torch.distributed as dist
from async_training import batch, moment, training_of

from taugrad.compressors.errors import NonFiniteGradient, PeerLost
from taugrad.platform.synchronization.base import Synchronization

STEP_S = 0.02


def main(rank: int, workers: int, folder: Path, steps: int, sync: dict) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), workers)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=workers)
    training = training_of(workers, sync)
    try:
        for number in range(steps):
            training.iterate([batch(rank, number)], moment(number, steps))
            print("step", number, flush=True)
            sleep(STEP_S)
            if 2 * (number + 1) == steps:
                training.sync_model()
                print("hash", hashed(training), flush=True)
        training.sync_model()
    except (PeerLost, NonFiniteGradient) as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(3)
    dist.barrier()
    dist.destroy_process_group()


def hashed(training: Synchronization) -> str:
    weights = b"".join(each.numpy().tobytes() for each in training.model.state_dict().values())
    return hashlib.sha256(weights).hexdigest()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), json.loads(sys.argv[5]))
