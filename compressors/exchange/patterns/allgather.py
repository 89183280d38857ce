"""All-gather: every worker sends its messages to all others."""

from collections.abc import Sequence

from torch import Tensor

from ...method import Method
from ..rounds import Result, Rounds, Sending
from .base import Part, Pattern, Setting


class AllGather(Pattern):
    """One round; all workers add up the same messages in rank order, as the DDP hook does."""

    def __init__(self, method: Method, setting: Setting) -> None:
        super().__init__(method, setting)
        (self._whole,) = self._cut(method, 1)

    def rounds(self, gradients: Sequence[Tensor], iteration: int) -> Rounds:
        sending = self._first(gradients, iteration)
        del gradients  # in a simulation, many workers wait here at the same time
        received = yield sending
        return dict(received)

    def _first(self, gradients: Sequence[Tensor], iteration: int) -> Sending:
        """What this worker sends, to all."""
        self._refused = None
        own = self._compress(self._whole, self._whole.shard.of(gradients), iteration)
        self.spent.tallies = own.tallies
        return Sending(
            to_all=own.payload,
            elements=sum(tally.sent for tally in own.tallies),
            paper_bits=sum(tally.paper_bits for tally in own.tallies),
            refused=self._refused,
        )

    def assemble(self, agreed: Result) -> Tensor:
        with self._clock("decode"):
            # The mean is over all workers, or over the members of a round that closed with a quorum.
            divisor = len(agreed) if self.reduction == "mean" else 1
            return self._sum(self._whole, dict(sorted(agreed.items())), divisor)

    def parts(self) -> dict[str, Part]:
        return {"0": self._whole}
