"""Workers hear of one another, and agree on the checkpoint to continue from."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
import torch.distributed as dist

from .manifest import CheckpointError, Choice, Unfinished, Unusable, newest_good

_NONE_LEFT = -1
_KINDS: dict[str, type[CheckpointError]] = {"f": Unfinished, "u": Unusable, "c": CheckpointError}

T = TypeVar("T")


def agreed(
    iterations: Iterable[int], attempt: Callable[[int], T], rank: int, device: torch.device
) -> Choice[T]:
    """`newest_good` on all workers together: a checkpoint is good if it is good for each of them.

    Args:
        iterations: as worker 0 sees them; the others are ignored.
        attempt: reads what this worker needs of one.
        rank: this worker's.
        device: through which the process group sends.
    """

    def told() -> Iterator[int]:
        own = iter(iterations)
        while True:
            proposed = torch.tensor([next(own, _NONE_LEFT) if rank == 0 else 0], device=device)
            dist.broadcast(proposed, src=0)
            if proposed.item() == _NONE_LEFT:
                return
            yield int(proposed.item())

    def together(iteration: int) -> T:
        result, failure = None, ""
        try:
            result = attempt(iteration)
        except CheckpointError as error:
            kind = next(key for key, each in _KINDS.items() if isinstance(error, each))
            failure = f"{kind}{error}"
        failures = [each for each in gathered(failure, device) if each]
        if failures:
            # The worst result counts; of equal ones, that of the first worker.
            worst = max(failures, key=lambda each: list(_KINDS).index(each[0]))
            raise _KINDS[worst[0]](worst[1:])
        assert result is not None
        return result

    return newest_good(told(), together)


def gathered(text: str, device: torch.device) -> list[str]:
    """Every worker's text, by rank; all must call this together."""
    own = torch.frombuffer(bytearray(text.encode() + b"\0"), dtype=torch.uint8).to(device)  # never empty
    size = torch.tensor([len(own)], device=device)
    sizes = [torch.empty_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    padded = torch.nn.functional.pad(own, (0, max(map(int, sizes)) - len(own)))
    everybody = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(everybody, padded)
    return [bytes(each.tolist()).rstrip(b"\0").decode() for each in everybody]
