"""A member's side of rounds, as a state machine: messages and the time in, messages out.

It has no socket, no clock and no weights. One thread hands in what arrives; the training asks for the next
`Step`, such as a round to apply, and does it at once: from then on the member counts it as done.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...errors import CorruptMessage, MemberRefused
from ..carrier import Payload
from .messages import Chunk, Hello, Key, Message, Peer, Rejection, Report, StateId, View, Want

COORDINATOR = 0
"""In place of an incarnation, the receiver of messages to the coordinator."""
_WINDOW = 4
"""Chunks of a state that are under way at once."""
_WANTS = 64
"""Messages that are kept until they can be answered."""
_ATTEMPTS = 4
"""After so many for one chunk, another member is asked for the whole state."""


class Join(NamedTuple):
    """The process has become a member, for the first time or again."""

    slot: int
    incarnation: int
    residual_counts: bool
    """Whether its residual is to be kept: nothing of it was sent since it was saved."""
    void_from: int | None
    """Rounds from this one on, which it has applied, no longer count; None: all do."""


class Withdrawn(NamedTuple):
    """What it handed in before it joined again never will be in a round, and is its own again."""

    counts: bool
    """Whether it is to be kept, as the residual."""


class Begin(NamedTuple):
    """Its own weights are everybody's first."""

    state: StateId


class Apply(NamedTuple):
    """A round is to be applied."""

    state: StateId
    offers: Mapping[int, Payload]
    """By slot, ascending."""
    included: bool
    """Whether what this member handed in is among them."""


class Restore(NamedTuple):
    """An agreed state is to be taken over."""

    state: StateId
    data: Payload
    included: bool
    """Whether what this member handed in is in it."""


class TakeSnapshot(NamedTuple):
    """The agreed state is needed for another member: call `Member.provide` at once."""


class TakeOver(NamedTuple):
    """The residual of a member that leaves is to be added to this one's."""

    data: Payload


Step = Join | Withdrawn | Begin | Apply | Restore | TakeSnapshot | TakeOver
Sends = list[tuple[int, Message]]
"""Incarnations, or COORDINATOR, and what to send to them."""


@dataclass
class _Retry:
    """When to ask again, each time after twice as long."""

    since: float
    due: float
    attempts: int = 0

    def passed(self, now: float, every_s: float) -> bool:
        """Whether it is time; counts the attempt."""
        if now < self.due:
            return False
        self.due, self.attempts = now + every_s * 2 ** min(self.attempts, 3), self.attempts + 1
        return True


@dataclass
class _Fetch:
    """An agreed state that arrives in chunks."""

    state: StateId | None = None
    """With the digest of all chunks."""
    donor: int = 0
    """The incarnation that sends them."""
    count: int = 1
    chunks: dict[int, Payload] = field(default_factory=dict)

    def is_lost(self, peers: Mapping[int, Peer]) -> bool:
        """Whether no member is known to have the state."""
        number = -1 if self.state is None else self.state.round
        return self.donor not in peers and all(peer.applied < number for peer in peers.values())


