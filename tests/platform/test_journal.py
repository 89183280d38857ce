"""The journal and its shipper: nothing is lost, nothing is there twice, and training never waits."""

import json
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import program, until

from taugrad.platform.launching.driver.delivering import deliver_metrics
from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking import journal as journals
from taugrad.platform.tracking import shipper as shipping
from taugrad.platform.tracking.journal import MetricsJournal
from taugrad.platform.tracking.record import UNDELIVERED, Record, records_of
from taugrad.platform.tracking.run_lock import RunLock, end_run
from taugrad.platform.tracking.shipper import Shipper
from taugrad.platform.tracking.store import open_client, start_run

mlflow = pytest.importorskip("mlflow")

from mlflow.entities import Metric  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402

LONG_S = 120.0  # this machine may be busy
Point = tuple[str, int, float]


class FakeStore:
    """A client that knows one run; `before` and `after` what it stores may raise."""

    tracking_uri = "fake"

    def __init__(self) -> None:
        self.calls: list[list[Metric]] = []
        self.asked = 0
        self.run_id = ""
        self.before: Callable[[Sequence[Metric]], None] = lambda metrics: None
        self.after: Callable[[Sequence[Metric]], None] = lambda metrics: None

    def get_run(self, run_id: str) -> Any:
        self.asked += 1
        self.before(())
        last = {metric.key: metric for call in self.calls for metric in call}
        proto = SimpleNamespace(metrics=list(last.values()))
        data = SimpleNamespace(to_proto=lambda: proto)
        return SimpleNamespace(info=SimpleNamespace(run_id=self.run_id or run_id), data=data)

    def log_batch(self, run_id: str, metrics: Sequence[Metric] = ()) -> None:
        self.before(metrics)
        self.calls.append(list(metrics))
        self.after(metrics)

    @property
    def accepted(self) -> list[Point]:
        return [(metric.key, metric.step, metric.value) for call in self.calls for metric in call]


@pytest.fixture
def fake(monkeypatch):
    for interval in ("_RETRY_S", "_LINGER_S", "_LOOK_S"):
        monkeypatch.setattr(shipping, interval, 0.02)
    return FakeStore()


@pytest.fixture
def run(tmp_path, new_store):
    """The URI of a database in a folder whose name needs quoting, and a run in it."""
    (tmp_path / "my runs").mkdir()
    uri = new_store(tmp_path / "my runs")
    return uri, start_run(open_client(uri), RunSpec(name="one"))


def of(store: Any, run_id: str = "run", steps: Iterable[int] = ()) -> tuple[MetricsJournal, list[str]]:
    """A journal that a thread ships from, with a metric of these steps, and what the user is told."""
    told: list[str] = []
    journal = MetricsJournal("fake", run_id, told.append, store)
    for step in steps:
        journal.log(step, {"a": step})
    return journal, told


def record(step: int, time: int = 0, **metrics: float) -> Record:
    return Record(time=time, step=step, metrics=metrics)


def ship(store: Any, run_id: str, records: Sequence[Record]) -> tuple[int, list[str]]:
    """How many metrics the store took, and what the user was told."""
    told: list[str] = []
    return Shipper(store, run_id, told.append, set()).ship(records), told


def away(_: Sequence[Metric]) -> None:
    raise ConnectionError("connection refused\nand a long trace")


def steps(uri: str, run_id: str, metric: str) -> list[int]:
    return sorted(point.step for point in open_client(uri).get_metric_history(run_id, metric))


# What is sent


def test_a_database_has_everything_once_nan_and_infinity_too(run):
    uri, run_id = run
    client = open_client(uri)
    odd = {7: math.nan, 8: math.inf}
    records = [record(step, 1000 + step, a=odd.get(step, step / 3), b=1.0) for step in range(1200)]
    assert ship(client, run_id, records) == (2400, [])
    assert ship(client, run_id, records) == (0, [])
    points = sorted(client.get_metric_history(run_id, "a"), key=lambda point: point.step)
    assert [(point.step, point.timestamp) for point in points] == [
        (step, 1000 + step) for step in range(1200)
    ]
    assert math.isnan(points[7].value)
    assert points[8].value >= sys.float_info.max
    assert all(point.value == point.step / 3 for point in points if point.step not in odd)


