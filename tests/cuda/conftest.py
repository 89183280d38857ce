"""What the tests of the CUDA sources share: the device, emulated, or real."""

from typing import Any

import emulator
import pytest
import torch
from needs import missing


@pytest.fixture(scope="session")
def gpu() -> Any:
    """The CUDA sources on this CPU, in memory of torch's."""
    if emulator.COMPILER is None:
        missing("needs g++ to emulate CUDA")
    return emulator.EmulatedGpu()


@pytest.fixture(params=["emulator", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Any:
    """Both of them, where there is a GPU."""
    if request.param == "emulator":
        return request.getfixturevalue("gpu")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    from taugrad.compressors.ops.cuda.cupy_runtime import CuPyRuntime

    return CuPyRuntime(torch.device("cuda"))
