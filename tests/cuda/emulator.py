"""The CUDA sources on the CPU: each compiled as C++ with emulation.h before it, its arrays NumPy's."""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from taugrad.compressors.kernels.cuda.runtime import SOURCES

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
            paths = ["-include", str(EMULATION), "-I", str(SOURCES), str(SOURCES / f"{source}.cu")]
            subprocess.run([COMPILER, *flags, *paths, "-o", str(built)], check=True)
            shutil.copy(built, library.with_suffix(".part"))
            library.with_suffix(".part").replace(library)
    return ctypes.CDLL(str(library))


class EmulatedRuntime:
    """A `Runtime` whose device is this CPU: slow, and exact."""

    def empty(self, size: int, dtype: Any) -> Any:
        array = np.empty(size, dtype)
        array.view(np.uint8)[:] = 0xA5  # what a kernel forgets to write shows
        return array

    def zeros(self, size: int, dtype: Any) -> Any:
        return np.zeros(size, dtype)

    def launch(self, source: str, kernel: str, blocks: int, threads: int, *arguments: Any) -> None:
        assert len(arguments) <= _MOST_ARGUMENTS
        assert threads % 32 == 0
        library = _library(source)
        words = (ctypes.c_int64 * _MOST_ARGUMENTS)()
        for i, argument in enumerate(arguments):
            if isinstance(argument, np.ndarray):
                assert argument.flags.c_contiguous
                words[i] = argument.ctypes.data
            else:
                words[i] = int(argument)
        function = ctypes.cast(getattr(library, kernel), ctypes.c_void_p)
        library.emulate(function, blocks, threads, words, len(arguments))

    def fetch(self, array: Any) -> Any:
        return array.copy()

    def place(self, array: Any) -> Any:
        return array.copy()
