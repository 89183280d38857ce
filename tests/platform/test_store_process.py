"""MLflow in a process of its own: what it stores and says, and what becomes of a run where it ends."""

import os
import signal
from collections.abc import Collection, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking.store import open_client, start_run
from taugrad.platform.tracking.store_process import StoreError, StoreProcess
from taugrad.platform.tracking.writer import MetricWriter, Point, Stored

MODULE = "taugrad.platform.tracking.store_process"


@pytest.fixture
def run(tmp_path: Path) -> tuple[str, str]:
    """The URI of a database, and a run in it."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    return uri, start_run(open_client(uri), RunSpec(name="one"))


@pytest.fixture
def others() -> set[int]:
    """Processes like ours that another test of this process has left, which are not ours."""
    return set(children())


@pytest.fixture
def store(run: tuple[str, str], others: set[int]) -> Iterator[StoreProcess]:
    store = StoreProcess(run[0])
    yield store
    store.close()


def children(others: Collection[int] = ()) -> dict[int, str]:
    """The command lines of this process's processes that talk to MLflow, without `others`, by id."""
    found = {}
    for each in Path("/proc/self/task").glob("*/children"):
        for pid in each.read_text().split():
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            if MODULE in command and int(pid) not in others:
                found[int(pid)] = command
    return found


def wait_for(pid: int) -> None:
    """Until a process has ended, whoever its parent is."""
    deadline = monotonic() + 30
    while Path(f"/proc/{pid}/stat").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert monotonic() < deadline
        sleep(0.02)


def steps(uri: str, run_id: str, metric: str) -> list[int]:
    return sorted(point.step for point in open_client(uri).get_metric_history(run_id, metric))


def test_what_it_is_told_is_in_the_store_also_after_it_was_killed(
    run: tuple[str, str], store: StoreProcess, others: set[int]
) -> None:
    uri, run_id = run
    told: list[str] = []
    writer = MetricWriter(store, run_id, stored=lambda: store.stored(run_id), notify=told.append)
    for step in range(1, 60):
        writer.log(step, {"comm/fraction": 0.5, "train/loss": float("nan"), "bad|name": 1.0})
    assert writer.flush(120)
    ((pid, command),) = children(others).items()
    assert uri not in command, "an address may have a password in it, and anybody sees command lines"
    store.set_tag(run_id, "a tag", "its value")
    store.log_text(run_id, "a text\nof two lines", "texts/one.txt")
    with pytest.raises(StoreError, match="exceeds the maximum length") as refused:
        store.set_tag(run_id, "k" * 1000, "value")
    assert refused.value.error_code == "INVALID_PARAMETER_VALUE"
    os.kill(pid, signal.SIGKILL)
    wait_for(pid)
    for step in range(60, 80):
        writer.log(step, {"comm/fraction": 0.5})
    assert writer.close(120) == 0
    assert store.stored(run_id) == Stored(79, -1, -1)
    client = open_client(uri)
    assert steps(uri, run_id, "comm/fraction") == list(range(1, 80))
    assert steps(uri, run_id, "train/loss") == list(range(1, 60))
    assert client.get_run(run_id).data.tags["a tag"] == "its value"
    place = client.download_artifacts(run_id, "texts/one.txt")
    assert Path(place).read_text() == "a text\nof two lines"
    # What no store accepts is said once, and nothing else: the process's end is nobody's trouble.
    assert len(told) == 1
    assert told[0].startswith("MLflow refuses bad|name")


def test_it_ends_with_its_input(run: tuple[str, str], store: StoreProcess, others: set[int]) -> None:
    uri, run_id = run
    store.log_points(run_id, [Point("comm/fraction", 1.0, 0, 3, None)])
    (pid,) = children(others)
    store.close()
    wait_for(pid)
    assert children(others) == {}
    assert steps(uri, run_id, "comm/fraction") == [3]
    with pytest.raises(StoreError, match="the store was closed"):
        store.set_tag(run_id, "a tag", "its value")
