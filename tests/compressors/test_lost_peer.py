"""A worker of a plain DDP script that is stopped or killed: all others fail in time, and say who it was.

A stopped process closes no connection; only the process group's timeout tells the others.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import forked
import pytest
from cases import in_turn

CASES = {
    "stopped-exact": ("wgt(0.01)", "exact", 4),
    "stopped-hierarchical": ("wgt(0.01)", "hierarchical", 4),
    "stopped-all-reduce": ("none", "exact", 4),
    "killed-hierarchical": ("wgt(0.01)", "hierarchical", 4),
    "killed-exact": ("wgt(0.01)", "exact", 3),
}
"""By what happens to the last worker and in which form of exchange: method, form, workers. One after the
other, by the same processes; who was stopped goes on and fails, too, who was killed is in no later one."""
PATIENCE_S = 8
"""What the scripts ask of their process groups."""
STARTED_S, ENDED_S = 240, 60

Told = dict[str, Any]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Told]]]:
    """By case, what each of the other workers said of its end, and when the last one was lost."""
    folder, script = tmp_path_factory.mktemp("lost"), Path(__file__).with_name("lost_peer_process.py")
    (folder / "cases.json").write_text(json.dumps([(name, *case) for name, case in CASES.items()]))
    workers = [
        forked.start(script, (rank, folder, PATIENCE_S), folder / f"{rank}.txt", folder / f"{rank}.txt")
        for rank in range(max(count for _, _, count in CASES.values()))
    ]
    try:
        yield {name: lose(folder, name, workers[:count]) for name, (_, _, count) in CASES.items()}
        workers[0].join(ENDED_S)
        assert workers[0].exitcode == 0, (folder / "0.txt").read_text()[-3000:]
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def lose(folder: Path, name: str, workers: list[BaseProcess]) -> list[Told]:
    """Waits until all train, takes the last one away, and waits for what the others say."""

    def all_say(kind: str, ranks: range, seconds: float) -> None:
        wait_until(
            lambda: all((folder / f"{name}-{rank}.{kind}").exists() for rank in ranks),
            seconds,
            lambda: f"{name}: " + " ".join(each.read_text()[-1000:] for each in folder.glob("*.txt")),
        )

    last = len(workers) - 1
    all_say("ready", range(last + 1), STARTED_S)
    stopped = name.startswith("stopped")
    os.kill(workers[last].pid or 0, signal.SIGSTOP if stopped else signal.SIGKILL)
    lost_at = time.monotonic()
    all_say("json", range(last), PATIENCE_S + ENDED_S)
    if stopped:
        os.kill(workers[last].pid or 0, signal.SIGCONT)
    found = [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(last)]
    return [each | {"after": each["at"] - lost_at} for each in found]


def wait_until(true: Callable[[], bool], seconds: float, why: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, why()
        time.sleep(0.02)


@in_turn("name", CASES)
def test_all_others_fail_in_time_and_say_who_it_was(name: str, told: dict[str, list[Told]]) -> None:
    found, lost = told[name], CASES[name][2] - 1
    assert len(found) == lost
    for each in found:
        assert each["failure"] == "PeerLost", each
        assert 0 < each["after"] < PATIENCE_S + 30  # not half an hour
        assert each["sentence"].count("\n") == 0
        # Who fails first may be what another one misses.
        assert "is gone: " in each["sentence"] or "has sent nothing" in each["sentence"]
    if name.startswith("stopped"):
        assert any(f"for {PATIENCE_S} s, the process group's timeout" in each["sentence"] for each in found)
    if CASES[name][:2] == ("wgt(0.01)", "exact"):
        assert any(each["worker"] == lost for each in found)
