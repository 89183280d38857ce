"""What the tests of the CUDA sources share: the emulated device."""

from typing import Any

import emulator
import pytest
from needs import missing


@pytest.fixture(scope="session")
def gpu() -> Any:
    """The CUDA sources on this CPU, in memory of torch's."""
    if emulator.COMPILER is None:
        missing("needs g++ to emulate CUDA")
    return emulator.EmulatedGpu()
