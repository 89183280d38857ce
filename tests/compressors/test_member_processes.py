"""Members and their coordinator as processes: kills, strangers, clocks that jump, unusable files."""

import json
import os
import re
import secrets
import select
import signal
import socket
import socketserver
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from threading import Thread
from time import monotonic, sleep, time

import psutil
import pytest
import zmq
from needs import missing

from taugrad.compressors import MemberRefused, coordinator
from taugrad.compressors.exchange.keys import key_pair
from taugrad.compressors.exchange.members import session as session_module
from taugrad.compressors.exchange.members import sockets
from taugrad.compressors.exchange.members.messages import Hello, Rules, Want, to_bytes
from taugrad.compressors.exchange.members.server import CoordinatorFailed, CoordinatorServer, TableFile
from taugrad.compressors.exchange.members.session import Session

KEY = b"0123456789abcdef0123456789abcdef"
MEMBER = Path(__file__).with_name("member_process.py")
SOAK_S = float(os.environ.get("TAUGRAD_SOAK_S", "60"))
"""How long everything is disturbed; `make soak` asks for ten minutes."""
DISK_BYTES = 1 << 20
JUMPING_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *at) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, at);
    if (id == CLOCK_REALTIME) at->tv_sec += at->tv_sec % 2 ? 86400 : -86400;
    return status;
}
"""
"""The time of day is a day late in one second, and a day early in the next."""


def wait_until(holds: Callable[[], object], otherwise: Callable[[], object] = lambda: "in vain") -> None:
    """Waits, for two minutes at most."""
    deadline = monotonic() + 120
    while not holds():
        assert monotonic() < deadline, otherwise()
        sleep(0.1)


class Run:
    """A coordinator and members as processes, with their files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, dict[str, subprocess.Popen[str]]()
        (folder / "key").write_bytes(KEY)
        self.at, self.variables = "127.0.0.1:0", dict[str, str]()
        self.disk = folder / "disk"
        """Where the coordinator's table is."""
        self.disk.mkdir()

    def start_coordinator(self) -> None:
        process = self._start(
            "coordinator", "-m", "taugrad.compressors.coordinator", "--listen", self.at,
            "--key-file", str(self.folder / "key"), "--state", str(self.disk / "state.db"),
        )  # fmt: skip
        self.at = process.stdout.readline().split()[-1]

    def begin(self, names: str = "ab", rounds: int = 3, **options: object) -> None:
        """Starts a coordinator and members, and waits until all are in so many rounds."""
        self.start_coordinator()
        for name in names:
            self.start(name, **options)
        self.wait_for_round(rounds, *names)

    def start(self, name: str, **options: object) -> None:
        files = [str(self.folder / name) for name in ("key", f"{name}.checkpoint", f"{name}.log")]
        self._start(name, str(MEMBER), self.at, *files, json.dumps(options))

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        with (self.folder / f"{name}.err").open("ab") as errors:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True,
                env={**os.environ, **self.variables},
            )  # fmt: skip
        return self.processes[name]

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        self.processes[name].send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            assert self.processes.pop(name).wait(60) in (0, -number)  # it may get a notice while it starts

    def rounds(self, name: str) -> dict[tuple[int, int], str]:
        """By round and ballot, the bits of a member's agreed state, of all rounds that it has applied."""
        lines = [line.split() for line in (self.folder / f"{name}.log").read_text().splitlines()]
        return {(int(line[0]), int(line[1])): " ".join(line[2:]) for line in lines if len(line) == 3}

    def members_in(self) -> int:
        """How many members rounds wait for."""
        return sum(not peer.joining for peer in coordinator.ask_status(self.at, KEY, wait_s=60).peers)

    def membership(self, name: str) -> dict[str, float]:
        """What became of a member that has left."""
        return json.loads((self.folder / f"{name}.log").read_text().splitlines()[-1])

    def last(self, name: str) -> int:
        path = self.folder / f"{name}.log"
        return max((number for number, _ in self.rounds(name)), default=-1) if path.exists() else -1

    def wait_for_round(self, number: int, *names: str) -> None:
        def reached() -> bool:
            assert all(process.poll() is None for process in self.processes.values())
            return all(self.last(name) >= number for name in names)

        wait_until(reached, lambda: [(name, self.last(name)) for name in names])

    def go_on(self, more: int, *names: str) -> None:
        """Waits until members are some rounds further than `a` is now."""
        self.wait_for_round(self.last("a") + more, *names)

    def limit_disk(self) -> bool:
        """Lets the table's folder have DISK_BYTES; returns whether that is allowed here."""
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "members", str(self.disk)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def fill_disk(self) -> None:
        with suppress(OSError), (self.disk / "filling").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 12))

    def errors(self, name: str) -> str:
        """What a process has said on standard error."""
        return (self.folder / f"{name}.err").read_text()

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
            process.stdout.close()
        if self.disk.is_mount():
            subprocess.run(["umount", "--lazy", str(self.disk)], check=True)


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path)
    yield run
    run.close()


