"""The coordinator of members, as a state machine: events and the time in, messages out.

It has no socket and no clock. Its table is what must be durable: the caller writes it before it sends the
messages. A round is decided over what receivers hold: it closes when all members have all offers; or, at a
deadline, with the largest set that two members hold. A decision is final once a live member has applied it.
Where all that held one of its offers have left before, the decision is recalled: its ballot is void, and a
higher one decides. Nobody can apply it meanwhile, for members take items from present members only, and all
of them have said what they hold since the last one left.
"""

import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import ceil, inf
from statistics import median

from pydantic import BaseModel, ConfigDict

from ...errors import CompressionError
from .messages import Decision, Hello, Key, Message, Peer, Recall, Rejection, Report, Rules, StateId, View

KEEP = 128
"""Rounds whose decisions and offers are kept for those that join. For others, it is so many offers."""
_REMEMBERED = 512
"""Former incarnations whose residual may still count."""
_TRUSTED_ROUNDS = 8
"""A member that was late in none of so many rounds is waited for."""
_LEAST_S = 0.1
"""For which the first that hands in waits for others, at least."""
_FACTOR, _LATE_FACTOR, _DUE_FACTOR = 1.5, 1.05, 1.25
"""A round waits for late members until this multiple of the usual time; where it waits only for members that
were late; and if one of them is due."""
_DUE = 1.1
"""A member is due if it is expected before this multiple of the usual time, and not overdue by that time."""
_NAMED = 16
"""Slots that `View.waiting` names, at most."""
_ENOUGH = 6
"""Offers after which their usual time is known well: until then, all are waited for like trusted members."""

log = logging.getLogger("taugrad")


class OldTable(CompressionError):
    """A member knows of a later epoch or round than the coordinator's table: the file is an old one."""


