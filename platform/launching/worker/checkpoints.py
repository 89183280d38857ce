"""A worker's side of checkpoints: all workers write one together, and agree on the one to continue from."""

import shlex
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import ray.train
import torch.distributed as dist
from pyarrow import ArrowException
from ray.train import Checkpoint

from ...synchronization.gathering import all_gather_texts
from ...training.checkpoint import Saved, agreed
from ...training.manifest import Digest, Manifest, folder_name
from ..run_folder import RunFolder, fallback
from ..run_status import Job
from ..storage import below, reason


class Checkpoints:
    """The checkpoints of the Ray Train run that this worker belongs to, of which `keep` stay.

    `workers` are those of all processes. `notify` hears what could not be used or stored.
    """

    def __init__(self, job: Job, keep: int, workers: int, notify: Callable[[str], None]) -> None:
        self._storage = ray.train.get_context().get_storage()
        filesystem, path = self._storage.storage_filesystem, self._storage.experiment_fs_path
        self.folder = RunFolder(filesystem, path, job.run_id, job.folder)
        self._run_id, self._keep, self._workers, self._notify = job.run_id, keep, workers, notify
        self._rank = dist.get_rank()

    def newest(self) -> Saved | None:
        """What this worker continues from; None if no checkpoint was written yet.

        Raises CheckpointError: there are checkpoints, and none is good.
        """

        def attempt(iteration: int) -> Saved:
            read, manifest = self.folder.reader(iteration), self.folder.manifest(iteration)
            return Saved.load(read, manifest, self._rank, self._workers)

        iterations = self.folder.iterations() if self._rank == 0 else []
        choice = agreed(iterations, attempt, self._rank)
        if choice.skipped:
            then = folder_name(choice.iteration) if choice.good else "the beginning"
            self._notify(f"checkpoint not used: {'; '.join(choice.skipped)}; going on from {then}")
        return choice.good

    def write(self, iteration: int, write: Callable[[Path], None]) -> None:
        """Writes the checkpoint after an iteration; all workers must call this together.

        Each worker's `write` puts its files into an empty folder. Where they cannot be stored, they stay on
        the workers' machines, and training goes on.
        """
        problem = _problem(lambda: self.folder.reopen(iteration)) if self._rank == 0 else ""
        dist.barrier()  # nobody's new file stands beside an old manifest
        with tempfile.TemporaryDirectory(prefix="taugrad-", ignore_cleanup_errors=True) as place:
            files = Path(place)
            unwritten, manifest = self._written(files, write)
            problem = problem or unwritten or _problem(lambda: self._store(iteration, files, list(manifest)))
            # When worker 0 knows of all files, all of them are there.
            mine = Manifest(self._run_id, iteration, manifest).to_bytes().decode()
            manifests = [
                Manifest.from_bytes(text.encode(), self._run_id, iteration) for text in all_gather_texts(mine)
            ]
            everything = {name: digest for manifest in manifests for name, digest in manifest.files.items()}
            whole = Manifest(self._run_id, iteration, everything)
            problem = self._first(problem)
            if not problem:
                problem = self._first(_problem(lambda: self._finish(whole)) if self._rank == 0 else "")
            if problem:
                self._keep_here(files, whole, problem, complete=all(manifest.files for manifest in manifests))
            else:
                with suppress(OSError):  # what is kept here is older than what is stored now
                    fallback(self._run_id).keep(iteration + 1, 0)

    def _written(self, files: Path, write: Callable[[Path], None]) -> tuple[str, dict[str, Digest]]:
        """Why this worker's files could not be written at all, and what they are."""
        try:
            write(files)
            return "", {path.name: Digest.of(path) for path in sorted(files.iterdir())}
        except OSError as error:
            return f"{files.parent}: {reason(error)}", {}

    def _store(self, iteration: int, files: Path, names: list[str]) -> None:
        self._storage.persist_current_checkpoint(Checkpoint.from_directory(files), folder_name(iteration))
        self.folder.to_disk(iteration, names)

    def _finish(self, whole: Manifest) -> None:
        self.folder.seal(whole)
        with suppress(OSError):  # it is one now; the next tries again to remove the oldest
            self.folder.keep(whole.iteration, self._keep)

    def _first(self, problem: str) -> str:
        """The first worker's problem, on all of them."""
        return next(filter(None, all_gather_texts(problem)), "")

    def _keep_here(self, files: Path, whole: Manifest, problem: str, *, complete: bool) -> None:
        """Keeps a checkpoint that the storage did not take on the workers' machines, and says where."""
        if self._rank == 0:
            self.folder.discard(whole.iteration)  # part of one would fill a disk, and be in the way
        told = (
            f"the checkpoint after iteration {whole.iteration} was not stored in {self.folder.address} "
            f"({problem}); training goes on"
        )
        if not complete:
            self._notify(told)
            return
        spare, context = fallback(self._run_id), ray.train.get_context()
        kept = below(spare.address, folder_name(whole.iteration))

        def copy() -> None:
            for path in files.iterdir():
                spare.put(whole.iteration, path)

        def complete_copy() -> None:
            spare.seal(whole)
            spare.keep(whole.iteration, 1)

        second = self._first(_problem(copy))
        if not second and context.get_local_rank() == 0:
            second = _problem(complete_copy)
        second = self._first(second)
        if second:
            self._notify(f"{told}, and could not be kept in {kept} either ({second})")
            return
        spread = context.get_local_world_size() < context.get_world_size()
        where = "each machine has its workers' files in" if spread else "it is in"
        there = ", on each" if spread else ""
        self._notify(
            f"{told}, and {where} {kept}; when the storage takes it again{there}: "
            f"taugrad deliver {shlex.quote(kept)}"
        )


def _problem(do: Callable[[], object]) -> str:
    """Why something could not be stored; empty: it is."""
    try:
        do()
    except (OSError, RuntimeError, ArrowException) as error:
        return reason(error)
    return ""
