"""How workers that follow a schedule exchange offers: in one process, or over a mesh."""

from abc import abstractmethod
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from taugrad.compressors.errors import PeerLost
from taugrad.compressors.exchange.carrier import Payload

from ..rounds import Traffic
from .agreed import Agreed
from .consensus import Value
from .meeting import Meeting, ProcessMeeting
from .message import HEAD, prefix_bytes


def offer_bytes(body: bytes) -> int:
    """Of the message in which something is handed in."""
    return HEAD.size + len(body)


def catching_up_bytes(whole: Agreed, workers: int) -> tuple[int, int]:
    """Of the question for agreed weights, and of the answer."""
    return HEAD.size, HEAD.size + prefix_bytes(workers) + whole.nbytes


class Carrier(Meeting):
    """Delivers offers and agreed weights as the schedule says."""

    @abstractmethod
    def attend(self, knows: int, whole: Agreed) -> None:
        """Answers workers that asked for the agreed weights.

        It does not wait.

        Args:
            knows: number of rounds in the agreed weights.
            whole: the agreed weights.
        """

    @abstractmethod
    def exchange(
        self,
        number: int,
        own: Mapping[int, bytes],
        members: Collection[int],
        hearing: Collection[int],
        whole: Agreed,
    ) -> Mapping[int, Payload]:
        """The round's offers.

        Args:
            number: of the round.
            own: the offers of this process's workers, by worker.
            members: the workers in the round.
            hearing: the workers that learn of it.
            whole: what was agreed on before it.

        Returns:
            The offers, by member.

        Raises:
            PeerLost: a member is gone.
        """

    @abstractmethod
    def fetch(self, rank: int, giver: int, number: int, knows: int, whole: Agreed) -> None:
        """Lets a worker of this process take over agreed weights from another worker.

        Args:
            rank: of the worker here.
            giver: the other one.
            number: of rounds in the weights that it takes over.
            knows: number of rounds in the agreed weights until then.
            whole: the agreed weights.

        Raises:
            PeerLost: the other worker is gone.
        """

    @abstractmethod
    def meet(self, iterations: int, knows: int, whole: Agreed) -> None:
        """Waits until all workers have made this number of iterations."""


class SimulatedCarrier(Carrier):
    """All workers are in this process."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._traffic = Traffic(workers)

    def attend(self, knows: int, whole: Agreed) -> None:
        """See `Carrier.attend`: whoever comes back helps itself."""

    def exchange(
        self,
        number: int,
        own: Mapping[int, bytes],
        members: Collection[int],
        hearing: Collection[int],
        whole: Agreed,
    ) -> Mapping[int, Payload]:
        """See `Carrier.exchange`."""
        for rank in members:
            for other in hearing:
                if other != rank:
                    self._traffic.link_bytes[rank, other] += offer_bytes(own[rank])
                    self._traffic.link_messages[rank, other] += 1
        return {rank: np.frombuffer(bytearray(own[rank]), np.uint8) for rank in members}

    def fetch(self, rank: int, giver: int, number: int, knows: int, whole: Agreed) -> None:
        """See `Carrier.fetch`."""
        asking, answering = catching_up_bytes(whole, self._workers)
        self._traffic.link_bytes[rank, giver] += asking
        self._traffic.link_bytes[giver, rank] += answering
        self._traffic.link_messages[rank, giver] += 1
        self._traffic.link_messages[giver, rank] += 1

    def meet(self, iterations: int, knows: int, whole: Agreed) -> None:
        """See `Carrier.meet`: they are."""

    def together(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Meeting.together`."""
        return own

    def count_links(self, traffic: Traffic) -> None:
        """See `Meeting.count_links`."""
        traffic.add(self._traffic)
        self._traffic = Traffic(self._workers)


class ProcessCarrier(ProcessMeeting, Carrier):
    """One worker a process."""

    def attend(self, knows: int, whole: Agreed) -> None:
        """See `Carrier.attend`."""
        self._mail.hear(0)
        self._answer(knows, whole)

    def _answer(self, knows: int, whole: Agreed) -> None:
        for whom, _ in self._mail.asked(knows):
            self._mail.answer(whom, knows, Value(frozenset(), 0), whole)

    def exchange(
        self,
        number: int,
        own: Mapping[int, bytes],
        members: Collection[int],
        hearing: Collection[int],
        whole: Agreed,
    ) -> Mapping[int, Payload]:
        """See `Carrier.exchange`."""
        rank = self._mail.rank
        offers = self._mail.offers[number]
        if rank in own:
            self._mail.offer([each for each in hearing if each != rank], number, own[rank])
            offers[rank] = np.frombuffer(bytearray(own[rank]), np.uint8)
        while not all(member in offers for member in members):
            self._mail.hear()
            self._answer(number, whole)
            for member, reason in self._mail.lost.items():
                if member in members and member not in offers:
                    raise PeerLost(member, reason)
        self._mail.forget(number + 1)
        return {member: offers[member] for member in members}

    def fetch(self, rank: int, giver: int, number: int, knows: int, whole: Agreed) -> None:
        """See `Carrier.fetch`."""
        self._mail.ask(giver, number)
        while self._mail.state is None or self._mail.state[0] < number:
            self._mail.hear()
            # What the giver needs first may depend on a worker that asks this one.
            self._answer(knows, whole)
            if giver in self._mail.lost:
                raise PeerLost(giver, self._mail.lost[giver])
        whole.take(self._mail.state[2])

    def meet(self, iterations: int, knows: int, whole: Agreed) -> None:
        """See `Carrier.meet`."""
        self._mail.say_ready(iterations)
        while not self._mail.all_ready(iterations):
            self._mail.hear()
            self._answer(knows, whole)