def agree(run: Run, *names: str) -> list[set[tuple[int, int]]]:
    """Requires that all that have applied a round have the same bits; the rounds of each."""
    rounds, known = [run.rounds(name) for name in names], dict[tuple[int, int], str]()
    for key, value in (item for member in rounds for item in member.items()):
        assert known.setdefault(key, value) == value
    return [set(member) for member in rounds]


def test_members_are_killed_and_come_back_and_the_coordinator_too(run):
    run.begin()
    run.start("c")  # it takes the agreed state, and joins
    run.go_on(4, *"abc")
    run.kill("b")
    run.go_on(3, *"ac")
    run.start("b")
    run.go_on(3, *"abc")
    run.kill("coordinator")
    sleep(1)
    run.start_coordinator()
    run.go_on(3, *"abc")
    status = coordinator.ask_status(run.at, KEY, wait_s=120)
    assert status.epoch == 2
    assert len(status.peers) == 3
    while len(set.intersection(*agree(run, *"abc"))) < 5:  # one that applies several at once logs the last
        run.go_on(1, *"abc")
    run.kill("c", signal.SIGTERM)  # a notice
    assert run.membership("c")["given"] == 1
    run.go_on(3, *"ab")
    for name in "ab":
        run.kill(name, signal.SIGTERM)
    ends = {name: run.membership(name) for name in "ab"}
    assert sum(end["taken_over"] for end in ends.values()) >= 1
    assert ends["b"]["joins"] == 2
    assert ends["a"]["joins"] == 1
    assert ends["a"]["dropped"] == ends["a"]["voided"] == 0
    first, second, third = agree(run, *"abc")
    assert len(first & second & third) >= 5


@pytest.mark.parametrize("options", [{"fragments": 3}, {"delay_steps": 2}], ids=str)
def test_members_with_fragments_or_a_delay_are_killed_and_come_back(run, options):
    run.begin(rounds=7, **options)
    run.kill("b")
    run.go_on(3, "a")
    run.start("b", **options)
    run.go_on(6, *"ab")
    while len(set.intersection(*agree(run, *"ab"))) < 3:  # one that applies several at once logs the last
        run.go_on(1, *"ab")
    for name in "ab":
        run.kill(name, signal.SIGTERM)
    agree(run, *"ab")


def test_an_island_is_lost_with_one_of_its_processes_and_comes_back(run):
    run.start_coordinator()

    def start_island(name: str) -> None:
        for rank in range(2):
            run.start(f"b{rank}", island=[rank, 2, str(run.folder / name)])

    run.start("a")  # a whole model
    start_island("first")
    run.wait_for_round(3, "a", "b0")
    run.wait_for_round(run.last("b0") + 1, "b0")  # it has saved a checkpoint
    run.kill("b1")
    leader = run.processes.pop("b0")
    run.go_on(3, "a")
    assert leader.wait(60) == 1
    start_island("second")
    run.go_on(3, "a", "b0")
    while len(set.intersection(*agree(run, "a", "b0"))) < 5:
        run.go_on(1, "a", "b0")
    run.kill("b1", signal.SIGTERM)  # a notice, of which its leader learns
    assert run.processes.pop("b0").wait(60) == 0
    run.go_on(2, "a")
    agree(run, "a", "b0")
    end = run.membership("b0")
    assert (end["given"], end["joins"]) == (1, 2)


