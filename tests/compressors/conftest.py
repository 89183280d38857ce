"""What the compressors' tests share."""

import sys
from pathlib import Path

import pytest
import torch
from methods import ALONE

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parent))  # for the modules that these tests share


@pytest.fixture(params=ALONE.values(), ids=ALONE)
def method(request: pytest.FixtureRequest) -> str:
    """The line of every method in turn."""
    return str(request.param)
