"""Workers hear of one another, and agree on the checkpoint to continue from."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from taugrad.compressors.exchange.addresses import all_gather_bytes

from .manifest import CheckpointError, NewestCheckpoint, Unfinished, Unusable, newest_good

_KINDS: dict[str, type[CheckpointError]] = {"f": Unfinished, "u": Unusable, "c": CheckpointError}

T = TypeVar("T")


def agreed(iterations: Iterable[int], attempt: Callable[[int], T], rank: int) -> NewestCheckpoint[T]:
    """`newest_good` on all workers together: a checkpoint is good if it is good for each of them.

    Only worker 0's iterations count; `attempt` reads what this worker needs of one.
    """

    def told() -> Iterator[int]:
        numbers = map(str, iterations)
        while proposed := gathered(next(numbers, "") if rank == 0 else "")[0]:
            yield int(proposed)

    def together(iteration: int) -> T:
        result, failure = None, ""
        try:
            result = attempt(iteration)
        except CheckpointError as error:
            kind = next(key for key, kind_of_error in _KINDS.items() if isinstance(error, kind_of_error))
            failure = f"{kind}{error}"
        failures = [failure_ for failure_ in gathered(failure) if failure_]
        if failures:
            # The worst result counts; of equal ones, that of the first worker.
            worst = max(failures, key=lambda failure_: list(_KINDS).index(failure_[0]))
            raise _KINDS[worst[0]](worst[1:])
        assert result is not None
        return result

    return newest_good(told(), together)


def gathered(text: str) -> list[str]:
    """Every worker's text, by rank; all must call this together."""
    return [data.decode().removesuffix(".") for data in all_gather_bytes(f"{text}.".encode())]  # never empty
