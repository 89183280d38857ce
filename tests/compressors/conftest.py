"""What the compressors' tests share."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from taugrad.compressors.kernels.threshold import VALUE_DTYPE, ThresholdRule
from taugrad.compressors.update import SparseUpdate

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


def make_update(
    rule: ThresholdRule, n: int, k: int, rng: np.random.Generator, tau: float = 0.25
) -> SparseUpdate:
    """A valid update with k of n elements at random places."""
    tau32 = np.float32(tau)
    positions = np.sort(rng.choice(n, k, replace=False)).astype(np.uint32)
    signs = rng.integers(0, 2, k).astype(np.uint32)
    values = np.empty(0, VALUE_DTYPE[rule])
    if rule == "wgt":
        magnitudes = np.maximum((tau32 * 10 ** (6 * rng.random(k))).astype(np.float32), tau32)
        values = np.where(signs == 1, -magnitudes, magnitudes)
    elif rule == "qgt":
        values = rng.integers(1, 256, k).astype(np.uint8)
    return SparseUpdate(rule, n, tau32, positions << np.uint32(1) | signs, values)


@pytest.fixture(scope="session")
def random_update() -> Callable[..., SparseUpdate]:
    """See `make_update`."""
    return make_update


@pytest.fixture(scope="session")
def draw_update() -> Callable[[st.DataObject, ThresholdRule], SparseUpdate]:
    """Draws any valid update of a rule from hypothesis's data."""

    def draw(data: st.DataObject, rule: ThresholdRule) -> SparseUpdate:
        n = data.draw(st.integers(0, 300), label="n")
        k = data.draw(st.one_of(st.just(0), st.just(n), st.integers(0, n)), label="k")
        seed = data.draw(st.integers(0, 2**32 - 1), label="seed")
        tau = data.draw(st.sampled_from([2.0**-126, 1e-30, 1e-3, 0.25, 1.0, 1e30]), label="tau")
        return make_update(rule, n, k, np.random.default_rng(seed), tau)

    return draw


def check_same(found: SparseUpdate, expected: SparseUpdate) -> None:
    """Fails where two updates differ in a field, a type or a bit."""
    assert (found.rule, found.n) == (expected.rule, expected.n)
    assert np.float32(found.tau).tobytes() == np.float32(expected.tau).tobytes()
    assert found.words.dtype == expected.words.dtype
    assert found.words.tolist() == expected.words.tolist()
    assert found.values.dtype == expected.values.dtype
    assert found.values.tobytes() == expected.values.tobytes()


@pytest.fixture(scope="session")
def assert_same_update() -> Callable[[SparseUpdate, SparseUpdate], None]:
    """See `check_same`."""
    return check_same
