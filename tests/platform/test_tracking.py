"""Tracking: nothing is lost, nothing is there twice, and training never waits."""

import getpass
import json
import logging
import math
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.yaml_file import read_yaml
from taugrad.platform.tracking import names, store
from taugrad.platform.tracking import writer as writing
from taugrad.platform.tracking.ended import UNDELIVERED, end_line, recorded_end
from taugrad.platform.tracking.holding import Hold, end_run
from taugrad.platform.tracking.masking import masked, without_login
from taugrad.platform.tracking.writer import MetricWriter, Stored, deliver

mlflow = pytest.importorskip("mlflow")

from mlflow.entities import Metric  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402

RUN = "run"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A fresh database in a folder whose name needs quoting."""
    return f"sqlite:///{tmp_path_factory.mktemp('my runs')}/mlflow.db"


@pytest.fixture
def client(database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    return store.open_client(database)


@pytest.fixture
def run_id(client: Any) -> str:
    return str(client.create_run(store.open_experiment(client, "tests")).info.run_id)


class FakeStore:
    """Keeps every call that it accepts; `fault` may raise before or after that."""

    def __init__(self) -> None:
        self.calls: list[list[Metric]] = []
        self.attempts = 0
        self.before: Callable[[Sequence[Metric]], None] = lambda metrics: None
        self.after: Callable[[Sequence[Metric]], None] = lambda metrics: None

    def log_batch(self, run_id: str, metrics: Sequence[Metric] = ()) -> None:
        assert run_id == RUN
        self.attempts += 1
        self.before(metrics)
        self.calls.append(list(metrics))
        self.after(metrics)

    @property
    def accepted(self) -> list[tuple[str, int, float]]:
        return [(m.key, m.step, m.value) for call in self.calls for m in call]


class Told(list[str]):
    """What the user was told."""

    def about(self, text: str) -> list[str]:
        return [message for message in self if text in message]


def writer(target: Any, told: Told, run: str = RUN, **options: Any) -> MetricWriter:
    return MetricWriter(target, run, notify=told.append, **{"retry_seconds": 0.02, **options})


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def invalid(message: str) -> MlflowException:
    return MlflowException.invalid_parameter_value(message)


# The writer


def test_every_point_is_in_the_database_exactly_once(client: Any, run_id: str) -> None:
    told = Told()
    metrics = writer(client, told, run_id, batch_size=70)
    for step in range(100):
        metrics.log(step, {"train/loss": 1 / (step + 1), "comm/fraction": step / 100, "comm/tau": 1e-3})
    assert metrics.flush(30)
    assert metrics.close(5) == 0
    for key, value in (
        ("train/loss", lambda step: 1 / (step + 1)),
        ("comm/fraction", lambda step: step / 100),
        ("comm/tau", lambda _: 1e-3),
    ):
        points = [(point.step, point.value) for point in client.get_metric_history(run_id, key)]
        assert sorted(points) == [(step, value(step)) for step in range(100)]
    assert told == []
    assert store.last_step(client, run_id, "train/loss") == 99
    assert store.last_step(client, run_id, "never/logged") == -1


def test_a_database_keeps_nan_and_infinity(client: Any, run_id: str) -> None:
    told = Told()
    metrics = writer(client, told, run_id)
    metrics.log(0, {"a": math.nan})
    metrics.log(1, {"a": math.inf})
    metrics.log(2, {"a": 1.0})
    waiting = metrics.pending()
    assert metrics.close(10) == 0
    # The same again, as after a crash: identical timestamps, so nothing doubles.
    again = writer(client, told, run_id)
    again.restore(waiting)
    assert again.close(10) == 0
    values = {point.step: point.value for point in client.get_metric_history(run_id, "a")}
    assert len(client.get_metric_history(run_id, "a")) == 3
    assert math.isnan(values[0])
    assert values[1] >= sys.float_info.max
    assert values[2] == 1.0
    assert told == []


def test_log_returns_while_the_store_hangs() -> None:
    fake, told = FakeStore(), Told()
    release, entered, answered = threading.Event(), threading.Event(), threading.Event()

    def hang(_: Sequence[Metric]) -> None:
        entered.set()
        release.wait()
        answered.set()

    fake.before = hang
    metrics = writer(fake, told, batch_size=5)
    for step in range(2000):
        metrics.log(step, {"a": step})
    assert entered.wait(10)
    for step in range(2000, 4000):
        metrics.log(step, {"a": step})
    assert fake.calls == []
    assert not metrics.flush(0.05)
    assert metrics.close(0.2) == 4000
    assert not answered.is_set()
    release.set()


def test_a_store_that_answers_bounds_what_waits_and_a_silent_one_stops_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = 30
    monkeypatch.setattr(writing, "MOST_WAITING", most)
    target, released = FakeStore(), threading.Event()
    metrics = writer(target, Told(), batch_size=10)
    for step in range(10):
        metrics.log(step, {"a": 1.0})
    wait_until(lambda: bool(target.calls))
    target.before = lambda _: time.sleep(0.005)
    waited = []
    for step in range(10, 400):
        metrics.log(step, {"a": 1.0})
        waited.append(len(metrics.pending()))
    assert max(waited) <= most

    monkeypatch.setattr(writing, "_ANSWERS_S", 0.02)

    def hang(_: Sequence[Metric]) -> None:
        released.wait(30)

    target.before = hang
    for step in range(400, 800):
        metrics.log(step, {"a": 1.0})
    assert len(metrics.pending()) >= 300
    released.set()
    assert metrics.close(30) == 0
    assert [step for _, step, _ in target.accepted] == list(range(800))


def test_an_outage_loses_nothing_keeps_the_order_and_is_told_once_each_way() -> None:
    fake, told, down = FakeStore(), Told(), threading.Event()

    def fail(_: Sequence[Metric]) -> None:
        if down.is_set():
            raise ConnectionError("connection refused\nand a long trace")

    fake.before = fail
    down.set()
    metrics = writer(fake, told, batch_size=8)
    for step in range(50):
        metrics.log(step, {"a": step, "b": -step})
    wait_until(lambda: fake.attempts >= 3)
    assert fake.calls == []
    assert [point["step"] for point in metrics.pending()] == [step for step in range(50) for _ in "ab"]
    down.clear()
    assert metrics.flush(10)
    metrics.log(50, {"a": 50, "b": -50})
    assert metrics.close(10) == 0
    assert fake.accepted == [point for step in range(51) for point in (("a", step, step), ("b", step, -step))]
    assert len(told) == 2
    assert "connection refused" in told[0]
    assert "long trace" not in told[0]
    assert "100 metrics delivered" in told[1]


def test_a_second_outage_is_told_again() -> None:
    fake, told, down = FakeStore(), Told(), threading.Event()

    def fail(_: Sequence[Metric]) -> None:
        if down.is_set():
            raise ConnectionError("gone")

    fake.before = fail
    metrics = writer(fake, told)
    for step in range(2):
        down.set()
        metrics.log(step, {"a": 0})
        wait_until(lambda n=step: len(told.about("does not answer")) == n + 1)  # type: ignore[misc]
        down.clear()
        assert metrics.flush(10)
        wait_until(lambda n=step: len(told.about("answers again: 1 metrics")) == n + 1)  # type: ignore[misc]
    metrics.close(5)


def test_a_resend_after_a_lost_answer_doubles_nothing(client: Any, run_id: str) -> None:
    told, lost = Told(), []

    class LosesTheFirstAnswers:
        def log_batch(self, run_id: str, metrics: Sequence[Metric] = ()) -> None:
            client.log_batch(run_id, metrics=metrics)
            if len(lost) < 3:
                lost.append(len(metrics))
                raise TimeoutError("no answer")

    metrics = writer(LosesTheFirstAnswers(), told, run_id, batch_size=4)
    for step in range(20):
        metrics.log(step, {"a": step, "nan": math.nan})
    assert metrics.flush(30)
    metrics.close(5)
    assert len(lost) == 3
    for key in ("a", "nan"):
        steps = [point.step for point in client.get_metric_history(run_id, key)]
        assert sorted(steps) == list(range(20))


def test_what_one_call_brings_is_sent_together() -> None:
    fake, told = FakeStore(), Told()
    metrics = writer(fake, told, batch_size=10)
    for step in range(20):
        metrics.log(step, dict.fromkeys("abc", 1.0))
    metrics.close(10)
    assert len(fake.accepted) == 60
    assert max(map(len, fake.calls)) <= 10
    for step in range(20):
        assert sum(step in {m.step for m in call} for call in fake.calls) == 1


def test_a_call_larger_than_a_batch_is_sent_in_parts() -> None:
    fake, told = FakeStore(), Told()
    metrics = writer(fake, told, batch_size=10)
    metrics.log(0, {f"k{i}": i for i in range(25)})
    assert metrics.close(10) == 0
    assert [len(call) for call in fake.calls] == [10, 10, 5]


def test_a_restarted_run_skips_what_is_there() -> None:
    fake, told = FakeStore(), Told()
    metrics = writer(fake, told, stored=lambda: Stored(iteration=4))
    for step in range(8):
        metrics.log(step, {"a": step})
    metrics.log(3, {"eval/accuracy": 0.5}, kind="evaluation")
    metrics.close(10)
    assert fake.accepted == [("a", 5, 5), ("a", 6, 6), ("a", 7, 7), ("eval/accuracy", 3, 0.5)]


def test_pending_metrics_survive_a_restart_with_their_timestamps() -> None:
    fake, told = FakeStore(), Told()

    def fail(_: Sequence[Metric]) -> None:
        raise ConnectionError("down")

    fake.before = fail
    first = writer(fake, told)
    for step in range(6):
        first.log(step, {"a": step})
    wait_until(lambda: bool(told))
    kept = json.loads(json.dumps(first.pending()))
    assert first.close(0.1) == 6
    fake.before = lambda _: None
    second = writer(fake, told, stored=lambda: Stored(iteration=3))
    second.restore(kept)
    second.log(6, {"a": 6})
    assert second.close(10) == 0
    # Step 3 may be there in part, so it is sent again; the database knows it by its timestamp.
    assert [step for _, step, _ in fake.accepted] == [3, 4, 5, 6]
    stamps = {point["step"]: point["timestamp"] for point in kept}
    assert [m.timestamp for call in fake.calls for m in call][:3] == [stamps[3], stamps[4], stamps[5]]
    assert abs(stamps[5] - time.time() * 1000) < 60_000


def restarted_in_an_outage(fake: FakeStore, told: Told) -> tuple[MetricWriter, Callable[[], None]]:
    """A writer whose store has iterations to 4, an evaluation at 3, and is away; and what brings it back."""
    down = [True]

    def stored() -> Stored:
        if down:
            raise ConnectionError("down")
        return Stored(iteration=4, evaluation=3)

    def fail(_: Sequence[Metric]) -> None:
        assert not down, "sent before it was known what is there"

    fake.before = fail
    metrics = writer(fake, told, stored=stored)
    for step in range(8):  # from the checkpoint on
        metrics.log(step, {"a": step})
        if step in (3, 6):
            metrics.log(step, {"eval": step}, kind="evaluation")
    return metrics, down.clear


NEW = [("a", 5, 5), ("a", 6, 6), ("eval", 6, 6), ("a", 7, 7)]


def test_a_run_restarted_in_an_outage_asks_later_what_is_there() -> None:
    fake, told = FakeStore(), Told()
    metrics, come_back = restarted_in_an_outage(fake, told)
    wait_until(lambda: bool(told.about("does not answer (down): training goes on")))
    come_back()
    assert metrics.close(10) == 0
    assert fake.accepted == NEW


def test_what_such_a_run_could_not_deliver_is_compared_when_it_can(tmp_path: Path) -> None:
    fake, told = FakeStore(), Told()
    metrics, come_back = restarted_in_an_outage(fake, told)
    kept = json.loads(json.dumps(metrics.pending()))
    assert metrics.close(0.1) == 10
    (tmp_path / "left.jsonl").write_text(metrics.undelivered())
    come_back()

    third = writer(fake, told, stored=lambda: Stored(iteration=4, evaluation=3))
    third.restore(kept)  # from that run's checkpoint
    assert third.close(10) == 0
    assert fake.accepted == NEW

    fake.calls.clear()
    assert deliver(tmp_path / "left.jsonl", fake, RUN, lambda: Stored(4, 3)) == len(NEW)
    assert fake.accepted == NEW
    assert deliver(tmp_path / "left.jsonl", fake, RUN, lambda: Stored(7, 6)) == 0


def test_a_store_is_opened_when_it_is_first_needed(database: str, run_id: str) -> None:
    late = store.LateStore(database)
    assert late.stored(run_id) == Stored(-1, -1)
    late.log_points(run_id, [("comm/fraction", 1.0, 0, 5), ("eval/loss", 1.0, 0, 3)])
    assert late.stored(run_id) == Stored(5, 3)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:se/cr:et@host:5432/runs", "postgresql://me:***@host:5432/runs"),
        ("mysql+pymysql://:secret@host/runs", "mysql+pymysql://:***@host/runs"),
        ("(at http://u:p@ss@host:5000/x?a=1)", "(at http://u:***@host:5000/x?a=1)"),
        ("postgresql://host/db?user=me&password=secret&x=1", "postgresql://host/db?user=me&password=***&x=1"),
        ("http://127.0.0.1:5000/#/experiments/1", "http://127.0.0.1:5000/#/experiments/1"),
        ("sqlite:////tmp/a:b/mlflow.db", "sqlite:////tmp/a:b/mlflow.db"),
    ],
)
def test_passwords_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_links_hold_no_login() -> None:
    assert without_login("https://me:secret@host:5000/ml") == "https://host:5000/ml"
    assert without_login("http://127.0.0.1:5000") == "http://127.0.0.1:5000"


def test_a_database_is_locked_without_a_file_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    entered = threading.Event()

    def second() -> None:
        with store._locked(tmp_path / "mlflow.db"):
            entered.set()

    with store._locked(tmp_path / "mlflow.db"):
        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.wait(0.3)
        assert list(tmp_path.iterdir()) == []
    assert entered.wait(10)
    thread.join()


def test_who_holds_the_folder_for_ever_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_LOCK_S", 0.1)
    with store._locked(tmp_path / "a.db"), store._locked(tmp_path / "b.db"):
        pass


def test_a_metric_that_can_never_be_stored_is_dropped_alone(client: Any, run_id: str) -> None:
    told = Told()
    metrics = writer(client, told, run_id)
    for step in range(30):
        metrics.log(step, {"good": step, "bad|name": step, "fine": step})
    assert metrics.close(30) == 0
    for key in ("good", "fine"):
        assert sorted(p.step for p in client.get_metric_history(run_id, key)) == list(range(30))
    assert len(told) == 1
    assert "bad|name" in told[0]


def test_a_store_that_refuses_nan_gets_everything_else_and_the_user_hears_it_once() -> None:
    fake, told = FakeStore(), Told()

    def refuse(metrics: Sequence[Metric]) -> None:
        if not all(math.isfinite(m.value) for m in metrics):
            raise invalid("NaN is not a number")

    fake.before = refuse
    metrics = writer(fake, told, batch_size=16)
    for step in range(40):
        metrics.log(step, {"loss": math.nan if step >= 20 else step, "tau": 1.0})
    metrics.log(40, {"loss": math.inf})
    assert metrics.close(10) == 0
    expected = Counter([("loss", step) for step in range(20)] + [("tau", step) for step in range(40)])
    assert Counter((key, step) for key, step, _ in fake.accepted) == expected
    assert len(told) == 1


@pytest.mark.parametrize("count", [1, 5])
def test_a_deleted_run_keeps_its_metrics_until_it_is_restored(count: int, client: Any, run_id: str) -> None:
    told = Told()
    client.delete_run(run_id)
    metrics = writer(client, told, run_id)
    for step in range(count):
        metrics.log(step, {"a": step})
    assert not metrics.flush(0.7)
    assert len(metrics.pending()) == count
    assert len(told) == 1
    assert "deleted" in told[0]
    client.restore_run(run_id)
    assert metrics.close(30) == 0
    assert sorted(p.step for p in client.get_metric_history(run_id, "a")) == list(range(count))


def test_a_run_that_never_was_keeps_its_metrics(client: Any) -> None:
    told = Told()
    metrics = writer(client, told, "0" * 32)
    metrics.log(0, {"a": 1})
    assert metrics.close(0.7) == 1
    assert len(told) == 1
    assert "not found" in told[0]


def test_a_store_that_refuses_everything_loses_nothing() -> None:
    fake, told = FakeStore(), Told()

    def refuse(_: Sequence[Metric]) -> None:
        raise invalid("a proxy says no")

    fake.before = refuse
    metrics = writer(fake, told)
    metrics.log(0, {"a": 1, "b": 2})
    assert metrics.close(0.3) == 2


def test_undelivered_metrics_go_through_a_file(client: Any, run_id: str, tmp_path: Path) -> None:
    fake, told = FakeStore(), Told()

    def fail(_: Sequence[Metric]) -> None:
        raise ConnectionError("down")

    fake.before = fail
    metrics = writer(fake, told)
    for step in range(1200):
        metrics.log(step, {"a": math.nan if step == 7 else step / 3})
    assert metrics.close(0.1) == 1200
    path = tmp_path / "undelivered.jsonl"
    path.write_text(metrics.undelivered())
    assert deliver(path, client, run_id) == 1200
    assert deliver(path, client, run_id) == 1200
    points = sorted(client.get_metric_history(run_id, "a"), key=lambda point: point.step)
    assert [point.step for point in points] == list(range(1200))
    assert math.isnan(points[7].value)
    assert all(point.value == point.step / 3 for point in points if point.step != 7)


def test_a_file_says_how_a_run_ended_that_the_store_was_not_told_of(
    client: Any, run_id: str, tmp_path: Path
) -> None:
    path = tmp_path / UNDELIVERED
    metric = '{"key": "a", "value": 1, "timestamp": 1, "step": 0}\n'
    path.write_text(metric)
    assert recorded_end(path, run_id) is None  # of an older program, or of a command that was killed
    assert end_run(client, run_id, None) == "RUNNING"
    path.write_text(metric + end_line(run_id, "FAILED") + end_line(run_id, "FINISHED"))
    end = recorded_end(path, run_id)
    assert end is not None
    assert end[0] == "FINISHED"
    assert deliver(path, client, run_id) == 1
    with Hold(client, run_id, tmp_path):
        assert end_run(client, run_id, end) == "RUNNING"  # somebody goes on with it
    assert end_run(client, run_id, end) == "FINISHED"
    info = client.get_run(run_id).info
    assert (info.status, info.end_time) == end
    assert end_run(client, run_id, ("FAILED", 1)) == "FINISHED"  # it has an end

    with pytest.raises(ValueError, match=f"is of run {run_id}, not of another"):
        recorded_end(path, "another")
    for line in ('{"ended": "DONE", "run": "r", "time": 1}', '{"ended": "FINISHED"}', '{"ended": "FINIS'):
        path.write_text(metric + line)
        with pytest.raises(ValueError, match="last line"):
            recorded_end(path, "r")


def test_a_broken_file_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "undelivered.jsonl"
    path.write_text('{"key": "a", "value": 1, "timestamp": 1, "step": 0}\n{"key": "a"}\n')
    fake = FakeStore()
    with pytest.raises(ValueError, match="line 2"):
        deliver(path, fake, RUN)
    assert fake.calls == []


def test_a_closed_writer_takes_nothing() -> None:
    metrics = writer(FakeStore(), Told())
    assert metrics.close(5) == 0
    assert metrics.close(5) == 0
    with pytest.raises(RuntimeError, match="closed"):
        metrics.log(0, {"a": 1})


def test_a_broken_display_does_not_stop_the_delivery() -> None:
    fake = FakeStore()
    failed: list[int] = []

    def fail_once(_: Sequence[Metric]) -> None:
        if not failed:
            failed.append(1)
            raise ConnectionError("down")

    def broken(_: str) -> None:
        raise OSError("no terminal")

    fake.before = fail_once
    metrics = MetricWriter(fake, RUN, retry_seconds=0.02, notify=broken)
    metrics.log(0, {"a": 1})
    assert metrics.close(10) == 0
    assert fake.accepted == [("a", 0, 1)]


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"batch_size": 1001}, {"retry_seconds": 0}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        writer(FakeStore(), Told(), **options)


# The store


def test_the_default_is_a_database_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert store.tracking_uri() == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", " ")
    assert store.tracking_uri() == f"sqlite:///{tmp_path}/mlflow.db"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://server:5000", "http://server:5000"),
        ("sqlite:////data/runs.db", "sqlite:////data/runs.db"),
        ("sqlite:///runs.db?timeout=5", "sqlite:///{cwd}/runs.db?timeout=5"),
        ("sqlite:///sub/runs.db", "sqlite:///{cwd}/sub/runs.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("postgresql://user@host/db", "postgresql://user@host/db"),
    ],
)
def test_a_given_store_is_taken_with_an_absolute_path(
    given: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    assert store.tracking_uri() == expected.format(cwd=tmp_path)


@pytest.mark.parametrize("given", ["", "sqlite:///mlflow.db"])
def test_runs_of_a_ray_job_outlive_its_working_directory(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cwd = tmp_path / "session" / "runtime_resources" / "working_dir_files" / "_ray_pkg_0a1b"
    cwd.mkdir(parents=True)
    monkeypatch.chdir(cwd)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    assert store.tracking_uri() == f"sqlite:///{tmp_path}/home/.taugrad/mlflow.db"
    assert (tmp_path / "home" / ".taugrad").is_dir()


def test_artifacts_lie_beside_the_database_whatever_the_working_directory(client: Any, database: str) -> None:
    experiment = client.get_experiment(store.open_experiment(client, "Anoosheh: figure 3/4"))
    folder = Path(database.removeprefix("sqlite:///")).parent
    assert experiment.artifact_location == (folder / "mlruns" / "Anoosheh-figure-3-4").as_uri()
    assert store.open_experiment(client, "Anoosheh: figure 3/4") == experiment.experiment_id


def test_a_server_decides_where_artifacts_lie() -> None:
    created: list[tuple[str, str | None]] = []

    def create(name: str, artifact_location: str | None) -> str:
        created.append((name, artifact_location))
        return "7"

    server: Any = SimpleNamespace(
        tracking_uri="http://server:5000", get_experiment_by_name=lambda _: None, create_experiment=create
    )
    assert store.open_experiment(server, "tests") == "7"
    assert created == [("tests", None)]


def test_a_deleted_experiment_says_how_to_restore_it(client: Any) -> None:
    experiment = store.open_experiment(client, "deleted one")
    client.delete_experiment(experiment)
    with pytest.raises(store.TrackingError, match=f"experiments restore --experiment-id {experiment}`"):
        store.open_experiment(client, "deleted one")


def test_two_threads_may_create_the_same_experiment(client: Any, database: str) -> None:
    together = threading.Barrier(2)

    class Slow:
        """Both threads learn that the experiment is missing before either creates it."""

        tracking_uri = database

        def __init__(self) -> None:
            self.asked = 0

        def get_experiment_by_name(self, name: str) -> Any:
            found = client.get_experiment_by_name(name)
            self.asked += 1
            if self.asked == 1:
                assert found is None
                together.wait(10)
            return found

        def create_experiment(self, name: str, artifact_location: str | None) -> Any:
            return client.create_experiment(name, artifact_location=artifact_location)

    ids: list[str] = []
    slow: list[Any] = [Slow(), Slow()]
    threads = [
        threading.Thread(target=lambda s=s: ids.append(store.open_experiment(s, "raced"))) for s in slow
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(ids) == 2
    assert len(set(ids)) == 1
    assert sorted(s.asked for s in slow) == [1, 2]


def test_processes_may_create_the_same_database_and_say_nothing(tmp_path: Path) -> None:
    code = (
        "from taugrad.platform.tracking import store; import mlflow, sys; print('ready', flush=True); "
        "sys.stdin.readline(); "
        f"c = store.open_client('sqlite:///{tmp_path}/new/mlflow.db'); print(store.open_experiment(c, 'x'))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        )
        for _ in range(2)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    assert answers[0][0] == answers[1][0] != ""
    assert "mlflow.store.db" not in answers[0][1] + answers[1][1]
    assert "alembic" not in answers[0][1] + answers[1][1]


def test_a_new_database_leaves_the_log_levels_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("alembic"), "level", logging.DEBUG)
    seen: list[int] = []

    def fake_client(tracking_uri: str) -> str:
        seen.append(logging.getLogger("alembic").level)
        return tracking_uri

    monkeypatch.setattr("mlflow.tracking.MlflowClient", fake_client)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert str(store.open_client()) == f"sqlite:///{tmp_path}/mlflow.db"
    assert seen == [logging.WARNING]
    assert logging.getLogger("alembic").level == logging.DEBUG


def test_a_run_carries_its_spec(client: Any, tmp_path: Path) -> None:
    spec = RunSpec(name="first", experiment="started", paper="anoosheh", seed=5)
    run_id = store.start_run(client, spec, tags={names.TAG_CHECKPOINTS: "somewhere"})
    run = client.get_run(run_id)
    assert run.info.status == "RUNNING"
    assert run.info.run_name == "first"
    assert run.data.params == spec.flat()
    assert run.data.params["seed"] == "5"
    assert run.data.tags["taugrad.spec_hash"] == spec.fingerprint()
    assert run.data.tags["taugrad.paper"] == "anoosheh"
    assert run.data.tags["taugrad.checkpoints"] == "somewhere"
    assert run.data.tags["mlflow.source.name"] == "taugrad"
    assert run.data.tags["mlflow.user"] == getpass.getuser()
    # The working directory is an empty folder here, no repository.
    assert "taugrad.git_commit" not in run.data.tags
    folder = client.download_artifacts(run_id, "spec.yaml", str(tmp_path))
    assert RunSpec.model_validate(yaml.safe_load(Path(folder).read_text())) == spec
    store.finish_run(client, run_id, "FINISHED")
    assert client.get_run(run_id).info.status == "FINISHED"


def test_a_run_in_a_repository_knows_its_commit(client: Any, tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "init", "-q"], check=True, cwd=tmp_path)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True, cwd=tmp_path)
    log = subprocess.run(
        [*git, "log", "--format=%H"], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    run = client.get_run(store.start_run(client, RunSpec(experiment="started")))
    assert run.data.tags["taugrad.git_commit"] == log.stdout.strip()


def test_without_git_a_run_starts_all_the_same(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    run = client.get_run(store.start_run(client, RunSpec(experiment="started")))
    assert "taugrad.git_commit" not in run.data.tags


def test_many_and_long_params_are_accepted(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    many = {f"p{i}": "x" * (7000 if i == 3 else i % 5) for i in range(250)}
    monkeypatch.setattr(RunSpec, "flat", lambda _: many)
    params = client.get_run(store.start_run(client, RunSpec(experiment="started"))).data.params
    assert params == many | {"p3": "x" * 6000}


def test_a_run_that_could_not_begin_is_not_left_running(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(type(client), "log_text", full)
    with pytest.raises(OSError, match="no space left"):
        store.start_run(client, RunSpec(experiment="unlucky"))
    runs = client.search_runs([store.open_experiment(client, "unlucky")])
    assert [run.info.status for run in runs] == ["FAILED"]


# The names


def test_names_are_the_contract() -> None:
    constants = [value for key, value in vars(names).items() if key.isupper() and isinstance(value, str)]
    assert sorted(value for value in constants if "/" in value) == sorted([
        "train/loss", "comm/fraction", "comm/elements", "comm/paper_bytes", "comm/wire_bytes",
        "comm/received_bytes", "comm/messages", "comm/wire_mb_total",
        "comm/bits_per_param", "comm/compression_ratio", "comm/tau", "comm/residual_rms",
        "comm/staleness", "comm/staleness_most",
        "round/members", "round/left_out", "round/caught_up_bytes", "round/lost", "round/lost_rms",
        "time/data_s", "time/compute_s", "time/compress_s", "time/wait_s", "time/decompress_s", "time/step_s",
        "time/exchange_s", "time/overlap_s", "net/mbit_s", "net/received_mbit_s",
        "adapt/density", "adapt/local_steps", "adapt/rate_mbit_s", "adapt/delay_s", "adapt/wait_share",
        "eval/accuracy", "eval/loss", "eval/examples", "epoch/bits_per_param", "epoch/value_bits_per_param",
        "total/wire_gb", "total/wire_mb_log10", "total/received_gb", "total/paper_gb", "total/fraction",
        "total/compression_ratio", "total/accuracy_per_gb", "total/iterations_to_target",
        "total/seconds", "total/skipped_steps",
    ])  # fmt: skip
    assert names.EPOCH == "epoch"
    tags = {value for value in constants if value.startswith("taugrad.")}
    names_of_tags = ["spec_hash", "git_commit", "paper", "chain", "metric", "checkpoints", "holder"]
    names_of_tags += ["data", "search", "trial", "view"]
    assert tags == {f"taugrad.{name}" for name in names_of_tags}


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("trial 4: wgt(tau=0.15997382191)", "trial 4: wgt(tau=0.16)"),
        ("a(tau=1.4116267167542306e-05) | b", "a(tau=1.412e-05) | b"),
        ("wgt(tau=1e-05)", "wgt(tau=1e-05)"),
        ("strom(tau=0.001) of 100000", "strom(tau=0.001) of 100000"),
        ("step 12345.678", "step 12346"),
        ("v1.2.3456, x0.12345", "v1.2.3456, x0.12345"),
    ],
)
def test_numbers_in_names_are_short(name: str, read: str) -> None:
    assert names.shown(name) == read


@pytest.mark.parametrize("layer", ["fc1.weight", "blocks.0.conv(1)", "größe", "a|b$c"])
def test_mlflow_accepts_the_metric_of_any_layer(layer: str, client: Any, run_id: str) -> None:
    name = names.layer_metric(layer, "grad_p99")
    client.log_batch(run_id, metrics=[Metric(name, 1.0, 1, 0)])
    assert [point.value for point in client.get_metric_history(run_id, name)] == [1.0]


def test_a_usual_layer_keeps_its_name() -> None:
    assert names.layer_metric("fc1.weight", "tau") == "layer/fc1.weight/tau"


def test_what_a_job_shows_names_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, uri = "taugrad report digits -o report", "sqlite:////home/a b/mlflow.db"
    assert store.to_copy(command, uri) == command
    job = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
    job.mkdir(parents=True)
    monkeypatch.chdir(job)
    assert store.to_copy(command, uri) == f"MLFLOW_TRACKING_URI='{uri}' {command}"
    assert store.to_copy(command, "https://me:secret@host") == command


def test_runs_are_kept_in_a_folder_of_any_name(tmp_path, monkeypatch):
    folder = tmp_path / 'it\'s "here" :now'
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    client = store.open_client()
    run_id = store.start_run(client, RunSpec(name="1e3", experiment="quoted"))
    assert client.get_run(run_id).info.run_name == "1e3"
    (kept,) = (folder / "mlruns").rglob("spec.yaml")
    assert read_yaml(kept, RunSpec)["name"] == "1e3"
    assert (folder / "mlflow.db").exists()


def test_how_to_deliver_is_said_as_a_shell_reads_it(tmp_path):
    from pyarrow.fs import LocalFileSystem

    from taugrad.platform.launching.launch import _end
    from taugrad.platform.launching.run_folder import RunFolder

    place = str(tmp_path / 'it\'s "here" now')
    folder = RunFolder(LocalFileSystem(), place, "r", place)
    held = SimpleNamespace(is_ours=lambda: True)
    (notice,) = _end(object(), "r", "FINISHED", held, folder)  # which no store answers
    command = notice.partition("again: ")[2]
    assert shlex.split(command) == ["taugrad", "deliver", f"{place}/{UNDELIVERED}"]
