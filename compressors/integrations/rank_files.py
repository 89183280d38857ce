"""A state's file for each rank, in the folder of a checkpoint.

Libraries write a checkpoint once, on rank 0. What has not been sent yet differs from rank to rank, and is as
large as the model: every rank writes and reads its own.
"""

import os
import warnings

import fsspec
import torch
import torch.distributed as dist

from ..local_steps import LocalSteps
from ..worker_state import WorkerState

State = WorkerState | LocalSteps
"""Of the hook, of local steps, or of replicas."""


def save_rank(state: State, folder: str | os.PathLike[str], *, name: str = "taugrad") -> None:
    """Writes this rank's file. Call it on every rank, between steps.

    Args:
        state: what `compress_gradients` returned.
        folder: the checkpoint's, which is made if it is not there: a path, or an address that fsspec knows,
            such as s3://bucket/run.
        name: the files' first word, where several states share a folder.
    """
    system, place = fsspec.url_to_fs(str(folder))
    path = f"{place}/{_file(name)}"
    system.makedirs(place, exist_ok=True)
    with system.open(f"{path}.part", "wb") as file:
        torch.save(state.state_dict(), file)
    system.mv(f"{path}.part", path)


def load_rank(state: State, folder: str | os.PathLike[str], *, name: str = "taugrad") -> None:
    """Restores this rank's state, on every rank. Where a checkpoint has no such files, it only warns.

    Raises:
        FileNotFoundError: the folder does not exist, or has only files of other ranks.
        ValueError: as for `CompressionState.load_state_dict`, which names the rank or the parameter.
    """
    system, place = fsspec.url_to_fs(str(folder))
    if not system.exists(place):
        raise FileNotFoundError(f"{folder}: there is no such folder; residuals were to be loaded from it")
    if not system.exists(f"{place}/{_file(name)}"):
        if system.glob(f"{place}/{name}-rank*.pt"):
            raise FileNotFoundError(
                f"{folder} has residuals of other ranks, and no {_file(name)}: "
                "continue with as many workers, each where its files are"
            )
        warnings.warn(f"{folder} has no residuals: they begin at zero", stacklevel=2)
        return
    with system.open(f"{place}/{_file(name)}", "rb") as file:
        state.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))


def _file(name: str) -> str:
    return f"{name}-rank{dist.get_rank()}.pt"
