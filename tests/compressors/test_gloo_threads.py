"""What the interpreter's end waits for; that processes end well shows in every test that starts workers."""

import ctypes
import hashlib
import sys
from threading import Event, Thread
from weakref import WeakSet

import pytest
from cases import in_turn

from taugrad.compressors import gloo_threads

_SET_NAME = 15  # prctl's PR_SET_NAME


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what threads do")
@in_turn(("name", "counts"), [(b"pt_gloo_runloop", True), (b"other", False)])
def test_a_thread_of_gloo_is_at_work_until_it_waits(name: bytes, counts: bool) -> None:
    named, end, ended, leave = Event(), Event(), Event(), Event()

    def work() -> None:
        ctypes.CDLL(None).prctl(_SET_NAME, name, 0, 0, 0)
        named.set()
        while not end.is_set():
            hashlib.sha256(bytes(10**7)).digest()  # without Python's lock
        ended.set()
        leave.wait()

    thread = Thread(target=work)
    thread.start()
    try:
        named.wait()
        assert any(gloo_threads.any_running() for _ in range(300)) == counts
        end.set()
        ended.wait()
        assert not all(gloo_threads.any_running() for _ in range(300))
    finally:
        end.set()
        leave.set()
        thread.join()


def test_the_end_waits_for_callbacks_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo_threads, "_CALLBACKS", WeakSet())  # none of other tests
    monkeypatch.setattr(gloo_threads, "_TIMEOUT_S", 3600.0)
    callbacks = [gloo_threads.Once(lambda arrived: arrived.value())]
    ending = Thread(target=gloo_threads._wait_for_threads, daemon=True)
    ending.start()
    ending.join(0.1)
    assert ending.is_alive()
    callbacks.clear()
    ending.join()
    callbacks = [gloo_threads.Once(lambda arrived: arrived.value())]
    monkeypatch.setattr(gloo_threads, "_TIMEOUT_S", 0.05)
    gloo_threads._wait_for_threads()
