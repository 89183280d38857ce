"""Every worker's message to every worker, through torch.distributed (gloo or NCCL), in one of three forms.

Messages have different lengths, and no worker knows the others'. Through gloo a message goes at once, with
its length before it: a receiver makes more room than was usual, and gloo takes a shorter message. NCCL wants
equal lengths on both sides: lengths go first there, or all messages are made equally long.

Gloo sends nothing before it has heard that the receiver is ready, which takes a delay of its own. Where links
are long, workers say that they are ready for the next step's messages when they have read this one's.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from ..ops.array import Bytes
from .gathering import AtOnce, Exact, Gathering, Padded, PaddedOneShot, aligned
from .mailbox import Expected, Mailbox, delay_of

ExchangeForm = Literal["padded", "exact", "one_shot"]

FAR_S = 2e-3
"""From this delay of a collective on, receivers get ready a step before."""
_ROOM, _ROOM_BYTES = 2, 4096
"""A receiver's room: so many times what was the longest, and so many bytes. It costs memory only."""


class Exchange:
    """Chooses how messages go, and remembers how long they are.

    Attributes:
        capacities: by bucket, the bytes of the longest message of the exchange before, which is the same
            number on every worker.
    """

    def __init__(self, form: ExchangeForm) -> None:
        self.form = form
        self.capacities: dict[int, int] = {}
        self._mailbox: Mailbox | None = None
        self._is_far: bool | None = None

    def start(
        self, message: Bytes | Tensor, bucket: int, group: dist.ProcessGroup, device: torch.device
    ) -> Gathering:
        """Starts to exchange messages of different lengths.

        With a transport on the CPU only these bytes leave a GPU, through pinned memory.

        Args:
            message: uint8, this worker's; a tensor on a GPU where it was made there.
            bucket: a number of its own for the bucket that it is about.
            group: whose workers take part; all must call this in the same order.
            device: where the transport wants its buffers: CPU for gloo, the GPU for NCCL.
        """
        own = torch.as_tensor(message)
        usual = self.capacities.get(bucket)
        if self.form == "padded":
            return Padded(own, group, device)
        if device.type == "cpu":
            if self._is_far is None:
                self._is_far = delay_of(group) > FAR_S
                self._mailbox = Mailbox(group) if self._is_far else None
            if self._mailbox is not None and self._mailbox.expects(bucket):
                return Expected(own, group, self._mailbox, bucket)
            if usual is not None:
                return AtOnce(own, group, room_for(usual))
        if usual is None or self.form == "exact":
            return Exact(own, group, device)
        return PaddedOneShot(own, group, device, aligned(usual * 5 // 4))

    def learn(self, bucket: int, sizes: Sequence[int]) -> None:
        """Takes note of how long the messages about a bucket were."""
        if self.form == "padded":
            return
        self.capacities[bucket] = longest = max(sizes)
        if self._mailbox is not None:
            self._mailbox.expect(bucket, room_for(longest))


def lengths_on_wire(form: ExchangeForm, sizes: Sequence[int]) -> list[int]:
    """How long messages are as they go through gloo, padding included, beside SIZE_BYTES each.

    Args:
        form: how they go.
        sizes: bytes of each worker's message.
    """
    return [aligned(max(sizes))] * len(sizes) if form == "padded" else list(sizes)


def room_for(longest: int) -> int:
    """Bytes that a receiver makes room for, by the longest message of the exchange before."""
    return _ROOM * longest + _ROOM_BYTES
