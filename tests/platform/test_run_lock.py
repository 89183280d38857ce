"""Two drivers at one run: the second is refused, and a dead one is in nobody's way."""

import json
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from waiting import program, until

from taugrad.platform.tracking import names, run_lock
from taugrad.platform.tracking.run_lock import Holder, RunHeld, RunLock
from taugrad.platform.tracking.store import open_client

CHILD = """
import sys, time
from taugrad.platform.tracking.run_lock import RunLock
from taugrad.platform.tracking.store import open_client

with RunLock(open_client(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory, new_store):
    return open_client(new_store(tmp_path_factory.mktemp("store")))


@pytest.fixture
def run_id(client):
    return client.create_run("0").info.run_id


@pytest.fixture
def uncontended(monkeypatch):
    """Nobody else starts at the same moment, for whom a lock would sleep."""
    clock = SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=lambda _: None)
    monkeypatch.setattr(run_lock, "time", clock)


def tag(client, run_id: str) -> dict | None:
    text = client.get_run(run_id).data.tags.get(names.TAG_HOLDER)
    return None if text is None else json.loads(text)


def elsewhere(client, run_id: str, heartbeat: float) -> dict:
    """Has a process of another machine lock the run."""
    holder = {"host": "elsewhere", "space": "", "pid": 4242, "began": 1.0, "token": "x", "since": 1.0}
    holder["heartbeat"] = heartbeat
    client.set_tag(run_id, names.TAG_HOLDER, json.dumps(holder))
    return holder


def test_a_second_process_is_refused_until_the_first_is_killed(client, run_id, tmp_path, uncontended):
    with program(CHILD, client.tracking_uri, run_id, cwd=tmp_path) as child:
        assert child.stdout.readline() == "held\n"
        before = client.get_run(run_id)
        with pytest.raises(RunHeld) as refused, RunLock(client, run_id):
            pass
        said = str(refused.value)
        since = time.strftime("%H:%M:%S", time.localtime(tag(client, run_id)["since"]))
        assert said.startswith(f"process {child.pid} on {socket.gethostname()} has held it since {since}, ")
        assert "last heartbeat at" in said
        assert "\n" not in said
        after = client.get_run(run_id)
        assert (after.info.status, after.data.tags) == (before.info.status, before.data.tags)
    # A dead process is seen at once: no heartbeat is waited for.
    with RunLock(client, run_id) as lock:
        assert lock.is_ours()
    assert tag(client, run_id) is None


def test_of_those_that_come_at_once_one_gets_the_run(client, run_id):
    all_there, outcomes, done = threading.Barrier(4), [], threading.Event()

    def contend() -> None:
        lock = RunLock(client, run_id)
        all_there.wait()
        try:
            with lock:
                outcomes.append("held")
                done.wait(60)
        except RunHeld:
            outcomes.append("refused")

    threads = [threading.Thread(target=contend) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: len(outcomes) == 4, timeout_s=60)
    done.set()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["held", "refused", "refused", "refused"]


def test_two_that_come_at_once_to_a_slow_store_do_not_both_get_the_run(client, run_id, monkeypatch):
    """A request takes 3 s: one that asked before we had written may write until 6 s after that."""
    now, writes_at = 0.0, 11.0

    class Slow:
        """The store, and the clock."""

        def get_run(self, run_id: str):
            self.sleep(3)
            return client.get_run(run_id)

        def set_tag(self, run_id: str, name: str, text: str) -> None:
            self.sleep(3)
            client.set_tag(run_id, name, text)

        def sleep(self, seconds: float) -> None:
            nonlocal now
            if now < writes_at <= now + seconds:
                elsewhere(client, run_id, time.time())
            now += seconds

        def monotonic(self) -> float:
            return now

        time = staticmethod(time.time)

    slow = Slow()
    monkeypatch.setattr(run_lock, "time", slow)
    with pytest.raises(RunHeld), RunLock(slow, run_id):
        pass


def test_another_machines_holder_is_believed_while_it_gives_signs_of_life(
    client, run_id, uncontended, monkeypatch
):
    elsewhere(client, run_id, time.time() - run_lock.STALE_S / 2)
    with pytest.raises(RunHeld, match="process 4242 on elsewhere"), RunLock(client, run_id):
        pass

    # Its clock is behind, and it lives.
    elsewhere(client, run_id, heartbeat=1.0)
    stop = threading.Event()

    def live() -> None:
        for beat in range(2, 1000):
            if stop.wait(0.05):
                return
            elsewhere(client, run_id, float(beat))

    thread = threading.Thread(target=live)
    thread.start()
    try:
        monkeypatch.setattr(run_lock, "HEARTBEAT_S", 0.5)
        monkeypatch.setattr(run_lock, "STALE_S", 1.0)
        for new in False, True:
            lock = RunLock(client, run_id, new=new)
            with pytest.raises(RunHeld, match="elsewhere"), lock:
                pass
    finally:
        stop.set()
        thread.join()

    # It has died just now, as a search knows that goes on with its own trial.
    elsewhere(client, run_id, time.time())
    monkeypatch.setattr(run_lock, "STALE_S", 0.5)
    with RunLock(client, run_id, new=True) as lock:
        assert lock.is_ours()

    # It is dead.
    elsewhere(client, run_id, heartbeat=1.0)
    monkeypatch.setattr(run_lock, "HEARTBEAT_S", 0.1)
    with RunLock(client, run_id) as lock:
        assert lock.is_ours()
        assert tag(client, run_id)["host"] == socket.gethostname()


def test_signs_of_life_go_on_until_the_run_is_taken_over(client, run_id, monkeypatch):
    monkeypatch.setattr(run_lock, "HEARTBEAT_S", 0.05)
    with RunLock(client, run_id, new=True) as lock:
        first = tag(client, run_id)["heartbeat"]
        until(lambda: tag(client, run_id)["heartbeat"] != first, timeout_s=60)

        # This process slept for minutes, and another machine took the run.
        def stands():
            theirs = elsewhere(client, run_id, time.time())  # again over a heartbeat that was under way
            time.sleep(0.3)
            return tag(client, run_id) == theirs

        until(stands, timeout_s=60)
        assert not lock.is_ours()
        client.delete_tag(run_id, names.TAG_HOLDER)  # and ended it
        assert not lock.is_ours()
    assert tag(client, run_id) is None


def test_a_sign_of_life_that_is_under_way_at_the_end_does_not_hold_the_run(client, run_id, monkeypatch):
    """Its process may live on, such as that of a search, and another one continue the run."""
    begun, goes_on = threading.Event(), threading.Event()

    class Slow:
        def __getattr__(self, name: str):
            return getattr(client, name)

        def set_tag(self, run_id: str, name: str, text: str) -> None:
            if threading.current_thread() is lock._thread:
                begun.set()
                goes_on.wait()
            client.set_tag(run_id, name, text)

    monkeypatch.setattr(run_lock, "_SETTLE_S", 0.01)
    monkeypatch.setattr(run_lock, "HEARTBEAT_S", 0.01)
    lock = RunLock(Slow(), run_id, new=True)
    with lock:
        begun.wait()
    goes_on.set()
    lock._thread.join()
    assert tag(client, run_id) is None


def test_a_process_id_that_is_used_again_holds_nothing(client, run_id, uncontended):
    ours = Holder.this_process()
    client.set_tag(run_id, names.TAG_HOLDER, json.dumps(vars(ours)))
    for clock_step in (0, -2, 2):
        client.set_tag(run_id, names.TAG_HOLDER, json.dumps(vars(ours) | {"began": ours.began + clock_step}))
        with pytest.raises(RunHeld), RunLock(client, run_id):
            pass
    client.set_tag(run_id, names.TAG_HOLDER, json.dumps(vars(ours) | {"began": ours.began - 600}))
    with RunLock(client, run_id) as lock:
        assert lock.is_ours()
