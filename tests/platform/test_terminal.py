"""What a log gets while something takes long."""

import io
import threading

from rich.console import Console

from taugrad.platform import terminal


class Heard(io.StringIO):
    """A log in which a second line is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = threading.Event()

    def flush(self) -> None:
        if self.getvalue().count("\n") >= 2:
            self.twice.set()


def test_a_log_hears_of_what_goes_on(monkeypatch):
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
