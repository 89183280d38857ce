"""Why a run failed, and whether to resume it can help.

Where a worker is lost, the others notice it in the transport (the compressors' `exchange/mesh.py`), and their
functions end. Ray Train then starts all of them again, from the newest good checkpoint (`launch.py`).
"""

from typing import Literal

from taugrad.compressors.errors import Diverged, PeerLost, reaching

from ...training.manifest import CheckpointError
from ...user_code import UserCodeError, UserCodeRaised

Cause = Literal["diverged", "own code", "checkpoint", "other"]
"""`diverged` recurs from the same checkpoint; `own code` and `checkpoint` recur until the user has put it
right."""

_CAUSES: dict[type[Exception], Cause] = {
    Diverged: "diverged",
    UserCodeError: "own code",
    UserCodeRaised: "own code",
    CheckpointError: "checkpoint",
}


class RunFailed(RuntimeError):
    """A run that did not end well; the message says on one line what happened in which worker."""

    def __init__(self, message: str, cause: Cause = "other", worker_traceback: str = "") -> None:
        super().__init__(message)
        self.cause = cause
        self.worker_traceback = worker_traceback
        """As the worker saw it; may be empty."""

    def __reduce__(self) -> tuple[type["RunFailed"], tuple[str, Cause, str]]:
        """Pickles by its arguments, so that Ray can hand it from a trial to the driver."""
        return type(self), (str(self), self.cause, self.worker_traceback)


def run_failed(error: Exception) -> RunFailed:
    """What Ray Train raised, without its wrapping: the first worker's own error.

    If other workers lose a failed worker, this is not their error.
    """
    failures = getattr(error, "worker_failures", None)
    if not failures:
        cause = error.__cause__ or getattr(error, "controller_failure", None) or error
        return RunFailed(str(cause))
    rank, failure = min(failures.items(), key=lambda item: (_is_of_another(_inner(item[1])), item[0]))
    if type(failure).__name__ == "WorkerHealthCheckFailedError":
        return RunFailed(f"worker {rank}'s process died (killed, out of memory, or crashed)")
    inner = _inner(failure)
    causes: list[Cause] = [cause for kind, cause in _CAUSES.items() if isinstance(inner, kind)]
    said = str(inner) if isinstance(inner, UserCodeRaised) else f"{type(inner).__name__}: {inner}"
    return RunFailed(f"worker {rank}: {said}", (*causes, "other")[0], str(error))


def _is_of_another(error: Exception) -> bool:
    """Whether a worker says only that it lost another one, be it in torch's words."""
    if isinstance(error, UserCodeRaised):
        return False
    try:
        with reaching():
            raise error
    except PeerLost:
        return True
    except Exception:
        return False


def _inner(failure: Exception) -> Exception:
    """A worker's error without Ray's wrapping."""
    inner: Exception = getattr(failure, "base_exc", None) or getattr(failure, "cause", None) or failure
    return inner
