"""What a log gets while something takes long, and what a signal does to a command that follows a job."""

import asyncio
import io
import os
import signal
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
from ray.job_submission import JobStatus
from rich.console import Console

from taugrad import signals
from taugrad.platform import terminal
from taugrad.platform.launching.driver.submit import follow


class Heard(io.StringIO):
    """A log in which a second line is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = threading.Event()

    def flush(self) -> None:
        if self.getvalue().count("\n") >= 2:
            self.twice.set()


def test_a_log_gets_a_line_now_and_then(monkeypatch):
    monkeypatch.setattr(terminal, "SOON_S", 0.01)
    monkeypatch.setattr(terminal, "SILENT_S", 0.01)
    log = Heard()
    with terminal.going_on(Console(file=log), "checking data"):
        assert log.twice.wait(60)
    assert set(log.getvalue().splitlines()) == {"checking data \u2026"}


def test_what_is_over_soon_says_nothing():
    log = Heard()
    with terminal.going_on(Console(file=log), "checking data"):
        pass
    assert log.getvalue() == ""


ADDRESS = "http://127.0.0.1:8265"


class Client:
    """A job server's client, whose job runs on."""

    def __init__(self, sent: signal.Signals) -> None:
        self.sent = sent

    async def tail_job_logs(self, _: str) -> AsyncIterator[str]:
        yield "epoch 1/9\n"
        os.kill(os.getpid(), self.sent)
        await asyncio.sleep(60)
        yield "nobody pressed Ctrl-C\n"


class Interrupted:
    """A job server's client behind a proxy that ends what is silent for a while; in the end, too."""

    def __init__(self) -> None:
        self.log, self.left = "", ["epoch 1/2\n", "", "epoch 2/2\n", ""]

    async def tail_job_logs(self, _: str) -> AsyncIterator[str]:
        self.log += self.left.pop(0)
        for line in self.log.splitlines(keepends=True)[: 1 if self.left else 2]:
            yield line
        if self.left:
            raise RuntimeError("the WebSocket was closed unexpectedly")

    def get_job_info(self, _: str) -> SimpleNamespace:
        status = JobStatus.RUNNING if len(self.left) > 1 else JobStatus.FAILED
        return SimpleNamespace(status=status, message="", driver_exit_code=3)


def test_a_log_that_breaks_off_goes_on_while_the_job_runs(monkeypatch, capsys):
    monkeypatch.setattr("taugrad.platform.launching.driver.submit._AGAIN_S", 0)
    assert follow(Interrupted(), "j1", ADDRESS) == 3
    assert capsys.readouterr().out == "epoch 1/2\nepoch 2/2\n"


def test_a_log_of_which_nothing_comes_is_asked_for_again(monkeypatch, capsys):
    """As over a gateway that has forgotten the connection."""
    monkeypatch.setattr("taugrad.platform.launching.driver.submit._AGAIN_S", 0)
    monkeypatch.setattr("taugrad.platform.launching.driver.submit._QUIET_S", 0.05)
    client, tail = Interrupted(), Interrupted.tail_job_logs

    async def forgotten(job: str) -> AsyncIterator[str]:
        try:
            async for line in tail(client, job):
                yield line
        except RuntimeError:
            await asyncio.sleep(60)

    client.tail_job_logs = forgotten
    assert follow(client, "j1", ADDRESS) == 3
    assert capsys.readouterr().out == "epoch 1/2\nepoch 2/2\n"


def test_a_cluster_that_is_away_for_a_moment_is_asked_again(monkeypatch, capsys):
    monkeypatch.setattr("taugrad.platform.launching.driver.submit._AGAIN_S", 0)
    client, told = Interrupted(), Interrupted.get_job_info
    problems = [RuntimeError("502 Bad Gateway"), TimeoutError("timed out")]

    def info(job: str) -> SimpleNamespace:
        if problems:
            raise problems.pop()
        return told(client, job)

    client.get_job_info = info
    client.left[:0] = ["", ""]
    assert follow(client, "j1", ADDRESS) == 3
    assert not problems
    assert capsys.readouterr().out == "epoch 1/2\nepoch 2/2\n"


def test_a_cluster_that_is_gone_is_said(monkeypatch, capsys):
    monkeypatch.setattr("taugrad.platform.launching.driver.submit._LOST_S", 0)
    client = Interrupted()
    client.get_job_info = lambda _: (_ for _ in ()).throw(RuntimeError("connection refused"))
    assert follow(client, "j1", ADDRESS) == 1
    said = capsys.readouterr().err
    assert "job j1: the cluster does not answer any more: connection refused" in said
    assert f"job j1: it may go on; continue with: ray job logs --follow --address {ADDRESS} j1" in said


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("mode", ["", "RAY_AUTH_MODE=token "])
def test_the_job_goes_on_and_two_lines_say_how_to_go_on(sent, code, mode, monkeypatch, capsys):
    monkeypatch.setenv("RAY_AUTH_MODE", "token" if mode else "disabled")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    assert signals.run(lambda: follow(Client(sent), "j1", ADDRESS)) == code
    signal.signal(signal.SIGINT, before)
    out, err = capsys.readouterr()
    assert out == "epoch 1/9\n"
    assert err == (
        f"job j1: interrupted; continue with: {mode}ray job logs --follow --address {ADDRESS} j1\n"
        f"job j1: goes on; to stop it: {mode}ray job stop --address {ADDRESS} j1\n"
    )
