"""A hook's state of another number of workers: what was not sent is neither lost nor sent twice."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compressed_allgather


def hooked(method: str) -> tuple[DistributedDataParallel, CompressionState]:
    torch.manual_seed(1)
    ddp = DistributedDataParallel(nn.Linear(30, 4))
    state = CompressionState(ddp, method)
    ddp.register_comm_hook(state, compressed_allgather)
    return ddp, state


def states_of(workers: int, method: str) -> list[dict[str, Any]]:
    """As that many workers have saved them, each with what its own examples left in its residual."""
    found = []
    for rank in range(workers):
        ddp, state = hooked(method)
        ddp(torch.randn(5, 30, generator=torch.Generator().manual_seed(rank))).square().sum().backward()
        found.append({**state.state_dict(), "rank": rank, "workers": workers})
    return found


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_one_worker_owes_what_three_owed(reduction: str, alone: None) -> None:
    method = f"strom(density(0.05, every=1), reduction='{reduction}') | golomb_rice"
    former = states_of(3, method)
    _, state = hooked(method)
    state.load_state_dict(former[::-1], reshard=True)  # in any order
    for name, residual in state.state_dict()["residuals"].items():
        owed = torch.stack([each["residuals"][name].double() for each in former])
        assert owed.abs().sum() > 1
        expected = owed.mean(0) if reduction == "mean" else owed.sum(0)
        assert torch.allclose(residual.double(), expected, atol=1e-6)
    assert state.totals.state_dict() == former[0]["totals"]
    assert state.state_dict()["memories"] == former[0]["memories"]


def test_the_same_number_gets_back_its_own(alone: None) -> None:
    (own,) = states_of(1, "topk(0.1)")
    _, state = hooked("topk(0.1)")
    state.load_state_dict([own], reshard=True)
    again = state.state_dict()
    assert all(torch.equal(again["residuals"][name], each) for name, each in own["residuals"].items())


def test_a_missing_worker_and_a_list_without_reshard_are_refused(alone: None) -> None:
    former = states_of(3, "topk(0.1)")
    _, state = hooked("topk(0.1)")
    for given in (former[:2], former[0]):
        with pytest.raises(ValueError, match="those of 3 workers are needed"):
            state.load_state_dict(given, reshard=True)
    with pytest.raises(ValueError, match="3 states: without reshard=True, load this worker's own"):
        state.load_state_dict(former)
    with pytest.raises(ValueError, match="the state of rank 0 of 3 workers, this is rank 0 of 1"):
        state.load_state_dict(former[0])
    assert not state.state_dict()["residuals"]
