"""The hook in real DDP over gloo, on the loopback interface: every scenario of ddp_*.py."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import ddp_process
import pytest
from ddp import SCENARIOS
from forked import run_workers

SCRIPT = Path(ddp_process.__file__)
TIMEOUT_S = 1200
"""For all scenarios of a group, which take two or three minutes; one that hangs ends by its group."""
Failures = dict[str, str]


@pytest.fixture(scope="module")
def failures(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Failures]:
    """What failed, with what the workers said, of so many workers; each group runs once."""
    done: dict[int, Failures] = {}
    asked = [item.callspec.params for item in request.session.items if item.path == request.path]

    def found(workers: int) -> Failures:
        if workers not in done:
            names = [each["name"] for each in asked if each["workers"] == workers]
            done[workers] = run_all(workers, names, tmp_path_factory)
        return done[workers]

    return found


def arguments(workers: int, folder: Path, names: list[str], rank: int) -> tuple[object, ...]:
    return rank, workers, folder, *names


def run_all(workers: int, names: list[str], folders: pytest.TempPathFactory) -> Failures:
    """Runs scenarios; where one fails, new processes go on behind it."""
    failed = Failures()
    while names:
        folder = folders.mktemp(f"ddp-{workers}")
        try:
            run_workers(SCRIPT, partial(arguments, workers, folder, names), workers, timeout_s=TIMEOUT_S)
            return failed
        except AssertionError as error:
            counts = [int(each.read_text()) for each in folder.glob("done-*")]
            done = min(counts) if len(counts) == workers else 0
            if done == len(names):  # all held, and the end did not
                raise
            failed[names[done]] = str(error)
            names = names[done + 1 :]
    return failed


@pytest.mark.parametrize(
    ("workers", "name"), [(workers, name) for workers, names in SCENARIOS.items() for name in names]
)
def test_scenario(workers: int, name: str, failures: Callable[[int], Failures]) -> None:
    found = failures(workers)
    assert name not in found, found.get(name)
