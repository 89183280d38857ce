"""A state's file for each rank, in the folder of a checkpoint.

Libraries write a checkpoint once, on rank 0. Residuals differ from rank to rank and are as large as the
model: every rank writes and reads its own file.
"""

import os
import secrets
import warnings
from collections.abc import Mapping
from typing import Any

import fsspec
import torch
import torch.distributed as dist

from ..exchange.addresses import all_gather_bytes
from ..local_steps import LocalSteps
from ..worker_state import WorkerState

State = WorkerState | LocalSteps
"""State of the hook, of local steps, or of replicas."""

_CHECKPOINT = "checkpoint"
"""The entry of a file that names its checkpoint."""


def new_checkpoint_id() -> str:
    """A random name for a checkpoint, the same on all ranks; all must call this."""
    return all_gather_bytes(secrets.token_hex(16).encode())[0].decode()


def save_rank(
    state: State, folder: str | os.PathLike[str], *, name: str = "taugrad", checkpoint: str | None = None
) -> None:
    """Writes this rank's file. Call it on every rank, between steps.

    Args:
        state: what `compress_gradients` returned.
        folder: the checkpoint's, which is made if it does not exist: a path, or an address that fsspec knows,
            such as s3://bucket/run.
        name: the files' first word, where several states share a folder.
        checkpoint: the `new_checkpoint_id` that is written into the rest of the checkpoint.
    """
    system, place = fsspec.url_to_fs(str(folder))
    path = f"{place}/{_file(name, dist.get_rank())}"
    system.makedirs(place, exist_ok=True)
    with system.open(f"{path}.part", "wb") as file:
        torch.save({**state.state_dict(), _CHECKPOINT: checkpoint}, file)
    system.mv(f"{path}.part", path)


def load_rank(
    state: State,
    folder: str | os.PathLike[str],
    *,
    name: str = "taugrad",
    checkpoint: str | None = None,
    reshard: bool = False,
) -> None:
    """Restores this rank's state, on every rank. Where a checkpoint has no such files, it only warns.

    Args:
        state: what `compress_gradients` returned.
        folder: as for `save_rank`.
        name: as for `save_rank`.
        checkpoint: that the files must belong to; by default, any.
        reshard: whether another number of workers may have written the files. If so, each rank reads the
            files of all (see `CompressionState.load_state_dict`).

    Raises:
        FileNotFoundError: the folder does not exist, or lacks this rank's file, or with `reshard` any rank's.
        ValueError: a file is damaged, or of another checkpoint; or as for `CompressionState.load_state_dict`,
            which names the rank or the parameter.
    """
    system, place = fsspec.url_to_fs(str(folder))
    if not system.exists(place):
        raise FileNotFoundError(f"{folder}: there is no such folder; residuals were to be loaded from it")
    if not system.glob(f"{place}/{name}-rank*.pt"):
        warnings.warn(f"{folder} has no residuals: they begin at zero", stacklevel=2)
        return

    def read(rank: int) -> Mapping[str, Any]:
        path = f"{place}/{_file(name, rank)}"
        if not system.exists(path):
            raise FileNotFoundError(
                f"{folder} has residuals of other ranks, and no {_file(name, rank)}: continue with as many "
                "workers, each where its files are, or load all files with reshard=True"
            )
        return _read(system, path, checkpoint)

    rank = dist.get_rank()
    if reshard and (former := read(0)["workers"]) != state.workers:
        state.load_state_dict([read(rank) for rank in range(former)], reshard=True)
    else:
        state.load_state_dict(read(rank))


def _read(system: Any, path: str, checkpoint: str | None) -> Mapping[str, Any]:
    """What a file holds; OSErrors pass, as they name the file."""
    try:
        with system.open(path, "rb") as file:
            kept = torch.load(file, map_location="cpu", weights_only=True)
        written_for = kept[_CHECKPOINT]
    except OSError:
        raise
    except Exception as error:  # torch.load raises many types
        raise ValueError(
            f"{path} is damaged, or was not written by save_rank ({type(error).__name__}); "
            "take another checkpoint, or remove the files of all ranks: residuals then begin at zero"
        ) from error
    if checkpoint is not None and written_for != checkpoint:
        raise ValueError(
            f"{path} belongs to another checkpoint than the one that training resumes from: "
            "give the folder of that one (TaugradCallback of Transformers: resume_from=FOLDER)"
        )
    return {key: value for key, value in kept.items() if key != _CHECKPOINT}


def _file(name: str, rank: int) -> str:
    return f"{name}-rank{rank}.pt"
