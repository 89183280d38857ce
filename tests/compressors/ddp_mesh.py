"""The mesh between three processes; see ddp.py. Carriers in memory are in test_exchange.py."""

import logging
import os
import random
import resource
import signal
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from io import StringIO
from time import monotonic, sleep

import numpy as np
import psutil
import pytest
import torch.distributed as dist
import zmq
from ddp import new_group, refusal, scenario
from numpy.typing import NDArray

from taugrad.compressors.errors import PeerLost
from taugrad.compressors.exchange import mesh as mesh_module
from taugrad.compressors.exchange.addresses import all_gather_bytes, places_of
from taugrad.compressors.exchange.carrier import Arrivals, Carrier, in_memory
from taugrad.compressors.exchange.mesh import Mesh

WORKERS, TIMEOUT_S, LONG_S = 3, 4, 120
"""A short timeout where a worker is stopped; else one that a busy machine keeps."""
MOST = 1 << 23
KEY = b"a key of sixteen bytes or more"
SIZES = (0, 1, 7, 5_000, 8_191, 8_192, 70_000, 3_000_001)


def message(sender: int, receiver: int, number: int, size: int) -> NDArray[np.uint8]:
    return np.random.default_rng([sender, receiver, number]).integers(0, 256, size, np.uint8)


def talk(carrier: Carrier) -> list[tuple[int, str, bytes]]:
    """Sends much in an order of its own; what arrives, in the order in which it was asked for."""
    plans: dict[int, list[tuple[int, str, int]]] = {}
    for sender in range(WORKERS):
        chance = random.Random(sender)
        plans[sender] = [
            (
                chance.choice([index for index in range(WORKERS) if index != sender]),
                chance.choice("ab"),
                number,
            )
            for number in range(60)
        ]
    for to, tag, number in plans[carrier.rank]:
        carrier.send(to, tag, message(carrier.rank, to, number, SIZES[number % len(SIZES)]))
    coming: list[tuple[int, str, Future[NDArray[np.uint8]]]] = []
    for sender in carrier.others:
        mine = [(tag, number) for to, tag, number in plans[sender] if to == carrier.rank]
        coming += [(sender, tag, carrier.receive(sender, tag)) for tag, _ in sorted(mine)]
    return [(sender, tag, future.result(LONG_S).tobytes()) for sender, tag, future in coming]


@scenario(3)
def says_what_memory_does() -> None:
    """Whatever the order, every worker receives what the simulated one does."""
    with ThreadPoolExecutor(WORKERS) as threads:
        simulated = [*threads.map(talk, in_memory(WORKERS))][dist.get_rank()]
    assert simulated
    for key in (None, KEY):
        mesh = Mesh(most_bytes=MOST, key=key)
        assert talk(mesh) == simulated
        mesh.close()


@scenario(3)
def groups_do_not_clash() -> None:
    """Several meshes of one process, of a group and of the same workers again."""
    pairs = [new_group(pair) for pair in ((0, 1), (1, 2), (0, 1))]
    whole = [Mesh(most_bytes=MOST), Mesh(most_bytes=MOST)]
    here = [Mesh(group, most_bytes=MOST) for group in pairs if dist.get_rank(group) >= 0]
    for number, mesh in enumerate([*whole, *here]):
        for other in mesh.others:
            mesh.send(other, "same", np.array([number, mesh.rank], np.uint8))
    for number, mesh in enumerate([*whole, *here]):
        for other in mesh.others:
            got = mesh.receive(other, "same").result(LONG_S)
            assert got[1] == other
            assert number >= 2 or got[0] == number
    assert len(set(places_of())) == 1
    for mesh in (*whole, *here):
        mesh.close()
        assert not mesh._thread.is_alive()


