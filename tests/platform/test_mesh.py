"""Connections between workers, both ends in one process."""

import logging
import pickle
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from types import SimpleNamespace

import numpy as np
import pytest
from taugrad.platform.synchronization.asynchronous.mesh import Mesh

from taugrad.compressors import CorruptMessage
from taugrad.compressors.errors import PeerLost
from taugrad.compressors.wire.message import NonFinite, write_nonfinite
from taugrad.platform.launching.failure import run_failed
from taugrad.platform.synchronization.asynchronous import meeting
from taugrad.platform.synchronization.asynchronous.errors import Diverged
from taugrad.platform.synchronization.asynchronous.message import ENDED, HEAD, Message, signal, written

MOST = 2**22


@contextmanager
def pair(silent_after_s: float = 30.0, *, waits: bool = False) -> Iterator[tuple[Mesh, Mesh]]:
    here, there = socket.socketpair()
    options = {"silent_after_s": silent_after_s, "waits": waits, "most_bytes": MOST}
    meshes = Mesh(0, [None, here], **options), Mesh(1, [there, None], **options)
    yield meshes
    for mesh in meshes:
        mesh.close()
        assert not mesh._thread.is_alive()


@contextmanager
def listening(**options) -> Iterator[tuple[Mesh, socket.socket]]:
    """A mesh, and the other end of its only connection."""
    here, there = socket.socketpair()
    mesh = Mesh(0, [None, here], **{"silent_after_s": 30.0, "waits": False, "most_bytes": MOST} | options)
    yield mesh, there
    mesh.close()
    there.close()


def message(number: int, size: int) -> Message:
    payload = np.random.default_rng(number).integers(0, 256, size, np.uint8)
    return Message(1, number, -0.5 / (1 + number), (number, number + 1), payload)


def test_the_bytes_of_a_message_stay_what_they_are():
    payload = np.arange(3, dtype=np.uint8)
    assert b"".join(written(Message(1, 258, -0.125, (7, 258), payload))).hex() == (
        "0100000000000000"  # an update
        "0201000000000000"  # its number
        "000000000000c0bf"  # the factor
        "0300000000000000"  # bytes of the payload
        "0700000002010000"  # what the sender had applied, by worker
        "000102"
    )
    assert signal(ENDED, 5).hex() == "02000000" + 4 * "00" + "05" + 7 * "00" + 16 * "00"


def up_to(number: int):
    return lambda inbox, _: [0, number] if inbox.has([0, number], 0) else None


def test_messages_arrive_whole_and_in_their_order_however_large():
    sizes = [0, 1, 3_000_000, 7, MOST]
    with pair() as (receiver, sender):
        sent = [message(number, size) for number, size in enumerate(sizes)]
        for each in sent:
            sender.send(written(each))
        found = receiver.take(up_to(2)) + receiver.take(up_to(len(sizes)))
    for one, other in zip(found, sent, strict=True):
        assert (one.sender, one.number, one.factor, one.known) == (1, other.number, other.factor, other.known)
        assert np.array_equal(one.payload, other.payload)
        assert one.nbytes == HEAD.size + 2 * 4 + other.payload.size


def test_what_was_sent_arrives_though_the_sender_ends():
    with pair() as (receiver, sender):
        sender.send(written(message(0, MOST)))
        sender.close()
        with pytest.raises(PeerLost, match="worker 1 is gone"):
            receiver.take(up_to(2))


def test_a_refusal_is_heard_of_before_its_sender_is_missed():
    with pair() as (receiver, sender):
        refusal = write_nonfinite(NonFinite("strom", 10, np.float32(1), 3))
        sender.send(written(Message(1, 0, -1.0, (0, 0), refusal)))
        sender.close()
        (found,) = receiver.take(up_to(2))
        assert np.array_equal(found.payload, refusal)
        with pytest.raises(PeerLost):
            receiver.take(up_to(2))


@pytest.mark.parametrize(
    "head",
    [
        HEAD.pack(9, 0, 0, 1.0, 0),
        HEAD.pack(1, 5, 0, 1.0, 0),
        HEAD.pack(1, 0, 0, float("nan"), 0),
        HEAD.pack(1, 0, 0, 1.0, MOST + 1),
    ],
)
def test_what_is_no_message_is_refused(head):
    with listening() as (mesh, other):
        other.sendall(head)
        with pytest.raises(CorruptMessage, match="what worker 1 sent"):
            mesh.take(up_to(1))


def test_silence_is_noticed_in_time_and_signs_of_life_are_heard():
    with listening(silent_after_s=0.4) as (mesh, other):
        with pytest.raises(PeerLost, match=r"silent for 0.4 s"):
            mesh.take(up_to(1))
        other.setblocking(False)
        assert len(other.recv(4096)) >= HEAD.size  # its own signs
    with pair(silent_after_s=0.4) as (receiver, sender):
        sleep(1)
        sender.send(written(message(0, 5)))
        assert len(receiver.take(up_to(1))) == 1


def test_a_silent_worker_may_be_waited_for(caplog):
    with caplog.at_level(logging.WARNING), listening(silent_after_s=0.2, waits=True) as (mesh, other):
        end = monotonic() + 10
        while "silent for 0.2 s" not in caplog.text and monotonic() < end:
            sleep(0.02)
        other.sendall(b"".join(written(message(0, 5))))
        assert len(mesh.take(up_to(1))) == 1
    assert caplog.text.count("waiting") == 1


def test_strangers_are_not_let_in():
    secret = bytes(range(16))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(2)
        port, end = listener.getsockname()[1], monotonic() + 10
        for said, expected in [(b"x" * 16, None), (secret, 5)]:
            caller = meeting._call("127.0.0.1", port, said, 5, end)
            rank, connection = meeting._answer(listener, secret, end)
            assert rank == expected
            caller.close()
            connection.close()


def test_it_listens_where_gloo_does(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert meeting.own_address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    with pytest.raises(ValueError, match="GLOO_SOCKET_IFNAME = none0"):
        meeting.own_address()
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert meeting.own_address() == "127.0.0.1"


def test_whoever_misses_a_worker_is_not_why_a_run_failed():
    lost = pickle.loads(pickle.dumps(PeerLost(1, "is gone")))
    assert (lost.worker, str(lost)) == (1, "worker 1 is gone")
    failures = {0: SimpleNamespace(cause=lost), 1: SimpleNamespace(cause=Diverged("too far"))}
    failed = run_failed(SimpleNamespace(worker_failures=failures))
    assert (str(failed), failed.cause) == ("worker 1: Diverged: too far", "diverged")
