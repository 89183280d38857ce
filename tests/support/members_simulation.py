"""Members, their coordinator, a network with faults and a clock: the same run for the same schedule.

The training is arithmetic on whole numbers, so that what is learned, sent, kept and lost adds up exactly.
"""

import zlib
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

import numpy as np

from taugrad.compressors import MemberRefused
from taugrad.compressors.exchange.members import decisions, member
from taugrad.compressors.exchange.members.decisions import Coordinator, Table
from taugrad.compressors.exchange.members.member import COORDINATOR, Member
from taugrad.compressors.exchange.members.messages import (
    Hello,
    Key,
    Rules,
    StateId,
    from_bytes,
    to_bytes,
)

RULES = Rules(silent_after=4.0, round_within=8.0)
TICK_S = 0.2
QUANTUM = 4
"""An offer has whole multiples of it; what is left is the residual."""


@dataclass
class Ledger:
    """A process's training. All numbers add up: see `check`."""

    agreed: int = 0
    chain: int = 0
    residual: int = 0
    pending: int = 0
    offered: int = 0
    learned: int = 0
    restored: int = 0
    taken_over: int = 0
    given: int = 0
    applied: int = 0
    lost: int = 0
    key: Key | None = None
    """Of what is offered."""
    accepted: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """By offer, the round that has it, and how much is in the agreed state."""
    shards: set[int] = field(default_factory=set)
    """From which it has learned what it keeps."""

    def check(self) -> None:
        came = self.learned + self.restored + self.taken_over
        assert came == self.applied + self.kept + self.lost + self.given

    @property
    def kept(self) -> int:
        return self.residual + self.pending + self.offered

    def drop(self) -> None:
        """What it has not sent is lost."""
        self.lost += self.residual + self.pending
        self.residual = self.pending = 0
        self.shards.clear()

    def withdraw(self) -> None:
        self.residual, self.offered = self.residual + self.offered, 0

    def offer(self) -> np.ndarray:
        whole = self.residual + self.pending
        self.residual, self.pending, self.offered = whole % QUANTUM, 0, whole - whole % QUANTUM
        return np.array([self.offered], np.int64).view(np.uint8)

    def accept(self, number: int) -> None:
        self.accepted[self.key] = number, self.offered
        self.applied, self.offered = self.applied + self.offered, 0
        self.shards.clear()

    def void(self, number: int) -> None:
        for key in [key for key, (accepted, _) in self.accepted.items() if accepted >= number]:
            _, amount = self.accepted.pop(key)
            self.applied, self.lost = self.applied - amount, self.lost + amount

    def state(self, moments: int) -> np.ndarray:
        """The agreed state, and six of what no other member has."""
        return np.array([self.agreed, self.chain, *[moments] * 6], np.int64).view(np.uint8)


@dataclass
class Checkpoint:
    hello: Hello
    kept: int
    agreed: tuple[int, int]


