"""All-gather between sites: a message crosses a link between sites only once for each site."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from ...errors import CorruptMessage
from ...method import Method
from ..carrier import Payload
from ..rounds import Result, Rounds, Sending
from ..sites import Sites
from ..traffic import NUMBER_BYTES
from .allgather import AllGather
from .base import Setting


class Hierarchical(AllGather):
    """Two rounds: first to the worker's own site and to one worker of each other site, which then forward it.

    What a worker forwards to another one is one message: all lengths, and then the payloads.
    """

    def __init__(self, method: Method, setting: Setting, sites: Sites) -> None:
        super().__init__(method, setting)
        hops, rank = sites.hops.tolist(), setting.rank
        self._receivers = [to for source, by, to in hops if source == by == rank]
        self._handed_on: dict[int, list[int]] = defaultdict(list)
        """By receiver: the workers whose messages this worker forwards to it, ascending."""
        self._from_others: dict[int, list[int]] = defaultdict(list)
        """By forwarding worker: the workers whose messages it forwards to this one, ascending."""
        for source, by, to in hops:
            if source != by == rank:
                self._handed_on[to].append(source)
            if source != by and to == rank:
                self._from_others[by].append(source)
        self._hands_on = bool((sites.times_handed_over > 1).any())

    def rounds(self, gradients: Sequence[Tensor], iteration: int) -> Rounds:
        sending = self._first(gradients, iteration)
        del gradients  # in a simulation, many workers wait here at the same time
        own = sending.to_all
        assert own is not None
        received = yield replace(sending, to=dict.fromkeys(self._receivers, own), to_all=None, singly=True)
        here: Result = {**received, self.setting.rank: own}
        if self._hands_on:
            joined = {to: _joined([here[each] for each in whose]) for to, whose in self._handed_on.items()}
            received = yield Sending(to=joined, singly=True)
            for by, whose in self._from_others.items():
                here |= zip(whose, _parted(received[by], len(whose), by), strict=True)
        return dict(sorted(here.items()))


def _joined(payloads: Sequence[Payload]) -> Payload:
    """The payloads' lengths, int64 each, and then the payloads."""
    lengths = np.array([payload.size for payload in payloads], "<i8")
    return np.concatenate([lengths.view(np.uint8), *payloads])


def _parted(joined: Payload, count: int, by: int) -> list[Payload]:
    """The reverse of `_joined`; raises CorruptMessage if the lengths do not fit `count` payloads."""
    begin = NUMBER_BYTES * count
    lengths = joined[:begin].view("<i8") if joined.size >= begin else np.empty(0, "<i8")
    if lengths.size != count or (lengths < 0).any() or int(lengths.sum()) != joined.size - begin:
        raise CorruptMessage(f"what worker {by} handed on is not {count} messages with their lengths")
    return np.split(joined[begin:], np.cumsum(lengths)[:-1])
