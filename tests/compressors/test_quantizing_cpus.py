"""Every quantizing pass gives the same bits on every CPU."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from taugrad.compressors.ops.cpu import blockwise
from taugrad.compressors.ops.cpu.linear import linear_pass
from taugrad.compressors.ops.cpu.minifloat import HalfFormat, fp8_pass, half_pass
from taugrad.compressors.ops.cpu.quantile import quantile_pass

F32 = np.float32
HALVES: tuple[HalfFormat, ...] = ("fp16", "bf16")


def digest() -> str:
    """A hash of what every quantizing pass writes and keeps, on threads and pieces of any kind."""
    rng = np.random.default_rng(5)
    gradient = (rng.standard_normal(30_011) * 10.0 ** rng.integers(-42, 30, 30_011)).astype(F32)
    hashed = hashlib.sha256()
    for block in (100, 2048, 0):
        blocks = blockwise.block_count(gradient.size, block)
        for bits in (3, 8, 11):
            symbols = np.empty(gradient.size, np.uint16)
            kept, lows, steps = np.zeros_like(gradient), np.empty(blocks, F32), np.empty(blocks, F32)
            linear_pass(kept, gradient, bits, block, symbols, lows, steps, 2)
            tables, exponents = np.empty((blocks, 1 << bits), np.uint16), np.empty(blocks, np.int8)
            linear_made = b"".join(made.tobytes() for made in (symbols, kept, lows, steps))
            quantile_pass(kept, gradient, bits, block, symbols, tables, exponents, 2)
            for made in (symbols, kept, tables, exponents):
                hashed.update(made.tobytes())
            hashed.update(linear_made)
        short = np.empty(gradient.size, np.uint8)
        fp8_pass(kept, gradient, block, short, exponents, 2)
        hashed.update(short.tobytes() + kept.tobytes() + exponents.tobytes())
    for kind in HALVES:
        half_pass(kind, kept, gradient, symbols, 2)
        hashed.update(symbols.tobytes() + kept.tobytes())
    gradient[20_000] = np.inf  # what was done before it is found must be undone to the same bits
    exponents, lows, steps = np.empty(15, np.int8), np.empty(15, F32), np.empty(15, F32)
    linear_pass(kept, gradient, 8, 2048, short, lows, steps, 2)
    fp8_pass(kept, gradient, 2048, short, exponents, 2)
    half_pass("fp16", kept, gradient, symbols, 2)
    hashed.update(kept.tobytes())
    return hashed.hexdigest()


def test_a_cpu_without_wide_vectors_gives_the_same_bits(tmp_path: Path) -> None:
    """The same passes, compiled for the oldest CPU that LLVM knows of this architecture."""
    environment = os.environ | {
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    script = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("here", {__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.digest())
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == digest()
