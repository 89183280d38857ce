"""Rounds of one process, whose messages all can tell: `python boxes_process.py RANK WORKERS STORE`."""

import sys

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from taugrad.platform.synchronization.boxes import Boxes

from taugrad.platform.synchronization import boxes
from taugrad.platform.synchronization.rounds import Sending

EXCHANGES = 12
ROOM_AT_FIRST, MOST_ROOM = 4096, 50_000
SIZES = (0, 1, ROOM_AT_FIRST, ROOM_AT_FIRST + 1, 20_000, 300_000)
"""Of messages: at the edges of the first room, within the largest one, and beyond it."""


def sizes_at(exchange: int, workers: int) -> NDArray[np.int64]:
    """From row to column; the diagonal is what goes to all."""
    return np.random.default_rng([workers, exchange]).choice(SIZES, (workers, workers))


def message(sender: int, receiver: int, size: int) -> NDArray[np.uint8]:
    return np.random.default_rng([sender, receiver, size]).integers(0, 256, size, np.uint8)


def exchange(box: Boxes, number: int, rank: int, workers: int) -> None:
    sizes = sizes_at(number, workers)
    sending = Sending(to_all=message(rank, rank, sizes[rank, rank]), elements=100 * number + rank)
    found = box.exchange(0, sending)
    assert found.sizes is None
    assert found.heads["to_all"].tolist() == np.diag(sizes).tolist()
    assert found.heads["elements"].tolist() == [100 * number + each for each in range(workers)]
    others = [each for each in range(workers) if each != rank]
    assert sorted(found.payloads) == others
    for other, payload in found.payloads.items():
        assert np.array_equal(payload, message(other, other, sizes[other, other]))

    only = Sending(refused=rank)
    assert box.exchange(2, only).heads["refused"].tolist() == list(range(workers))

    to = {other: message(rank, other, sizes[rank, other]) for other in others}
    found = box.exchange(1, Sending(to=to, singly=True))
    assert found.sizes is not None
    for other in others:
        assert found.sizes[rank, other] == sizes[rank, other]
        assert found.sizes[other, rank] == sizes[other, rank]
        expected = message(other, rank, sizes[other, rank])
        # What is empty does not arrive.
        assert (
            np.array_equal(found.payloads[other], expected) if expected.size else other not in found.payloads
        )


def main(rank: int, workers: int, store: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store, workers), rank=rank, world_size=workers)
    boxes._MOST_BYTES = 2 * (workers - 1) * MOST_ROOM
    # What the first set is still ready for is none of the second one's.
    kept = Boxes()
    for box in (kept, Boxes()):
        for number in range(EXCHANGES):
            exchange(box, number, rank, workers)
    exchange(kept, EXCHANGES, rank, workers)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
