"""What arrives without being asked for: for workers that don't know who sends next."""

from concurrent.futures import Future
from functools import partial
from threading import Condition

from ..errors import PeerLost
from .carrier import Carrier, Payload


class Arrivals:
    """All that the other workers send under one tag, in the order in which it arrives.

    Attributes:
        lost: workers that are gone, and why, by the last `take`, which gave all that they had sent.
    """

    def __init__(self, carrier: Carrier, tag: str) -> None:
        self.lost: dict[int, PeerLost] = {}
        self._carrier, self._tag = carrier, tag
        self._changed = Condition()
        self._here: list[tuple[int, Payload]] = []
        self._gone: dict[int, PeerLost] = {}
        """Those that the next `take` tells of, too."""
        for source in carrier.others:
            carrier.receive(source, tag).add_done_callback(partial(self._note, source))

    def _note(self, source: int, message: Future[Payload]) -> None:
        """Called when a message is here; takes all that follow it."""
        while message.done():
            problem = message.exception()
            with self._changed:
                if isinstance(problem, PeerLost):
                    self._gone = {**self._gone, source: problem}
                else:
                    self._here.append((source, message.result()))
                self._changed.notify_all()
            if problem is not None:
                return
            message = self._carrier.receive(source, self._tag)
        message.add_done_callback(partial(self._note, source))

    def take(self, wait_s: float | None = None) -> list[tuple[int, Payload]]:
        """Senders and payloads, each sender's in order, once there are some, or another worker is lost.

        Waits for so many seconds at most, by default without an end.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._here or len(self._gone) > len(self.lost), wait_s)
            self.lost = self._gone
            here, self._here = self._here, []
        return here