class _Durable(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class Occupant(_Durable):
    """Who has a slot."""

    slot: int
    process: str
    endpoint: str
    residual_counts: bool
    since: int
    """The round of its state when it said hello, or the last one; later that when it ceased to be joining."""
    joining: bool = True


class Record(_Durable):
    """What became of an incarnation's offers, and of its residual."""

    process: str
    origin: str = ""
    """See `Hello`."""
    taken: int = 0
    """The number of the last offer of its process that a round has."""
    line: int
    """The incarnation with which its residual began: the first of those that went on from it, each after the
    one before had left."""
    adopted_by: int = 0
    """The incarnation that takes over its residual; 0: none does."""
    leases: int = 0
    """How many shards it was given."""
    shard: int = 0
    """The last of them."""


class LeasedShard(_Durable):
    """A shard of the examples that was given to a member."""

    incarnation: int
    """0: nobody has it any more, the next one that asks will."""
    offer: int
    """The number of the offer that will have what is learned from it."""
    round: int = 0
    """The one that has this offer, or a later one; 0: none yet."""


class Table(_Durable):
    """What a coordinator must not forget."""

    run: str
    epoch: int = 0
    """It grows at each start."""
    rules: Rules | None = None
    """Those of the first member; others must have the same."""
    settings: dict[str, str] = {}
    ballot: int = 0
    last: int = 0
    """The last round that is decided."""
    known: int = 0
    """The last round that a member is known to have applied."""
    beginner: int = 0
    """The member whose weights were the first of all; 0: nobody, yet."""
    decisions: dict[int, Decision] = {}
    recalls: list[Recall] = []
    members: dict[int, Occupant] = {}
    """By incarnation."""
    incarnations: int = 0
    """How many there were."""
    records: dict[int, Record] = {}
    """By incarnation, present or former."""
    origins: list[str] = []
    """The workers of a fixed group that have become members."""
    shards: int = 0
    """How many shards were given out: numbers from 0."""
    leases: dict[int, LeasedShard] = {}
    """By shard, of those that are in none but the latest rounds."""

    def lease(self, incarnation: int, offer: int) -> int:
        """Gives a member a shard: one that was returned, or the next."""
        shard = next((number for number in self.leases if self.is_returned(number)), self.shards)
        self.shards = max(self.shards, shard + 1)
        self.leases[shard] = LeasedShard(incarnation=incarnation, offer=offer)
        return shard

    def is_returned(self, shard: int) -> bool:
        """Whether a shard was given to a member that has left, and is in no round."""
        return shard in self.leases and not self.leases[shard].incarnation

    def return_shards(self) -> None:
        """Takes back the shards of former members that are in no round.

        One that has come back, and whose residual counts, keeps them.
        """
        heirs = {member.process: i for i, member in self.members.items() if member.residual_counts}
        for lease in self.leases.values():
            if lease.incarnation and not lease.round and lease.incarnation not in self.members:
                lease.incarnation = heirs.get(self.records[lease.incarnation].process, 0)

    def is_void(self, state: StateId) -> bool:
        """Whether a state has a decision that was recalled."""
        return any(recall.voids(state) for recall in self.recalls)

    def void_from(self, number: int) -> None:
        """Recalls the decisions about this round and later ones."""
        self.ballot += 1
        recalls = [recall for recall in self.recalls if recall.round < number][-KEEP:]
        self.recalls = [*recalls, Recall(round=number, ballot=self.ballot)]
        for later in [later for later in self.decisions if later >= number]:
            for incarnation, offer in self.decisions.pop(later).offers.values():
                process = self.records[incarnation].process
                for record in self.records.values():
                    if record.process == process:
                        record.taken = min(record.taken, offer - 1)
        self.last = max(number - 1, 0)
        self.known = min(self.known, self.last)
        for lease in self.leases.values():
            lease.round = lease.round if lease.round < number else 0
        self.return_shards()


_NOTHING_SAID = Report(run="", incarnation=0, number=0, epoch=0, version=0)


@dataclass
class _Status:
    """What a member said last, in this epoch."""

    at: float
    report: Report = _NOTHING_SAID
    left_out: int = 0
    continued_at: float | None = None
    """When a round took its latest offer; None if two members hold the next one, or nothing was taken yet:
    the time before a first offer, such as that of compiling, is no measure."""
    seconds: float = inf
    """From that until two members held the next one, the last time."""

    @property
    def expected_at(self) -> float:
        """When two members will hold its next offer, if it takes as long as the last time."""
        return inf if self.continued_at is None else self.continued_at + self.seconds


class Coordinator:
    """Decides who is a member, and which offers are in a round.

    Attributes:
        table: see `Table`.
        is_dirty: whether the table has changed: it must be durable before any message is sent.
        messages: processes, and what to send to them.
        left: by incarnation, why a former member left; of this epoch.
        waiting: see `View`.
    """

    def __init__(self, table: Table, nonce: str, now: float, *, accept_older: bool = False) -> None:
        """Starts a new epoch; the table must be durable before the first message.

        Args:
            table: a new or a former one.
            nonce: another text at each start.
            now: seconds of a monotonic clock, here and in all methods.
            accept_older: whether a run whose members are all gone goes on from an older state than the last.
        """
        self.table, self._nonce, self._accept_older = table, nonce, accept_older
        self.left: dict[int, str] = {}
        self.waiting = ""
        table.epoch += 1
        self.is_dirty, self.messages = True, list[tuple[str, Message]]()
        self._version = self._sent_version = self._left_version = 1
        self._statuses = {incarnation: _Status(now) for incarnation in table.members}
        self._digests: dict[tuple[int, int], dict[int, str]] = {}
        """By round and ballot, what members told, present or former ones."""
        self._odd: set[int] = set()
        """Incarnations that left as their bits were not those of the others."""
        self._seconds: deque[float] = deque(maxlen=32)
        """From the round that took a member's offer until two members held its next one.

        From round to round would be shorter where members take turns: it would keep them apart for ever.
        """
        self._evaluated_at = self._opened_at = now
        self._first_at: float | None = None
        """When the first offer of the open round was known."""

    # Events.

    def handle(self, process: str, message: Hello | Report, now: float) -> None:
        """Handles what a process sent; raises OldTable."""
        if isinstance(message, Hello):
            incarnation, rejection = self._add_member(message, now)
            wants = True
        else:
            incarnation, rejection = message.incarnation, self._note(message, now)
            wants = message.asks or (message.epoch, message.version) < (self.table.epoch, self._version)
        if rejection is not None:
            self.messages.append((process, rejection))
        before = self._sent_version
        self.tick(now)
        if incarnation in self.table.members and wants and self._sent_version == before:
            self.messages.append((process, self.view(incarnation, now)))

    def close(self, process: str, now: float) -> None:
        """Handles that a process's connection has closed."""
        for incarnation in [i for i, member in self.table.members.items() if member.process == process]:
            self._leave(incarnation, "its connection was closed")
        self.tick(now)

    def tick(self, now: float) -> None:
        """Lets time pass; called a few times a second."""
        if self.table.rules is not None:
            self._evaluate(self.table.rules, now)
        if self._sent_version < self._version:
            self.messages += [(one.process, self.view(i, now)) for i, one in self.table.members.items()]
            self._sent_version = self._version

    # Who is a member.

    def _add_member(self, hello: Hello, now: float) -> tuple[int, Rejection | None]:
        table, state = self.table, hello.state
        for incarnation, member in table.members.items():
            if member.process == hello.process:
                return incarnation, None
        is_new = not (table.decisions or table.beginner or table.known)
        if table.rules is None or (is_new and not table.members):
            table.rules, table.settings, table.run = hello.rules, dict(hello.settings), hello.run or table.run
        start = state if is_new and state is not None and state.round > table.last else None
        if start is None:
            self._require_latest(hello.run, hello.epoch)
        if reason := self._why_refused(hello, is_start=start is not None):
            return 0, Rejection(final=True, reason=reason)
        assert table.rules is not None
        taken = {member.slot for member in table.members.values()}
        free = [slot for slot in range(table.rules.max_members) if slot not in taken]
        if not free:
            return 0, Rejection(final=False, reason=f"all {table.rules.max_members} slots are taken")
        if start is not None:  # a run begins from a checkpoint
            table.last = table.known = start.round
            table.ballot = max(table.ballot, start.ballot)
            table.epoch = max(table.epoch, hello.epoch + 1)
        table.incarnations += 1
        incarnation = table.incarnations
        counts = self._inherit(hello, incarnation)
        named = {held.incarnation for held in table.leases.values()}.union(table.members)
        named |= {of for decision in table.decisions.values() for of, _ in decision.offers.values()}
        for old in [old for old in table.records if old <= table.incarnations - _REMEMBERED]:
            if old not in named:
                del table.records[old]
        table.members[incarnation] = Occupant(
            slot=free[0],
            process=hello.process,
            endpoint=hello.endpoint,
            residual_counts=counts,
            since=table.last if state is None or table.is_void(state) else state.round,
        )
        self._statuses[incarnation] = _Status(now)
        for shard in filter(table.is_returned, hello.shards if counts else ()):
            table.leases[shard] = LeasedShard(incarnation=incarnation, offer=hello.offered + 1)
        log.info("slot %d, incarnation %d, joins from %s", free[0], incarnation, hello.endpoint)
        self._changed()
        return incarnation, None

    def _inherit(self, hello: Hello, incarnation: int) -> bool:
        """Makes the record of a process that joins; returns whether the residual that it has counts."""
        table, previous = self.table, hello.previous
        record = Record(process=hello.process, origin=hello.origin, line=incarnation)
        if not previous and hello.origin:  # another start from the state of that worker
            previous = next((i for i, one in table.records.items() if one.origin == hello.origin), 0)
        former, table.records[incarnation] = table.records.get(previous), record
        if former is None and hello.origin and hello.origin not in table.origins:
            table.origins.append(hello.origin)
            return True
        if former is None or previous in table.members:
            return False
        if former.process == hello.process:  # it was thought to be gone
            record.taken = former.taken
            for other in table.records.values():
                if other.adopted_by == previous:
                    other.adopted_by = incarnation
        later = {i: one for i, one in table.records.items() if i > previous and i != incarnation}
        line = {i: one for i, one in table.records.items() if one.line == former.line}
        counts = former.taken <= hello.offered and not any(
            i in table.members or one.adopted_by or (i in later and one.taken > former.taken)
            for i, one in line.items()
        )  # it may know already that it did not count meanwhile
        counts &= all(i in line for i, one in later.items() if one.process == hello.process)
        counts &= all(self._may_keep(shard, {hello.process, former.process}) for shard in hello.shards)
        if counts:
            record.line = former.line
        return counts

    def _may_keep(self, shard: int, processes: Collection[str]) -> bool:
        """Whether no other member has, or had, a shard that was given to one of these processes."""
        lease = self.table.leases.get(shard)
        return self.table.is_returned(shard) or (
            lease is not None and self.table.records[lease.incarnation].process in processes
        )

    def _require_latest(self, run: str, epoch: int, number: int = 0) -> None:
        if run != self.table.run:
            return
        for what, theirs, ours in (("epoch", epoch, self.table.epoch), ("round", number, self.table.last)):
            if theirs > ours:
                raise OldTable(
                    f"a member has seen {what} {theirs} of this run, the table here is of {ours}: "
                    "its file is an old one, or another coordinator runs"
                )

    def _why_refused(self, hello: Hello, *, is_start: bool) -> str:
        table, state = self.table, hello.state
        if hello.run and hello.run != table.run:
            return f"this coordinator is of run {table.run}, the member of {hello.run}"
        theirs, ours = ({**vars(part.rules), **part.settings} for part in (hello, table))
        for name in sorted(theirs.keys() | ours.keys()):
            if theirs.get(name) != ours.get(name):
                return f"{name} = {theirs.get(name)}; the run's other members have {ours.get(name)}"
        if not is_start and state is not None and state.round > table.last and not table.is_void(state):
            return (
                f"the member has the state of round {state.round}, this coordinator's last round is "
                f"{table.last}: its file is an old one, or of another run"
            )
        return ""

    def _note(self, report: Report, now: float) -> Rejection | None:
        """Notes what a member knows."""
        table, incarnation, applied = self.table, report.incarnation, report.applied
        if report.run != table.run:
            reason = f"this coordinator is of run {table.run}, the member of {report.run}"
            return Rejection(incarnation=incarnation, final=True, reason=reason)
        self._require_latest(report.run, report.epoch)
        if incarnation not in table.members:
            reason = self.left.get(incarnation, "it has left before this coordinator was started")
            return Rejection(incarnation=incarnation, final=incarnation in self._odd, reason=reason)
        status = self._statuses[incarnation]
        status.at = now
        if report.epoch != table.epoch or report.number <= status.report.number:
            return None
        status.report = report
        record = table.records[incarnation]
        if report.leases > record.leases:
            record.leases, record.shard = report.leases, table.lease(incarnation, report.offered + 1)
            self.is_dirty = True
        if applied is None or table.is_void(applied):
            return None
        self._require_latest(report.run, 0, applied.round)
        if applied.round > table.known:
            table.known, self.is_dirty = applied.round, True
        for old in [old for old in self._digests if old[0] < applied.round - KEEP]:
            del self._digests[old]
        if applied.digest:
            self._compare(incarnation, applied)
        if incarnation in self._odd:
            return Rejection(incarnation=incarnation, final=True, reason=self.left[incarnation])
        return None

    def _compare(self, incarnation: int, state: StateId) -> None:
        """Ends the memberships of those whose bits are not most members', as soon as it is known whose are.

        Where as many have one as the other, those count that the oldest member has.
        """
        told = self._digests.setdefault((state.round, state.ballot), {})
        told[incarnation] = state.digest
        holders = {digest: [i for i in told if told[i] == digest] for digest in told.values()}
        most = max(holders, key=lambda digest: (len(holders[digest]), -min(holders[digest])))
        awaited = [i for i in self.table.members if i not in told and self._applied(i) <= state.round]
        if awaited and len(holders[most]) <= (len(awaited) + len(told)) / 2:
            return
        for other in [i for i in told if told[i] != most and i in self.table.members]:
            del told[other]
            self._odd.add(other)
            self._leave(other, f"its state of round {state.round} has other bits than the others'")

    def _leave(self, incarnation: int, reason: str) -> None:
        slot = self.table.members.pop(incarnation).slot
        del self._statuses[incarnation]
        self.table.return_shards()
        self.left[incarnation] = reason
        log.info("slot %d, incarnation %d, has left: %s", slot, incarnation, reason)
        while len(self.left) > _REMEMBERED:
            del self.left[next(iter(self.left))]
        self._changed()
        self._left_version = self._version

    # What follows from what is known.

    def _evaluate(self, rules: Rules, now: float) -> None:
        if now - self._evaluated_at > rules.silent_after / 2:
            for status in self._statuses.values():  # this process was stopped: silence says nothing
                status.at = now
        self._evaluated_at = now
        for incarnation, status in list(self._statuses.items()):
            if status.report.finished:
                self._leave(incarnation, "it has finished")
            elif now - status.at > rules.silent_after:
                self._leave(incarnation, f"it has been silent for {rules.silent_after:g} s")
        self._grant_adoptions()
        self._activate()
        self._recall()
        self._decide(rules, now)

    def _grant_adoptions(self) -> None:
        for incarnation, status in self._statuses.items():
            for leaver, number in status.report.held:
                if number or self._is_leaving(incarnation) or not self._is_leaving(leaver):
                    continue
                if not self.table.records[leaver].adopted_by:
                    self.table.records[leaver].adopted_by = incarnation
                    self._changed()

    def _is_leaving(self, incarnation: int) -> bool:
        return incarnation in self._statuses and self._statuses[incarnation].report.leaving

    def _applied(self, incarnation: int) -> int:
        """The last round in a member's state; -1: it has none that counts."""
        state = self._statuses[incarnation].report.applied
        return -1 if state is None or self.table.is_void(state) else state.round

    @property
    def _all_know(self) -> bool:
        """Whether all members have said what they hold since the last one left."""
        return all(status.report.version >= self._left_version for status in self._statuses.values())

    @property
    def _active(self) -> list[int]:
        return [incarnation for incarnation, member in self.table.members.items() if not member.joining]

    def _activate(self) -> None:
        """Takes in joining members that have caught up; where all others are gone, the latest state's."""
        table, active = self.table, self._active
        joining = [incarnation for incarnation, member in table.members.items() if member.joining]
        if active:
            entering = [i for i in joining if self._applied(i) >= max(table.last - 1, 0)]
        else:
            least = 0 if self._accept_older else table.known
            entering = sorted((i for i in joining if self._applied(i) >= least), key=self._applied)[-1:]
            if not entering and joining and not table.known and self._all_know:  # nothing is lost
                entering, table.beginner = joining[:1], joining[0]
                table.void_from(0)
        for incarnation in entering:
            member = table.members[incarnation]
            member.joining, member.since = False, table.last
            self._changed()

    def _recall(self) -> None:
        """Recalls the first decision that no member has applied, and none ever can."""
        if not self._active or not self._all_know:
            return
        base = max(map(self._applied, self._statuses))
        held = {key for status in self._statuses.values() for key in status.report.held}
        for number in range(base + 1, self.table.last + 1) if base >= 0 else ():
            decision = self.table.decisions.get(number)
            if decision is None or not held.issuperset(decision.offers.values()):
                self.table.void_from(number)
                self._changed()
                return

    # Deciding.

    def _decide(self, rules: Rules, now: float) -> None:
        table, active, number = self.table, self._active, self.table.last + 1
        if len(active) < rules.min_members or not active:
            self._open(now)
            self.waiting = f"{counted(len(active))}, a round needs {rules.min_members}: waiting for more"
            if not active and table.known:
                whose = "a state" if self._accept_older else f"the state of round {table.known}"
                older = "" if self._accept_older else "goes on from an older one with --accept-older, and "
                self.waiting = (
                    f"all members are gone: waiting for one whose checkpoint has {whose}; if there is none, "
                    f"the coordinator {older}begins anew with another --state"
                )
            return
        offers = {
            key[0]: key
            for status in self._statuses.values()
            for key in sorted(status.report.held)
            if key[0] in active and key[1] > table.records[key[0]].taken
        }
        held = {
            i: {of for of, key in offers.items() if key in status.report.held}
            for i, status in self._statuses.items()
        }
        live, offered = set(active), set(offers)
        if not offered:
            self.waiting = ""
            return
        if self._first_at is None:
            self._first_at = now
        best = _largest_held(held, min(2, len(active)))
        enough = len(best) >= ceil(rules.quorum * len(active))
        for status in (self._statuses[incarnation] for incarnation in best):
            if status.continued_at is not None:
                status.seconds, status.continued_at = now - status.continued_at, None
                self._seconds.append(status.seconds)
        going = {i for i in active if self._is_leaving(i)}
        awaited = {i for i in active if not held[i] >= offered} | (live - offered - going)
        named = sorted(table.members[i].slot for i in awaited)
        slots = ", ".join([*map(str, named[:_NAMED]), *(["..."] if len(named) > _NAMED else [])])
        self.waiting = f"round {number} waits for slots {slots}" if awaited else ""
        if enough and (not awaited or now >= self._deadline(rules, awaited)):
            self._close_round(number, {i: offers[i] for i in best}, now)
        elif now >= self._first_at + rules.round_within:
            for incarnation in live - offered or {max(live)}:
                self._leave(incarnation, f"round {number} has waited for it for {rules.round_within:g} s")

    def _deadline(self, rules: Rules, awaited: Iterable[int]) -> float:
        assert self._first_at is not None
        last = self._first_at + rules.round_within
        if not self._seconds:
            return last
        usual = median(self._seconds)
        due = (self._statuses[i].expected_at - self._opened_at for i in awaited)
        if len(self._seconds) < _ENOUGH or any(map(self._is_trusted, awaited)):
            factor = _FACTOR
        elif any(-usual < seconds < _DUE * usual for seconds in due):
            factor = _DUE_FACTOR
        else:
            factor = _LATE_FACTOR
        return min(last, max(self._opened_at + factor * usual, self._first_at + _LEAST_S))

    def _is_trusted(self, incarnation: int) -> bool:
        """Whether a member was in the latest rounds, since it is a member."""
        slot, since = self.table.members[incarnation].slot, self.table.members[incarnation].since
        latest = [self.table.decisions[number] for number in sorted(self.table.decisions)[-_TRUSTED_ROUNDS:]]
        rounds = [decision.offers.get(slot, (0,))[0] for decision in latest if decision.round > since]
        return bool(rounds) and set(rounds) == {incarnation}

    def _close_round(self, number: int, chosen: Mapping[int, Key], now: float) -> None:
        table = self.table
        offers = {table.members[incarnation].slot: key for incarnation, key in chosen.items()}
        table.decisions[number] = Decision(
            round=number, ballot=table.ballot, offers=dict(sorted(offers.items()))
        )
        table.last = number
        for incarnation, offer in chosen.values():
            table.records[incarnation].taken = offer
            self._statuses[incarnation].continued_at = now
        for shard, lease in list(table.leases.items()):
            if not lease.round and lease.offer <= chosen.get(lease.incarnation, (0, 0))[1]:
                lease.round = number
            elif 0 < lease.round <= number - KEEP:
                del table.leases[shard]
        table.decisions.pop(number - KEEP, None)
        for incarnation in set(self._active).difference(chosen):
            self._statuses[incarnation].left_out += 1
        self._open(now)
        self.waiting = ""
        self._changed()

    def _open(self, now: float) -> None:
        self._opened_at, self._first_at = now, None

    # Messages.

    def _changed(self) -> None:
        """Called when the table has changed: all members get another view."""
        self._version, self.is_dirty = self._version + 1, True

    def view(self, incarnation: int, now: float) -> View:
        """What a member is told; 0: a person."""
        table, members = self.table, self.table.members
        applied = {i: self._applied(i) for i in members}
        least = {i: 0 if one.joining else table.last - KEEP // len(members) for i, one in members.items()}
        behind = min(
            (max(least[i], n if n >= 0 else members[i].since) for i, n in applied.items()),
            default=table.last,
        )
        peers = [
            Peer(
                slot=member.slot,
                incarnation=i,
                endpoint=member.endpoint,
                joining=member.joining,
                leaving=self._is_leaving(i),
                applied=applied[i],
                taken=table.records[i].taken,
                held=self._statuses[i].report.held,
                silent_s=now - self._statuses[i].at,
                left_out=self._statuses[i].left_out,
                sent_bytes=self._statuses[i].report.sent_bytes,
            )
            for i, member in members.items()
        ]
        adopted = {i: record.adopted_by for i, record in table.records.items() if record.adopted_by}
        return View(
            run=table.run,
            epoch=table.epoch,
            nonce=self._nonce,
            version=self._version,
            incarnation=incarnation,
            peers=tuple(peers),
            last=table.last,
            ballot=table.ballot,
            decisions=tuple(made for number, made in sorted(table.decisions.items()) if number > behind),
            recalls=tuple(table.recalls),
            residual_counts=incarnation in members and members[incarnation].residual_counts,
            begins=bool(incarnation) and table.beginner == incarnation,
            leases=table.records[incarnation].leases if incarnation else 0,
            shard=table.records[incarnation].shard if incarnation else 0,
            adopted={leaver: heir for leaver, heir in adopted.items() if incarnation in (leaver, heir)},
            waiting=self.waiting,
            left=tuple(f"{i}: {reason}" for i, reason in list(self.left.items())[-8:]),
        )


def counted(members: int) -> str:
    """A number of members, in words."""
    return f"{members} member" if members == 1 else f"{members} members"


def _largest_held(held: Mapping[int, Collection[int]], holders: int) -> set[int]:
    """The largest set that so many members hold; of two as large, the one that more hold."""
    best, most = set[int](), (0, 0)
    for group in combinations(sorted(held), holders):
        common = set.intersection(*(set(held[incarnation]) for incarnation in group))
        worth = len(common), sum(common <= set(offers) for offers in held.values())
        if common and worth > most:
            best, most = common, worth
    return best
