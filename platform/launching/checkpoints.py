"""A worker's side of checkpoints: all workers write one together, and agree on the one to continue from."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import ray.train
import torch
import torch.distributed as dist
from ray.train import Checkpoint

from ..training.checkpoint import Saved
from ..training.choosing import folder_name
from ..training.manifest import Digest, Manifest
from ..training.resuming import agreed, gathered
from .run_folder import RunFolder


class Checkpoints:
    """The checkpoints of the Ray Train run that this worker belongs to.

    Args:
        run_id: the MLflow run.
        keep: how many stay.
        workers: how many train, in all processes.
        device: through which the process group sends.
        notify: told, in a line for the user, what could not be used.
    """

    def __init__(
        self, run_id: str, keep: int, workers: int, device: torch.device, notify: Callable[[str], None]
    ) -> None:
        self._storage = ray.train.get_context().get_storage()
        self._folder = RunFolder(self._storage.storage_filesystem, self._storage.experiment_fs_path, run_id)
        self._run_id, self._keep, self._workers, self._notify = run_id, keep, workers, notify
        self._rank = dist.get_rank()
        self._device = device if dist.get_backend() == "nccl" else torch.device("cpu")

    def newest(self) -> Saved | None:
        """What this worker continues from; None if no checkpoint was written yet.

        Raises:
            CheckpointError: there are checkpoints, and none is good.
        """

        def attempt(iteration: int) -> Saved:
            read, manifest = self._folder.reader(iteration), self._folder.manifest(iteration)
            return Saved.load(read, manifest, self._rank, self._workers)

        iterations = self._folder.iterations() if self._rank == 0 else []
        choice = agreed(iterations, attempt, self._rank, self._device)
        if choice.skipped:
            then = folder_name(choice.iteration) if choice.good else "the beginning"
            self._notify(f"checkpoint not used: {'; '.join(choice.skipped)}; going on from {then}")
        return choice.good

    def write(self, iteration: int, write: Callable[[Path], None]) -> None:
        """Writes the checkpoint of an iteration; all workers must call this together.

        Args:
            iteration: after which it is.
            write: puts this worker's files into an empty folder.
        """
        name = folder_name(iteration)
        if self._rank == 0:
            self._folder.reopen(iteration)
        dist.barrier()  # nobody's new file stands beside an old manifest
        with tempfile.TemporaryDirectory(prefix="taugrad-") as folder:
            write(Path(folder))
            own = {path.name: Digest.of(path) for path in sorted(Path(folder).iterdir())}
            self._storage.persist_current_checkpoint(Checkpoint.from_directory(folder), name)
        self._folder.to_disk(iteration, list(own))
        # When worker 0 has heard of all files, all of them are there.
        files = gathered(Manifest(self._run_id, iteration, own).to_bytes().decode(), self._device)
        if self._rank == 0:
            manifests = [Manifest.from_bytes(each.encode(), self._run_id, iteration) for each in files]
            everything = {name: digest for each in manifests for name, digest in each.files.items()}
            self._folder.seal(Manifest(self._run_id, iteration, everything))
            self._folder.keep(iteration, self._keep)
