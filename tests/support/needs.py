"""What tests need of a machine and may do without, but in CI."""

import os
from typing import NoReturn

import pytest

REQUIRED = "TAUGRAD_TESTS_REQUIRED"
"""The variable that .ci/run sets, where everything is installed that tests need."""


def missing(what: str) -> NoReturn:
    """Skips a test; where all have to run, fails it."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{what}; with {REQUIRED} no test may be left out", pytrace=False)
    pytest.skip(what)
