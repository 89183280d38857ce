"""The rounds of local steps whose members come and go; a process group is not needed.

A member hands in what it has learned, and waits until a round has it. It applies that round, and those that
were decided without it before, in their order. What it still has to send when it joins again (its steps since
it continued from the agreed weights, an offer that no round took, another member's residual) is added to its
next offer.

With fragments, members offer the one that they have not sent for longest; of several, that of the next round:
round r is meant for fragment r mod F, from 0. So a round may have offers of several fragments: each member's
weighs as much as without.
"""

import hashlib
import json
import logging
import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import wraps
from math import inf
from time import monotonic, sleep
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import finalize

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.optim import Optimizer

from ...bucket.compressor import Worker
from ...bucket.ledger import Step, Traffic
from ...errors import CorruptMessage, MemberRefused
from ...fields import problem_line
from ...local_fields import LocalFields
from ...methods import Method
from ..addresses import source_address
from ..carrier import Payload
from ..keys import require_long_enough
from ..local_rounds import Agreed, FragmentRounds
from ..mesh import most_bytes_of
from ..patterns.base import ExchangeRecord
from ..side_channel import buffer_fields
from ..tensors import buffers_of, copy_bytes, load_buffers, local_tensor, to_bytes
from . import member, sockets
from .fragment import MemberFragment
from .island import Island
from .messages import MOST_TEXT, Hello, Rules, StateId
from .moments import has_moments, joined, load_moments, moments_of, split
from .session import QUIET_S, Session

_DIGEST_EVERY = 16
"""Rounds after which members compare their agreed states."""
_POLL_S = 0.2
_MOST_VALUE = MOST_TEXT // 3
"""Characters of a setting: a refusal has two of them."""
_NUMBERS = np.dtype([("examples", "<f8"), ("fragment", "<i8")])
IDENTITY = ("previous", "run", "epoch", "state", "offered", "shards", "origin")
"""What a checkpoint has of a member's hello."""

T = TypeVar("T")
P = ParamSpec("P")

log = logging.getLogger("taugrad")


@dataclass(frozen=True)
class Members:
    """Where the coordinator of members is, and how it decides; the same for all members of a run."""

    coordinator: str
    """HOST:PORT."""
    key: bytes = field(repr=False)
    """The run's, 16 bytes or more: who has it may take part."""
    quorum: float = 0.5
    """The least part of the members whose updates make a round."""
    max_members: int = 8
    min_members: int = 1
    """With fewer, all wait."""
    leave_within: float = 25.0
    """Seconds that `leave` takes at most."""
    silent_after: float = 10.0
    """Seconds after which a member that says nothing has left."""
    round_within: float = 60.0
    """Seconds for which those that have handed in wait for others, at most."""
    wait: float = 600.0
    """Seconds for which this member waits for the coordinator, to be let in, or in `finish` for others."""
    moments: bool = False
    """Whether a new member takes the moments of the optimizer, too, from the one that gives it the agreed
    weights; not where its optimizer has some already, such as those of its checkpoint. Refused with a sharded
    model."""
    host: str = ""
    """This machine's address, as other members reach it; by default that by which it reaches the
    coordinator."""

    def __post_init__(self) -> None:
        require_long_enough(self.key)
        sockets.address_of(self.coordinator)
        try:
            self.rules()
        except ValidationError as error:
            raise ValueError(problem_line(error)) from None
        if self.min_members > self.max_members:
            raise ValueError(f"min_members = {self.min_members} with max_members = {self.max_members}")
        if self.wait < self.silent_after / 2:  # it hears the coordinator a few times in `silent_after`
            raise ValueError(
                f"wait = {self.wait} with silent_after = {self.silent_after}: must be half or more"
            )

    def rules(self) -> Rules:
        """The coordinator's part; raises pydantic.ValidationError."""
        return Rules(**{name: getattr(self, name) for name in Rules.model_fields})


