"""One worker of runs that stop, or go on with another number of workers.

    python resizing_process.py RANK WORKERS FOLDER FORMER

FOLDER/specs.json names them. With FORMER = 0 they begin, and write the checkpoint in their middle; else they
go on from what so many processes have written.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from sync_process import Recorder, result

from taugrad.platform.data import load
from taugrad.platform.spec import RunSpec
from taugrad.platform.training.checkpoint import SHARED, Saved, unpack, worker_file
from taugrad.platform.training.trainer import Trainer


def saved_by(folder: Path, processes: int) -> Saved:
    """What so many processes wrote, for another number of workers."""
    every = tuple(unpack((folder / worker_file(rank)).read_bytes()) for rank in range(processes))
    return Saved(unpack((folder / SHARED).read_bytes()), {}, every)


def main(rank: int, workers: int, folder: Path, former: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / f"store_{former}"), workers)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=workers)
    results = {}
    for name, fields in json.loads((folder / "specs.json").read_text()).items():
        spec = RunSpec.model_validate(fields | {"workers": {"count": workers, "on_resize": "merge"}})
        here = folder / name
        recorder = Recorder(here if not former else here / "resized")
        trainer = Trainer(spec, load(spec.data), torch.device("cpu"), recorder)
        if former:
            trainer.resume(saved_by(here / str(spec.checkpoint.interval), former))
        trainer.fit()
        results[name] = {
            "weights": result(trainer, recorder)["weights"],
            "totals": trainer.sync.totals.state_dict(),
        }
    torch.save(results, folder / f"result_{rank}_{former}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