class Member:
    """One process's side of the rounds.

    Attributes:
        view: the newest of the coordinator's; None before the first.
        incarnation: of this process; 0 while it is no member.
        applied: the agreed state that it has; None before it has one, or where the training has lost it.
        trains: whether its agreed state must not change; the training sets it, until it hands in or joins.
        offered: the number of its last offer.
        shards: that it has leased, and that are in no round that it has applied: what is learned from them
            belongs to the next offer.
        shard: the last of them.
        asks_shard: whether it waits for one.
        is_given: whether another member has its residual.
        sent_bytes: to other members, as the caller counts them.
    """

    def __init__(
        self,
        hello: Hello,
        now: float,
        *,
        retry_s: float = 3.0,
        wait_s: float = 600.0,
        chunk_bytes: int = 1 << 18,
    ) -> None:
        """Prepares to say hello.

        Args:
            hello: with the state and the incarnation of a checkpoint, or without.
            now: seconds of a monotonic clock, here and in all methods.
            retry_s: after which what was asked for is asked for again.
            wait_s: for which it waits for the coordinator, or to be let in.
            chunk_bytes: of an agreed state in one message.
        """
        self.view: View | None = None
        self.incarnation, self.applied, self.offered, self.sent_bytes = 0, hello.state, hello.offered, 0
        self.shards, self.shard, self.asks_shard, self._leases = set(hello.shards), 0, False, 0
        self.trains = self.is_given = False
        self._hello, self._retry_s, self._wait_s, self._chunk_bytes = hello, retry_s, wait_s, chunk_bytes
        self._pulse_s = hello.rules.silent_after / 4
        self._newest = 0
        """The latest incarnation of this process."""
        self._joined = 0
        """The one that the training knows of: what it does belongs to it."""
        self._begun = 0
        """The one whose weights were everybody's first."""
        self._items: dict[Key, Payload] = {}
        """Offers, and residuals of members that leave."""
        self._handed_in: Key | None = None
        self._shared: set[tuple[Key, int]] = set()
        """What was sent without being asked for, and to whom."""
        self._retries: dict[tuple[Key, int], _Retry] = {}
        self._usual: dict[int, float] = {}
        """By incarnation, how long its last offer took to arrive, since it was known."""
        self._fetch: _Fetch | None = None
        self._fetched = 0
        """How many chunks of one state it had at most, as this incarnation."""
        self._snapshot: tuple[StateId, Payload] | None = None
        """The agreed state for others, with the digest of its bytes."""
        self._wants: deque[tuple[int, Want]] = deque(maxlen=_WANTS)
        """What others ask for: of members that no view has yet, and of former ones, for a while, too."""
        self._needs_snapshot = False
        self._join: Join | None = None
        self._counts = False
        """Whether its residual counted when it joined last."""
        self._leaving = self._finished = False
        self._entered = 0
        """The last round that was decided when it became a member."""
        self._reported: Report | None = None
        self._reports = 0
        self._next_pulse = self._answered_at = self._in_at = now
        self._is_answered = True
        self._refused, self._is_final = "", False

    # Events.

    def receive(self, sender: int, message: Message, now: float) -> Sends:
        """Handles a message; what it does not expect is ignored.

        Args:
            sender: the incarnation of another member, or COORDINATOR.
            message: from it.
            now: see `__init__`.
        """
        match message:
            case View() if sender == COORDINATOR:
                self._follow(message, now)
            case Rejection() if sender == COORDINATOR and message.incarnation == self.incarnation:
                self._refused, self._is_final, self.incarnation = message.reason, message.final, 0
                self._next_pulse = max(now, self._next_pulse) if message.incarnation == 0 else now
            case Want():
                self._wants.append((sender, message))
            case Chunk() if sender in self._peers:
                self._take(message, now)
            case _:
                pass
        return self.tick(now)

    def tick(self, now: float) -> Sends:
        """Lets time pass; called a few times a second, and after what the training does."""
        self._is_answered = now - self._answered_at <= 3 * self._pulse_s
        sends: Sends = []
        if self.view is not None and self.incarnation:
            sends = [*self._serve(), *self._share(), *self._ask(self.view, now)]
        return sends + self._report(now)

    def _report(self, now: float) -> Sends:
        """Tells the coordinator what is new, and from time to time everything."""
        pulses = now >= self._next_pulse
        if pulses:
            self._next_pulse = now + self._pulse_s
        if not self.incarnation:
            return [(COORDINATOR, self.hello)] if pulses and not self._is_final else []
        view = self.view
        assert view is not None
        report = Report(
            run=view.run,
            incarnation=self.incarnation,
            number=self._reports,
            epoch=view.epoch,
            version=view.version,
            applied=self.applied,
            held=tuple(sorted(self._items)),
            offered=self.offered,
            leases=self._leases + self.asks_shard,
            leaving=self._leaving,
            finished=self._finished,
        )
        if not pulses and report == self._reported:
            return []
        self._reports += 1
        self._reported = report.model_copy(update={"number": self._reports})
        update = {"asks": pulses or self.asks_shard, "sent_bytes": self.sent_bytes}
        return [(COORDINATOR, self._reported.model_copy(update=update))]

    # What the training does.

    def hand_in(self, payload: Payload) -> None:
        """Offers an update; the one before must be in a round."""
        if self._handed_in is not None:
            raise ValueError("handed in twice: the update before is in no round yet")
        self.offered, self.trains = self.offered + 1, False
        self._handed_in = self._joined, self.offered
        self._items[self._handed_in] = payload

    def lease(self) -> None:
        """Asks for a shard. What was handed in must be in a round."""
        assert self._handed_in is None
        self.asks_shard = True

    @property
    def hello(self) -> Hello:
        """What it says to become a member, or one again."""
        epoch = self._hello.epoch if self.view is None else self.view.epoch
        kept = {"epoch": epoch, "state": self.applied, "offered": self.offered}
        return self._hello.model_copy(update={**kept, "shards": tuple(sorted(self.shards))})

    @property
    def waits(self) -> bool:
        """Whether what was handed in is in no round yet."""
        return self._handed_in is not None

    @property
    def is_active(self) -> bool:
        """Whether rounds wait for this member, which has a state."""
        return self.applied is not None and not getattr(self._peers.get(self.incarnation), "joining", True)

    @property
    def holds_residual(self) -> bool:
        """Whether it has the residual of a member that leaves, which may be its to take over."""
        return any(number == 0 for _, number in self._items)

    @property
    def may_inherit(self) -> bool:
        """Whether it, which leaves, has a residual that is or may become its to take over.

        Once the coordinator knows that it leaves, none becomes so any more.
        """
        leavers = [leaver for leaver, number in self._items if number == 0 and leaver != self._joined]
        if not leavers or self.view is None or self.incarnation not in self._peers:
            return False
        is_known = self._peers[self.incarnation].leaving
        return not is_known or any(self.view.adopted.get(leaver) == self.incarnation for leaver in leavers)

    @property
    def is_latest(self) -> bool:
        """Whether it has applied all rounds that it knows of."""
        return self.view is not None and self._round >= self.view.last

    @property
    def slots(self) -> list[int]:
        """Its own slot, and those of the others."""
        return [one.slot for i, one in sorted(self._peers.items(), key=lambda peer: peer[0] != self._newest)]

    @property
    def is_lowest(self) -> bool:
        """Whether it is a member, and no active one has a lower slot."""
        slots = self.slots
        return bool(slots) and all(slots[0] <= peer.slot for peer in self._peers.values() if not peer.joining)

    @property
    def heirs(self) -> list[int]:
        """Incarnations of the other members that stay."""
        return [peer.incarnation for peer in self._others if not (peer.joining or peer.leaving)]

    def next(self) -> Step | None:
        """The next step, which the training must do at once; None if there is nothing to do."""
        view, join = self.view, self._join
        if join is not None:
            self._join, self._joined, self.trains = None, join.incarnation, False
            return join
        if view is None or not self.incarnation:
            return None
        incarnation, number = self._handed_in or (self.incarnation, 0)
        if incarnation != self.incarnation and self._peers[self.incarnation].taken < number:
            self._handed_in = None
            return Withdrawn(self._counts)
        step: Step | None = None
        if not self.trains:
            step = self._take_over(view) or self._restore(view) or self._apply(view)
        if step is None and self._needs_snapshot and self.applied is not None:
            return TakeSnapshot()
        return step

    def _take_over(self, view: View) -> TakeOver | None:
        for leaver, heir in view.adopted.items():
            if heir == self.incarnation and (leaver, 0) in self._items:
                return TakeOver(self._items.pop((leaver, 0)))
        return None

    def _apply(self, view: View) -> Step | None:
        if self.applied is None:
            if not self._begins(view):
                return None
            self._begun = self.incarnation
            return Begin(self._advance(view.last, view.ballot))
        decision = next((made for made in view.decisions if made.round == self._round + 1), None)
        if decision is None or not self._items.keys() >= set(decision.offers.values()):
            return None
        payloads = {slot: self._items[key] for slot, key in sorted(decision.offers.items())}
        included = self._handed_in in decision.offers.values()
        if included:
            self._handed_in, self.shards = None, set()
        return Apply(self._advance(decision.round, decision.ballot), payloads, included)

    def confirm(self, digest: str) -> None:
        """Tells the digest of the agreed state that was applied last, to be compared with the others'."""
        assert self.applied is not None
        self.applied = self.applied.model_copy(update={"digest": digest})

    def provide(self, data: Payload) -> None:
        """The bytes of the agreed state, as TakeSnapshot asked for."""
        assert self.applied is not None
        self._snapshot = self.applied.model_copy(update={"digest": _digest(data)}), data
        self._needs_snapshot = False

    def give(self, residual: Payload) -> None:
        """Offers the residual of this member, which leaves, to another one."""
        self._items[self._joined, 0] = residual
        self._leaving = True

    def finish(self) -> None:
        """Ends the membership."""
        self._finished = True

    def require_progress(self, now: float) -> None:
        """Raises MemberRefused where this process is refused, or has waited for too long."""
        if self._is_final:
            raise MemberRefused(f"the coordinator refuses this member: {self._refused}")
        if now - self._answered_at > self._wait_s:
            raise MemberRefused(f"the coordinator has not answered for {self._wait_s:g} s")
        if now - self._in_at > self._wait_s:
            problem = self.waits_for or "no member gives its state"
            if self._fetch is not None and self._fetch.chunks:
                problem = f"has {len(self._fetch.chunks)} of {self._fetch.count} chunks of a member's state"
            raise MemberRefused(f"has been joining for {self._wait_s:g} s without progress: {problem}")

    @property
    def waits_for(self) -> str:
        """For whom or what it waits, as far as it knows."""
        if not self.incarnation:
            return self._refused or "the coordinator does not answer: it does not run, or has another key"
        if not self._is_answered:
            return "the coordinator does not answer: rounds go on when it does"
        return self.view.waiting if self.view is not None else ""

    # Following the coordinator.

    @property
    def _round(self) -> int:
        return -1 if self.applied is None else self.applied.round

    @property
    def _peers(self) -> dict[int, Peer]:
        """By incarnation, all members."""
        return {} if self.view is None else {peer.incarnation: peer for peer in self.view.peers}

    @property
    def _others(self) -> list[Peer]:
        return [peer for incarnation, peer in self._peers.items() if incarnation != self.incarnation]

    def _advance(self, number: int, ballot: int) -> StateId:
        """Counts a round as applied."""
        self.applied = StateId(round=number, ballot=ballot)
        return self.applied

    def _follow(self, view: View, now: float) -> None:
        """Takes a view, if it is newer."""
        before = self.view
        if before is not None:
            if (view.epoch, view.version) < (before.epoch, before.version):
                return
            if view.run != before.run or (view.epoch == before.epoch and view.nonce != before.nonce):
                return  # of another coordinator, such as one that was started from an old file
        if view.incarnation != self.incarnation and view.incarnation <= self._newest:
            return  # a late one: that incarnation has left
        self.view, self._answered_at = view, now
        if view.incarnation != self.incarnation:
            self._enter(view)
            self._in_at = now
        if self.is_active:
            self._in_at = now
        if self._leaving and self.incarnation in view.adopted:
            self.is_given = True  # and still leaves: nobody is to give it anything
        if self.asks_shard and view.leases > self._leases:
            self.asks_shard, self._leases, self.shard = False, view.leases, view.shard
            self.shards.add(view.shard)
        self._items = {key: item for key, item in self._items.items() if self._may_need(view, key)}
        self._shared = {(key, to) for key, to in self._shared if key in self._items and to in self._peers}
        if self._snapshot is not None and self._snapshot[0].round + 1 < view.floor:
            self._snapshot = None
        if self._fetch is not None and self._fetch.is_lost(self._peers):
            self._fetch = None  # it may be decided again

    def _may_need(self, view: View, key: Key) -> bool:
        incarnation, number = key
        if number == 0:  # a residual
            return incarnation in self._peers or view.adopted.get(incarnation) == self.incarnation
        if incarnation in self._peers and number > self._peers[incarnation].taken:
            return True
        return any(key in decision.offers.values() for decision in view.decisions)

    def _enter(self, view: View) -> None:
        """Begins a new incarnation."""
        self.incarnation = self._newest = view.incarnation
        self._hello = self._hello.model_copy(update={"previous": view.incarnation, "run": view.run})
        void = [one.round for one in view.recalls if self.applied is not None and one.voids(self.applied)]
        if void:
            self.applied = None
        taken = self._peers[self.incarnation].taken
        self.offered = max(self.offered, taken)
        self._counts, earlier = view.residual_counts, self._join
        if earlier is not None:  # nobody has asked for it yet
            self._counts &= earlier.residual_counts
            void += [] if earlier.void_from is None else [earlier.void_from]
        if not self._counts:
            self.shards = set()
        self._fetch, self._fetched, self._reported, self._leases = None, 0, None, 0
        self._entered, self.trains, self._leaving = view.last, False, False
        slot = self._peers[self.incarnation].slot
        self._join = Join(slot, self.incarnation, self._counts, min(void, default=None))

    # Items.

    def _share(self) -> Iterator[tuple[int, Message]]:
        """Sends its offer to all others, and its residual to one; each at once, and once."""
        shares = [(self._handed_in, peer.incarnation) for peer in self._others]
        if self._leaving and not self.is_given:
            shares = [((self.incarnation, 0), heir) for heir in self.heirs[:1]]
        for key, to in shares:
            if key in self._items and (key, to) not in self._shared:
                self._shared.add((key, to))
                yield to, Chunk(sender=self.incarnation, key=key, payload=self._items[key])

    def _ask(self, view: View, now: float) -> Sends:
        """Asks for items that others hold, and for chunks of a state where it needs one."""
        holders = {
            (key, 0): [peer.incarnation for peer in self._others if key in peer.held]
            for key in {key for peer in self._others for key in peer.held if key[1]}
            if key not in self._items and self._may_need(view, key)
        }
        if not self._needs_state(view, {key for key, _ in holders}):
            self._fetch = None
        else:
            fetch = self._fetch = self._fetch or _Fetch()
            number = max(self._round + 1, view.floor - 1) if fetch.state is None else fetch.state.round
            donors = [peer.incarnation for peer in self._others if peer.applied >= number]
            if fetch.donor in self._peers:
                donors = [fetch.donor]
            if donors:
                missing = [index for index in range(fetch.count) if index not in fetch.chunks][:_WINDOW]
                holders |= {((0, number), index): donors for index in missing}
        usual = {key[0]: self._patience(key[0]) for key, _ in holders}  # an offer may be on its way
        self._retries = {
            item: self._retries.get(item) or _Retry(now, now + (usual[item[0][0]] if item[0][0] else 0.0))
            for item in holders
        }
        early = (made for made in view.decisions if made.round <= self._entered + 1)
        for item in ((key, 0) for made in early for key in made.offers.values()):
            if item in self._retries and not self._retries[item].attempts:
                self._retries[item].due = now  # its sender may not have known of this member
        sends: Sends = []
        for (key, index), retry in self._retries.items():
            among = holders[key, index]
            if retry.passed(now, usual[key[0]]):
                holder = among[(self.incarnation + retry.attempts) % len(among)]
                sends.append((holder, Want(sender=self.incarnation, key=key, index=index)))
                if not key[0] and retry.attempts > _ATTEMPTS:
                    self._fetch = None
        return sends

    def _patience(self, incarnation: int) -> float:
        """Seconds until what should come is asked for: of an offer, twice as long as the last one took."""
        longest = self._hello.rules.round_within / 2
        return max(self._retry_s, min(2 * self._usual.get(incarnation, 0.0), longest))

    def _begins(self, view: View) -> bool:
        """Whether its weights are to be everybody's first; once, for later they may be changed in part."""
        return view.begins and self._begun != self.incarnation

    def _needs_state(self, view: View, held: set[Key]) -> bool:
        """Whether messages do not lead from its own state to the latest."""
        if self.applied is None:
            return not self._begins(view)
        if self.trains:
            return False
        needed = {key for d in view.decisions if d.round > self._round for key in d.offers.values()}
        return self._round + 1 < view.floor or not needed <= held | self._items.keys()

    def _take(self, chunk: Chunk, now: float) -> None:
        incarnation, number = chunk.key
        if incarnation:
            if self.view is not None and self._may_need(self.view, chunk.key):
                if chunk.sender == incarnation and chunk.key not in self._items:
                    retry = self._retries.get((chunk.key, 0))
                    self._usual[incarnation] = 0.0 if retry is None else now - retry.since
                self._items.setdefault(chunk.key, chunk.payload)
            return
        fetch = self._fetch
        if fetch is None:
            return
        if chunk.index >= chunk.count:
            raise CorruptMessage(f"chunk {chunk.index} of a state of {chunk.count} chunks")
        state = StateId(round=number, ballot=chunk.ballot, digest=chunk.digest)
        if (fetch.state, fetch.count) != (state, chunk.count):
            is_newer = fetch.state is None or number > fetch.state.round
            if not is_newer and fetch.donor in self._peers:
                return
            fetch.state, fetch.count, fetch.chunks = state, chunk.count, {}
        fetch.donor = chunk.sender
        fetch.chunks.setdefault(chunk.index, chunk.payload)
        if len(fetch.chunks) > self._fetched:
            self._fetched, self._in_at = len(fetch.chunks), now

    def _restore(self, view: View) -> Restore | None:
        """The state that has arrived whole, if it is still of use."""
        fetch = self._fetch
        if fetch is None or fetch.state is None:
            return None
        state = fetch.state
        if view.is_void(state) or state.round <= self._round or state.round + 1 < view.floor:
            self._fetch = None
            return None
        if len(fetch.chunks) < fetch.count or view.last < state.round:
            return None
        self._fetch = None
        data = np.concatenate([fetch.chunks[index] for index in range(fetch.count)])
        if _digest(data) != state.digest:
            return None  # it is fetched anew
        later = {key for d in view.decisions if d.round > state.round for key in d.offers.values()}
        taken = self._peers[self.incarnation].taken
        included = (
            self._handed_in is not None and self._handed_in[1] <= taken and self._handed_in not in later
        )
        if included:
            self._handed_in, self.shards = None, set()
        return Restore(self._advance(state.round, state.ballot), data, included)

    def _serve(self) -> Iterator[tuple[int, Message]]:
        """Sends what others ask for, if it can; keeps what it may be able to send later."""
        wants, self._wants = self._wants, deque(maxlen=_WANTS)
        for sender, want in wants:
            key = want.key
            if sender not in self._peers:
                self._wants.append((sender, want))
            elif key in self._items:
                yield sender, Chunk(sender=self.incarnation, key=key, payload=self._items[key])
            elif key[0] or self._round < key[1]:
                pass
            elif self._snapshot is None or self._snapshot[0].round < key[1]:
                self._needs_snapshot = True
                self._wants.append((sender, want))
            else:
                yield sender, self._chunk(*self._snapshot, want.index)

    def _chunk(self, state: StateId, data: Payload, index: int) -> Chunk:
        """A chunk of a snapshot, which may have fewer chunks than that of which one is asked for."""
        size = self._chunk_bytes
        count = max(1, -(-data.size // size))
        index = index if index < count else 0
        return Chunk(
            sender=self.incarnation,
            key=(0, state.round),
            ballot=state.ballot,
            digest=state.digest,
            index=index,
            count=count,
            payload=data[index * size : (index + 1) * size],
        )


def _digest(data: Payload) -> str:
    return hashlib.blake2b(data.data, digest_size=16).hexdigest()
