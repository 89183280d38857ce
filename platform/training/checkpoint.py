"""What a run needs to continue, as files that hold only tensors, numbers and strings.

A checkpoint is a folder: `shared.pt` (what the workers agree on: model, optimizer, position, batch sizes;
written by process 0), `worker_00000.pt`, one per process (its workers' residuals and random number
generators), and `manifest.json`, by which every byte of them is checked. They are read with
`weights_only=True`: nothing in them is executed.
"""

import io
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..synchronization.gathering import all_gather_texts
from .manifest import CheckpointError, Manifest, NewestCheckpoint, Read, Unfinished, Unusable, newest_good

SHARED = "shared.pt"


@dataclass(frozen=True)
class Saved:
    """What one process continues from."""

    shared: dict[str, Any]
    """The same on every process."""
    local_state: dict[str, Any]
    """What only this process's workers have; empty if the checkpoint is of another number of workers."""
    every: tuple[dict[str, Any], ...] = ()
    """Then what each of the former processes had, by rank; empty otherwise."""

    @classmethod
    def load(cls, read: Read, manifest: Manifest, rank: int, workers: int) -> "Saved":
        """Reads and checks what the process of a rank needs of a checkpoint.

        `workers`: how many the run has now. Raises Unusable: a file is missing or damaged; CheckpointError: a
        file is undamaged, but not a state.
        """
        shared = unpack(manifest.file(read, SHARED))
        if shared.get("workers") != workers:
            files = sorted(name for name in manifest.files if name != SHARED)
            return cls(shared, {}, tuple(unpack(manifest.file(read, name)) for name in files))
        return cls(shared, unpack(manifest.file(read, worker_file(rank))))


def save(state: dict[str, Any], path: Path) -> None:
    """Writes a checkpoint's file; raises OSError."""
    try:
        torch.save(state, path)
    except RuntimeError as error:  # of torch's own writer, with a line of its source for a reason
        free = shutil.disk_usage(path.parent).free
        raise OSError(f"{path.name} could not be written, with {free / 1e6:.3g} MB free") from error


def worker_file(rank: int) -> str:
    """The name of a process's file."""
    return f"worker_{rank:05d}.pt"


def unpack(data: bytes) -> dict[str, Any]:
    """The state in a file's bytes; raises CheckpointError: it is none."""
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        # torch raises many types of errors; all mean the same to the user.
        raise CheckpointError(f"not a training state: {error}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"not a training state, but {type(state).__name__}")
    return state


_KINDS: dict[str, type[CheckpointError]] = {"f": Unfinished, "u": Unusable, "c": CheckpointError}

T = TypeVar("T")


def agreed(iterations: Iterable[int], attempt: Callable[[int], T], rank: int) -> NewestCheckpoint[T]:
    """`newest_good` on all workers together: a checkpoint is good if it is good for each of them.

    Only worker 0's iterations count; `attempt` reads what this worker needs of one.
    """

    def told() -> Iterator[int]:
        numbers = map(str, iterations)
        while proposed := all_gather_texts(next(numbers, "") if rank == 0 else "")[0]:
            yield int(proposed)

    def together(iteration: int) -> T:
        result, failure = None, ""
        try:
            result = attempt(iteration)
        except CheckpointError as error:
            kind = next(key for key, kind_of_error in _KINDS.items() if isinstance(error, kind_of_error))
            failure = f"{kind}{error}"
        failures = [text for text in all_gather_texts(failure) if text]
        if failures:
            # The worst result counts; of equal ones, that of the first worker.
            worst = max(failures, key=lambda text: list(_KINDS).index(text[0]))
            raise _KINDS[worst[0]](worst[1:])
        assert result is not None
        return result

    return newest_good(told(), together)
