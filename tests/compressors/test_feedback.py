"""What a worker keeps back: what did not arrive returns."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases import in_turn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, NonFiniteGradient, compression_hook
from taugrad.compressors.bucket.compressor import Worker
from taugrad.compressors.bucket.feedback import Feedback
from taugrad.compressors.bucket.layout import ParameterSlice
from taugrad.compressors.errors import CompressionError
from taugrad.compressors.methods import read_config
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.ops.interface import Readback
from taugrad.compressors.reduce_scatter import ReduceScatterState
from taugrad.compressors.replicas import _Unit

# A state of another number of workers: what was not sent is neither lost nor sent twice.


def hooked(method: str) -> tuple[DistributedDataParallel, CompressionState]:
    torch.manual_seed(1)
    ddp = DistributedDataParallel(nn.Linear(30, 4))
    state = CompressionState(ddp, method)
    ddp.register_comm_hook(state, compression_hook)
    return ddp, state


def states_of(workers: int, method: str) -> list[dict[str, Any]]:
    """As that many workers have saved them, each with what its own examples left in its residual."""
    results = []
    for rank in range(workers):
        ddp, state = hooked(method)
        ddp(torch.randn(5, 30, generator=torch.Generator().manual_seed(rank))).square().sum().backward()
        results.append({**state.state_dict(), "rank": rank, "workers": workers})
    return results


@in_turn(("workers", "reduction"), [(3, "mean"), (3, "sum"), (1, "mean")])
def test_residuals_of_several_workers_are_loaded_by_one(workers: int, reduction: str, alone: None) -> None:
    method = f"strom(density(0.05, every=1), reduction='{reduction}') | golomb_rice"
    former = states_of(workers, method)
    _, state = hooked(method)
    state.load_state_dict(former[::-1], reshard=True)  # in any order
    for name, residual in state.state_dict()["residuals"].items():
        owed = torch.stack([state["residuals"][name].double() for state in former])
        assert owed.abs().sum() > 1
        expected = owed.mean(0) if reduction == "mean" else owed.sum(0)
        assert torch.allclose(residual.double(), expected, atol=1e-6)
    assert state.totals.state_dict() == former[0]["totals"]
    assert state.state_dict()["memories"] == former[0]["memories"]


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


def sharded(downlink: str, layer: nn.Module | None = None) -> CompressionState:
    torch.manual_seed(1)
    ddp = DistributedDataParallel(nn.Linear(30, 4) if layer is None else layer)
    state = CompressionState(ddp, "wgt(density(0.1))", pattern="sharded", downlink=downlink)
    ddp.register_comm_hook(state, compression_hook)
    inputs = torch.randn(5, 30) if layer is None else torch.randn(2, 3, 8, 8)
    ddp(inputs).square().sum().backward()
    return state


def test_a_state_that_does_not_fit_changes_nothing(alone: None) -> None:
    saved, state = sharded("wgt(density(0.5))").state_dict(), sharded("wgt(3.0)")
    before = {name: tensor.clone() for name, tensor in state.state_dict()["residuals"].items()}
    with pytest.raises(ValueError, match="a memory of"):
        state.load_state_dict(saved)
    after = state.state_dict()["residuals"]
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_state_of_another_pattern_is_refused_with_other_workers_too(alone: None) -> None:
    saved, (plain,) = sharded("wgt(3.0)").state_dict(), states_of(1, "wgt(density(0.1))")
    _, gathers = hooked("wgt(density(0.1))")
    for state, given in ((gathers, saved), (sharded("wgt(3.0)"), plain)):
        for reshard in (False, True):
            with pytest.raises(ValueError, match="another exchange pattern"):
                state.load_state_dict(given, reshard=reshard)


def test_parts_of_sums_are_loaded_in_the_same_memory_format_alone(alone: None) -> None:
    convolution = nn.Conv2d(3, 4, 3)
    last = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    saved = sharded("wgt(3.0)", last).state_dict()
    sharded("wgt(3.0)", nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)).load_state_dict(saved)
    for reshard in (False, True):
        with pytest.raises(ValueError, match="memory format of 'weight'"):
            sharded("wgt(3.0)", convolution).load_state_dict(saved, reshard=reshard)


def test_a_failure_is_that_of_the_latest_pass(alone: None) -> None:
    ddp, state = hooked("wgt(0.1)")
    saved = state.state_dict()
    with pytest.raises(RuntimeError):
        ddp(torch.full((1, 30), torch.inf)).sum().backward()
    assert isinstance(state.failure, NonFiniteGradient)
    state.load_state_dict(saved)
    assert state.failure is None
    with pytest.raises(RuntimeError):
        ddp(torch.full((1, 30), torch.inf)).sum().backward()
    ddp.zero_grad()
    ddp(torch.ones(1, 30)).sum().backward()
    assert state.failure is None


def test_what_fsdp2_holds_back_is_not_added_to_other_parameters() -> None:
    named = SimpleNamespace(names={0: "one", 1: "two"})
    unit = _Unit(0, named, torch.empty(0))  # type: ignore[arg-type]
    unit.gather([torch.ones(2), torch.ones(3)])
    unit.holds_back = True
    assert unit.gather([torch.ones(2), torch.ones(3)])[0].tolist() == [2] * 5
    with pytest.raises(CompressionError, match="one, two were held back"):
        unit.gather([torch.ones(2)])


def test_equal_shards_of_a_reduce_scatter_are_rounded_by_other_random_numbers() -> None:
    method = read_config("qsgd(bits=4, decay=0)")
    state = SimpleNamespace(method=method, _worker=Worker(CPU, readback=Readback(CPU)))
    rows = ReduceScatterState._compressor(state, ("w", "w"), (4096, 4096))  # type: ignore[arg-type]
    shard = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    one, other = rows.compress([shard, shard.clone()], 0).payload.reshape(2, -1)
    assert (one != other).any()


def test_sums_of_another_part_of_a_parameter_are_refused() -> None:
    """Where other parameters were trained, shards were cut elsewhere; a part as long fits no better."""
    like = {name: torch.zeros(8) for name in "ab"}
    former, now = Feedback(read_config("topk(0.1)")), Feedback(read_config("topk(0.1)"))
    former.slices = {"a": ParameterSlice("a", 0, 0, 4, 8)}
    former.residuals = {"a": torch.ones(4)}
    for part in (ParameterSlice("a", 0, 4, 8, 8), ParameterSlice("b", 0, 0, 4, 8)):
        now.slices = {part.name: part}
        with pytest.raises(ValueError, match=r"another part of 'a'.*reshard=True"):
            now.load_state_dict(former.state_dict(), like)
