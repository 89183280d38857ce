"""What Ctrl-C and `kill` do to a command that follows a job; test_submit has a cluster's own job."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from ray.job_submission import JobStatus

from taugrad import ending
from taugrad.platform.launching.following import follow

ADDRESS = "http://127.0.0.1:8265"


class Client:
    """A job server's client, whose job runs until it is stopped."""

    def __init__(self, sent: signal.Signals, *, answers: bool = True) -> None:
        self.sent, self.answers = sent, answers
        self.asked_to_stop: list[str] = []
        self.looks_until_stopped = 2

    async def tail_job_logs(self, _: str) -> AsyncIterator[str]:
        yield "epoch 1/9\n"
        os.kill(os.getpid(), self.sent)
        await asyncio.sleep(60)
        yield "nobody pressed Ctrl-C\n"

    def stop_job(self, job_id: str) -> bool:
        if not self.answers:
            raise ConnectionError("no route")
        self.asked_to_stop.append(job_id)
        return True

    def get_job_status(self, _: str) -> JobStatus:
        self.looks_until_stopped -= 1
        return JobStatus.STOPPED if self.looks_until_stopped < 1 else JobStatus.RUNNING


class Terminal:
    """A terminal at which somebody types."""

    def __init__(self, typed: str | None) -> None:
        self.typed, self.read = typed, 0

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        self.read += 1
        if self.typed is None:
            raise KeyboardInterrupt
        return self.typed


@pytest.fixture(autouse=True)
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ctrl-C is heard, also where tests run in the background; no token is sent."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], Terminal]:
    def sit(typed: str | None) -> Terminal:
        terminal = Terminal(typed)
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        return terminal

    return sit


def stop_line(what: str, *, mode: str = "") -> str:
    see = f"job j1: interrupted; continue with: {mode}ray job logs --follow --address {ADDRESS} j1\n"
    return f"{see}job j1: {what}; to stop it: {mode}ray job stop --address {ADDRESS} j1\n"


def test_where_nobody_can_be_asked_the_job_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    client = Client(signal.SIGINT)
    assert follow(client, "j1", ADDRESS) == 130
    out, err = capsys.readouterr()
    assert (out, err) == ("epoch 1/9\n", stop_line("goes on"))
    assert client.asked_to_stop == []


@pytest.mark.parametrize("typed", ["y\n", "Yes\n"])
def test_who_says_yes_stops_it(
    typed: str, at_terminal: Callable[[str | None], Terminal], capsys: pytest.CaptureFixture[str]
) -> None:
    terminal, client = at_terminal(typed), Client(signal.SIGINT)
    assert follow(client, "j1", ADDRESS) == 130
    assert (terminal.read, client.asked_to_stop) == (1, ["j1"])
    assert client.looks_until_stopped == 0
    assert capsys.readouterr().err == "\njob j1 is running. Stop it? [y/N] job j1: stopped\n"


@pytest.mark.parametrize("typed", ["\n", "n\n", "what?\n", "", None])
def test_all_else_leaves_it_running(
    typed: str | None, at_terminal: Callable[[str | None], Terminal], capsys: pytest.CaptureFixture[str]
) -> None:
    terminal, client = at_terminal(typed), Client(signal.SIGINT)
    assert follow(client, "j1", ADDRESS) == 130
    assert (terminal.read, client.asked_to_stop) == (1, [])
    assert capsys.readouterr().err.endswith(stop_line("goes on"))


def test_kill_asks_nobody(
    at_terminal: Callable[[str | None], Terminal], capsys: pytest.CaptureFixture[str]
) -> None:
    terminal, client = at_terminal("y\n"), Client(signal.SIGTERM)
    assert ending.run(lambda: follow(client, "j1", ADDRESS)) == 143
    assert (terminal.read, client.asked_to_stop) == (0, [])
    assert capsys.readouterr().err == stop_line("goes on")
