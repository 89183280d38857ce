"""Which compressor works where; CuPy's part of a GPU, played by the emulator."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import emulator
import numpy as np
import pytest
import torch
from cases import in_turn

from taugrad.compressors.methods import read_config
from taugrad.compressors.ops import ops_for
from taugrad.compressors.ops.cuda import cupy_runtime
from taugrad.compressors.ops.cuda.device import OPTIONS, SOURCES, Device
from taugrad.compressors.ops.interface import Batch, Quantizing, Readback

WGT: Any = read_config("wgt(0.1)")


def fetched(device: Device, array: torch.Tensor) -> Any:
    return device.fetch_all([array])[0]


def test_the_device_of_the_gradients_decides() -> None:
    assert ops_for(torch.device("cpu")).on_host
    with pytest.raises(ValueError, match="gradients lie on meta; methods work on cpu and cuda"):
        ops_for(torch.device("meta"))


def test_without_cupy_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match=r"install taugrad\[cuda12\] or taugrad\[cuda13\]"):
        ops_for(torch.device("cuda", 0))


class FakeCuPy(ModuleType):
    """What `CuPyRuntime` uses of CuPy; kernels run in the emulator."""

    def __init__(self, emulate: Any) -> None:
        super().__init__("cupy")
        self.entered: list[Any] = []
        entered = self.entered

        class Entered:
            def __init__(self, *what: Any) -> None:
                self._what = what

            def __enter__(self) -> None:
                entered.append(self._what)

            def __exit__(self, *_: object) -> None:
                entered.pop()

        class Module:
            def load(self, binary: Any) -> None:
                self._source = binary

            def get_function(self, name: str) -> Any:
                def kernel(grid: tuple[int], block: tuple[int], words: tuple[Any, ...], stream: int) -> None:
                    assert entered == [(3,)]
                    assert stream == 77
                    assert all(type(word) is np.int64 for word in words)
                    emulate(self._source, name, *grid, *block, [int(word) for word in words])

                return kernel

        def compile_using_nvrtc(code: str, options: tuple[str, ...], filename: str) -> tuple[str, None]:
            assert options == (*OPTIONS, f"--include-path={SOURCES}")
            assert code == (SOURCES / filename).read_text()
            return Path(filename).stem, None

        self.cuda = SimpleNamespace(
            Device=Entered,
            Stream=SimpleNamespace(from_external=lambda stream: stream.__cuda_stream__()[1]),
            compiler=SimpleNamespace(compile_using_nvrtc=compile_using_nvrtc),
            function=SimpleNamespace(Module=Module),
        )


def test_kernels_start_on_torchs_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuPy(emulator.emulate)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=77))
    for cached in (cupy_runtime._kernel, cupy_runtime._module, cupy_runtime._stream):
        cached.cache_clear()
    runtime = cupy_runtime.CuPyRuntime(torch.device("cuda", 3))
    Device.__init__(runtime, torch.device("cpu"))  # memory that this machine has
    readback = Readback(runtime)
    symbols, given = runtime.empty(2, np.uint16), torch.tensor([3.0, 4.0])
    passed = runtime.quantize("fp16", Quantizing(Batch.of([None], [given]), readback, symbols, 16))
    runtime.launch("by_range", "fp16_16_quantize", 0, 256)  # nothing
    readback.fetch()
    assert not passed().nonfinite.any()
    assert fetched(runtime, symbols).view(np.float16).tolist() == [3, 4]
    assert fake.entered == []
    for cached in (cupy_runtime._kernel, cupy_runtime._module, cupy_runtime._stream):
        cached.cache_clear()


@in_turn("dtype", [np.float32, np.uint8, np.int64, np.uint16])
def test_arrays_go_to_a_device_and_back_side_by_side(gpu: Any, dtype: Any) -> None:
    odd, values, none = np.arange(3).astype(np.uint8), np.arange(5).astype(dtype), np.empty(0, np.uint32)
    placed = gpu.place_all([odd, values, none, odd.astype(np.uint64), values[::2]])
    assert [array.data_ptr() % array.dtype.itemsize for array in placed] == [0] * 5
    taken = [*placed, placed[1][3:], gpu.zeros(2, dtype)]
    due = [odd, values, none, odd, values[::2], values[3:], np.zeros(2)]
    with torch.device("meta"):  # not that of new tensors
        assert gpu.place_all([odd])[0].tolist() == odd.tolist()
        fetched_all = gpu.fetch_all(taken)
    for array, expected in zip(fetched_all, due, strict=True):
        assert array.tolist() == expected.tolist()
    assert gpu.place_all([]) == gpu.fetch_all([]) == []
