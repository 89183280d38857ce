"""Ray Train's trainer, as far as it is changed, and what it says of workers that failed."""

import signal

import pytest

from taugrad.compressors.errors import CorruptMessage, PeerLost
from taugrad.platform.launching.failure import run_failed
from taugrad.platform.launching.ray_train import trainer_for


@pytest.mark.parametrize("alone", [True, False])
def test_ctrl_c_stays_the_commands(alone):
    """Ray Train's own handler ends the process with code 1 and without a word."""
    kind = trainer_for(alone)
    before = signal.getsignal(signal.SIGINT)
    try:
        kind._register_sigint_handler(object.__new__(kind), None)
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, before)


CLOSED = "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:16733"
SILENT = "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 60000ms for recv"


@pytest.mark.parametrize("lost", [PeerLost(2, "is gone"), RuntimeError(CLOSED), RuntimeError(SILENT)])
def test_a_run_failed_by_the_error_of_the_worker_that_the_others_lost(lost):
    """Whatever they were at when they lost it: rounds, or a collective of torch."""
    failure = Exception()
    failure.worker_failures = {0: lost, 1: lost, 2: CorruptMessage("it is short")}
    assert str(run_failed(failure)) == "worker 2: CorruptMessage: it is short"
    del failure.worker_failures[2]
    assert str(run_failed(failure)).startswith("worker 0: ")
