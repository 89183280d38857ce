"""The errors of compressors."""


class CompressionError(Exception):
    """Base class of this package's errors."""


class CorruptMessage(CompressionError, ValueError):
    """Bytes that are not a valid message, or not the expected one; nothing of it was applied."""


class WorkersDisagree(CompressionError, ValueError):
    """The workers have different methods, exchanges or models; every worker raises the same error."""

    def __init__(self, difference: str) -> None:
        super().__init__(f"the workers do not agree: {difference}")
        self.difference = difference

    def __reduce__(self) -> tuple[type["WorkersDisagree"], tuple[str]]:
        """Pickles by its argument, so that it can cross process boundaries."""
        return type(self), (self.difference,)


class Diverged(CompressionError):
    """A training cannot go on, and would not if it were resumed: its numbers left what can be computed with.

    A mode raises it where a weight leaves the range of sums in fixed point.
    """


class NonFiniteGradient(Diverged, FloatingPointError):
    """A worker's gradient held NaN or Inf, which the configuration refuses.

    Attributes:
        parameter: name of the first parameter affected.
        rank: the worker that found it; -1 if only the sum of all workers shows it.
    """

    def __init__(self, parameter: str, rank: int) -> None:
        self.parameter = parameter
        self.rank = rank
        where = f"on worker {rank}" if rank >= 0 else "in the sum over the workers"
        super().__init__(
            f"the gradient of {parameter!r} holds NaN or Inf {where}; lower the learning rate, or set "
            "compressor.nonfinite=skip to leave such steps out and count them"
        )

    def __reduce__(self) -> tuple[type["NonFiniteGradient"], tuple[str, int]]:
        """Pickles by its two arguments, so that it can cross process boundaries."""
        return type(self), (self.parameter, self.rank)


EVERYBODY = -1
"""In place of a rank, where all workers are asked together and it is not known who does not answer."""


class PeerLost(CompressionError, RuntimeError):
    """Another worker is gone, or has been silent for too long.

    Attributes:
        worker: its rank, or `EVERYBODY`.
        reason: what is said of it.
    """

    def __init__(self, worker: int, reason: str) -> None:
        self.worker, self.reason = worker, reason
        super().__init__(f"{'another worker' if worker == EVERYBODY else f'worker {worker}'} {reason}")

    def __reduce__(self) -> tuple[type["PeerLost"], tuple[int, str]]:
        """Pickles by its arguments, so that it can cross process boundaries."""
        return type(self), (self.worker, self.reason)
