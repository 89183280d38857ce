"""The exchange of the DDP hook: every worker's message about a bucket goes to every other worker.

If slow links connect sites of workers, a message goes to each other site once, and is handed on there
(`sites.py`).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Lock
from time import perf_counter
from typing import Any, Literal, get_args
from weakref import finalize

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from ..wire.message import VERSION
from .addresses import places_of
from .carrier import Carrier, Payload
from .keys import require_long_enough
from .mesh import connected, most_bytes_of
from .sites import Sites
from .traffic import Links

ExchangeForm = Literal["exact", "hierarchical"]


class Arriving:
    """All workers' messages about a bucket, on their way since `started`, in seconds of `perf_counter`."""

    def __init__(self, rank: int, own: Payload, theirs: Mapping[int, Future[Payload]]) -> None:
        self.started = perf_counter()
        self._rank, self._own, self._theirs = rank, own, theirs

    def when_here(self, then: Callable[[Exception | None], object]) -> None:
        """Calls a function once all have arrived, or with the error of the first that never will.

        It is called in the carrier's thread, which must not wait, or here and now.
        """
        left, lock = len(self._theirs), Lock()

        def note(message: Future[Payload]) -> None:
            nonlocal left
            problem = message.exception()
            assert problem is None or isinstance(problem, Exception)
            with lock:
                was, left = left, 0 if problem is not None else max(0, left - 1)
            if was and not left:
                then(problem)

        if not self._theirs:
            then(None)
        for each in self._theirs.values():
            each.add_done_callback(note)

    def wait(self) -> None:
        """Waits until all have arrived; raises PeerLost."""
        for each in self._theirs.values():
            each.result()

    def messages(self) -> dict[int, Payload]:
        """Each worker's message, in order of ranks; they have arrived."""
        everybody = {rank: each.result() for rank, each in self._theirs.items()} | {self._rank: self._own}
        return dict(sorted(everybody.items()))


class Exchange:
    """Sends messages to all workers, and counts over which links they go.

    Attributes:
        sites: for hierarchical, the sites of the workers; None until the first exchange if hosts decide.
        links: what went over each so far; None in the form exact, in which all carry the same.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        form: ExchangeForm,
        sites: Sequence[Sequence[int]] | None,
        key: bytes | None,
    ) -> None:
        """Connects nobody of a group yet; for arguments and errors see `CompressionState`."""
        require_long_enough(key)
        if form not in get_args(ExchangeForm):
            raise ValueError(f"exchange = {form}: must be exact or hierarchical")
        if form != "hierarchical" and sites is not None:
            raise ValueError(
                f"sites = {[*sites]} with exchange = {form}: they are for exchange = hierarchical"
            )
        workers = dist.get_world_size(group)
        self._group, self.form = group, form
        self.sites = None if sites is None else Sites.of(sites, workers)
        self._key = None if workers == 1 else key  # nothing is sent by who is alone
        self._carrier: Carrier | None = None
        self.links: Links | None = None

    @property
    def is_authenticated(self) -> bool:
        """Whether messages are encrypted, and only holders of the key can send any."""
        return self._key is not None

    @property
    def ways(self) -> dict[str, str]:
        """How messages are sent, which must be equal on all workers: values by field."""
        return {
            "exchange": self.form,
            "messages": "authenticated" if self.is_authenticated else "not authenticated",
            **({"sites": str(self.sites or "by host")} if self.form == "hierarchical" else {}),
            "message version": str(VERSION),
        }

    def open(self, elements: int) -> None:
        """Connects to the other workers, once, before the first exchange; all must call this together.

        A message is about so many elements at most.

        Raises:
            WorkersDisagree: on every worker, if one has another key.
            PeerLost: a worker does not connect in time.
        """
        if self._carrier is not None:
            return
        if self.form == "hierarchical":
            self.sites = self.sites or Sites.by_place(places_of(self._group))
        carrier = connected(self._group, most_bytes=most_bytes_of(elements), key=self._key)
        self._close = finalize(self, carrier.close)
        self._carrier, rank = carrier, carrier.rank
        self._ways = self.sites or Sites.one(carrier.workers)
        hops = self._ways.hops.tolist()
        self._receivers = [to for source, by, to in hops if source == by == rank]
        self._senders = {source: by for source, by, to in hops if to == rank}
        self._handed_on: defaultdict[int, list[int]] = defaultdict(list)
        for source, by, to in hops:
            if source != by == rank:
                self._handed_on[source].append(to)

    def close(self) -> None:
        """Ends the connections, if there are any: whoever waits for this worker learns it at once."""
        if self._carrier is not None:
            self._close()

    def start(self, message: Payload, bucket: int) -> Arriving:
        """Sends this worker's message about a bucket of a unique number, and has the others' handed on.

        The message, uint8, must not be changed afterwards.
        """
        carrier = self._carrier
        assert carrier is not None, "workers are connected before their first exchange"
        for to in self._receivers:
            carrier.send(to, f"{bucket} of {carrier.rank}", message)
        theirs = {
            source: carrier.receive(by, f"{bucket} of {source}") for source, by in self._senders.items()
        }
        for source, receivers in self._handed_on.items():
            theirs[source].add_done_callback(partial(_hand_on, carrier, receivers, f"{bucket} of {source}"))
        return Arriving(carrier.rank, message, theirs)

    def count(self, lengths: NDArray[np.int64]) -> tuple[int, int]:
        """Counts one exchange of messages of these lengths, int64 [workers].

        Returns:
            The bytes that all workers together handed to the carrier, where what goes to several counts once,
            and those that arrived at all of them.
        """
        if self.form == "hierarchical":
            before = self.links or Links(*np.zeros((2, lengths.size, lengths.size), np.int64))
            messages, nbytes = map(self._ways.over_links, (np.ones_like(lengths), lengths))
            self.links = Links(before.messages + messages, before.nbytes + nbytes)
        return int(lengths @ self._ways.times_handed_over), int(lengths.sum()) * (lengths.size - 1)

    def links_state(self) -> dict[str, Tensor]:
        """What was sent over each link so far, for `load_links_state`; nothing if links are not known."""
        if self.links is None:
            return {}
        messages, nbytes = map(torch.from_numpy, (self.links.messages, self.links.nbytes))
        return {"link_bytes": nbytes, "link_messages": messages}

    def load_links_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `links_state` returned; what went before in another form is not known."""
        if self.form == "hierarchical" and "link_bytes" in state:
            messages, nbytes = state["link_messages"].numpy(), state["link_bytes"].numpy()
            self.links = Links(messages.copy(), nbytes.copy())


def _hand_on(carrier: Carrier, receivers: list[int], tag: str, message: Future[Payload]) -> None:
    if message.exception() is None:
        for to in receivers:
            carrier.send(to, tag, message.result())
