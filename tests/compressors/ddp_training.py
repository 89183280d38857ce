"""Training as usual, what goes wrong in it, and its checkpoints; see ddp.py. What holds of every method is in
ddp_methods.py."""

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ddp import (
    ELEMENTS,
    STEPS,
    TINY_BUCKETS,
    Network,
    Run,
    assert_alike,
    assert_close,
    digest,
    failure_of,
    gradients,
    refusal,
    scenario,
)
from torch import Tensor, nn

from taugrad.compressors import CompressionState
from taugrad.compressors.bucket.compressor import Compressor, Outgoing
from taugrad.compressors.errors import CorruptMessage, WorkersDisagree
from taugrad.compressors.ops.array import Bytes
from taugrad.compressors.wire import message

WGT, SKIPPING = "wgt(0.02)", "wgt(0.02, nonfinite='skip')"


@scenario(1)
def a_worker_alone_trains_as_without_a_hook() -> None:
    for cap in (25, TINY_BUCKETS):
        plain, run = Run(None, bucket_cap_mb=cap).steps(), Run("none", bucket_cap_mb=cap).steps()
        assert run.digests == plain.digests
        assert len(set(plain.digests)) == STEPS
        totals = run.state.totals
        assert (totals.wire_bytes, totals.received_bytes) == (4 * ELEMENTS * STEPS, 0)


@scenario(1, 2, values=["wgt(1e30)", "bgt(1e30)", "qgt(1e30)"])
def a_tau_above_everything_sends_nothing_and_stops_nothing(line: str) -> None:
    run = Run(line)
    before = digest(run.model)
    run.steps(3)
    assert set(run.digests) == {before}
    assert not any(gradient.any() for gradient in gradients(run.model).values())
    totals = run.state.totals
    assert (totals.sent, totals.elements) == (0, 3 * ELEMENTS)
    assert totals.wire_bytes == 3 * (28 + (0 if line.startswith("wgt") else 4))  # a tau
    assert_close(run.residuals, {name: tensor.flatten().float() for name, tensor in run.local.items()})


class WithNothing(Network):
    """A net with a parameter of no elements between others."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.empty(0))
        self.last = nn.Parameter(torch.ones(5))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = super().forward(inputs) * self.last + self.nothing.sum()
        return outputs


@scenario(2, values=["none", WGT, "bgt(0.01)", "qgt(0.004)"])
def a_parameter_without_elements_is_no_trouble(line: str) -> None:
    for cap in (25, TINY_BUCKETS):
        torch.manual_seed(0)
        run = Run(line, model=WithNothing(), bucket_cap_mb=cap).steps(3)
        assert_alike(run.digests)
        assert len(set(run.digests)) == 3
        assert run.state.totals.elements == 3 * (ELEMENTS + 5)
        assert "nothing" not in run.residuals


@scenario(2)
def gradient_statistics_are_noted_in_the_steps_that_were_asked_for() -> None:
    run, seen = Run(WGT, bucket_cap_mb=TINY_BUCKETS), []
    for step in range(4):
        if step in (0, 2):
            run.state.observe_next_step()
        run.step()
        seen.append({name: tuple(statistics) for name, statistics in run.state.statistics.items()})
        if step == 0:
            first = {name: tensor.abs().numpy().ravel() for name, tensor in run.latest.items()}
    assert seen[0].keys() == seen[2].keys() == first.keys()
    assert seen[0] == seen[1] != seen[2] == seen[3]
    for name, magnitudes in first.items():
        expected = np.quantile(magnitudes, [0.5, 0.9, 0.99, 0.999], method="inverted_cdf")
        rms = np.sqrt(np.mean(np.square(magnitudes, dtype=np.float64)))
        assert seen[0][name] == pytest.approx([*expected, rms, np.mean(magnitudes == 0)], rel=1e-4)


# What goes wrong.


def flipped(message: Bytes) -> Bytes:
    message[-1] ^= 4
    return message


def naming_a_stranger(payload: Bytes) -> Bytes:
    n = int(payload[8:12].view(np.uint32)[0])
    return message.write_nonfinite(message.NonFinite("f32", n, 99))


TAMPERED: dict[str, tuple[Callable[[Bytes], Bytes], str]] = {
    "flipped bit": (flipped, "the checksum does not match"),
    "nothing at all": (lambda message: message[:0], "0 bytes are less than a header"),
    "a refusal of an unknown parameter": (naming_a_stranger, "worker 0 names parameter 99"),
}
"""What readers refuse of a message is in test_message.py."""


def fail_with_damage(run: Run, tamper: Callable[[Bytes], Bytes], words: str) -> None:
    """Worker 0 damages what it sends; every worker refuses it, and has its own gradient."""
    compress = Compressor.compress

    def tampered(self: Compressor, *given: Any, **options: Any) -> Outgoing:
        outgoing = compress(self, *given, **options)
        return replace(outgoing, payload=tamper(outgoing.payload))

    if dist.get_rank() == 0:
        Compressor.compress = tampered  # type: ignore[method-assign]
    failure = failure_of(run)
    Compressor.compress = compress  # type: ignore[method-assign]
    assert isinstance(failure, CorruptMessage)
    assert "the message of worker 0" in str(failure) or words.startswith("worker 0")
    assert words in str(failure)
    for name, gradient in gradients(run.model).items():
        assert torch.equal(gradient, run.latest[name]), "not the worker's own gradient any more"


@scenario(2, values=TAMPERED)
def a_damaged_message_fails_on_every_worker_and_nothing_is_applied(tampering: str) -> None:
    for line in (WGT, SKIPPING):
        fail_with_damage(Run(line).steps(3), *TAMPERED[tampering])


@scenario(3)
def a_damaged_message_that_is_handed_on_is_refused_too() -> None:
    run = Run(WGT, pattern="hierarchical", sites=[[0, 2], [1]]).steps(3)
    fail_with_damage(run, *TAMPERED["flipped bit"])


def assert_told(run: Run, words: str) -> None:
    """Fails unless every worker tells the difference, long before the group's timeout."""
    started = monotonic()
    failure = failure_of(run)
    assert isinstance(failure, WorkersDisagree)
    assert re.fullmatch(f"the workers do not agree: {words}", str(failure)), failure
    assert monotonic() - started < 30


