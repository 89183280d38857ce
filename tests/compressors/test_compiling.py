"""A first use that compiles for long says so, once."""

import threading

from numba.core import event

from taugrad.compressors.ops.cpu import compiling


def test_it_is_said_once_and_only_where_it_takes_long(monkeypatch, caplog):
    said = threading.Event()
    monkeypatch.setattr(compiling, "_LONG_S", 0.05)
    announcement = compiling._Announcement()
    warn = announcement._warn
    monkeypatch.setattr(announcement, "_warn", lambda: (warn(), said.set()))
    started = event.Event("numba:compile", event.EventStatus.START)
    announcement._spent_s = -1e6  # the next one ends long before
    announcement.on_start(started)
    announcement.on_start(started)  # a kernel that calls another one
    announcement.on_end(started)
    announcement.on_end(started)
    assert caplog.text == ""
    announcement._spent_s = 0.0
    announcement.on_start(started)
    assert said.wait(30)
    announcement.on_end(started)
    announcement.on_start(started)
    assert caplog.text.count("compiling kernels for this machine, once") == 1
