"""Ray Train's trainer, as far as it is changed."""

import signal

import pytest

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
