"""The errors of compressors, and the translation of transport errors to `PeerLost`.

The timeout of the process group applies to collectives and to single messages: half an hour for gloo, unless
`init_process_group(timeout=...)` sets another one.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self


class CompressionError(Exception):
    """Base class of this package's errors, which can cross process boundaries."""

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        error = super().__new__(cls, *arguments)
        error._made_by = partial(cls, **options), arguments
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made_by  # what the class was called with: `args` has the message alone

    _made_by: tuple[Any, ...]


class CorruptMessage(CompressionError, ValueError):
    """Bytes that are not a valid message, or not the expected one; nothing of it was applied."""


class PatchMismatch(CompressionError, ValueError):
    """A weight patch is not for these weights; nothing of it was applied.

    Attributes:
        tensor: name of the first one that differs in name, type or shape; empty if only bits differ.
    """

    def __init__(self, tensor: str, difference: str) -> None:
        super().__init__(difference)
        self.tensor = tensor


class WorkersDisagree(CompressionError, ValueError):
    """The workers have different methods, exchanges or models; every worker raises the same error."""

    def __init__(self, difference: str) -> None:
        super().__init__(f"the workers do not agree: {difference}")
        self.difference = difference


class Diverged(CompressionError):
    """A training cannot go on, and would not if it were resumed: its numbers left what can be computed with.

    A mode raises it where a weight leaves the range of sums in fixed point.
    """


class NonFiniteGradient(Diverged, FloatingPointError):
    """A worker's gradient held NaN or Inf, which the configuration refuses.

    Attributes:
        parameter: name of the first parameter affected.
        rank: the worker that found it; -1 if only the sum of all workers shows it.
        can_skip: whether `nonfinite: skip` would be accepted.
    """

    def __init__(self, parameter: str, rank: int, *, can_skip: bool = True) -> None:
        self.parameter, self.rank, self.can_skip = parameter, rank, can_skip
        where = f"on worker {rank}" if rank >= 0 else "in the sum over the workers"
        skip = ", or set compressor.nonfinite=skip to leave such steps out and count them" if can_skip else ""
        super().__init__(
            f"the gradient of {parameter!r} holds NaN or Inf {where}; lower the learning rate{skip}"
        )


class NonFiniteWeight(Diverged, FloatingPointError):
    """A worker's weights held NaN or Inf after its local steps.

    Attributes:
        parameter: name of the first parameter affected.
        rank: the worker that found it.
    """

    def __init__(self, parameter: str, rank: int) -> None:
        self.parameter, self.rank = parameter, rank
        super().__init__(
            f"the weight {parameter!r} holds NaN or Inf on worker {rank}; lower the learning rate, or clip "
            "gradients; what was agreed on before is not affected"
        )


UNKNOWN_WORKER = -1
"""In place of a rank, if a collective fails and the rank that failed is not known."""


class PeerLost(CompressionError, RuntimeError):
    """Another worker is gone, or has been silent for too long.

    The mesh finds out (`exchange/mesh.py`), or torch's collectives do (`reaching`). A state that meets it
    closes its connections (`WorkerState._fail`), so that the others learn it at once.

    Attributes:
        worker: its rank, or `UNKNOWN_WORKER`.
        reason: the rest of the message.
    """

    def __init__(self, worker: int, reason: str) -> None:
        self.worker, self.reason = worker, reason
        super().__init__(f"{'another worker' if worker == UNKNOWN_WORKER else f'worker {worker}'} {reason}")


class MemberRefused(CompressionError):
    """The coordinator does not let this process in, or a wait for it has passed its deadline."""


_SILENT = re.compile(r"timed? ?out", re.IGNORECASE)
_GONE = re.compile(
    r"(connection|socket) closed|reset by peer|broken pipe|pair closure|unreachable|no route", re.IGNORECASE
)
_MILLISECONDS = re.compile(r"(\d+) ?ms")
_SOURCE_LINE = re.compile(r"^\[[^\]]*\] *")
"""The place in gloo's source with which its messages begin."""


@contextmanager
def reaching(worker: int = UNKNOWN_WORKER) -> Iterator[None]:
    """Turns a transport error in a `with` block into one that names the worker.

    Raises:
        PeerLost: the worker is gone, or has been silent for longer than the timeout of the process group.
    """
    try:
        yield
    except PeerLost:
        raise
    except RuntimeError as problem:
        text = _SOURCE_LINE.sub("", str(problem)).partition("\n")[0].strip()
        if _SILENT.search(text):
            timeout = _MILLISECONDS.search(text)
            time = (
                f"for {int(timeout[1]) / 1000:g} s, the process group's timeout"
                if timeout
                else "for too long"
            )
            reason = f"has sent nothing {time}: its process hangs, is stopped, or cannot be reached"
            raise PeerLost(worker, reason) from problem
        if _GONE.search(text):
            raise PeerLost(worker, f"is gone: {text.partition('. ')[0]}") from problem
        raise
