"""What the compressors' tests share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from methods import ALONE
from torch._C._distributed_c10d import HashStore

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parent))  # for the modules that these tests share


@pytest.fixture(params=ALONE)
def method(request: pytest.FixtureRequest) -> str:
    """The line of every method in turn."""
    return str(request.param)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
