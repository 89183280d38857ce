"""Receivers that are ready before a message is sent: when they are, and by which room a message goes."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from taugrad.compressors import CompressionState, PeerLost, compressed_allgather
from taugrad.compressors.wire.exchange import Exchange
from taugrad.compressors.wire.gathering import SIZE_BYTES, with_length
from taugrad.compressors.wire.mailbox import Expected, Mailbox

BUCKET = 7
OTHERS = (1, 2)
Call = tuple[str, int, int]
"""What was asked of the transport, of whom, and how many bytes of a message that is at most."""


class Done:
    """Work that has nothing left to do."""

    def wait(self) -> None:
        pass


class Recorded:
    """A group on which every message is there at once: what the others send is as long as the room."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.messages: int | None = None
        """The tag of messages; what comes by another tag is the rest of one."""
        self.rests: set[int] = set()

    def recv(self, into: list[Tensor], by: int, tag: int) -> Done:
        (buffer,) = into
        if self.messages is None:
            self.messages = tag
        if tag == self.messages:
            room = buffer.numel() - SIZE_BYTES
            self.calls.append(("ready", by, room))
            buffer.copy_(with_length(torch.full((room,), by, dtype=torch.uint8), room))
        else:
            self.rests.add(tag)
            self.calls.append(("ready for the rest", by, buffer.numel()))
            buffer.fill_(by)
        return Done()

    def send(self, what: list[Tensor], to: int, tag: int) -> Done:
        (message,) = what
        if tag == self.messages:
            self.calls.append(("send", to, message.numel() - SIZE_BYTES))
        else:
            self.rests.add(tag)
            self.calls.append(("send the rest", to, message.numel()))
        return Done()


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=3)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def mailbox(group: dist.ProcessGroup) -> Mailbox:
    made = Mailbox(group)
    made._group = Recorded()  # type: ignore[assignment]
    return made


def calls(mailbox: Mailbox) -> list[Call]:
    """Since it was asked last."""
    recorded = recorded_of(mailbox)
    found, recorded.calls = recorded.calls, []
    return found


def recorded_of(mailbox: Mailbox) -> Recorded:
    recorded = mailbox._group
    assert isinstance(recorded, Recorded)
    return recorded


def exchanged(mailbox: Mailbox, group: dist.ProcessGroup, message: Tensor, *, followed: bool) -> Tensor:
    exchange = Expected(message, group, mailbox, BUCKET)
    if followed:
        exchange.follow()
        assert exchange.arrived is not None
        exchange.arrived.wait()
    exchange.complete()
    return exchange.rows()


@pytest.mark.parametrize("followed", [False, True])
def test_workers_are_ready_two_exchanges_before_and_before_they_send(
    mailbox: Mailbox, group: dist.ProcessGroup, followed: bool
) -> None:
    message = torch.arange(5, dtype=torch.uint8)
    ready = [("ready", other, 5) for other in OTHERS]
    sent = [("send", other, 5) for other in OTHERS]
    mailbox.expect(BUCKET, 5)
    mailbox.expect(BUCKET, 5)  # it is ready
    assert calls(mailbox) == [*ready, *ready]
    for _ in range(3):
        rows = exchanged(mailbox, group, message, followed=followed)
        assert rows[:, :5].tolist() == [[0, 1, 2, 3, 4], [1] * 5, [2] * 5]
        assert calls(mailbox) == sent
        mailbox.expect(BUCKET, 5)
        assert calls(mailbox) == ready


def test_a_message_goes_by_the_room_that_was_made_for_it(mailbox: Mailbox, group: dist.ProcessGroup) -> None:
    message = torch.arange(9, dtype=torch.uint8)
    mailbox.expect(BUCKET, 4)
    for room in (6, 9, 9):  # for the exchange after the next one
        exchanged(mailbox, group, message, followed=True)
        mailbox.expect(BUCKET, room)
    found = [call for call in calls(mailbox) if call[0] != "ready" and call[1] == 1]
    assert found == [
        *(("send", 1, 4), ("send the rest", 1, 5)),
        *(("send", 1, 4), ("send the rest", 1, 5)),
        *(("send", 1, 6), ("send the rest", 1, 3)),
    ]
    assert len(recorded_of(mailbox).rests) == 1, "a rest would arrive where the next message is waited for"


def test_sizes_are_whole_whoever_looks_at_them_and_when(mailbox: Mailbox, group: dist.ProcessGroup) -> None:
    """The receiving thread and the hook both take what has arrived; one may look while the other does."""
    seen: list[list[int]] = []

    class Watched(Expected):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "sizes":
                assert isinstance(value, list)
                seen.append(list(value))
            super().__setattr__(name, value)

    mailbox.expect(BUCKET, 5)
    exchange = Watched(torch.arange(5, dtype=torch.uint8), group, mailbox, BUCKET)
    exchange.follow()
    assert exchange.arrived is not None
    exchange.arrived.wait()
    for _ in range(2):
        assert exchange.is_whole()
    assert seen
    assert all(sizes == [5, 5, 5] for sizes in seen), seen


RESET = (
    "[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:44420: Connection reset by peer. This is "
    "typically caused by a remote worker hanging.\n\nAt:\n  mailbox.py(74): expect"
)
"""What gloo says where something is asked of a connection that has been reset."""


def reset(*_: object) -> None:
    raise RuntimeError(RESET)


def check_worker_1_is_missed(lost: pytest.ExceptionInfo[PeerLost]) -> None:
    assert lost.value.worker == 1
    assert str(lost.value) == "worker 1 is gone: Read error [127.0.0.1]:44420: Connection reset by peer"


def test_a_connection_that_is_lost_before_anything_is_waited_for_is_a_lost_worker(
    mailbox: Mailbox, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = torch.arange(5, dtype=torch.uint8)
    with monkeypatch.context() as patch:
        patch.setattr(Recorded, "recv", reset)
        with pytest.raises(PeerLost) as lost:
            mailbox.expect(BUCKET, 4)
    check_worker_1_is_missed(lost)
    mailbox.expect(BUCKET, 4)
    with monkeypatch.context() as patch:
        patch.setattr(Recorded, "send", reset)
        with pytest.raises(PeerLost) as lost:
            Expected(message, group, mailbox, BUCKET)
    check_worker_1_is_missed(lost)
    mailbox.expect(BUCKET, 4)
    exchange = Expected(message, group, mailbox, BUCKET)
    with monkeypatch.context() as patch:
        patch.setattr(Recorded, "send", reset)
        with pytest.raises(PeerLost) as lost:
            exchange.complete()  # it sends what did not fit
    check_worker_1_is_missed(lost)


def test_a_hook_that_cannot_get_ready_for_the_next_step_notes_a_lost_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))
        state = CompressionState(ddp, "wgt(0.01)")
        ddp.register_comm_hook(state, compressed_allgather)
        ddp(torch.ones(2, 4)).sum().backward()
        monkeypatch.setattr(Exchange, "learn", reset)
        with pytest.raises(RuntimeError, match="Connection reset by peer"):
            ddp(torch.ones(2, 4)).sum().backward()
        assert isinstance(state.failure, PeerLost)
    finally:
        dist.destroy_process_group()