def test_what_a_resumed_run_makes_again_is_compared_metric_by_metric(fake):
    ship(fake, "run", [record(step, a=step) for step in range(5)] + [record(3, eval=3)])
    again = [record(step, 99, a=step) for step in range(8)]
    again[4:4] = [record(3, 99, eval=3)]
    assert ship(fake, "run", [*again, record(6, 99, eval=6), record(7, 99, total=1)])[0] == 5
    new = [("a", 5, 5), ("a", 6, 6), ("a", 7, 7), ("eval", 6, 6), ("total", 7, 1)]
    assert sorted(fake.calls[-1], key=lambda call: call.key) == [
        Metric(key, value, 99, step) for key, step, value in new
    ]


def test_a_store_that_refuses_nan_gets_everything_else_with_one_notice(fake):
    def refuse(metrics: Sequence[Metric]) -> None:
        if not all(math.isfinite(metric.value) for metric in metrics):
            raise MlflowException.invalid_parameter_value("NaN is not a number")

    fake.before = refuse
    records = [record(step, loss=math.nan if step >= 20 else step, tau=1.0) for step in range(40)]
    count, told = ship(fake, "run", [*records, record(40, loss=math.inf)])
    assert (count, len(fake.accepted), len(told)) == (60, 60, 1)


def test_what_answers_without_the_run_is_no_store(fake):
    fake.run_id = "another"
    with pytest.raises(ConnectionError, match="no MLflow server"):
        Shipper(fake, "one", print, set())


def test_a_store_that_refuses_everything_loses_nothing(fake):
    def refuse(metrics: Sequence[Metric]) -> None:
        if metrics:
            raise MlflowException.invalid_parameter_value("a proxy says no")

    fake.before = refuse
    journal, told = of(fake)
    journal.log(0, {"a": 1, "b": 2})
    (line,) = journal.close(0.5)
    assert Record.model_validate_json(line).metrics == {"a": 1, "b": 2}
    assert told == ["MLflow does not answer (a proxy says no): training goes on, its metrics wait"]


def test_a_deleted_run_keeps_its_metrics_until_it_is_restored(run, monkeypatch):
    monkeypatch.setattr(shipping, "_RETRY_S", 0.02)
    uri, run_id = run
    client = open_client(uri)
    client.delete_run(run_id)
    journal, told = of(client, run_id, [0])
    assert not journal.flush(2)
    assert len(journal.unshipped()) == 1
    assert "deleted" in told[0]
    client.restore_run(run_id)
    assert journal.close(LONG_S) == []
    assert steps(uri, run_id, "a") == [0]
    never, told = of(client, "0" * 32, [0])
    assert len(never.close(2)) == 1
    assert "not found" in told[-1]


# While a run trains


def test_training_does_not_wait_for_a_store_that_hangs(fake, monkeypatch):
    monkeypatch.setattr(journals, "_LEAVING_S", 0.1)
    release, entered = threading.Event(), threading.Event()

    def hang(_: Sequence[Metric]) -> None:
        entered.set()
        release.wait()

    fake.before = hang
    journal, _ = of(fake, steps=range(4000))
    began = time.monotonic()
    assert not journal.flush(0.5)
    assert entered.wait(LONG_S)
    assert len(journal.close(0.5)) == 4000
    assert time.monotonic() < began + LONG_S
    release.set()
    with pytest.raises(RuntimeError, match="closed"):
        journal.log(0, {"a": 1})
    assert journal.close(0) == []


def test_an_outage_loses_nothing_and_gives_two_notices(fake):
    journal, told = of(fake)
    for outage in range(2):
        fake.before = away
        for step in range(50 * outage, 50 * outage + 50):
            journal.log(step, {"a": step, "b": -step})
        assert not journal.flush(0.5)
        assert len(journal.unshipped()) == 50
        until(lambda n=2 * outage + 1: len(told) == n)  # type: ignore[misc]
        fake.before = lambda _: None
        assert journal.flush(LONG_S)
        until(lambda n=2 * outage + 2: len(told) == n)  # type: ignore[misc]
        assert told[-2:] == [
            "MLflow does not answer (connection refused): training goes on, its metrics wait",
            "MLflow answers again: 100 metrics delivered",
        ]
    assert journal.close(LONG_S) == []
    assert fake.accepted == [
        point for step in range(100) for point in (("a", step, step), ("b", step, -step))
    ]


