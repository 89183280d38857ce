"""What can go wrong only where workers do not wait; needs no torch."""


class PeerLost(RuntimeError):
    """Another worker is gone, or has been silent for too long.

    Attributes:
        worker: its rank.
    """

    def __init__(self, worker: int, reason: str) -> None:
        self.worker, self._reason = worker, reason
        super().__init__(f"worker {worker} {reason}")

    def __reduce__(self) -> tuple[type["PeerLost"], tuple[int, str]]:
        """Pickles by its arguments, so that Ray can hand it to the driver."""
        return type(self), (self.worker, self._reason)


class Diverged(ValueError):
    """A weight left the range that sums in fixed point have, or is no number."""