@pytest.mark.long
def test_a_member_that_is_stopped_comes_back(run):
    run.begin()
    run.kill("b", signal.SIGSTOP)
    run.go_on(3, "a")
    sleep(4)  # longer than it may be silent
    run.kill("b", signal.SIGCONT)
    run.go_on(3, *"ab")
    agree(run, *"ab")


@pytest.mark.long
def test_a_soak_of_members(run):
    random, disk_is_small = Random(os.environ.get("TAUGRAD_SOAK_SEED", "1")), run.limit_disk()
    run.begin("abc")
    kinds = [*["kill", "suspend", "notice"] * 2, "coordinator", "stranger", *["disk"] * disk_is_small]
    end = monotonic() + SOAK_S
    while monotonic() < end:
        while run.members_in() < 2:  # the last one of all must not go: it alone has the last round
            sleep(0.2)
        kind, name = random.choice(kinds), random.choice("abc")
        before, pause = run.last(name), random.uniform(0, 5)
        match kind:
            case "kill" | "notice":
                run.kill(name, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
                sleep(pause)
                run.start(name)
            case "suspend":
                run.kill(name, signal.SIGSTOP)
                sleep(pause)
                run.kill(name, signal.SIGCONT)
            case "coordinator":
                run.kill("coordinator")
                sleep(pause)
                run.start_coordinator()
            case "disk":
                run.fill_disk()
                sleep(pause)
                (run.disk / "filling").unlink()
            case "stranger":
                peers = coordinator.ask_status(run.at, KEY, wait_s=60).peers
                for address in (run.at, *(peer.endpoint for peer in peers)):
                    with suppress(OSError), socket.create_connection(address.split(":"), 1) as stranger:
                        stranger.sendall(random.randbytes(200))
        sleep(random.uniform(0, 5))
        if random.random() < 0.3:  # from time to time all are well
            run.wait_for_round(before + 3, *"abc")
            agree(run, *"abc")
    run.wait_for_round(max(map(run.last, "abc")) + 3, *"abc")
    first, second, third = agree(run, *"abc")
    assert len(first & second & third) >= 3


@pytest.mark.long
def test_on_a_full_disk_no_round_is_decided_until_it_has_room(run):
    if not run.limit_disk():
        missing("needs root, to mount a small disk")
    run.begin()
    run.fill_disk()
    wait_until(lambda: "until it can, no round is decided" in run.errors("coordinator"))
    before = run.last("a")
    run.start("c")
    sleep(3)
    assert max(map(run.last, "ab")) <= before + 1  # decided before
    (run.disk / "filling").unlink()
    run.wait_for_round(before + 4, *"abc")
    assert "the state file can be written again" in run.errors("coordinator")
    agree(run, *"abc")
    peers = coordinator.ask_status(run.at, KEY, wait_s=120).peers
    assert sorted(peer.incarnation for peer in peers) == [1, 2, 3]


@pytest.mark.long
def test_a_clock_that_jumps_disturbs_nobody(run):
    source, library = run.folder / "clock.c", run.folder / "clock.so"
    source.write_text(JUMPING_CLOCK)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    except FileNotFoundError:
        missing("cc not found")
    run.variables = {"LD_PRELOAD": str(library)}
    clock = [sys.executable, "-c", "import time; print(time.time())"]
    jumped = subprocess.check_output(clock, env={**os.environ, **run.variables})
    assert abs(float(jumped) - time()) > 80_000
    run.begin(rounds=30)
    peers = coordinator.ask_status(run.at, KEY, wait_s=120).peers
    assert sorted(peer.incarnation for peer in peers) == [1, 2]
    agree(run, *"ab")


@pytest.fixture
def serve(tmp_path):
    servers = []

    def start(key: bytes = KEY, file: TableFile | None = None, listen: str = "0") -> CoordinatorServer:
        server = CoordinatorServer(listen, key, file or TableFile(tmp_path / f"{len(servers)}.db"))
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


def session(server: CoordinatorServer, key: bytes = KEY, rules: Rules | None = None) -> Session:
    hello = Hello(process=secrets.token_hex(8), rules=rules or Rules())
    return Session(server.address, key, hello, host="127.0.0.1", most_bytes=1 << 20, wait_s=60)


def test_strangers_are_refused(serve, capsys, caplog, tmp_path):
    server = serve()
    (tmp_path / "other").write_bytes(b"another key, of 32 bytes or more")
    assert coordinator.main(["status", server.address, "--key-file", str(tmp_path / "other")]) == 1
    assert "does not run, or has another key" in capsys.readouterr().err
    with closing(session(server)) as member:
        listeners = {sockets.COORDINATOR: server.address, sockets.MEMBER: member.member._hello.endpoint}
        for who, address in listeners.items():
            caplog.clear()
            with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
                stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
                stranger.curve_serverkey = key_pair(KEY, who)[0]
                stranger.linger = 0
                stranger.connect(f"tcp://{address}")
                with suppress(zmq.Again):  # it may be refused already, and would wait for ever
                    stranger.send(b"hello", zmq.NOBLOCK)
                wait_until(lambda: "does not have this run's key" in caplog.text)
        assert member.member.view is None or len(member.member.view.peers) == 1
    while (status := coordinator.ask_status(server.address, KEY, wait_s=120)).peers:
        sleep(0.1)
    status = status.model_copy(update={"left": (), "waiting": ""})
    assert coordinator.described(status) == f"run {status.run}, epoch 1: 0 rounds, 0 members"


def test_a_member_with_another_key_is_told_within_seconds(serve):
    server = serve()
    with (
        closing(session(server, key=b"another key, of 32 bytes or more")) as member,
        pytest.raises(MemberRefused, match=f"{server.address} closes each connection: it has another key"),
    ):
        wait_until(lambda: member.wait(0.1))


class Proxy(socketserver.ThreadingTCPServer):
    """Forwards connections; to whoever connects while there is no server, it says so by HTTP."""

    daemon_threads = True
    forwards_to: tuple[str, int] | None = None


class Forwarding(socketserver.BaseRequestHandler):
    server: Proxy

    def handle(self) -> None:
        if self.server.forwards_to is None:
            self.request.recv(100)
            self.request.sendall(b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n\r\n" * 4)
            return
        with socket.create_connection(self.server.forwards_to) as other:
            ends = {self.request: other, other: self.request}
            while True:
                for end in select.select(list(ends), [], [])[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    ends[end].sendall(data)


def test_who_is_no_coordinator_is_named_and_one_that_comes_later_is_found(serve):
    with Proxy(("127.0.0.1", 0), Forwarding) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        address, hello = f"127.0.0.1:{proxy.server_address[1]}", Hello(process="a", rules=Rules())
        with closing(Session(address, KEY, hello, host="127.0.0.1", most_bytes=1 << 20, wait_s=60)) as member:
            with pytest.raises(
                MemberRefused, match=f"{address} closes each connection: .* is no coordinator"
            ):
                wait_until(lambda: member.wait(0.1))
            proxy.forwards_to = sockets.address_of(serve().address)
            wait_until(lambda: member.member.view is not None)
        proxy.shutdown()


def test_members_that_cannot_reach_each_other_are_named(serve, caplog, monkeypatch):
    monkeypatch.setattr(session_module, "_REACH_S", 0.5)
    server = serve()
    hello = Hello(process="other", rules=Rules(), endpoint="127.0.0.1:1")  # nobody listens there
    with (
        zmq.Context() as context,
        sockets.dealer(context, server.address, KEY, sockets.COORDINATOR, "other") as other,
        closing(session(server)) as first,
    ):
        other.linger = 0
        other.send(to_bytes(hello).data)
        wait_until(lambda: first.wait(0.1) or "cannot connect to that of slot" in caplog.text)
        with first.lock:
            (unreached,) = first._peers
            first._send([(unreached, Want(sender=first.member.incarnation))])
            assert first.member.sent_bytes == 0  # nothing piles up
    slots = re.search(
        r"slot (\d) cannot connect to that of slot (\d), which the coordinator hears", caplog.text
    )
    assert sorted(slots.groups()) == ["0", "1"]


@pytest.mark.parametrize("endpoint", ["", "nonsense", "a b:1", "*:5", "127.0.0.1:0", "127.0.0.1:99999"])
def test_a_process_that_names_no_address_ends_no_member(endpoint, serve, caplog):
    server = serve()
    hello = Hello(process="other", rules=Rules(), endpoint=endpoint)
    with (
        zmq.Context() as context,
        sockets.dealer(context, server.address, KEY, sockets.COORDINATOR, "other") as other,
        closing(session(server)) as first,
    ):
        other.linger = 0
        wait_until(lambda: first.wait(0.1) or first.member.view is not None)
        other.send(to_bytes(hello).data)
        wait_until(
            lambda: first.wait(0.1) or f"process other listens at {endpoint!r}: ignored" in caplog.text
        )
        assert len(first.member.slots) == 1


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
def test_a_connection_to_a_host_that_has_vanished_ends(serve):
    server = serve()
    port = int(server.address.split(":")[1])
    with closing(session(server)) as member:
        wait_until(lambda: member.wait(0.1) or member.member.view)
        (connection,) = (
            c for c in psutil.Process().net_connections("tcp") if c.raddr and c.raddr.port == port
        )
        with socket.socket(fileno=os.dup(connection.fd)) as held:
            assert 0 < held.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000


def test_a_coordinators_name_may_have_an_ipv6_address_alone(monkeypatch):
    def resolve(host, port):
        return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with zmq.Context() as context, sockets.dealer(context, "six.test:7070", KEY, 0, "a") as connection:
        connection.linger = 0
        assert connection.ipv6


def test_a_member_with_other_rules_is_told_which(serve):
    server = serve()
    with closing(session(server)) as first, closing(session(server, rules=Rules(quorum=0.7))) as other:

        def wait_for_both() -> None:
            first.wait(0.1)
            other.wait(0.1)

        with pytest.raises(MemberRefused, match="quorum"):
            wait_until(wait_for_both)


@pytest.mark.parametrize("problem", ["in use", "damaged", "other table", "no file", "short key", "address"])
def test_a_coordinator_says_what_it_lacks(problem, tmp_path, serve, capsys):
    state, key, listen = tmp_path / "state.db", tmp_path / "key", "127.0.0.1:0"
    key.write_bytes(KEY)
    expected = "state file"
    if problem == "in use":
        serve(file=TableFile(state))
        expected = "another coordinator runs with it"
    elif problem == "damaged":
        state.write_bytes(b"no database" * 500)
    elif problem == "other table":
        with closing(sqlite3.connect(state)) as database:
            database.execute("CREATE TABLE coordinator (id INTEGER)")
        expected = "cannot be read: no such column"
    elif problem == "no file":
        state = tmp_path / "nowhere" / "state.db"
    elif problem == "short key":
        key.write_bytes(b"short")
        expected = "this one 5"
    else:
        listen = serve().address
        expected = f"cannot listen at {listen}"
    arguments = ["--listen", listen, "--key-file", str(key), "--state", str(state)]
    assert coordinator.main(arguments) == 1
    printed = capsys.readouterr().err
    assert expected in printed
    assert len(printed.splitlines()) == 1


def test_a_table_is_read_as_it_was_written(tmp_path):
    file = TableFile(tmp_path / "state.db")
    table = file.read()
    table.epoch = 7
    file.write(table)
    file.close()
    file = TableFile(tmp_path / "state.db")
    assert file.read() == table
    with pytest.raises(CoordinatorFailed, match="another coordinator"):
        TableFile(tmp_path / "state.db")
    file.close()
