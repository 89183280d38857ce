"""NVIDIA's runtime compiler, which needs no GPU: whether a source compiles for an architecture."""

import ctypes
import importlib.util
from functools import cache
from pathlib import Path

from taugrad.compressors.ops.cuda.device import OPTIONS, SOURCES


@cache
def library() -> ctypes.CDLL | None:
    """libnvrtc from NVIDIA's package; None where that is not installed."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or [] if spec else []:
        for path in sorted(Path(folder).glob("**/libnvrtc.so.*")):
            return ctypes.CDLL(str(path))
    return None


def compile_source(path: Path, architecture: str) -> str:
    """The compiler's log; raises RuntimeError with it when the source does not compile."""
    nvrtc = library()
    assert nvrtc is not None
    program = ctypes.c_void_p()
    created = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), path.read_bytes(), path.name.encode(), 0, None, None
    )
    assert created == 0, f"nvrtcCreateProgram: {created}"
    options = [*OPTIONS, f"--gpu-architecture={architecture}", f"--include-path={SOURCES}"]
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    result = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    text = log.value.decode(errors="replace")
    if result:
        raise RuntimeError(f"{path.name} for {architecture}:\n{text}")
    return text
