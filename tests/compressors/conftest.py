"""What the compressors' tests share."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from methods import ALONE
from numpy.typing import NDArray

from taugrad.compressors.wire.forms import FORMS, Form
from taugrad.compressors.wire.quantized import (
    Quantiles,
    Quantized,
    ScaledFloats,
    Uniform,
    blocks_of,
    symbol_dtype,
)
from taugrad.compressors.wire.update import NO_TAU, Chunks, Update

torch.set_num_threads(1)


def load_sibling(name: str) -> ModuleType:
    """Imports a helper that lies beside this file; the tests' folder is no package and on no path."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"taugrad_tests_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def transcription() -> ModuleType:
    """The paper's pseudo code; see transcription.py."""
    return load_sibling("transcription")


@pytest.fixture(scope="session")
def scenarios() -> ModuleType:
    """What the workers of the hook's tests run; see scenarios.py."""
    return load_sibling("scenarios")


@pytest.fixture(scope="session")
def fuzzing() -> ModuleType:
    """The fuzz harness; see fuzzing.py."""
    return load_sibling("fuzzing")


@pytest.fixture(scope="session")
def page_decoder() -> ModuleType:
    """The decoder by the reference page; see page_decoder.py."""
    return load_sibling("page_decoder")


@pytest.fixture(scope="session")
def workbench() -> ModuleType:
    """A worker without a network; see workbench.py."""
    return load_sibling("workbench")


@pytest.fixture(params=ALONE.values(), ids=ALONE)
def method(request: pytest.FixtureRequest) -> str:
    """The line of every method in turn."""
    return str(request.param)


def random_values(form: Form, k: int, rng: np.random.Generator, tau: np.float32) -> Any:
    """What an update's `values` may hold: floats, levels, bits of short floats, or symbols and tables."""
    if form in ("wgt", "f32"):
        magnitudes = np.maximum((tau * 10 ** (6 * rng.random(k))).astype(np.float32), tau)
        return np.where(rng.integers(0, 2, k) == 1, -magnitudes, magnitudes)
    if form == "qgt":
        return rng.integers(1, 256, k).astype(np.uint8)
    if form in ("fp16", "bf16"):
        return (rng.integers(0, 0x7C00, k) | rng.integers(0, 2, k) << 15).astype(np.uint16)
    if not FORMS[form].quantized or k == 0:
        return np.empty(0, FORMS[form].dtype)
    return random_quantized(form, k, rng)


def random_quantized(form: Form, k: int, rng: np.random.Generator) -> Quantized:
    """k symbols with tables; now and then one symbol alone, and blocks of any size."""
    bits = 8 if form == "fp8" else int(rng.integers(1, 17))
    block = int(rng.choice([0, rng.integers(0, k)]))
    blocks = blocks_of(k, block)
    symbols = rng.integers(0, rng.choice([1, 1 << bits]), k).astype(symbol_dtype(bits))
    exponents = rng.integers(-126, 114, blocks).astype(np.int8)
    if form == "fp8":
        symbols[symbols & 0x7F == 0x7F] = 0  # no number
        return ScaledFloats(bits, block, symbols, exponents)
    if form == "linear":
        lows, steps = rng.standard_normal((2, blocks)).astype(np.float32)
        return Uniform(bits, block, symbols, lows, np.where(steps < 0, np.float32(0), steps))
    means = rng.integers(0, 0x7800, (blocks, 1 << bits)) | rng.integers(0, 2, (blocks, 1 << bits)) << 15
    return Quantiles(bits, block, symbols, exponents, means.astype(np.uint16).reshape(-1))


def random_positions(n: int, k: int, rng: np.random.Generator, chunks: Chunks | None) -> NDArray[np.uint32]:
    """k of n positions, ascending; the same number from every chunk where there are chunks."""
    if chunks is None:
        return np.sort(rng.choice(n, k, replace=False)).astype(np.uint32)
    found = [np.empty(0, np.int64)]
    for low in range(0, n, chunks.chunk):
        length = min(chunks.chunk, n - low)
        found.append(low + np.sort(rng.choice(length, min(chunks.keep, length), replace=False)))
    return np.concatenate(found).astype(np.uint32)


def make_update(
    form: Form,
    n: int,
    k: int,
    rng: np.random.Generator,
    tau: float = 0.25,
    *,
    every: bool = False,
    chunks: Chunks | None = None,
) -> Update:
    """A valid update with k of n elements at random places; or all n; or those that chunks ask for."""
    tau32 = np.float32(tau)
    if every:
        return Update(form, n, NO_TAU, None, random_values(form, n, rng, tau32))
    words = random_positions(n, k, rng, chunks) << np.uint32(1)
    values = random_values(form, words.size, rng, tau32)
    if FORMS[form].sign_apart:
        words |= rng.integers(0, 2, words.size).astype(np.uint32)
    elif form == "wgt":
        words |= np.signbit(values).astype(np.uint32)
    return Update(form, n, tau32 if FORMS[form].has_tau else NO_TAU, words, values, chunks)


def make_update_for(
    codec: str, form: Form, n: int, k: int, rng: np.random.Generator, tau: float = 0.25
) -> Update:
    """An update of the kind that a codec is for."""
    chunks = None
    if codec == "chunked":
        chunk = 1 << int(rng.integers(1, 8))
        chunks = Chunks(chunk, int(rng.integers(1, chunk + 1)))
    return make_update(form, n, k, rng, tau, every=codec == "every", chunks=chunks)


@pytest.fixture(scope="session")
def random_update() -> Callable[..., Update]:
    """See `make_update_for`."""
    return make_update_for


@pytest.fixture(scope="session")
def draw_update() -> Callable[[st.DataObject, str, Form], Update]:
    """Draws any valid update of a form, for a codec, from hypothesis's data."""

    def draw(data: st.DataObject, codec: str, form: Form) -> Update:
        n = data.draw(st.integers(1 if codec == "every" else 0, 300), label="n")
        k = data.draw(st.one_of(st.just(0), st.just(n), st.integers(0, n)), label="k")
        seed = data.draw(st.integers(0, 2**32 - 1), label="seed")
        tau = data.draw(st.sampled_from([2.0**-126, 1e-30, 1e-3, 0.25, 1.0, 1e30]), label="tau")
        return make_update_for(codec, form, n, k, np.random.default_rng(seed), tau)

    return draw


def check_same(found: Update, expected: Update) -> None:
    """Fails where two updates differ in a field, a type or a bit; chunks are a codec's affair."""
    assert (found.form, found.n) == (expected.form, expected.n)
    assert np.float32(found.tau).tobytes() == np.float32(expected.tau).tobytes()
    if expected.words is None or found.words is None:
        assert found.words is expected.words
    else:
        assert found.words.dtype == expected.words.dtype
        assert found.words.tolist() == expected.words.tolist()
    assert type(found.values) is type(expected.values)
    if not isinstance(found.values, Quantized) or not isinstance(expected.values, Quantized):
        assert found.values.dtype == expected.values.dtype
        assert found.values.tobytes() == expected.values.tobytes()
        return
    assert (found.values.bits, found.values.block) == (expected.values.bits, expected.values.block)
    arrays = zip(
        (found.values.symbols, *found.values.tables()),
        (expected.values.symbols, *expected.values.tables()),
        strict=True,
    )
    for there, due in arrays:
        assert there.dtype == due.dtype
        assert there.tobytes() == due.tobytes()


@pytest.fixture(scope="session")
def assert_same_update() -> Callable[[Update, Update], None]:
    """See `check_same`."""
    return check_same
