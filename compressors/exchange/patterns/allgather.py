"""All-gather: every worker sends its messages to all others."""

from collections.abc import Sequence

from torch import Tensor

from ...method import Method
from ..rounds import Result, Rounds, Sending
from .base import Parts, Pattern, Setting, cut, refused_by


class AllGather(Pattern):
    """One round; all workers add up the same messages in rank order, as the DDP hook does."""

    def __init__(self, method: Method, setting: Setting) -> None:
        super().__init__(method, setting)
        (self._whole,) = cut(setting.sizes, 1)
        self._own = self._compressor(method, self._whole)

    def rounds(self, gradients: Sequence[Tensor], iteration: int) -> Rounds:
        sending = self._first(gradients, iteration)
        del gradients  # in a simulation, many workers wait here at the same time
        received = yield sending
        return dict(received)

    def _first(self, gradients: Sequence[Tensor], iteration: int) -> Sending:
        """What this worker sends, to all."""
        own = self._compress(self._own, self._whole.of(gradients), iteration)
        self.spent.tallies = own.tallies
        return Sending(
            to_all=own.payload,
            elements=sum(tally.sent for tally in own.tallies),
            paper_bits=sum(tally.paper_bits for tally in own.tallies),
            refused=refused_by(own, self._own, self._whole.ordinals),
        )

    def assemble(self, agreed: Result) -> Tensor:
        with self._clock("decode"):
            # The mean is over all workers, or over the members of a round that closed with a quorum.
            divisor = len(agreed) if self.reduction == "mean" else 1
            total = self._empty(self._whole.stop)
            self._sum(self._own, dict(sorted(agreed.items())), total, divisor)
        return total

    def parts(self) -> Parts:
        return {"0": (self._whole, self._own)}
