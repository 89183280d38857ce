"""What rounds with a quorum go by: who decides, who is late when, what is on the wire, what is refused."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch.distributed as dist
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st

from taugrad.compressors import CorruptMessage
from taugrad.compressors.exchange.carrier import MemoryCarrier, Payload, in_memory
from taugrad.platform.launching.run_status import RunStatus
from taugrad.platform.spec.synchronization import Deadline, RoundSchedule
from taugrad.platform.spec.validation import needed_of
from taugrad.platform.synchronization.quorum.free import RoundDeadline, by_store, close_round
from taugrad.platform.synchronization.quorum.inbox import Inbox
from taugrad.platform.synchronization.quorum.message import (
    MessageKind,
    members_from_bytes,
    read,
    written,
)
from taugrad.platform.synchronization.quorum.scheduled import Drawn, Presence


@pytest.mark.parametrize("kind", ["store of one process", "store of several", "actor"])
def test_the_first_proposal_is_the_decision(kind, tmp_path):
    """Eight workers propose at once; a round that is repeated from a checkpoint is decided again."""
    stores = [dist.FileStore(str(tmp_path / "store"), 8) for _ in range(8)]
    if kind == "store of one process":
        stores = [dist.HashStore()] * 8
    authorities = [RunStatus().decide] * 8 if kind == "actor" else [by_store(store) for store in stores]
    proposals = [frozenset({rank, (rank + 3) % 8, 8}) for rank in range(8)]
    results: dict[int, set[frozenset[int]]] = {}
    for attempt in (5, 6):
        for number in range(10):
            decisions = [partial(close_round, authority, attempt) for authority in authorities]
            first = decisions[(number + attempt) % 8](number, proposals[(number + attempt) % 8])
            assert first == proposals[(number + attempt) % 8]
            with ThreadPoolExecutor(8) as threads:
                told = set(threads.map(lambda d, p, n=number: d(n, p), decisions, proposals))
            assert told == {first}
            results.setdefault(number, set()).add(first)
    assert all(len(result) == 2 for result in results.values())


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
    data = written(MessageKind.OFFER, 3, bytes(range(40))).copy()
    kind, number, body = read(5, data)
    assert (kind, number, body.tobytes()) == (MessageKind.OFFER, 3, bytes(range(40)))
    damage(data)
    with pytest.raises(CorruptMessage, match="what worker 5 sent"):
        read(5, data)


@in_turn("body", [b"", bytes(1), bytes(2), bytes([16]), bytes([1, 1])])
def test_decisions_that_say_nothing_are_refused(body):
    with pytest.raises(CorruptMessage, match="members in"):
        members_from_bytes(np.frombuffer(body, np.uint8), 4)


chances = st.floats(0, 0.33)


@settings(max_examples=60)
@given(st.integers(1, 7), chances, chances, chances, st.integers(0, 99), st.integers(1, 4))
def test_a_schedule_keeps_a_quorum_and_brings_everybody_back(workers, late, away, lost, seed, longest):
    needed = needed_of(0.6, workers)
    course = RoundSchedule(late=late, away=away, lost=lost, seed=seed, rounds=(1, longest))
    schedule = Drawn(course, workers, needed, 5)
    rounds = [list(schedule.events(number)) for number in range(40)]
    assert [Drawn(course, workers, needed, 5).events(39)] == [rounds[39]]  # whoever asks first
    for before, now in pairwise(rounds):
        assert sum(event.kind is Presence.PRESENT for event in now) >= needed
        for former, event in zip(before, now, strict=True):
            if former.absent:
                goes_on = event.kind is former.kind and not event.begins and not event.steps
                assert goes_on or event.kind is Presence.PRESENT
            else:
                assert event.begins == event.absent
    for worker in range(workers):
        kinds = [event[worker].absent for event in rounds]
        begins = [event[worker].begins for event in rounds]
        for number in range(40 - longest):
            assert not begins[number] or not all(kinds[number : number + longest + 1])


@in_turn(
    "quorum, workers, needed",
    [(0.51, 2, 2), (0.75, 4, 3), (0.6, 5, 3), (0.51, 4, 3), (0.51, 3, 2), (1.0, 3, 3), (0.67, 6, 5)],
)
def test_more_than_half_close_a_round(quorum, workers, needed):
    assert needed_of(quorum, workers) == needed


def test_a_deadline_is_a_multiple_of_the_usual_time_within_bounds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("taugrad.platform.synchronization.quorum.free.monotonic", lambda: now[0])
    pace = RoundDeadline(Deadline(factor=2, least=1, most=50))
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


def test_no_offer_goes_to_a_silent_worker(monkeypatch):
    """What a stopped worker has not read does not pile up; decisions are all kept."""
    one, other = in_memory(2)
    sent: list[int] = []

    def send(receivers: Collection[int], tag: str, payload: Payload) -> None:
        for receiver in receivers:
            one.send(receiver, tag, payload)
            sent.append(payload.size)

    here, there = Inbox(one, send), Inbox(other, send)
    for number in range(4):
        silent = {1} if number in (1, 2) else set()
        monkeypatch.setattr(MemoryCarrier, "silent", property(lambda _, silent=silent: silent))
        here.offer(number, np.full(300, number, np.uint8))
        here.send_decision([1], number, [0])
    there.poll(0)
    assert there.decided == {number: {0} for number in range(4)}
    assert sorted(there.offers) == [0, 3]
    assert all((there.offers[number][0] == number).all() for number in (0, 3))
    assert sorted(sent) == [24 + 1] * 4 + [24 + 300] * 2