def test_a_lost_answer_doubles_nothing_in_any_store(fake):
    lost: list[int] = []

    def lose(metrics: Sequence[Metric]) -> None:
        if len(lost) < 3:
            lost.append(len(metrics))
            raise TimeoutError("no answer")

    fake.after = lose
    journal, _ = of(fake)
    for step in range(20):
        journal.log(step, {"a": step})
        journal.flush(LONG_S)
    assert journal.close(LONG_S) == []
    assert (len(lost), fake.accepted) == (3, [("a", step, step) for step in range(20)])


def test_a_checkpoint_carries_the_rest_to_another_machine(fake):
    fake.before = away
    first, _ = of(fake, steps=range(6))
    kept = json.loads(json.dumps(first.unshipped()))
    fake.before = lambda _: None
    assert first.close(LONG_S) == []  # these arrived after all, behind the checkpoint
    second, _ = of(fake)
    second.restore(kept)
    second.log(4, {"a": 4})  # a step that the checkpoint does not have
    second.log(6, {"a": 6})
    assert second.close(LONG_S) == []
    assert [step for _, step, _ in fake.accepted] == list(range(7))
    fake.calls.clear()
    third, _ = of(fake)
    third.restore(kept)
    assert third.close(LONG_S) == []
    times = [metric.timestamp for call in fake.calls for metric in call]
    assert times == [record.time for record in records_of("".join(kept), "kept")]
    assert abs(times[-1] - time.time() * 1000) < 1000 * LONG_S


def test_a_broken_display_does_not_stop_the_delivery(fake):
    told: list[str] = []

    def broken(notice: str) -> None:
        told.append(notice)
        raise OSError("no terminal")

    journal = MetricsJournal("fake", "run", broken, fake)
    fake.before = away
    journal.log(0, {"a": 1})
    until(lambda: journal.flush(0.1) or told)
    fake.before = lambda _: None
    assert journal.close(LONG_S) == []
    assert (fake.accepted, len(told)) == ([("a", 0, 1)], 2)


def test_a_long_journal_begins_anew_once_it_is_shipped(fake, monkeypatch):
    large = 2000
    for module in (journals, shipping):
        monkeypatch.setattr(module, "LARGE", large)
    monkeypatch.setattr(journals, "_RESTART_S", 0.02)
    journal, _ = of(fake)
    for step in range(300):
        journal.log(step, {"a" * 100: step})
        if step % 50 == 49:
            assert journal.flush(LONG_S)
            until(lambda: os.fstat(journal._file.fileno()).st_size < large)
    assert journal.close(LONG_S) == []
    assert [step for _, step, _ in fake.accepted] == list(range(300))


def test_on_a_full_disk_records_wait_in_memory(fake):
    journal, _ = of(fake)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    fake.before = away
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, unlimited[1]))  # as a full disk, in the midst of a line
    try:
        for step in range(100):
            journal.log(step, {"a": step})
        assert os.fstat(journal._file.fileno()).st_size == 1000
        assert len(journal.unshipped()) == 100
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        fake.before = lambda _: None
    assert journal.close(LONG_S) == []
    assert [step for _, step, _ in fake.accepted] == list(range(100))


# The process


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, in which nothing may be left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield folder
    assert list(folder.iterdir()) == []


def process_of(run_id: str) -> dict[int, str]:
    """The command line of what ships a run's journal, by process."""
    results = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if f"{shipping.__name__} " in command and run_id in command:
            results[int(path.parent.name)] = command
    return results


