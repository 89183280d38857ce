"""What a worker keeps back: what did not arrive returns."""

from typing import Any

import pytest
import torch
from cases import in_turn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compression_hook
from taugrad.compressors.bucket.compressor import Compressor, Worker
from taugrad.compressors.bucket.layout import Shard
from taugrad.compressors.methods import CompressedMethod, read_config
from taugrad.compressors.ops.cpu.passes import CPU

LINES = (
    "wgt(0.5, nonfinite='skip')",
    "strom(0.5, nonfinite='skip') | golomb_rice",
    "bgt(0.5, nonfinite='skip')",
    "topk(0.1, nonfinite='skip')",
)
SIZES = {"first": 30_000, "second": 2_000}


def compressor(line: str, **options: bool) -> Compressor:
    method = read_config(line)
    assert isinstance(method, CompressedMethod)
    return Compressor(method, Worker(CPU, **options), Shard.whole(SIZES))


def gradients(iteration: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(iteration)
    return [torch.randn(size, generator=generator) for size in SIZES.values()]


def residuals(one: Compressor) -> list[torch.Tensor]:
    return [one.feedback.residuals[name].clone() for name in SIZES]


@in_turn("line", LINES)
def test_an_update_that_did_not_arrive_returns_to_the_residuals(line: str) -> None:
    one = compressor(line)
    one.compress(gradients(1), 0)
    one.commit()
    before = residuals(one)
    one.put_back()  # what arrived is not
    assert all(map(torch.equal, residuals(one), before))
    sent = one.compress(gradients(2), 1)
    assert sum(tally.sent for tally in sent.tallies) > 0
    kept = residuals(one)
    one.put_back()
    for now, was, gradient, without in zip(residuals(one), before, gradients(2), kept, strict=True):
        assert not torch.equal(without, was + gradient)  # something had been taken out
        torch.testing.assert_close(now, was + gradient, rtol=0, atol=1e-6)
    again = residuals(one)
    one.put_back()  # there is nothing more to put back
    assert all(map(torch.equal, residuals(one), again))


def test_nothing_is_put_back_where_a_step_is_never_skipped() -> None:
    one = compressor("wgt(0.5)")
    one.compress(gradients(1), 0)
    before = residuals(one)
    one.put_back()
    assert all(map(torch.equal, residuals(one), before))


def test_what_is_kept_is_sent_behind_a_gradient_of_zero_unless_it_is_held_back() -> None:
    for held in (False, True):
        one = compressor("strom(0.25)", hold_back_zeros=held)
        one.compress([torch.ones(n) for n in SIZES.values()], 0)  # takes 0.25 out, and keeps 0.75
        sent = one.compress([torch.zeros(n) for n in SIZES.values()], 1)
        assert [tally.sent for tally in sent.tallies] == ([0, 0] if held else list(SIZES.values()))


def test_there_are_as_many_tensors_as_names() -> None:
    one = compressor(LINES[0])
    with pytest.raises(ValueError, match="shorter"):
        one.compress(gradients(1)[:1], 0)


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


@in_turn("reduction", ["mean", "sum"])
def test_residuals_of_three_workers_are_loaded_by_one(reduction: str, alone: None) -> None:
    method = f"strom(density(0.05, every=1), reduction='{reduction}') | golomb_rice"
    former = states_of(3, method)
    _, state = hooked(method)
    state.load_state_dict(former[::-1], reshard=True)  # in any order
    for name, residual in state.state_dict()["residuals"].items():
        owed = torch.stack([state["residuals"][name].double() for state in former])
        assert owed.abs().sum() > 1
        expected = owed.mean(0) if reduction == "mean" else owed.sum(0)
        assert torch.allclose(residual.double(), expected, atol=1e-6)
    assert state.totals.state_dict() == former[0]["totals"]
    assert state.state_dict()["memories"] == former[0]["memories"]


def test_the_same_number_gets_back_its_own(alone: None) -> None:
    (saved,) = states_of(1, "topk(0.1)")
    _, state = hooked("topk(0.1)")
    state.load_state_dict([saved], reshard=True)
    again = state.state_dict()
    assert all(
        torch.equal(again["residuals"][name], residual) for name, residual in saved["residuals"].items()
    )


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
