"""The key with which the workers of a run authenticate their messages (`sync.authenticated`)."""

import torch

from taugrad.compressors.exchange.keys import KeyProblem, key_of_environment

from ..training.resuming import gathered
from .config import SimulatedSync, SyncConfig, real


def wants_key(sync: SyncConfig) -> bool:
    """Whether messages are to be authenticated."""
    return not isinstance(sync, SimulatedSync) and real(sync).authenticated


def common_key(sync: SyncConfig, device: torch.device) -> bytes | None:
    """This worker's key, if the mode wants one; all workers must call this together.

    Args:
        sync: the mode.
        device: through which the process group sends.

    Raises:
        KeyProblem: on every worker, where one has no key that can be used.
    """
    if not wants_key(sync):
        return None
    key, problem = b"", ""
    try:
        key = key_of_environment()
    except KeyProblem as found:
        problem = str(found)
    for rank, said in enumerate(gathered(problem, device)):
        if said:
            raise KeyProblem(f"sync.authenticated on worker {rank}: {said}")
    return key