def test_its_process_may_be_killed_at_any_time(run, temporary):
    (uri, run_id), told = run, list[str]()
    journal = MetricsJournal(uri, run_id, told.append)
    journal.tag("a tag", "its value")
    for step in range(1, 60):
        journal.log(step, {"a": 0.5, "nan": math.nan, "bad|name": 1.0})
    assert journal.flush(LONG_S)
    ((pid, command),) = process_of(run_id).items()
    assert uri not in command, "an address may have a password in it, and anybody sees command lines"
    os.kill(pid, signal.SIGKILL)
    for step in range(60, 80):
        journal.log(step, {"a": 0.5})
    assert journal.close(LONG_S) == []
    assert steps(uri, run_id, "a") == list(range(1, 80))
    assert steps(uri, run_id, "nan") == list(range(1, 60))
    assert open_client(uri).get_run(run_id).data.tags["a tag"] == "its value"
    # What no store accepts is said, and nothing else: the process's end is nobody's trouble.
    (said,) = told
    assert said.startswith("MLflow refuses bad|name")
    assert process_of(run_id) == {}


def test_a_shipper_that_fails_is_reported(run, temporary):
    (uri, run_id), told = run, list[str]()
    journal = MetricsJournal(uri, run_id, told.append)
    journal.restore(["no record\n"])
    until(lambda: bool(journal.flush(0.5) or told))
    assert journal.close(0.5) == ["no record\n"]
    assert told == ["what sends metrics to MLflow has failed, see worker 0's log; it is tried again"]


TRAINER = """
import sys, time
from taugrad.platform.tracking.journal import MetricsJournal
journal = MetricsJournal(*sys.argv[1:], print)
for step in range(50):
    journal.log(step, {"a": step})
journal.flush(60)
journal.log(50, {"a": 50})
print("logged", flush=True)
time.sleep(600)
"""


def test_it_ends_with_the_worker_that_is_killed(run, temporary):
    uri, run_id = run
    with program(TRAINER, uri, run_id) as trainer:
        assert trainer.stdout.readline() == "logged\n"
        assert len(process_of(run_id)) == 1
        trainer.kill()
    until(lambda: process_of(run_id) == {})
    assert steps(uri, run_id, "a")[:50] == list(range(50))


# `taugrad deliver`


def test_a_file_is_delivered_with_how_the_run_ended(run, tmp_path):
    uri, run_id = run
    client = open_client(uri)
    place = tmp_path / run_id / UNDELIVERED
    place.parent.mkdir()

    def deliver(*records: Record, run: str | None = None) -> str:
        place.write_text("".join(record.to_line() for record in records))
        return deliver_metrics(str(place), run, lambda: client, pytest.fail)

    metrics, tag = record(1, 5, a=1.0), Record(time=5, tags={"a tag": "its value"})
    failed = Record(time=6, ended="FAILED", run=run_id)
    ended = Record(time=7, ended="FINISHED", run=run_id)
    assert deliver(metrics, tag) == f"1 metrics delivered to run {run_id}, which is RUNNING"
    with RunLock(client, run_id, new=True):  # somebody goes on with it
        assert deliver(metrics, ended) == f"0 metrics delivered to run {run_id}, which is RUNNING"
    # A run that failed, was resumed and finished in one outage.
    assert deliver(metrics, failed, ended) == f"0 metrics delivered to run {run_id}, which is FINISHED"
    result = client.get_run(run_id)
    assert (result.info.end_time, result.data.tags["a tag"]) == (7, "its value")
    assert end_run(client, run_id, failed) == "FINISHED"  # it has an end
    with pytest.raises(ValueError, match=f"is of run {run_id}, not of another"):
        deliver(ended, run="another")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"key": "a", "value": 1, "timestamp": 1, "step": 0}', "time Field required"),
        ('{"time": 1, "metrics": {"a": "b"}}', "metrics.a Input should be a valid number"),
        ('{"time": 1, "ended": "DONE"}', "ended Input should be 'FINISHED', 'FAILED' or 'KILLED'"),
        ('{"time": 1, "ended": "FINIS', "Invalid JSON"),
        ("", "Invalid JSON"),
    ],
)
def test_a_broken_file_names_its_line(line, reason, tmp_path):
    (tmp_path / "left").write_text(record(1, a=1.0).to_line() + line + "\n")
    with pytest.raises(ValueError, match=r"left, line 2: not a record \(.*") as refused:
        deliver_metrics(str(tmp_path / "left"), "run", pytest.fail, pytest.fail)
    assert reason in str(refused.value)
