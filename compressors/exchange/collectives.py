"""torch's collectives as the carrier of rounds, for messages of fixed size on the device of the gradients."""

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import PeerLost, reaching
from ..ops.interface import Ops
from .carrier import Payload, Round

_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # since torch 2.13


class Collectives:
    """The rounds of one worker, a collective each; all workers run the same ones in the same order.

    Under NCCL the host waits for none: what arrives is ordered by the current stream. Under gloo it waits.

    Attributes:
        works: collectives of a backward pass, held as `Reducer.works` are.
    """

    def __init__(self, group: dist.ProcessGroup, ops: Ops) -> None:
        """Wraps the collectives of a group, for the device of `ops`."""
        self.rank, self.workers = dist.get_rank(group), dist.get_world_size(group)
        self.works: list[dist.Work] = []
        self._group, self._ops = group, ops

    def exchange(self, this: Round, tag: str) -> list[Future[Payload]]:
        """Exchanges a round's messages, which begin at multiples of 16 bytes; futures are done.

        Raises PeerLost.
        """
        if self.workers == 1:
            return []
        sends = {to: self._ops.tensor(payload) for payload, receivers in this.sends for to in receivers}
        sizes = dict(zip(this.senders, this.sizes, strict=True))
        arrived = self._all_gather(sends, sizes) if this.is_gather else self._all_to_all(sends, sizes)
        done = []
        for sender in this.senders:
            future: Future[Payload] = Future()
            future.set_result(self._ops.array(arrived[sender]))
            done.append(future)
        return done

    def _all_to_all(self, sends: dict[int, Tensor], sizes: dict[int, int]) -> dict[int, Tensor]:
        """A message to each worker, and one from each: uint8, those of 0 bytes included."""
        ranks = range(self.workers)
        given = [sends[rank] if rank in sends else self._empty(0) for rank in ranks]
        due = [sizes.get(rank, 0) for rank in ranks]
        out, lengths = self._empty(sum(due)), [message.numel() for message in given]
        self.run(dist.all_to_all_single, out, torch.cat(given), due, lengths)
        return dict(enumerate(torch.split(out, due)))

    def _all_gather(self, sends: dict[int, Tensor], sizes: dict[int, int]) -> dict[int, Tensor]:
        """One message of each worker to all; on the way, all are as long as the longest."""
        sent = next(iter(sends.values()), self._empty(0))
        width = max([sent.numel(), *sizes.values()])
        out, padding = self._empty(width * self.workers), self._empty(width - sent.numel())
        self.run(_gather, out, torch.cat([sent, padding.zero_()]))
        return {rank: out[rank * width : rank * width + size] for rank, size in sizes.items()}

    def all_min(self, number: int) -> int:
        """The smallest number of all workers; the host waits for it."""
        smallest = torch.tensor([number], device=self._ops.device)
        if self.workers > 1:
            self.run(dist.all_reduce, smallest, dist.ReduceOp.MIN)
        return int(smallest.item())

    def run(self, collective: Any, *arguments: Any) -> None:
        """Runs a collective; PeerLost names the group's ranks, as no transport says which worker is gone."""
        try:
            with reaching():
                work = collective(*arguments, group=self._group, async_op=True)
                self.works.append(work)
                work.wait()
        except PeerLost as problem:
            ranks = dist.get_process_group_ranks(self._group)
            raise PeerLost(
                problem.worker,
                f"of the process group of ranks {ranks} {problem.reason}; start all of them again, from a "
                "checkpoint",
            ) from problem.__cause__

    def _empty(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self._ops.device)


def first_refused(
    groups: Sequence[Collectives],
    rank: int,
    workers: int,
    names: Sequence[str],
    refused: Collection[str],
    sums: Collection[str] = (),
) -> tuple[str, int] | None:
    """The first parameter that a worker refuses, with that worker's rank; None where nobody refuses any.

    Args:
        groups: in which workers agree on it, one after the other; all call this together.
        rank: of this worker in all of the job.
        workers: how many there are in all of the job.
        names: of all parameters.
        refused: those that this worker refuses.
        sums: those whose sum it refuses; a sum holds what others have refused, and counts where nobody has.

    Raises:
        PeerLost: a worker is gone.
    """
    none = 2 * workers * len(names)
    codes = [
        (place * len(names) + names.index(name))
        for place, of in ((rank, refused), (workers + rank, sums))
        for name in of
    ]
    code = min(codes, default=none)
    for group in groups:
        code = group.all_min(code)
    if code == none:
        return None
    place, ordinal = divmod(code, len(names))
    return names[ordinal], place % workers
