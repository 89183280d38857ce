"""What Ctrl-C and `kill` do to a command that follows a job; test_submit has a cluster's own job."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from taugrad import ending
from taugrad.platform.launching.submit import follow

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
    assert ending.run(lambda: follow(Client(sent), "j1", ADDRESS)) == code
    signal.signal(signal.SIGINT, before)
    out, err = capsys.readouterr()
    assert out == "epoch 1/9\n"
    assert err == (
        f"job j1: interrupted; continue with: {mode}ray job logs --follow --address {ADDRESS} j1\n"
        f"job j1: goes on; to stop it: {mode}ray job stop --address {ADDRESS} j1\n"
    )
