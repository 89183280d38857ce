"""What the tests of the CUDA sources share: the emulated device, and NVIDIA's compiler."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from platform import machine
from types import ModuleType
from typing import Any

import pytest
from needs import missing

ARCHITECTURES = ("sm_80", "sm_90")


def _load(name: str, folder: Path = Path(__file__).parent) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"taugrad_cuda_{name}", folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def device() -> Any:
    """The CUDA sources on this CPU."""
    emulator = _load("emulator")
    if emulator.COMPILER is None:
        missing("needs g++ to emulate CUDA")
    return emulator.EmulatedRuntime()


@pytest.fixture(scope="session")
def gpu() -> Any:
    """The CUDA sources on this CPU, in memory of torch's."""
    emulator = _load("emulator")
    if emulator.COMPILER is None:
        missing("needs g++ to emulate CUDA")
    return emulator.EmulatedGpu()


@pytest.fixture(scope="session")
def compiles() -> Callable[[str], None]:
    """Fails where a source does not compile for every architecture."""
    nvrtc = _load("nvrtc")
    if nvrtc.library() is None:
        what = "needs NVIDIA's runtime compiler (the package nvidia-cuda-nvrtc-cu12)"
        if machine() == "x86_64":
            missing(what)
        pytest.skip(what)  # for other CPUs pyproject.toml does not ask for it

    def check(source: str) -> None:
        for architecture in ARCHITECTURES:
            nvrtc.compile_source(nvrtc.SOURCES / f"{source}.cu", architecture)

    return check