class Process:
    """A worker's process: a member and its training."""

    def __init__(
        self, world: "World", name: str, step_s: float, checkpoint: Checkpoint | None = None
    ) -> None:
        self.world, self.name, self.step_s = world, name, step_s
        self.alive, self.suspended_until, self.leaving_at = True, 0.0, float("inf")
        self.gave = False
        self.ledger, self.checkpoint = Ledger(agreed=world.random.randrange(1000)), checkpoint
        hello = Hello(process=name, rules=world.rules)
        if checkpoint is not None:
            self.ledger.agreed, self.ledger.chain = checkpoint.agreed
            hello = checkpoint.hello.model_copy(update={"process": name})
        self.incarnations: set[int] = set()
        self.member = Member(hello, world.now, retry_s=0.5, wait_s=300.0, chunk_bytes=10)
        self.trained_at = world.now + step_s
        self.joins = self.restores = 0

    @property
    def runs(self) -> bool:
        return self.alive and self.suspended_until <= self.world.now

    @property
    def has_state(self) -> bool:
        """Its own, or one from its checkpoint; one that is not void."""
        state = self.member.applied
        return state is not None and not self.world.coordinator.table.is_void(state)

    @property
    def is_active(self) -> bool:
        return self.runs and self.member.is_active

    def receive(self, sender: int, data: np.ndarray) -> None:
        message = from_bytes(data, f"{sender}")
        self.world.send_all(self, self.member.receive(sender, message, self.world.now))

    def tick(self) -> None:
        self.go_on()
        if self.alive:
            self.world.send_all(self, self.member.tick(self.world.now))

    def go_on(self) -> None:
        world, ledger = self.world, self.ledger
        while self.alive and (step := self.member.next()) is not None:
            self.do(step)
            ledger.check()
        if not self.alive:
            return
        for shard in self.member.shards - ledger.shards if self.checkpoint is None else ():
            amount = world.random.randrange(1, 50)
            ledger.learned, ledger.pending = ledger.learned + amount, ledger.pending + amount
            ledger.shards.add(shard)
        self.member.require_progress(world.now)
        if self.member.applied is None or self.member.incarnation == 0 or self.member.waits:
            return
        if world.now >= self.leaving_at:
            self.leave()
        elif world.now >= self.trained_at and self.is_active and ledger.shards:
            self.hand_in()
            self.trained_at = world.now + self.step_s
        elif world.now >= self.trained_at - self.step_s / 2 and not (ledger.shards or self.member.asks_shard):
            self.member.lease()
        elif world.trains and self.is_active:
            self.member.trains = True

    def hand_in(self) -> None:
        ledger, key = self.ledger, (self.member.incarnation, self.member.offered + 1)
        assert self.member.shards == ledger.shards
        self.member.hand_in(ledger.offer())
        assert key not in self.world.offers
        ledger.key, self.world.offers[key] = key, (ledger.offered, set(ledger.shards))

    def leave(self) -> None:
        """Hands in, gives away the residual, and ends; or ends when its time is over."""
        world = self.world
        if not self.gave:
            self.gave = True
            self.ledger.lost, self.ledger.pending = self.ledger.lost + self.ledger.pending, 0
            residual = np.array([self.ledger.residual], np.int64).view(np.uint8)
            self.member.give(residual)
        elif world.now > self.leaving_at + 10 or self.member.is_given:
            if self.member.is_given:
                self.ledger.given, self.ledger.residual = self.ledger.residual, 0
            self.member.finish()
            world.send_all(self, self.member.tick(world.now))
            world.kill(self)

    def do(self, step: member.Step) -> None:  # noqa: PLR0912
        ledger, world = self.ledger, self.world
        match step:
            case member.Join():
                self.joins += 1
                self.incarnations.add(self.member.incarnation)
                if step.void_from is not None:
                    ledger.void(step.void_from)
                if self.checkpoint is not None:
                    assert self.joins == 1
                    saved, self.checkpoint = self.checkpoint, None
                    if step.residual_counts:
                        ledger.restored = ledger.residual = saved.kept
                        ledger.shards = set(saved.hello.shards)
                        world.restored.append((saved.hello.previous, saved.hello.offered))
                elif not step.residual_counts:
                    ledger.drop()
            case member.Withdrawn():
                ledger.withdraw()
                if not step.counts:
                    ledger.drop()
            case member.Begin():
                world.note_state(step.state, ledger)
            case member.Apply():
                for slot, payload in step.offers.items():
                    ledger.agreed += int(payload.view(np.int64)[0])
                    ledger.chain = zlib.crc32(bytes([slot]) + payload.tobytes(), ledger.chain)
                if step.included:
                    ledger.accept(step.state.round)
                world.note_state(step.state, ledger)
                self.member.confirm(f"{ledger.agreed} {ledger.chain}")
            case member.Restore():
                self.restores += 1
                ledger.agreed, ledger.chain, *moments = map(int, step.data.view(np.int64))
                assert len(set(moments)) == 1, "a state of chunks of several members"
                if step.included:
                    ledger.accept(world.round_of(ledger.key, step.state.round))
                world.note_state(step.state, ledger)
            case member.TakeSnapshot():
                self.member.provide(ledger.state(world.random.randrange(1 << 40)))
            case member.TakeOver():
                amount = int(step.data.view(np.int64)[0])
                ledger.taken_over, ledger.residual = ledger.taken_over + amount, ledger.residual + amount

    def save(self) -> Checkpoint | None:
        """Between two steps, as in a training; None where there is nothing to save."""
        side, ledger = self.member, self.ledger
        if side.applied is None or not side.incarnation or self.checkpoint is not None or side.waits:
            return None
        return Checkpoint(side.hello, ledger.kept, (ledger.agreed, ledger.chain))