@scenario(2)
def workers_that_do_not_do_the_same_all_fail_with_the_difference() -> None:
    first = dist.get_rank() == 0
    assert_told(Run("none" if first else "wgt(0.01)"), "rank 0: kind = none, rank 1: kind = wgt")
    assert_told(Run("powersgd" if first else "none"), "rank 0: kind = powersgd, rank 1: kind = none")
    other = Run("none" if first else "none(reduction='sum')")
    assert_told(other, "rank 0: reduction = mean, rank 1: reduction = sum")
    assert_told(
        Run(WGT, pattern="allgather" if first else "hierarchical"),
        "rank 0: pattern = allgather, rank 1: pattern = hierarchical; "
        "rank 0: no sites, rank 1: sites = by host",
    )
    assert_told(
        Run("none", find_unused_parameters=first),
        "rank 0: find_unused_parameters = True, rank 1: find_unused_parameters = False",
    )
    buckets = Run("none", bucket_cap_mb=25 if first else TINY_BUCKETS, find_unused_parameters=True)
    assert_told(buckets, ".*rank 1: no bucket 0, parameter.*")
    assert_alike(str(buckets.state.failure))
    named = nn.Sequential(OrderedDict([("first" if first else "other", nn.Linear(6, 5))]))
    words = (
        "rank 0: parameter 0 = first.weight float32 [5, 6], "
        "rank 1: parameter 0 = other.weight float32 [5, 6]; "
        "rank 0: parameter 1 = first.bias float32 [5], rank 1: parameter 1 = other.bias float32 [5]; "
        "rank 0: bucket 0, parameter 0 = first.weight, rank 1: bucket 0, parameter 0 = other.weight; "
        "and 1 more"
    )
    assert_told(Run("none", model=named), re.escape(words))
    late, again = Run("wgt(0.01)").steps(2), Run("wgt(0.01)")
    if first:
        again.state.load_state_dict(late.state.state_dict())
    assert_told(again, "rank 0: steps done = 2, rank 1: steps done = 0")


# Checkpoints.


@scenario(1)
def a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing() -> None:
    run = Run(WGT).steps(2)
    good, before = run.state.state_dict(), run.residuals
    residuals = good["residuals"]
    low_rank = CompressionState(run.ddp, "powersgd").state_dict()
    wrong: dict[str, dict[str, Any]] = {
        "version 6 of a state; this program reads 11": {"version": 6},
        "the state of rank 1 of 2 workers, this is rank 0 of 1": {"rank": 1, "workers": 2},
        "without rank": {"rank": None},
        "version None": {"version": None},
        "without velocities": {"velocities": None},
        "the velocity of 'head.bias' is torch.float32 (4,)": {"velocities": {"head.bias": torch.zeros(4)}},
        "a memory of 'tail.weight', which is not": {"memories": {"tail.weight": {"tau": 1.0}}},
        "a ledger has": {"totals": {"steps": 2}},
        "of another method than wgt(tau=0.02)": {"powersgd": low_rank["powersgd"]},
        "a residual for 'tail.weight'": {"residuals": {**residuals, "tail.weight": torch.zeros(3)}},
        "'head.bias' is torch.float32 (4,)": {"residuals": {**residuals, "head.bias": torch.zeros(4)}},
        "'head.bias' is torch.float64 (5,)": {
            "residuals": {**residuals, "head.bias": torch.zeros(5, dtype=torch.float64)}
        },
    }
    for words, changes in wrong.items():
        state = {**good, **changes}
        if None in changes.values():
            state = {name: value for name, value in state.items() if value is not None or name == "powersgd"}
        said = refusal(lambda state=state: run.state.load_state_dict(state))
        assert said.startswith("ValueError: "), said
        assert words in said, said
    assert all(torch.equal(kept, before[name]) for name, kept in run.residuals.items())
    run.state.load_state_dict({**good, "residuals": dict(residuals)})
    kept = run.state.feedback.residuals
    assert not [name for name in kept if kept[name].data_ptr() == residuals[name].data_ptr()]