@scenario(3)
def strangers_are_refused() -> None:
    """Whoever has no password or key gets nothing through, and the log names it."""
    rank = dist.get_rank()
    for key in (None, KEY):
        log = StringIO()
        handler = logging.StreamHandler(log)
        logging.getLogger("taugrad").addHandler(handler)
        mesh = Mesh(most_bytes=MOST, key=key)
        address = mesh._router.get(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        assert address.startswith("tcp://127.0.0.1:")
        context = zmq.Context()
        plain, wrong = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
        if key is None:
            wrong.plain_username, wrong.plain_password = b"1", b"guess"
        else:
            wrong.curve_publickey, wrong.curve_secretkey = zmq.curve_keypair()
            wrong.curve_serverkey = mesh._publics[rank]
        for connection in (plain, wrong):
            connection.linger = 0
            connection.connect(address)
            with suppress(zmq.Again):  # it may be refused already, and would wait for ever
                connection.send_multipart([b"same", b"a stranger's"], zmq.NOBLOCK)
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as other:
            other.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
            deadline = monotonic() + LONG_S
            while (
                "it does not have this run's key" not in log.getvalue()
                or "not a worker" not in log.getvalue()
            ):
                assert monotonic() < deadline, log.getvalue()
                sleep(0.02)
        for to in mesh.others:
            mesh.send(to, "same", np.array([rank], np.uint8))
        for source in mesh.others:
            assert mesh.receive(source, "same").result(LONG_S).tolist() == [source]
        assert not mesh._arrived
        assert not mesh.lost
        context.destroy(0)
        all_gather_bytes(b"")
        mesh.close()
        logging.getLogger("taugrad").removeHandler(handler)


@scenario(3)
def a_refused_connection_does_not_block_its_sender() -> None:
    """ZeroMQ gives such a connection up: the worker at its other end is lost."""
    mesh = Mesh(most_bytes=MOST)
    if dist.get_rank() == 0:
        before, mesh._password = mesh._dealers[1], b"another"
        mesh._dealers[1] = mesh._connect(before.get(zmq.LAST_ENDPOINT).rstrip(b"\0"), 1, None)
        deadline = monotonic() + LONG_S
        while 1 not in mesh.lost:
            assert monotonic() < deadline
            mesh.send(1, "same", np.zeros(1, np.uint8))
            sleep(0.02)
        assert str(mesh.lost[1]) == "worker 1 has refused this worker's connection"
        before.close(0)
    all_gather_bytes(b"")
    mesh.close()


@scenario(3)
def other_keys_are_refused_at_the_start() -> None:
    """All workers are told, whoever has another key, or none."""
    rank = dist.get_rank()
    for keys in ([KEY, KEY, KEY + b"!"], [None, KEY, KEY]):
        said = refusal(partial(Mesh, most_bytes=MOST, key=keys[rank]))
        assert said.startswith("WorkersDisagree: ")
        assert "they do not have the same key" in said


@scenario(3)
def too_few_open_files_are_named_on_every_worker() -> None:
    """Before anything is connected; the number that is asked for suffices."""
    limit, free = mesh_module._open_files()
    assert limit == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 0 < free < limit
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:
            patch.setattr(mesh_module, "_open_files", lambda: (1024, 17))
        assert refusal(partial(Mesh, most_bytes=MOST)) == (
            "CompressionError: worker 1 may open 17 more files, and connections to 2 other workers take 18: "
            "set its limit of open files (RLIMIT_NOFILE, `ulimit -n`), now 1024, to 1025 at least"
        )
    before = psutil.Process().num_fds()
    mesh = Mesh(most_bytes=MOST)
    assert psutil.Process().num_fds() - before <= 18
    mesh.close()


@scenario(3)
def absurd_lengths_are_refused() -> None:
    """A connection ends where a message is too long; nothing of it arrives."""
    rank = dist.get_rank()
    mesh = Mesh(most_bytes=10_000)
    if rank == 1:
        mesh.send(0, "long", np.zeros(10_001, np.uint8))
    if rank == 0:
        lost = mesh.receive(1, "long").exception(LONG_S)
        assert isinstance(lost, PeerLost)
        assert str(lost) == "worker 1 is gone: its connection was closed"
        mesh.send(1, "dropped", np.zeros(1, np.uint8))
    all_gather_bytes(b"")
    mesh.close()


@scenario(3)
def what_was_sent_arrives_though_its_sender_ends() -> None:
    """Also by way of `Arrivals`, and everything before the loss."""
    rank = dist.get_rank()
    mesh = Mesh(most_bytes=MOST)
    arrivals, others = Arrivals(mesh, "more"), new_group([0, 1])
    if rank == 2:
        for number in range(5):
            for to in (0, 1):
                mesh.send(to, "last", np.full(MOST - 8, number, np.uint8))
                mesh.send(to, "more", np.full(9, number, np.uint8))
    else:
        for number in range(5):
            assert mesh.receive(2, "last").result(LONG_S)[-1] == number
        results: list[int] = []
        while not arrivals.lost:
            results += [int(payload[0]) for _, payload in arrivals.take(LONG_S)]
        assert results == [0, 1, 2, 3, 4]
        assert isinstance(mesh.receive(2, "last").exception(LONG_S), PeerLost)
        assert list(arrivals.lost) == list(mesh.lost) == [2]
        all_gather_bytes(b"", others)
    mesh.close()


@scenario(3, values=("waits", "asks", "says nothing"))
def a_worker_that_ends_because_of_a_lost_peer_is_not_named(how: str) -> None:
    """The connection of a killed worker may end later here than that of another one, which ended for it."""
    rank, mesh = dist.get_rank(), Mesh(most_bytes=MOST)
    gone = PeerLost(2, "is gone")
    if rank == 0 and how == "says nothing":
        mesh._mark_lost(2, gone)
    all_gather_bytes(b"")  # worker 1 does not end before
    if rank == 1:
        waited = mesh.receive(2, "never") if how == "waits" else None
        mesh._mark_lost(2, gone)
        if how != "says nothing":
            assert str((waited or mesh.receive(2, "never")).exception(LONG_S)) == "worker 2 is gone"
        mesh.close()
    if rank == 0:
        for _ in range(2):
            assert str(mesh.receive(1, "never").exception(LONG_S)) == "worker 2 is gone"
    all_gather_bytes(b"")
    mesh.close()


@scenario(3)
def the_stopped_are_missed_in_time() -> None:
    """When a message is late, or signs of life are; and it goes on if it is let.

    Worker 1 waits for a message of worker 0, which waits for one of worker 2 itself.
    """
    rank = dist.get_rank()
    late = Mesh(new_group(timeout_s=TIMEOUT_S), most_bytes=MOST)
    signs = Mesh(most_bytes=MOST, silent_after_s=1.0)
    patient = Mesh(most_bytes=MOST, silent_after_s=1.0, patient=True)
    (pid,) = all_gather_bytes(str(os.getpid()).encode())[2:]
    others = new_group([0, 1])
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        assert str(late.receive(2 if rank == 0 else 0, "never").exception(LONG_S)) == (
            f"worker 2 has sent nothing for {TIMEOUT_S} s, the process group's timeout: its process hangs, "
            "is stopped, or cannot be reached"
        )
        assert str(signs.receive(2, "never").exception(LONG_S)) == "worker 2 has been silent for 1 s"
        assert patient.silent == {2}
        assert not patient.lost
        all_gather_bytes(b"", others)
    if rank == 0:
        os.kill(int(pid), signal.SIGCONT)
    if rank == 2:
        for to in (0, 1):
            patient.send(to, "again", np.zeros(3, np.uint8))
    else:
        assert patient.receive(2, "again").result(LONG_S).size == 3
        assert not patient.silent
        # Who lives is not missed, though it says nothing for longer than that.
        assert not patient.lost
        assert 1 - rank not in signs.lost
    all_gather_bytes(b"")  # nobody leaves before
    for mesh in (late, signs, patient):
        mesh.close()


@scenario(3, kills=(2,))
def the_killed_are_missed_at_once() -> None:
    """No timeout has to pass."""
    rank = dist.get_rank()
    mesh = Mesh(most_bytes=MOST)
    if rank == 2:
        for to in (0, 1):
            mesh.send(to, "last", np.full(100, 7, np.uint8))
        all_gather_bytes(b"")
        os.kill(os.getpid(), signal.SIGKILL)
    last, never = mesh.receive(2, "last"), mesh.receive(2, "never")
    assert last.result(LONG_S)[0] == 7
    all_gather_bytes(b"")
    assert isinstance(never.exception(LONG_S), PeerLost)
    assert str(never.exception()) == "worker 2 is gone: its connection was closed"
    mesh.close()
