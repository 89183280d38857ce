"""The carrier of simulated workers: they are in one process, so messages pass through a dictionary."""

from .carrier import Carrier, Payload


class MemoryCarrier(Carrier):
    """One simulated worker's way to the others."""

    def __init__(self, rank: int, workers: int, everybody: "dict[int, MemoryCarrier]") -> None:
        """Takes part.

        Args:
            rank: of this worker.
            workers: how many there are.
            everybody: by rank; this one is added.
        """
        super().__init__(rank, workers)
        self._everybody = everybody
        everybody[rank] = self

    def send(self, to: int, tag: str, payload: Payload) -> None:
        """See `Carrier.send`."""
        self._everybody[to]._file(self.rank, tag, payload)

    def close(self) -> None:
        """See `Carrier.close`: nothing is left."""


def in_memory(workers: int) -> list[MemoryCarrier]:
    """The carriers of all workers, by rank."""
    everybody: dict[int, MemoryCarrier] = {}
    return [MemoryCarrier(rank, workers, everybody) for rank in range(workers)]
