"""What rounds with a quorum go by: who decides, who is late when, what is on the wire, what is refused."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from taugrad.compressors import CorruptMessage
from taugrad.compressors.exchange.memory import MemoryCarrier, in_memory
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.config import Deadline, RoundSchedule
from taugrad.platform.synchronization.quorum.consensus import Ballots, Phase, Value, Vote
from taugrad.platform.synchronization.quorum.mailroom import Mailroom
from taugrad.platform.synchronization.quorum.message import (
    Kind,
    read,
    vote_from_bytes,
    vote_to_bytes,
    written,
)
from taugrad.platform.synchronization.quorum.pace import Pace
from taugrad.platform.synchronization.quorum.refusals import needed_of
from taugrad.platform.synchronization.quorum.schedule import Drawn
from taugrad.platform.synchronization.quorum.schedule import Kind as Fate


class Network:
    """Votes among workers, delivered, repeated or lost in any order."""

    def __init__(self, workers: int, leader: int) -> None:
        self.under_way: list[tuple[int, int, Vote]] = []
        self.workers = [
            Ballots(
                rank, workers, leader, lambda to, vote, rank=rank: self.under_way.append((rank, to, vote))
            )
            for rank in range(workers)
        ]

    def deliver(self, place: int, *, again: bool) -> None:
        sender, to, vote = self.under_way[place] if again else self.under_way.pop(place)
        self.workers[to].hear(sender, vote)

    @property
    def decisions(self) -> set[Value]:
        return {each.decided for each in self.workers if each.decided is not None}


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 5), st.data())
def test_no_two_workers_ever_learn_of_different_members(workers, data):
    leader = data.draw(st.integers(0, workers - 1))
    network = Network(workers, leader)
    sets = st.sets(st.integers(0, workers - 1), min_size=1)
    seen: set[frozenset[int]] = set()
    for _ in range(data.draw(st.integers(5, 60))):
        what = data.draw(st.sampled_from(["deliver"] * 6 + ["again", "lose", "propose", "take over"]))
        if what in ("propose", "take over"):
            members = data.draw(sets)
            rank = leader if what == "propose" else data.draw(st.integers(0, workers - 1))
            worker = network.workers[rank]
            if worker.decided is not None or (what == "propose" and worker.proposed):
                continue
            seen.add(frozenset(members))
            worker.propose([*members]) if what == "propose" else worker.take_over([*members])
        elif network.under_way:
            place = data.draw(st.integers(0, len(network.under_way) - 1))
            if what == "lose":
                network.under_way.pop(place)
            else:
                network.deliver(place, again=what == "again")
        assert len(network.decisions) <= 1
    before = network.decisions
    # Whatever has happened: one worker that takes over, and is heard, brings all to a decision.
    network.under_way.clear()
    undecided = [rank for rank, each in enumerate(network.workers) if each.decided is None]
    for _ in range(3):  # others may have heard of higher ballots
        for rank in undecided[:1]:
            network.workers[rank].take_over([rank])
            seen.add(frozenset([rank]))
        while network.under_way:
            network.deliver(0, again=False)
    assert len(network.decisions) == 1
    assert before <= network.decisions
    assert {each.members for each in network.decisions} <= seen
    assert not undecided or network.workers[undecided[0]].decided is not None


def test_a_leader_that_is_heard_decides_at_once():
    network = Network(4, 2)
    network.workers[2].propose([0, 2, 3])
    while network.under_way:
        network.deliver(0, again=False)
    assert [each.decided for each in network.workers] == [Value(frozenset([0, 2, 3]), 2)] * 4


def test_the_bytes_of_messages_stay_what_they_are():
    vote = Vote(Phase.PROMISE, 9, 4, Value(frozenset([0, 3, 8]), 3))
    body = vote_to_bytes(vote, 9)
    assert body.hex() == (
        "02000000"  # a promise
        "03000000"  # the leader
        "0900000000000000"  # the ballot
        "0400000000000000"  # the accepted one
        "0901"  # the members
    )
    assert vote_from_bytes(np.frombuffer(body, np.uint8), 9) == vote
    assert written(Kind.VOTE, 258, b"123456789").tobytes().hex() == (
        "02000000" + "2639f4cb" + "0201000000000000" + "0900000000000000" + b"123456789".hex()
    )


@in_turn(
    "damage",
    [
        lambda data: data.__setitem__(0, 9),  # a kind
        lambda data: data.__setitem__(4, data[4] ^ 1),  # the checksum
        lambda data: data.__setitem__(-1, data[-1] ^ 128),  # what it is of
        lambda data: data.__setitem__(19, 1),  # the length
    ],
)
def test_damaged_messages_are_refused(damage):
    data = written(Kind.OFFER, 3, bytes(range(40))).copy()
    found = read(5, data)
    assert (found.sender, found.kind, found.number) == (5, Kind.OFFER, 3)
    assert found.body.tobytes() == bytes(range(40))
    damage(data)
    with pytest.raises(CorruptMessage, match="what worker 5 sent"):
        read(5, data)


@in_turn("body", [b"", bytes(25), bytes([9]) + bytes(24), bytes([3]) + bytes([9]) + bytes(23)])
def test_votes_that_say_nothing_are_refused(body):
    with pytest.raises(CorruptMessage, match=r"a vote|a decision"):
        vote_from_bytes(np.frombuffer(body, np.uint8), 4)


chances = st.floats(0, 0.33)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), chances, chances, chances, st.integers(0, 99), st.integers(1, 4))
def test_a_schedule_keeps_a_quorum_and_brings_everybody_back(workers, late, away, lost, seed, longest):
    needed = needed_of(0.6, workers)
    course = RoundSchedule(late=late, away=away, lost=lost, seed=seed, rounds=(1, longest))
    schedule = Drawn(course, workers, needed, 5)
    rounds = [list(schedule.fates(number)) for number in range(40)]
    assert [Drawn(course, workers, needed, 5).fates(39)] == [rounds[39]]  # whoever asks first
    for before, now in pairwise(rounds):
        assert sum(fate.kind is Fate.HERE for fate in now) >= needed
        for former, fate in zip(before, now, strict=True):
            if former.absent:
                goes_on = fate.kind is former.kind and not fate.begins and not fate.steps
                assert goes_on or fate.kind is Fate.HERE
            else:
                assert fate.begins == fate.absent
    for worker in range(workers):
        kinds = [fate[worker].absent for fate in rounds]
        begins = [fate[worker].begins for fate in rounds]
        for number in range(40 - longest):
            assert not begins[number] or not all(kinds[number : number + longest + 1])


@in_turn(
    "quorum, workers, needed",
    [
        (0.51, 2, 2),
        (0.75, 4, 3),
        (0.6, 5, 3),
        (0.51, 4, 3),
        (0.51, 3, 2),
        (1.0, 3, 3),
        (0.67, 6, 5),
        (0.6, 1, 1),
    ],
)
def test_more_than_half_close_a_round(quorum, workers, needed):
    assert needed_of(quorum, workers) == needed


def test_a_deadline_is_a_multiple_of_the_usual_time_within_bounds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("taugrad.platform.synchronization.quorum.pace.monotonic", lambda: now[0])
    pace = Pace(Deadline(factor=2, least=1, most=50))
    for number, seconds in enumerate((4.0, 5.0, 3.0)):
        assert pace.deadline_s == 50, number
        pace.begin()
        now[0] += seconds
        pace.note()
        now[0] += 100
        pace.note()  # the round's first note counts
    assert pace.deadline_s == 8
    for seconds, deadline in ((0.01, 1), (90.0, 50)):
        for _ in range(16):
            pace.begin()
            now[0] += seconds + 7
            pace.pause(7)
            pace.note()
        assert pace.deadline_s == deadline


QUORUM: dict[str, Any] = {"mode": "weights", "every": 4, "quorum": 0.75}


@in_turn(
    "sync, more, said",
    [
        ({"every": 0}, {}, "sync.every = 0: give the steps of a round"),
        ({"exchange": "weights"}, {}, "sync.exchange = weights"),
        ({"pattern": "ring"}, {}, "sync.pattern = ring"),
        ({"pattern": "hierarchical"}, {}, "sync.pattern = hierarchical"),
        ({"adapt": {}}, {"compressor": "topk(0.1)"}, "sync.adapt"),
        ({}, {"workers": {"device": "cuda"}}, "workers.device = cuda"),
        ({"quorum": 0.5}, {}, "greater than 0.5"),
        ({"deadline": {"least": 5, "most": 2}}, {}, "least = 5: must be at most deadline.most = 2"),
        ({"deadline": {}, "schedule": {}}, {}, "sync.deadline with sync.schedule"),
        ({"schedule": {"rounds": [3, 1]}}, {}, "rounds = [3, 1]: the fewest come first"),
        ({"schedule": {"late": 0.9, "lost": 0.2}}, {}, "late + away + lost"),
        ({"quorum": None, "deadline": {}}, {}, "sync.deadline without sync.quorum"),
        ({"quorum": None, "schedule": {}}, {}, "sync.schedule without sync.quorum"),
    ],
)
def test_what_does_not_go_with_a_quorum_is_refused(sync, more, said):
    with pytest.raises(ValidationError) as refused:
        RunSpec.model_validate({"compressor": "none", "sync": QUORUM | sync} | more)
    assert said in str(refused.value)


def test_simulated_workers_have_no_deadline():
    simulated = {"mode": "simulated", "of": QUORUM | {"deadline": {}}}
    with pytest.raises(ValidationError, match=r"sync\.of\.deadline and sync\.mode = simulated"):
        RunSpec.model_validate({"sync": simulated})


def test_runs_without_a_quorum_are_what_they_were():
    fields = {"sync": {"mode": "weights", "every": 4}}
    spec = RunSpec.model_validate(fields)
    assert not {"sync.quorum", "sync.deadline", "sync.schedule"} & spec.flat().keys()
    assert spec.fingerprint() == "0b2f2283751e"
    with_one = RunSpec.model_validate({"sync": QUORUM})
    assert with_one.flat()["sync.quorum"] == "0.75"
    assert with_one.fingerprint() != spec.fingerprint()


@pytest.mark.parametrize(("skips", "arrive"), [(True, [0, 3]), (False, [0, 1, 2, 3])])
def test_no_offer_goes_to_who_is_silent(monkeypatch, skips, arrive):
    """What a stopped worker has not read does not pile up; votes are all kept.

    On a schedule every worker waits for every offer, so that all go.
    """
    here, there = (Mailroom(each, skips=skips) for each in in_memory(2))
    decided = Vote(Phase.DECIDED, 0, value=Value(frozenset([0]), 0))
    for number in range(4):
        silent = {1} if number in (1, 2) else set()
        monkeypatch.setattr(MemoryCarrier, "silent", property(lambda _, silent=silent: silent))
        here.offer([1], number, bytes([number]) * 300)
        here.vote(1, number, decided)
    there.hear(0)
    assert [number for _, number, _ in there.votes] == [0, 1, 2, 3]
    assert sorted(there.offers) == arrive
    assert all((there.offers[number][0] == number).all() for number in arrive)
    assert here.link_messages.tolist() == [0, len(arrive) + 4]
    assert here.link_bytes.tolist() == [0, len(arrive) * (24 + 300) + 4 * (24 + 24 + 1)]
