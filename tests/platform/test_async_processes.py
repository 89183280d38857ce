"""Real workers in the mode async of which one is stopped for a while, and later killed."""

import json
import os
import signal
import threading
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import forked
import pytest

WORKERS, BEHIND, STEPS = 3, 10, 120
TIMEOUT_S = 120


class Process:
    """One worker, and what it has said."""

    def __init__(self, rank: int, folder: Path, sync: dict[str, Any]) -> None:
        script = Path(__file__).with_name("async_process.py")
        self._pipe = folder / f"said_{rank}"
        os.mkfifo(self._pipe)
        arguments = (rank, WORKERS, folder, STEPS, json.dumps(sync))
        self.running = forked.start(script, arguments, self._pipe, folder / f"errors_{rank}.txt")
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self._pipe.open() as said:
            for line in said:
                self.lines.append(line.strip())

    @property
    def step(self) -> int:
        """The latest that it has made."""
        numbers = [int(line.split()[1]) for line in list(self.lines) if line.startswith("step")]
        return numbers[-1] if numbers else -1

    def reach(self, step: int) -> None:
        end = monotonic() + TIMEOUT_S
        while self.step < step and self.running.is_alive() and monotonic() < end:
            sleep(0.005)
        assert self.step >= step, self.lines[-3:]

    def send(self, sign: signal.Signals) -> None:
        assert self.running.pid is not None
        os.kill(self.running.pid, sign)

    def ended(self) -> tuple[int | None, str]:
        """Its exit status, and its last line."""
        self.running.join(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        return self.running.exitcode, self.lines[-1]

    @property
    def hashed(self) -> str:
        """The hash of its weights in the middle."""
        return next(line for line in self.lines if line.startswith("hash"))


@pytest.fixture
def workers(tmp_path):
    mode = {"mode": "async", "most_behind": BEHIND, "on_dead": "wait", "dead_after": 0.5}
    started = [Process(rank, tmp_path, mode) for rank in range(WORKERS)]
    yield started
    for process in started:
        process.running.kill()


def test_a_stopped_worker_is_waited_for_and_a_killed_one_is_noticed(workers):
    *others, slow = workers
    slow.reach(5)
    slow.send(signal.SIGSTOP)
    sleep(0.1)
    stopped_at = slow.step
    for other in others:
        other.reach(stopped_at + BEHIND - 1)
    sleep(1)
    # They may be ahead of what they have received by BEHIND, and it may have sent more than it has said.
    assert all(other.step <= stopped_at + 2 + BEHIND for other in others)
    slow.send(signal.SIGCONT)
    for worker in workers:
        worker.reach(STEPS // 2 + 5)
    assert len({worker.hashed for worker in workers}) == 1

    slow.running.kill()
    found = [other.ended() for other in others]  # which fails if one does not end
    for status, line in found:
        assert status == 3
        # Whoever notices first ends too, and may be what the other one notices.
        assert line.startswith("PeerLost: worker")
    assert any(line.startswith("PeerLost: worker 2 is gone") for _, line in found)
