"""What a log gets while something takes long, and what a signal does to a command that follows a job."""

import asyncio
import io
import os
import signal
import threading
from collections.abc import AsyncIterator

import pytest
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