@dataclass
class Membership:
    """What became of a member, since its training began."""

    slot: int = 0
    """From 0 to `max_members` - 1: its number among those that are members at a time."""
    incarnation: int = 0
    """Another number whenever a member joins, such as for a seed of its examples; 0 before it joins."""
    round: int = 0
    """The last one in its agreed state."""
    members: int = 0
    """How many had an update in that."""
    rounds: int = 0
    """That it applied."""
    missed: int = 0
    """Of them, those without an update of its own."""
    restores: int = 0
    """Agreed states that it took from another member."""
    joins: int = 0
    """How often it was let in."""
    given: int = 0
    """How often another member took over what it had not sent."""
    taken_over: int = 0
    """How often it took over what another one had not sent."""
    dropped: int = 0
    """How often what it had not sent no longer counted, such as that of a checkpoint, sent since."""
    dropped_squares: float = 0.0
    """Sum of squares of that."""
    voided: int = 0
    """Rounds that it had applied and that were decided again: their updates are lost."""


def _joining(
    method: Callable[Concatenate["MemberRounds", P], T],
) -> Callable[Concatenate["MemberRounds", P], T]:
    """Lets an island's leader act in what all its processes call together; it is too late to load a state."""

    @wraps(method)
    def call(rounds: "MemberRounds", /, *arguments: P.args, **options: P.kwargs) -> T:
        rounds.has_joined = True
        return rounds.together(lambda: method(rounds, *arguments, **options))

    return call


