"""Members that come and go: simulated ones, with faults at any message."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from members_simulation import RULES, Process, World

from taugrad.compressors import CorruptMessage, MemberRefused
from taugrad.compressors.exchange.members.decisions import (
    KEEP,
    Coordinator,
    LeasedShard,
    Occupant,
    OldTable,
    Record,
    Table,
)
from taugrad.compressors.exchange.members.member import COORDINATOR, Begin, Join, Member, Withdrawn
from taugrad.compressors.exchange.members.messages import (
    Chunk,
    Decision,
    Hello,
    Peer,
    Recall,
    Rejection,
    Report,
    Rules,
    StateId,
    View,
    Want,
    from_bytes,
    to_bytes,
)


@st.composite
def schedules(draw):
    """Members, faults of the network, and what happens to whom, when."""
    kinds = ["kill", "kill", "restart", "restart", "suspend", "leave", "start", "coordinator", "disk", "cut"]
    event = st.tuples(st.floats(0, 60), st.sampled_from(kinds), st.integers(0, 5), st.floats(0.5, 20))
    return {
        "seed": draw(st.integers(0, 2**32)),
        "members": draw(st.integers(2, 6)),
        "events": draw(st.lists(event, max_size=12)),
        "kills_at": draw(st.dictionaries(st.integers(1, 600), st.floats(0.5, 15), max_size=5)),
        "faults": draw(st.tuples(*[st.sampled_from([0.0, 0.02, 0.2])] * 3)),
        "quorum": draw(st.sampled_from([0.3, 0.5, 1.0])),
    }


def run(schedule) -> World:
    rules = World(0).rules.model_copy(update={"quorum": schedule["quorum"]})
    world = World(schedule["seed"], rules)
    world.loss, world.doubling, world.lateness = schedule["faults"]
    world.kills_at = dict(schedule["kills_at"])
    for place in range(schedule["members"]):
        world.start(1.0 + 0.3 * place)

    def happen(kind: str, place: int, seconds: float) -> None:
        living = world.living
        process = living[place % len(living)] if living else None
        if kind == "coordinator":
            world.stop_coordinator()
            world.at(seconds, lambda: world.coordinator is None and world.start_coordinator())
        elif kind == "disk":
            world.disk_full = True
            world.at(seconds, lambda: setattr(world, "disk_full", False))
        elif kind == "start" and len(living) < 7:
            world.start(1.0 + 0.5 * place)
        elif process is None:
            return
        elif kind in ("kill", "restart"):
            world.kill(process, seconds if kind == "restart" else None)
        elif kind == "suspend":
            process.suspended_until = world.now + seconds
        elif kind == "leave":
            process.leaving_at = world.now
        elif kind == "cut":
            other = living[(place + 1) % len(living)].name
            world.cuts.add(frozenset((process.name, other)))
            world.at(seconds, lambda: world.cuts.discard(frozenset((process.name, other))))

    for when, kind, place, seconds in schedule["events"]:
        world.at(when, lambda k=kind, p=place, s=seconds: happen(k, p, s))
    for second in range(1, 80, 7):
        world.at(second, lambda: [world.save(process) for process in world.living])
    world.run(85)
    world.heal()
    if world.coordinator is None:
        world.start_coordinator()
    world.run(30)
    if not any(process.is_active for process in world.living):  # people decide what counts
        assert "all members are gone" in world.coordinator.waiting or not world.living
        world.stop_coordinator()
        world.start_coordinator(accept_older=True)
        saved = max(
            world.checkpoints.values(),
            key=lambda saved: (saved.hello.state.round, saved.hello.state.ballot),
            default=None,
        )
        world.start(1.0, saved)
    return world


def settle(world: World) -> None:
    """Checks the end of a run; where nobody has a state, all say so within their deadline."""
    if world.coordinator.table.known and not any(process.has_state for process in world.living):
        assert world.run(800, lambda: not world.living)  # one more may be let in when others have given up
        assert all("waiting for one whose checkpoint has" in told for told in world.deadlines_passed)
    else:
        world.settle()


FOUND = {
    "a member alone is thought to be gone after its round was decided": {
        "seed": 54, "members": 2, "events": [(0.0, "kill", 0, 1.0)], "faults": (0.2, 0.2, 0.0), "quorum": 0.3,
    },
    "the first member leaves while another takes its state": {
        "seed": 0, "members": 2, "events": [(1.648, "disk", 0, 10.0), (1.0, "suspend", 0, 4.0)],
        "faults": (0.0, 0.0, 0.0), "quorum": 0.3,
    },
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND)
def test_schedules_that_once_failed(case):
    settle(run({"kills_at": {}, **FOUND[case]}))


@settings(max_examples=10)
@given(schedules())
def test_members_agree_whatever_happens(schedule):
    settle(run(schedule))


@pytest.mark.long
@settings(max_examples=100)
@given(schedules())
def test_members_agree_whatever_happens_a_hundred_times(schedule):
    settle(run(schedule))


def test_the_same_schedule_gives_the_same_bits():
    schedule = {"seed": 3, "members": 4, "kills_at": {70: 3.0}, "faults": (0.02, 0.02, 0.2), "quorum": 0.5}
    schedule["events"] = [(9.0, "restart", 1, 4.0), (20.0, "suspend", 0, 8.0), (30.0, "leave", 2, 1.0)]
    first, second = run(schedule), run(schedule)
    assert first.states == second.states
    assert first.disk == second.disk


def undisturbed(steps: list[float], seconds: float = 60) -> World:
    world = World(1)
    for step_s in steps:
        world.start(step_s)
    world.run(seconds)
    return world


@pytest.mark.parametrize(("seconds", "least"), [(40, 5), (200, 20)])
def test_a_slow_member_holds_up_nobody_and_takes_messages_only(seconds, least):
    learned = []
    for last in (1.0, 4.0):
        world = undisturbed([1.0, 1.0, 1.0, last], seconds)
        processes = list(world.processes.values())
        learned.append(sum(len(process.ledger.accepted) for process in processes[:3]))
        assert [process.restores for process in processes] == [0, 1, 1, 1]  # where each of them began
        assert len(processes[-1].ledger.accepted) > least
    assert learned[1] > 0.9 * learned[0]


@pytest.mark.parametrize("seed", range(16))
def test_a_new_member_asks_for_nothing_twice(seed):
    world = World(seed)
    for _ in range(2):
        world.start(0.2)
    world.run(10)
    new = world.start(0.2)
    new.member._retry_s = 1000.0
    assert world.run(2, lambda: new.is_active)
    world.settle()


def test_a_member_that_is_a_little_slower_is_in_all_rounds_again_after_it_was_late(monkeypatch):
    advance = Process.tick

    def tick(process: Process) -> None:
        taken = len(process.ledger.accepted)
        advance(process)
        if len(process.ledger.accepted) > taken:  # it trains from then on, not while it waits
            process.trained_at = process.world.now + process.step_s

    monkeypatch.setattr(Process, "tick", tick)
    world = undisturbed([6.0, 6.0, 6.0, 6.4], 100)
    slower = list(world.processes.values())[-1]
    slower.suspended_until = world.now + 3.9
    world.run(30)
    last = world.coordinator.table.last
    world.run(200)
    later = [made for made in world.decided.values() if made.round > last]
    assert len(later) > 20
    assert all(len(made.offers) == 4 for made in later)


def test_below_the_least_number_of_members_all_wait_and_say_so():
    world = World(1, RULES.model_copy(update={"min_members": 2}))
    first = world.start(1.0)
    world.run(30)
    assert world.coordinator.table.last == 0
    assert first.member.waits_for == "1 member, a round needs 2: waiting for more"
    world.start(1.0)
    world.run(30)
    assert world.coordinator.table.last > 5
    world.settle()


def test_a_notice_gives_the_residual_to_one_other():
    world = undisturbed([1.0, 1.1, 1.2])
    first, *others = world.processes.values()
    first.leaving_at = world.now
    world.run(20)
    assert not first.alive
    assert first.ledger.kept == 0
    assert sum(process.ledger.taken_over for process in others) == first.ledger.given
    assert world.coordinator.left[next(iter(first.incarnations))] == "it has finished"
    world.settle()


def test_members_that_leave_at_once_give_to_one_that_stays():
    world = undisturbed([1.0, 1.1, 1.2])
    leaving = list(world.processes.values())[:2]
    for process in leaving:
        process.leaving_at = world.now
    world.run(30)
    assert [process.ledger.kept for process in leaving] == [0, 0]
    given = sum(process.ledger.given for process in leaving)
    assert 0 < given == sum(process.ledger.taken_over for process in world.processes.values())
    world.settle()


def test_where_all_that_hold_an_offer_are_gone_its_round_is_decided_again():
    world = undisturbed([1.0, 1.0, 1.0], 20)
    one, two, third = world.processes.values()
    for other in (one, two):
        world.cuts.add(frozenset((other.name, third.name)))  # it gets no offer, and cannot ask for one
    last = world.coordinator.table.last
    assert world.run(60, lambda: world.coordinator.table.last > last + 1)  # what was on its way has arrived
    last = third.member.applied.round
    world.kill(one)
    world.kill(two)
    world.run(30)
    assert [recall.round for recall in world.coordinator.table.recalls][-1] == last + 1
    assert third.member.applied.round > last
    assert third.member.applied.ballot == world.coordinator.table.ballot
    world.settle()


def test_a_residual_that_was_sent_since_the_checkpoint_is_dropped():
    world = undisturbed([1.0, 1.0], 20.5)
    process = next(iter(world.processes.values()))
    world.save(process)
    world.run(10)  # its residual is in rounds since
    world.kill(process, 1.0)
    world.run(20)
    assert world.restored == []
    world.settle()


@pytest.mark.parametrize(("counts", "holder"), [(True, 4), (False, 0)])
def test_a_shard_of_a_recalled_round_stays_with_its_process_if_that_keeps_what_it_learned(counts, holder):
    member = Occupant(slot=0, process="a", endpoint="", residual_counts=counts, since=8)
    table = Table(
        run="r", last=9, members={4: member}, shards=8,
        decisions={9: Decision(round=9, ballot=0, offers={0: (1, 3)})},
        records={i: Record(process="a", line=1, taken=3) for i in (1, 4)},
        leases={
            6: LeasedShard(incarnation=1, offer=2, round=8), 7: LeasedShard(incarnation=1, offer=3, round=9)
        },
    )  # fmt: skip
    table.void_from(9)
    assert {shard: (lease.incarnation, lease.round) for shard, lease in table.leases.items()} == {
        6: (1, 8), 7: (holder, 0)
    }  # fmt: skip


def coordinator_of(table: Table) -> Coordinator:
    return Coordinator(table, "n", 0.0)


def table_of(count: int, **fields: object) -> Table:
    """With so many members."""
    members = {
        i: Occupant(slot=i - 1, process=f"{i}", endpoint="", residual_counts=False, since=3, joining=False)
        for i in range(1, count + 1)
    }
    records = {i: Record(process=f"{i}", line=i) for i in members}
    return Table(run="r", rules=RULES, incarnations=count, members=members, records=records, **fields)


def hello(name: str, **fields: object) -> Hello:
    return Hello(process=name, rules=RULES, **fields)


def report(incarnation: int, **fields: object) -> Report:
    return Report(**{"run": "r", "incarnation": incarnation, "epoch": 1, "version": 1, "number": 1} | fields)


def peer_of(incarnation: int, **fields: object) -> Peer:
    fields = {"slot": 0, "endpoint": "", "joining": False, "applied": 0, "taken": 0, "held": ()} | fields
    return Peer(incarnation=incarnation, **fields)


def view_of(*peers: Peer, **fields: object) -> View:
    return View(**{
        "run": "r", "epoch": 1, "nonce": "n", "version": 1, "incarnation": 1, "peers": peers, "last": 0,
        "ballot": 0, "decisions": (), "recalls": (),
    } | fields)  # fmt: skip


def answer(coordinator: Coordinator, name: str, message: Hello | Report) -> View | Rejection:
    coordinator.messages.clear()
    coordinator.handle(name, message, 0.0)
    return dict(coordinator.messages)[name]


def test_an_old_table_is_refused():
    coordinator = coordinator_of(Table(run="r", epoch=4))
    view = answer(coordinator, "a", hello("a"))
    with pytest.raises(OldTable, match="epoch 9 of this run, the table here is of 5"):
        coordinator.handle("a", report(view.incarnation, epoch=9), 0.0)
    coordinator = coordinator_of(Table(run="r", rules=RULES, epoch=4, last=7, known=7, beginner=1))
    rejection = answer(coordinator, "b", hello("b", run="r", state=StateId(round=8, ballot=0)))
    assert rejection.final
    assert rejection.reason == (
        "the member has the state of round 8, this coordinator's last round is 7: "
        "its file is an old one, or of another run"
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"run": "s"}, "this coordinator is of run r, the member of s"),
        ({"settings": {"every": "8"}}, "every = 8; the run's other members have 4"),
    ],
)
def test_a_member_of_another_run_or_with_other_settings_is_refused(fields, reason):
    coordinator = coordinator_of(Table(run="r"))
    answer(coordinator, "a", hello("a", settings={"every": "4"}))
    rejection = answer(coordinator, "b", hello("b", **{"settings": {"every": "4"}} | fields))
    assert (rejection.final, rejection.reason) == (True, reason)


def test_a_refused_checkpoint_changes_nothing():
    coordinator = coordinator_of(Table(run="r"))
    answer(coordinator, "a", hello("a"))
    before = coordinator.table.model_copy(deep=True)
    state = StateId(round=100, ballot=3)
    assert answer(coordinator, "b", hello("b", state=state, epoch=9, settings={"every": "8"})).final
    assert answer(coordinator, "b", hello("b", state=state, epoch=9, run="s")).final
    assert coordinator.table == before


@pytest.mark.parametrize(
    ("digests", "refused"), [("xyy", {"a"}), ("yxy", {"b"}), ("yyx", {"c"}), ("xy", {"b"}), ("yyyy", set())]
)
def test_the_member_is_refused_whose_bits_others_do_not_have(digests, refused):
    coordinator, state = coordinator_of(Table(run="r")), StateId(round=16, ballot=0)
    names = "abcd"[: len(digests)]
    joined = {name: answer(coordinator, name, hello(name, state=state)).incarnation for name in names}
    for number in (1, 2):
        for name, digest in zip(names, digests, strict=True):
            applied, epoch = StateId(round=16, ballot=0, digest=digest), coordinator.table.epoch
            told = report(joined[name], number=number, epoch=epoch, applied=applied, asks=True)
            coordinator.handle(name, told, 0.0)
    replies = coordinator.messages
    finals = {to for to, reply in replies if isinstance(reply, Rejection) and reply.final}
    assert finals == refused
    assert {member.process for member in coordinator.table.members.values()} == set(names) - refused


def test_while_one_of_a_lower_slot_joins_another_is_the_lowest():
    member = Member(hello("a"), 0.0)
    assert not member.is_lowest
    for version, (joining, is_lowest) in enumerate([(True, True), (False, False)]):
        peers = peer_of(2, joining=joining), peer_of(1, slot=1)
        member.receive(COORDINATOR, view_of(*peers, version=version), 0.0)
        assert member.is_lowest == is_lowest


@pytest.mark.parametrize(("taken", "counts"), [(0, True), (1, False)])
def test_a_residual_whose_heir_was_gone_before_it_sent_anything_counts_for_the_next_one(taken, counts):
    coordinator = coordinator_of(Table(run="r"))
    cases = [("a", 0, False), ("b", 1, True), ("c", 1, counts), ("b2", 2, not counts)]
    for name, previous, expected in cases:
        view = answer(coordinator, name, hello(name, previous=previous, offered=1))
        assert view.residual_counts == expected, name
        coordinator.close(name, 0.0)
        if name == "b":
            coordinator.table.records[2].taken = taken
        if name == "c":
            coordinator.table.records[view.incarnation].taken = 1


def test_a_residual_that_did_not_count_once_does_not_count_later_for_the_same_process():
    coordinator = coordinator_of(Table(run="r"))
    answer(coordinator, "a", hello("a"))
    for name in ("b", "b", "c"):  # b has not got the first answer, or has forgotten its residual since
        view = answer(coordinator, name, hello(name, previous=1))
        assert view.residual_counts == (name == "c")
        coordinator.close("a", 0.0)
        coordinator.close(name, 0.0)


def test_a_residual_counts_after_its_process_has_joined_again_and_sent_nothing():
    coordinator = coordinator_of(Table(run="r"))
    answer(coordinator, "a", hello("a"))
    coordinator.table.records[1].taken = 3
    for name in ("a", "b"):  # the same process, and a later one with its checkpoint
        coordinator.close("a", 0.0)
        view = answer(coordinator, name, hello(name, previous=1, offered=3))
        assert view.residual_counts, name


@pytest.mark.parametrize(("joining", "floor"), [(False, 100 - KEEP // 2 + 1), (True, 4)])
def test_offers_are_kept_for_one_that_joins_and_some_for_one_that_hangs(joining, floor):
    decisions = {n: Decision(round=n, ballot=0, offers={0: (1, n)}) for n in range(1, 101)}
    coordinator = coordinator_of(table_of(2, last=100, known=100, decisions=decisions))
    coordinator.table.members[2].joining = joining
    for i, last in ((1, 100), (2, 3)):
        told = report(i, applied=StateId(round=last, ballot=0), asks=True)
        view = answer(coordinator, f"{i}", told)
    assert view.floor == floor


def test_what_a_worker_of_a_fixed_group_had_not_sent_counts_once_and_until_it_is_sent():
    coordinator = coordinator_of(Table(run="r"))
    state = StateId(round=6, ballot=0)
    for name, origin, counts in (
        ("a", "rank 0", True), ("other", "rank 1", True), ("while a has it", "rank 0", False),
        ("after a", "rank 0", True), ("after that was sent", "rank 0", False),
    ):  # fmt: skip
        if name.startswith("after"):
            coordinator.close("a", 0.0)
        view = answer(coordinator, name, hello(name, state=state, origin=origin))
        assert (view.last, view.residual_counts) == (6, counts), name
        if name == "after a":
            coordinator.table.records[view.incarnation].taken = 1
            coordinator.close(name, 0.0)


def test_an_offer_of_a_member_of_long_ago_is_recalled():
    coordinator = coordinator_of(Table(run="r"))
    answer(coordinator, "a", hello("a"))
    table = coordinator.table
    table.decisions[1], table.last = Decision(round=1, ballot=0, offers={0: (1, 1)}), 1
    for place in range(600):
        coordinator.close(f"{place - 1}" if place else "a", 0.0)
        answer(coordinator, f"{place}", hello(f"{place}"))
    assert len(table.records) < 520
    table.void_from(1)
    assert (table.last, table.decisions) == (0, {})


def entered(member: Member, incarnation: int, **fields: object) -> None:
    """Lets it receive that it is a member, at the second of that number."""
    peer = peer_of(incarnation, joining=fields.pop("joining", False))
    fields = {"version": incarnation, "incarnation": incarnation, "begins": True} | fields
    member.receive(COORDINATOR, view_of(peer, **fields), float(incarnation))


def test_a_member_says_that_its_coordinator_does_not_answer():
    member = Member(hello("a"), 0.0)
    entered(member, 1, waiting="round 1 waits for slots 1")
    member.tick(3.0)
    assert member.waits_for == "round 1 waits for slots 1"
    member.tick(5.0)
    assert member.waits_for == "the coordinator does not answer: rounds go on when it does"
    entered(member, 10)
    member.tick(10.5)
    assert member.waits_for == ""


def test_what_a_member_did_before_it_knew_that_it_has_joined_again_belongs_to_the_former_one():
    member = Member(hello("a"), 0.0)
    entered(member, 1)
    assert isinstance(member.next(), Join)
    assert isinstance(member.next(), Begin)
    member.trains = True
    member.receive(COORDINATOR, Rejection(incarnation=1, final=False, reason="silent"), 1.5)
    entered(member, 2)
    member.trains = True  # it was just copying the agreed weights
    member.hand_in(OFFER.payload)
    member.give(OFFER.payload)
    assert all(incarnation == 1 for incarnation, _ in member._items)
    member.trains = True
    assert isinstance(member.next(), Join)
    assert member.next() == Withdrawn(counts=False)
    assert not member.trains
    member.applied = None
    assert member.hello.state is None


def test_a_member_that_joins_again_after_a_long_silence_is_not_refused_at_once():
    member = Member(hello("a"), 0.0, wait_s=1.5)
    entered(member, 2)
    member.receive(COORDINATOR, Rejection(incarnation=2, final=False, reason="silent"), 8.0)
    entered(member, 9, joining=True)
    member.require_progress(9.5)
    with pytest.raises(MemberRefused, match="has not answered"):
        member.require_progress(11.0)


def test_offers_that_take_long_are_asked_for_only_until_it_is_known_how_long():
    member, asked, now = Member(Hello(process="a", rules=Rules()), 0.0), [], 1.0
    entered(member, 1)
    while member.next() is not None:
        pass
    view = member.view
    other = view.peers[0].model_copy(update={"slot": 1, "incarnation": 2})
    for number, seconds in enumerate([8, 8, 1, 8], 1):
        peers = (*view.peers, other.model_copy(update={"held": ((2, number),), "taken": number - 1}))
        sends = member.receive(0, view.model_copy(update={"version": number + 1, "peers": peers}), now)
        for _ in range(seconds):
            now += 1.0
            sends += member.tick(now)
        asked.append(sum(isinstance(message, Want) for _, message in sends))
        chunk = OFFER.model_copy(update={"sender": 2, "key": (2, number)})
        member.receive(2, chunk, now)
        member.receive(2, chunk, now)
        assert (2, number) in member._items
    assert asked == [2, 0, 0, 2]


def test_a_member_waits_for_a_state_as_long_as_chunks_of_it_arrive():
    member = Member(hello("a"), 0.0, wait_s=2.5)
    entered(member, 1, joining=True, begins=False)
    view = member.view
    donor = view.peers[0].model_copy(update={"slot": 1, "incarnation": 2, "joining": False})
    update = {"version": 2, "peers": (*view.peers, donor)}
    member.receive(COORDINATOR, view.model_copy(update=update), 1.0)
    for index in range(3):
        chunk = OFFER.model_copy(update={"sender": 2, "key": (0, 0), "index": index, "count": 9})
        member.receive(2, chunk, 2.0 + 2 * index)
        member.receive(2, chunk, 3.0 + 2 * index)
        member.receive(COORDINATOR, view.model_copy(update={**update, "version": 3 + index}), 4.0 + 2 * index)
        member.require_progress(4.0 + 2 * index)
    member.receive(COORDINATOR, view.model_copy(update={**update, "version": 9}), 9.0)
    with pytest.raises(MemberRefused, match="without progress: has 3 of 9 chunks of a member's state"):
        member.require_progress(9.0)


def test_a_full_run_lets_nobody_in_until_one_leaves():
    coordinator = coordinator_of(Table(run="r"))
    for place in range(RULES.max_members):
        assert len(answer(coordinator, f"{place}", hello(f"{place}")).peers) == place + 1
    rejection = answer(coordinator, "late", hello("late"))
    assert (rejection.final, rejection.reason) == (False, "all 8 slots are taken")
    coordinator.close("3", 0.0)
    view = answer(coordinator, "late", hello("late"))
    assert next(peer.slot for peer in view.peers if peer.incarnation == view.incarnation) == 3


def test_a_coordinator_that_was_stopped_thinks_nobody_gone():
    coordinator = coordinator_of(Table(run="r"))
    answer(coordinator, "a", hello("a"))
    coordinator.tick(1000.0)
    assert len(coordinator.table.members) == 1
    for second in range(1001, 1006):
        coordinator.tick(second)
    assert not coordinator.table.members


@pytest.mark.parametrize("event", ["report", "close"])
def test_what_lies_in_the_queue_of_a_coordinator_that_was_stopped_is_read_before_anybody_is_gone(event):
    coordinator = coordinator_of(Table(run="r"))
    first = answer(coordinator, "a", hello("a"))
    answer(coordinator, "b", hello("b"))
    answer(coordinator, "c", hello("c"))
    if event == "report":
        coordinator.handle("a", report(first.incarnation), 1000.0)
    else:
        coordinator.close("c", 1000.0)
    assert {"a", "b"} <= {member.process for member in coordinator.table.members.values()}


def test_a_coordinator_that_waits_for_many_names_some():
    coordinator = coordinator_of(table_of(128))
    view = answer(coordinator, "1", report(1, held=((1, 1),), asks=True))
    assert view.waiting.startswith("round 1 waits for slots 1, 2, 3,")
    assert from_bytes(to_bytes(view), "the coordinator") == view


OFFER = Chunk(sender=5, key=(5, 3), payload=np.frombuffer(b"update", np.uint8))


def test_a_message_comes_back_as_it_was_and_its_bytes_stay():
    data = to_bytes(OFFER)
    assert data.tobytes() == (
        b"TGM1" + b"\x52\x00\x00\x00" + data[8:16].tobytes()
        + b'{"kind":"chunk","sender":5,"key":[5,3],"ballot":0,"digest":"","index":0,"count":1}' + b"update"
    )  # fmt: skip
    back = from_bytes(data, "a")
    assert (back.key, back.payload.tobytes()) == ((5, 3), b"update")


def test_a_view_of_many_members_comes_back():
    held = tuple((1000 + member, 1000 + number) for member in range(256) for number in range(2))
    view = view_of(*(peer_of(1, slot=slot, endpoint="e" * 20, held=held) for slot in range(256)))
    assert from_bytes(to_bytes(view), "a") == view


@given(st.integers(0, 63), st.integers(1, 255))
def test_a_damaged_message_is_refused(place, change):
    data = to_bytes(OFFER).copy()
    data[place % data.size] ^= change
    with pytest.raises(CorruptMessage, match="member 7 sent"):
        from_bytes(data, "member 7")


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data):
    with pytest.raises(CorruptMessage):
        from_bytes(np.frombuffer(data, np.uint8), "a")


@pytest.mark.parametrize(
    "message",
    [
        report(1).model_copy(update={"incarnation": -1}),
        report(1).model_copy(update={"run": "r" * 600}),
        report(1).model_copy(update={"held": ((1, -1),)}),
        Recall(round=1, ballot=1),
    ],
)
def test_fields_beyond_their_limits_are_refused(message):
    with pytest.raises(CorruptMessage):
        from_bytes(to_bytes(message), "a")