class World:
    """Everything; call `run` and then `settle`."""

    def __init__(self, seed: int, rules: Rules = RULES) -> None:
        self.random, self.rules = Random(seed), rules
        self.now, self._events, self._count = 0.0, list[tuple[float, int, Callable[[], None]]](), 0
        self.processes: dict[str, Process] = {}
        self.loss = self.doubling = self.lateness = 0.0
        self.cuts: set[frozenset[str]] = set()
        self.kills_at: dict[int, float] = {}
        """By the number of a message between members: its sender is killed, and comes back after seconds."""
        self._messages = 0
        self.trains = True
        self.disk = Table(run="r").model_dump_json()
        self.disk_full = False
        self.coordinator: Coordinator | None = None
        self.states: dict[tuple[int, int], tuple[int, int]] = {}
        self.decided: dict[int, decisions.Decision] = {}
        self.offers: dict[Key, tuple[int, set[int]]] = {}
        """What is offered, and the shards from which it was learned."""
        self.checkpoints: dict[str, Checkpoint] = {}
        self.restored: list[tuple[int, int]] = []
        self.deadlines_passed: list[str] = []
        self._names = 0
        self.start_coordinator()

    # Events.

    def at(self, delay: float, call: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._events, (self.now + delay, self._count, call))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, call = heappop(self._events)
            call()
            if until():
                return True
        self.now = end
        return until()

    # The coordinator.

    def start_coordinator(self, *, accept_older: bool = False) -> None:
        table = Table.model_validate_json(self.disk)
        self.coordinator = Coordinator(table, f"{self._count}", self.now, accept_older=accept_older)
        self._tick(self.coordinator)

    def stop_coordinator(self) -> None:
        self.coordinator = None

    def _tick(self, coordinator: Coordinator) -> None:
        if coordinator is self.coordinator:
            coordinator.tick(self.now)
            self.spread()
            self.at(TICK_S, lambda: self._tick(coordinator))

    def spread(self) -> None:
        """Writes the table, then sends; while the disk is full, nothing is sent."""
        coordinator = self.coordinator
        self._check_decisions(coordinator.table)
        if self.disk_full:
            return
        self.disk = coordinator.table.model_dump_json()
        messages, coordinator.messages = coordinator.messages, []
        for process, message in messages:
            self.transmit("coordinator", process, COORDINATOR, to_bytes(message))

    def _check_decisions(self, table: Table) -> None:
        for number in [number for number in self.decided if number > table.last]:
            del self.decided[number]
        for number, decision in table.decisions.items():
            if self.decided.get(number) != decision:
                present = {i for i, _ in decision.offers.values()}
                assert present <= table.members.keys(), "an offer of one that has left"
                assert all(not table.members[i].joining for i in present)
            self.decided[number] = decision
        for process in self.processes.values():
            applied = process.member.applied
            if process.alive and process.member.incarnation in table.members and applied is not None:
                assert not any(recall.voids(applied) for recall in table.recalls), (
                    "a final decision was changed"
                )

    # The network.

    def send_all(self, process: Process, sends: member.Sends) -> None:
        for to, message in sends:
            if not process.alive:
                return
            if to != COORDINATOR:
                self._messages += 1
                if self._messages in self.kills_at:
                    self.kill(process, self.kills_at[self._messages])
                    return
            data = to_bytes(message)
            if to == COORDINATOR:
                self.transmit(process.name, "coordinator", COORDINATOR, data)
                continue
            for one in self.processes.values():
                if to in (one.member.incarnation, *one.incarnations):
                    self.transmit(process.name, one.name, process.member.incarnation, data)

    def round_of(self, key: Key, otherwise: int) -> int:
        """The round that has an offer."""
        rounds = [number for number, made in self.decided.items() if key in made.offers.values()]
        return rounds[0] if rounds else otherwise

    def transmit(self, source: str, to: str, sender: int, data: np.ndarray) -> None:
        if self.random.random() < self.loss or frozenset((source, to)) in self.cuts:
            return
        for _ in range(1 + (self.random.random() < self.doubling)):
            delay = self.random.uniform(0.005, 0.05)
            if self.random.random() < self.lateness:
                delay += self.random.uniform(0, 12)
            self.at(delay, lambda: self.deliver(source, to, sender, data))

    def deliver(self, source: str, to: str, sender: int, data: np.ndarray) -> None:
        if to == "coordinator":
            if self.coordinator is not None:
                message = from_bytes(data, source)
                self.coordinator.handle(source, message, self.now)
                self.spread()
            return
        process = self.processes[to]
        if process.alive and process.suspended_until > self.now:
            self.at(process.suspended_until - self.now, lambda: self.deliver(source, to, sender, data))
        elif process.alive:
            process.receive(sender, data)

    # Processes.

    def start(self, step_s: float, checkpoint: Checkpoint | None = None) -> Process:
        self._names += 1
        process = Process(self, f"p{self._names}", step_s, checkpoint)
        self.processes[process.name] = process
        self._tick_process(process)
        return process

    def _tick_process(self, process: Process) -> None:
        if not process.alive:
            return
        if process.runs:
            try:
                process.tick()
            except MemberRefused as problem:
                self.deadlines_passed.append(str(problem))
                self.kill(process)
        self.at(TICK_S, lambda: self._tick_process(process))

    def kill(self, process: Process, again_after: float | None = None) -> None:
        """Ends a process at once; perhaps it is started again from its last checkpoint."""
        process.alive = False
        coordinator, name = self.coordinator, process.name
        if coordinator is not None and self.random.random() < 0.5:  # else it is silent

            def close() -> None:
                if coordinator is self.coordinator:
                    coordinator.close(name, self.now)
                    self.spread()

            self.at(0.1, close)
        if again_after is not None:
            saved = self.checkpoints.get(name)
            self.at(again_after, lambda: self.start(process.step_s, deepcopy(saved)))

    def save(self, process: Process) -> None:
        if process.alive and (checkpoint := process.save()) is not None:
            self.checkpoints[process.name] = checkpoint

    @property
    def living(self) -> list[Process]:
        return [process for process in self.processes.values() if process.alive]

    # Invariants.

    def note_state(self, state: StateId, ledger: Ledger) -> None:
        """Members with the same round and ballot have the same bits."""
        bits = ledger.agreed, ledger.chain
        assert self.states.setdefault((state.round, state.ballot), bits) == bits, (state, bits)

    def heal(self) -> None:
        self.loss = self.doubling = self.lateness = 0.0
        self.cuts.clear()
        self.kills_at.clear()
        self.disk_full = False
        for process in self.living:
            process.suspended_until = 0.0

    def settle(self) -> None:
        """After the last fault, all are in, rounds go on, and everything adds up."""
        self.heal()

        def all_in() -> bool:
            return all(process.is_active for process in self.living)

        assert self.run(120, all_in), [(p.name, p.member.waits_for) for p in self.living if not p.is_active]
        last = self.coordinator.table.last
        assert self.run(120, lambda: self.coordinator.table.last >= last + 4), self.coordinator.waiting
        self.trains = False
        for process in self.living:
            process.trained_at = float("inf")  # nobody trains: all come to the same round
            process.member.trains = False
        self.run(40)
        self.check()

    def check(self) -> None:
        table = self.coordinator.table
        assert not self.deadlines_passed
        totals: dict[int, int] = {}
        taken = [key for decision in self.decided.values() for key in decision.offers.values()]
        assert len(taken) == len(set(taken)), "an offer is in two rounds"
        for key in taken:
            totals[key[0]] = totals.get(key[0], 0) + self.offers[key][0]
        bits = {(p.ledger.agreed, p.ledger.chain) for p in self.living}
        assert len(bits) <= 1, bits
        for process in self.processes.values():
            ledger = process.ledger
            ledger.check()
            included = sum(totals.get(incarnation, 0) for incarnation in process.incarnations)
            came = ledger.learned + ledger.restored + ledger.taken_over
            if process.alive:
                assert process.member.applied.round == table.last
                assert not process.member.waits
                assert ledger.applied == included, (process.name, ledger, included)
            else:
                assert came - ledger.given - included >= 0, (process.name, ledger, included)
        self.check_shards(taken)
        for incarnation, offered in self.restored:  # what was restored was not sent after it was saved
            assert not any(i == incarnation and number > offered for i, number in taken)
        first = next((p.ledger.agreed for p in self.living), None)
        if first is not None:
            start = self.start_of_agreed()
            assert first == start + sum(totals.values())

    def check_shards(self, taken: list[Key]) -> None:
        """Each shard is in one round, returned, or with a member that is there."""
        table = self.coordinator.table
        agreed = [shard for key in taken for shard in self.offers[key][1]]
        held = [shard for shard, lease in table.leases.items() if not lease.round]
        assert sorted([*agreed, *held]) == list(range(table.shards)), (agreed, table)
        assert all(table.is_returned(i) or table.leases[i].incarnation in table.members for i in held)

    def start_of_agreed(self) -> int:
        """The weights of the member with which the run began."""
        ballots = [(ballot, bits[0]) for (number, ballot), bits in self.states.items() if number == 0]
        ballot = next((recall.ballot for recall in self.coordinator.table.recalls if recall.round == 0), 0)
        return next(agreed for other, agreed in ballots if other == ballot)
