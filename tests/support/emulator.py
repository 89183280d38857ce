"""The CUDA sources on the CPU: each compiled as C++ with emulation.h before it, its memory torch's."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from taugrad.compressors.ops.cuda.device import SOURCES
from taugrad.compressors.ops.cuda.ops import CudaOps

EMULATION = Path(__file__).with_name("emulation.h")
COMPILER = shutil.which("g++")
_MOST_ARGUMENTS = 24


@cache
def _library(source: str) -> ctypes.CDLL:
    assert COMPILER is not None
    texts = [EMULATION, *sorted(SOURCES.glob("*.cuh")), SOURCES / f"{source}.cu"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in texts)).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"taugrad-emulated-{source}-{digest}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory() as folder:
            built = Path(folder) / library.name
            flags = ["-x", "c++", "-std=c++17", "-O2", "-shared", "-fPIC", "-ffp-contract=off", "-w"]
            flags += ["-U_FORTIFY_SOURCE"]  # which takes jumps between stacks for an attack
            paths = ["-include", str(EMULATION), "-I", str(SOURCES), str(SOURCES / f"{source}.cu")]
            subprocess.run([COMPILER, *flags, *paths, "-o", str(built)], check=True)
            part = library.with_suffix(f".{os.getpid()}")  # other processes may do the same
            shutil.copy(built, part)
            part.replace(library)
    return ctypes.CDLL(str(library))


def emulate(source: str, kernel: str, blocks: int, threads: int, words: Sequence[int]) -> None:
    """Runs a kernel to its end; pointers are numbers too."""
    assert len(words) <= _MOST_ARGUMENTS
    assert threads % 32 == 0
    library = _library(source)
    given = (ctypes.c_int64 * _MOST_ARGUMENTS)(*words)
    function = ctypes.cast(getattr(library, kernel), ctypes.c_void_p)
    library.emulate(function, blocks, threads, given, len(words))


class EmulatedGpu(CudaOps):
    """A GPU that is this CPU, slow and exact: all of `CuPyRuntime` but its launches."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))

    def empty(self, size: int, dtype: Any) -> torch.Tensor:
        array = super().empty(size, dtype)
        array.view(torch.uint8).fill_(0xA5)  # what a kernel forgets to write shows
        return array

    def launch(self, source: str, kernel: str, blocks: int, threads: int, *arguments: Any) -> None:
        words = [value.data_ptr() if isinstance(value, torch.Tensor) else int(value) for value in arguments]
        emulate(source, kernel, blocks, threads, words)