class MemberRounds(FragmentRounds):
    """The rounds of a member.

    Of an island, each process has such an object, and all call the same methods together. The leader's is the
    member; the others have its membership alone, no weights and no connections.

    Attributes:
        membership: counts.
        has_joined: whether it is too late to load a state.
        place: of an island, this process's rank and the number of processes, as states have it.
    """

    fragments: list[MemberFragment]

    def __init__(
        self,
        members: Members,
        settings: Mapping[str, str],
        begin: Callable[[], tuple[Worker, Agreed]],
        names: Sequence[str],
        parts: Sequence[Sequence[int]],
        method: Method,
        fields: LocalFields,
        every: float,
        by_examples: bool,
        parameters: Sequence[Tensor],
        frozen: Sequence[Tensor],
        model: nn.Module | None,
        optimizers: Sequence[Optimizer],
        island: Island | None = None,
    ) -> None:
        """Prepares a member; `settings` has what all must have in common, as fields and values.

        Those about tensors are compared as a digest. `begin` makes what the rounds of a whole model begin
        with. For the others see `LocalRounds`. `by_examples`: whether `every` counts examples, and members
        weigh by theirs. `frozen` has the parameters that are not exchanged. Of an island, both kinds of
        parameters are stand-ins.
        """
        super().__init__(Agreed([], {}, []), every, model, members.max_members)
        self._island, self.membership, self.has_joined = island, Membership(), False
        self.place = None if island is None else [island.rank, island.size]
        self.fragments = []
        unit = every if by_examples else None

        def make() -> None:
            worker, self.agreed = begin()
            for ordinals in parts:
                self.fragments.append(
                    MemberFragment(method, worker, names, ordinals, self.agreed, parameters, fields, unit)
                )

        self.together(make)
        self._members, self._frozen, self._optimizers = members, frozen, optimizers
        self._unit, self._sums = unit, method.reduction == "sum"
        self._step = Step()
        tensors = {name: value for name, value in settings.items() if " " in name}
        digest = _digest(json.dumps(list(tensors.items())))
        plain = {name: value for name, value in settings.items() if name not in tensors}
        if members.moments:
            kinds = [
                (type(one).__name__, *(len(g["params"]) for g in one.param_groups)) for one in optimizers
            ]
            plain |= {"moments": f"of optimizers and their numbers of parameters {kinds}"}
        elements = sum(weights.numel() for weights in self.agreed.weights)
        plain |= {"model": f"{len(tensors)} tensors, {elements} trained elements, digest {digest}"}
        self._hello = Hello(process=secrets.token_hex(8), rules=members.rules(), settings=_short(plain))
        self._session: Session | None = None
        self._offer: tuple[MemberFragment, Payload, ExchangeRecord, float] | None = None
        """What was handed in: its fragment, its message, and of how many examples it is."""
        self._delay, self._merge_at = fields.delay_steps, 0
        self._away: MemberFragment | None = None
        """The fragment that was handed in, while the model trains on."""
        self._taken_over: Tensor | float = 0.0
        """What it took over from members that left, since the last offer."""
        self._has_ended = False

    # Joining and leaving.

    @property
    def _connected(self) -> Session:
        if self._session is None:
            reason = "has left: make a new LocalSteps" if self._has_ended else "has not joined"
            raise MemberRefused(f"this member {reason}")
        return self._session

    def together(self, action: Callable[[], T]) -> T:
        """Acts; of an island, the leader does, and all its processes have the result and the membership."""
        if self._island is None or self._island.leads:
            return action()
        result, membership = self._island.call(lambda: (action(), asdict(self.membership)))
        self.membership = Membership(**membership)
        return result

    @_joining
    def join(self) -> None:
        """Waits until it is a member, and continues from the agreed weights."""
        if self._session is not None and self._trains:
            return
        if self._session is None and not self._has_ended:
            members = self._members
            self._session = Session(
                members.coordinator, members.key, self._hello, host=members.host or self._own_address(),
                most_bytes=2 * most_bytes_of([*self.agreed.weights, *self.agreed.buffers.values()]),
                wait_s=members.wait,
            )  # fmt: skip
            finalize(self, self._session.close)
        self._follow(lambda side: side.is_active and not side.waits)
        for fragment in self.fragments:
            fragment.sent_at = self.progress
            fragment.begin_anew(self.steps)
        self._continue()

    def _own_address(self) -> str:
        """This machine's address by which it reaches the coordinator, waited for: a network may come up."""
        host, began = sockets.address_of(self._members.coordinator)[0], monotonic()
        logs_at, problem = began + QUIET_S, f"no address for {host}, the coordinator's host, or no way to it"
        while (address := source_address(host)) is None:
            if monotonic() > began + self._members.wait:
                raise MemberRefused(problem)
            if monotonic() > logs_at:
                logs_at = inf
                log.warning("%s: waiting for one", problem)
            sleep(_POLL_S)
            self._pulse()
        return address

    def _pulse(self) -> None:
        """Called some times a second while the member waits."""
        if self._island is not None:
            self._island.pulse()

    @_joining
    def lease(self) -> int:
        """Waits for the number of a shard, from 0, that no other member has or has learned from."""
        self.join()
        session = self._connected
        if len(self.fragments) > 1 or self._delay:
            raise ValueError("lease() with fragments or a delay: what a shard teaches must be in one offer")
        session.call(session.member.lease)
        self._follow(lambda side: not side.asks_shard and (self._trains or side.is_active))
        if not self._trains:
            self._continue()
        return session.member.shard

    @_joining
    def leave(self) -> bool:
        """Gives what it has not sent to another member, and leaves; returns whether that one has it.

        What was not given stays in the state.
        """
        session, until = self._connected, monotonic() + self._members.leave_within
        session.member.trains = False
        self._follow(lambda side: not side.waits or monotonic() > until)
        if self._away is not None:
            self._continue()
        fragments, examples = self.fragments, 0.0
        rest = torch.cat([tensor for fragment in fragments for tensor in fragment.pattern.unsent()])
        if session.member.shards:  # others learn from these, all of them
            rest = rest + self._taken_over
        else:
            rest = rest + torch.cat([fragment.unsent() for fragment in fragments])
            examples = max(fragment.unsent_examples for fragment in fragments)
        given, pending = rest.bfloat16(), torch.cat([fragment.pending for fragment in fragments])
        taken_over = self.membership.taken_over
        if torch.isfinite(given).all():
            session.call(session.member.give, joined(to_bytes([given]), _numbers(examples)))
            self._follow(
                lambda side: (
                    ((side.is_given or not side.heirs) and not side.may_inherit) or monotonic() > until
                )
            )
        is_given = session.member.is_given
        if is_given:
            self.membership.given += 1
            if self.membership.taken_over > taken_over:  # too late to give it on
                self._lose(float((torch.cat([f.pending for f in fragments]) - pending).square().sum()))
            for fragment in fragments:
                fragment.forget()
            self._keep(rest - given, 0.0)  # what 16 bits cannot say
            self._continue()
        self._end()
        return is_given

    def _end(self) -> None:
        self._hello, session = self._identity(), self._connected
        session.call(session.member.finish)
        session.close()
        self._session, self._has_ended = None, True

    @property
    def is_first(self) -> bool:
        """Whether its slot is the lowest of the active ones; of an island, in the leader."""
        if self._session is None:
            return False
        with self._session.lock:
            return self._session.member.is_lowest

    # Steps.

    @_joining
    def advance(self, step: Step, amount: float, examples: float | None) -> bool:
        """Called after each step of the optimizer: see `LocalRounds.advance`. Raises MemberRefused."""
        self._step = step
        self._count(amount, examples)
        if self._session is None:
            self.join()
            return True
        is_due = self.progress - self.fragments[0].sent_at >= self.every / len(self.fragments)
        merges = self._away is not None and (is_due or self.steps >= self._merge_at)
        self._follow(lambda side: side.is_active or (self._trains and not (is_due or merges)))
        merges |= not self._trains
        if merges:
            self._merge()
        if is_due:
            self._hand_in(min(self._order, key=lambda fragment: fragment.sent_step))
            if self._delay:
                self._away, self._merge_at = self._offer and self._offer[0], self.steps + self._delay
                self._connected.member.trains = True
            else:
                self._merge()
        return merges or (is_due and not self._delay)

    def _merge(self, wait_s: float = inf) -> None:
        """Waits until what was handed in is in a round, and lets the model continue."""
        session, began = self._connected, monotonic()
        session.member.trains = False
        self._follow(lambda side: side.is_active and not side.waits, wait_s)
        self._step.exchange_s += monotonic() - began
        self._step.blocked_s += monotonic() - began
        self._continue()

    @_joining
    def finish(self, step: Step) -> None:
        """Hands in what has moved since, loads the agreed weights, and leaves.

        Raises MemberRefused where no round takes that for `wait` seconds: `leave` still works then.
        """
        self._step, wait = step, self._members.wait
        if self._away is not None:
            self._merge(wait)
        self._connected.member.trains = False
        while True:  # what it takes over, or gets back when it joins again, is handed in, too
            self._follow(lambda side: side.is_active and side.is_latest and not side.waits, wait)
            self._follow(lambda side: not side.holds_residual, wait)
            unsent = [one for one in self._order if self.steps > one.sent_step or one.pending.any()]
            if not unsent:
                break
            self._hand_in(unsent[0])
        self._continue()
        self._end()

    @property
    def _trains(self) -> bool:
        """Whether the model may be trained: it has continued from the agreed weights, or will later."""
        return all(fragment.trains or fragment is self._away for fragment in self.fragments)

    @property
    def _order(self) -> list[MemberFragment]:
        """The fragments, from that of the next round."""
        view = self._connected.member.view
        first = (0 if view is None else view.last) % len(self.fragments)
        return self.fragments[first:] + self.fragments[:first]

    def _follow(self, until: Callable[[member.Member], bool], wait_s: float = inf) -> None:
        """Does what is to be done, and waits; raises MemberRefused where no wait helps."""
        session, deadline = self._connected, monotonic() + wait_s
        while True:
            while (step := session.next()) is not None:
                self._do(step)
            with session.lock:
                if until(session.member):
                    return
                if monotonic() > deadline:
                    raise MemberRefused(f"has waited for {wait_s:g} s: {session.member.waits_for}")
            session.wait(_POLL_S)
            self._pulse()

    def _do(self, step: member.Step) -> None:
        session, membership = self._connected, self.membership
        match step:
            case member.Join():
                self._enter(step)
            case member.Withdrawn():
                assert self._offer is not None
                fragment, message, _, examples = self._offer
                fragment.keep(fragment.pattern.assemble({0: message}), examples)
                self._offer = None
                if not step.counts:
                    self._drop()
            case member.Begin():
                log.info("the weights of this member are the first of all")
            case member.Apply() | member.Restore():
                try:
                    self._apply(step) if isinstance(step, member.Apply) else self._restore(step)
                except BaseException:
                    session.member.applied = None  # what is agreed may be changed in part
                    raise
            case member.TakeSnapshot():
                moments = moments_of(self._optimizers) if self._members.moments else np.empty(0, np.uint8)
                session.call(session.member.provide, joined(moments, to_bytes(self._state)))
            case member.TakeOver():
                membership.taken_over += 1
                data, numbers = split(step.data, "a member that leaves")
                residual = torch.cat([fragment.zeros() for fragment in self.fragments]).bfloat16()
                copy_bytes(data, [residual])
                self._keep(residual.float(), _read_numbers(numbers, 1, "a member that leaves")[0])
                self._taken_over = self._taken_over + residual.float()

    @property
    def _state(self) -> list[Tensor]:
        """What members have in common, and give to each other."""
        agreed, frozen = self.agreed, map(local_tensor, self._frozen)
        return [*agreed.weights, *agreed.momentum, *frozen, *agreed.buffers.values()]

    def _restore(self, step: member.Restore) -> None:
        self.membership.restores += 1
        moments, tensors = split(step.data, "the member that gave its state")
        moves = [one.pseudo_gradient() if one.trains else None for one in self.fragments]
        copy_bytes(tensors, self._state)
        for one, moved in zip(self.fragments, moves, strict=True):
            one.move_again(moved)
        if moments.size and not has_moments(self._optimizers):
            load_moments(moments, self._optimizers)
        if step.included:
            self._offer = None
        self._note(step.state)

    def _enter(self, step: member.Join) -> None:
        """Begins a membership: what is not sent is kept for the next offer, or counted as lost."""
        self.membership.joins += 1
        self.membership.slot, self.membership.incarnation = step.slot, step.incarnation
        if step.void_from is not None:
            self.membership.voided += 1
            log.warning("rounds from %d on, which this member had applied, are void", step.void_from)
        for fragment in self.fragments:
            fragment.set_aside()
        if not step.residual_counts:
            self._drop()

    def _keep(self, update: Tensor, examples: float) -> None:
        """Adds what is of the whole model to the next offers."""
        sizes = [fragment.pending.numel() for fragment in self.fragments]
        for fragment, part in zip(self.fragments, torch.split(update, sizes), strict=True):
            fragment.keep(part, examples)

    def _drop(self) -> None:
        """Forgets what is not sent, which counts as lost."""
        self._taken_over = 0.0
        if squares := sum(fragment.forget() for fragment in self.fragments):
            self._lose(squares)

    def _lose(self, squares: float) -> None:
        self.membership.dropped += 1
        self.membership.dropped_squares += squares
        log.warning("what this member had not sent no longer counts, and is lost")

    def _apply(self, step: member.Apply) -> None:
        offers, buffers, total, received = dict[int, dict[int, Payload]](), list[Payload](), 0.0, 0
        for slot, offer in step.offers.items():
            sender = f"the member of slot {slot}"
            message, rest = split(offer, sender)
            numbers, sent = split(rest, sender)
            examples, number = _read_numbers(numbers, len(self.fragments), sender)
            offers.setdefault(number, {})[slot] = message
            buffers += [sent] if sent.size else []
            total, received = total + examples, received + message.size
        for number, messages in offers.items():
            whole: float = len(step.offers)
            if self._unit is not None:
                least = whole * self.fragments[number].least_examples
                whole = (max(total, least) or 1.0) / self._unit
            self.fragments[number].merge(messages, 1.0 if self._sums else len(messages) / whole)
        if buffers:
            copy_bytes(buffers[0], list(self.agreed.buffers.values()))
        if step.included and self._offer is not None:
            fragment, message, record, _ = self._offer
            record.traffic.sums.received_bytes += received - message.size
            fragment.averaging.finish(torch.empty(0), record, self._step, self.traffic)
            self._offer = None
        else:
            self.membership.missed += 1
            self.traffic.sums.received_bytes += received
            self._step.received_bytes += received
        self.membership.rounds += 1
        self.membership.members = len(step.offers)
        self._note(step.state)
        if step.state.round % _DIGEST_EVERY == 0:
            digest = f"{zlib.crc32(to_bytes(self.agreed.weights).data):08x}"
            self._connected.call(self._connected.member.confirm, digest)

    def _note(self, state: StateId) -> None:
        self.membership.round = state.round
        for later, fragment in enumerate(reversed(self.fragments)):
            fragment.averaging.done = (state.round + later) // len(self.fragments)

    def _hand_in(self, fragment: MemberFragment) -> None:
        """Offers a fragment; raises ValueError where a buffer has another shape than at first."""
        now = buffer_fields({} if self._model is None else buffers_of(self._model))
        first = buffer_fields(self.agreed.buffers)
        if changed := sorted(name for name, _ in now.items() ^ first.items()):
            raise ValueError(
                f"{changed[0]} is {now.get(changed[0])} now, and was {first.get(changed[0])}: the buffers of "
                "members keep their shapes; buffers=False leaves them out"
            )
        session, record = self._connected, ExchangeRecord(Traffic(self._members.max_members))
        self._taken_over = 0.0
        if self._members.moments and not session.member.offered:
            moments_of(self._optimizers)  # what cannot be sent is told now, not when somebody needs it
        number = self.fragments.index(fragment)
        with session.lock:
            slots, is_lowest = session.member.slots, session.member.is_lowest
        message, examples = fragment.offer(slots[0], record)
        record.traffic.count_sent(message.size, slots[1:])
        buffers = np.empty(0, np.uint8)
        if self._model is not None and is_lowest and not number:
            buffers = to_bytes(buffers_of(self._model).values())
        self._offer = fragment, message, record, examples
        for one in self.fragments:
            one.sent_at = self.progress
        fragment.begin_anew(self.steps)
        session.call(session.member.hand_in, joined(message, joined(_numbers(examples, number), buffers)))

    def _continue(self) -> None:
        """Lets the model continue from the agreed weights; it trains from now on.

        An interval that was begun ends when it would have, also where the member has joined again since: so
        what is learned from one shard is in one offer.
        """
        away, self._away = self._away, None
        if self._model is not None and not self.fragments[0].trains:
            load_buffers(self._model, self.agreed.buffers)
        for fragment in self.fragments:
            if not fragment.trains:
                fragment.workers, fragment.trains = max(1, self.membership.members), True
                fragment.load_base(late=fragment is away)
        self._connected.member.trains = True

    def load_agreed(self, model: nn.Module) -> None:
        self.together(lambda: super(MemberRounds, self).load_agreed(model))

    # States. Of an island, the leader's has the member's, and that of each process its shards of the model.
    # Each process loads by itself. After a crash, one may have the state of an earlier step, or none: no
    # harm, since all take the agreed weights when the island joins.

    def worker_state(self) -> dict[str, Any]:
        """What only this member has; to be saved between two steps. What is on its way is merged first."""
        state: dict[str, Any] = {"progress": self.progress, "fragments": []}
        self.together(lambda: state.update(self._merged_state()))
        return {
            **state,
            "membership": asdict(self.membership),
            "hello": self._identity().model_dump(include=set(IDENTITY)),
            "island": self.place,
        }

    def _merged_state(self) -> dict[str, Any]:
        trains = self._trains
        if self._session is not None:
            self._follow(lambda side: True)  # it may be another incarnation now
        if self._away is not None or (trains and not self._trains):
            try:
                self._merge()
            except MemberRefused:
                away = self._away
                self._continue()  # what is on its way is part of the state
                self._away = away
        state = super().worker_state()
        if self._offer is not None:  # a member that comes with this state offers it again
            fragment, message, _, examples = self._offer
            part = state["fragments"][self.fragments.index(fragment)]
            part["pending"] = part["pending"] + fragment.pattern.assemble({0: message})
            part["examples"] += examples
        return state

    def _identity(self) -> Hello:
        """What it says to become a member again; an offer under way is its own again then."""
        if self._session is None:
            return self._hello
        with self._session.lock:
            hello = self._session.member.hello
        return hello if self._offer is None else hello.model_copy(update={"offered": hello.offered - 1})

    def load_worker_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `worker_state` returned, before it joins; raises ValueError."""
        super().load_worker_state(state)
        self.membership = Membership(**state["membership"])
        saved, identity = state["hello"]["state"], dict(state["hello"])
        identity["state"] = None if saved is None else StateId(**saved)
        self._hello = self._hello.model_copy(update=identity)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _short(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings as a message may have them: of a longer value, its beginning and a digest."""
    return {
        name: value if len(value) <= _MOST_VALUE else f"{value[:80]}... of digest {_digest(value)}"
        for name, value in settings.items()
    }


def _numbers(examples: float, fragment: int = 0) -> Payload:
    return np.array([(examples, fragment)], _NUMBERS).view(np.uint8)


def _read_numbers(data: Payload, fragments: int, sender: str) -> tuple[float, int]:
    """The number of examples of an offer, and its fragment."""
    examples, fragment = data.view(_NUMBERS)[0] if data.size == _NUMBERS.itemsize else (-1.0, 0)
    if not (0 <= examples < float("inf") and 0 <= fragment < fragments):
        raise CorruptMessage(f"{sender} sent an offer of {examples} examples and of fragment {fragment}")
    return float(examples), int(fragment)
