"""One worker that keeps its checkpoints: `python batches_process.py RANK WORKERS FOLDER SPEC [CHECKPOINT]`.

With CHECKPOINT, a folder that an earlier run wrote, the run goes on from it.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from trainer_process import Recorder, saved

from taugrad.platform.data import load
from taugrad.platform.spec import RunSpec
from taugrad.platform.training.trainer import Trainer


class Keeper(Recorder):
    """A recorder that writes checkpoints too."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def checkpoint(self, iteration: int, write: Callable[[Path], None]) -> None:
        super().checkpoint(iteration, write)
        target = self.folder / f"iteration_{iteration}"
        target.mkdir(exist_ok=True)
        write(target)


def main(rank: int, workers: int, folder: Path, spec: RunSpec, checkpoint: Path | None) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), workers)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=workers)
    keeper = Keeper(folder)
    trainer = Trainer(spec, load(spec.data), torch.device("cpu"), keeper)
    if checkpoint is not None:
        trainer.resume(saved(checkpoint, rank))
    trainer.fit()
    result = {
        "weights": trainer.model.state_dict(),
        "own": trainer.sync.own_state(),
        "logged": keeper.logged,
        "evaluations": keeper.evaluations,
        "checkpoints": keeper.checkpoints,
    }
    torch.save(result, folder / f"result_{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        int(sys.argv[2]),
        Path(sys.argv[3]),
        RunSpec.model_validate_json(sys.argv[4]),
        Path(sys.argv[5]) if len(sys.argv) > 5 else None,
    )
