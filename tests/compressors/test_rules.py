"""Rules over buckets: what their messages hold, against the paper's pseudo code, bit for bit."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from cases import in_turn

from taugrad.compressors.bucket.compressor import Compressor
from taugrad.compressors.bucket.layout import Part, PartTally
from taugrad.compressors.method import LARGEST_TAU, SMALLEST_TAU, QuantizedGradient, read_config
from taugrad.compressors.method.base import ThresholdRule
from taugrad.compressors.ops.cpu.passes import CpuOps
from taugrad.compressors.ops.cpu.threshold import VALUE_DTYPE
from taugrad.compressors.rules.base import Context
from taugrad.compressors.wire.message import NonFinite
from taugrad.compressors.wire.update import Update

RULES: tuple[ThresholdRule, ...] = ("wgt", "bgt", "qgt", "strom")
NAN, INF = float("nan"), float("inf")
every_rule = in_turn("rule", RULES)


def compress(
    rule: str, tau: float, parts: Sequence[Part], ops: CpuOps, *, hold_back_zeros: bool = False
) -> tuple[Update | NonFinite, list[PartTally]]:
    """One bucket through a rule: what a reader of its payload finds."""
    compressor = Compressor(read_config({"kind": rule, "tau": tau}), ops)
    layout = compressor.layout([part.name for part in parts], [part.elements for part in parts])
    context = Context(hold_back_zeros=hold_back_zeros)
    outgoing = compressor.compress(parts, layout, context)
    incoming = compressor.read(outgoing.payload, layout)
    if isinstance(incoming, NonFinite):
        return incoming, outgoing.tallies
    (update,) = incoming
    return update, outgoing.tallies


def test_levels_are_whole_multiples_of_the_magnitude_at_most_255() -> None:
    gradient = np.array([1.0, -1.0, 1.99, -1.99, 2.0, -3.5, 255.9, -256.0, 1000.0, 0.99], np.float32)
    parts = [Part("p", torch.from_numpy(gradient), torch.zeros(10))]
    update, _ = compress("qgt", 1.0, parts, CpuOps())
    assert isinstance(update, Update)
    assert update.values.tolist() == [1, 1, 1, 1, 2, 3, 255, 255, 255]
    assert (update.words & 1).tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    kept = np.array([0, 0, 0.99, -0.99, 0, -0.5, 0.9, -1, 745, 0.99], np.float32)
    assert parts[0].residual.numpy() == pytest.approx(kept, abs=2e-5)


@every_rule
def test_what_a_refused_bucket_had_to_send_stays_in_the_residuals(rule: ThresholdRule) -> None:
    gradients = torch.tensor([3.0, 0.25, -5.0]), torch.tensor([NAN, 4.0])
    parts = [Part(f"p{i}", g, torch.zeros(g.numel())) for i, g in enumerate(gradients)]
    update, tallies = compress(rule, 1.0, parts, CpuOps())
    assert isinstance(update, NonFinite)
    assert update.ordinal == 1
    assert [tally.sent for tally in tallies] == [0, 0]
    assert parts[0].residual.tolist() == [3.0, 0.25, -5.0]
    assert parts[1].residual.tolist() == [0.0, 4.0]


@every_rule
def test_zeros_are_held_back_only_when_asked(rule: ThresholdRule) -> None:
    def parts() -> list[Part]:
        zero, some = torch.tensor([0.0, -0.0, 0.0]), torch.tensor([0.0, 0.5, 0.0])
        return [Part(name, g, torch.full((3,), 2.0)) for name, g in (("zero", zero), ("some", some))]

    held, sending = parts(), parts()
    update, tallies = compress(rule, 1.0, held, CpuOps(), hold_back_zeros=True)
    assert isinstance(update, Update)
    assert (update.words >> 1).tolist() == [3, 4, 5]
    assert [tally.sent for tally in tallies] == [0, 3]
    assert held[0].residual.tolist() == [2.0, 2.0, 2.0]
    assert tallies[0].residual_squares == 12.0

    update, tallies = compress(rule, 1.0, sending, CpuOps())
    assert isinstance(update, Update)
    assert (update.words >> 1).tolist() == [0, 1, 2, 3, 4, 5]
    assert [tally.sent for tally in tallies] == [3, 3]


def test_every_tau_that_is_allowed_leaves_every_level_finite() -> None:
    assert np.isfinite(np.float32(255) * np.float32(LARGEST_TAU))
    assert QuantizedGradient(tau=LARGEST_TAU).tau == LARGEST_TAU
    assert np.float32(SMALLEST_TAU) >= np.finfo(np.float32).tiny
    for tau in (0.0, -1.0, NAN, INF, 2 * LARGEST_TAU, SMALLEST_TAU / 2):
        with pytest.raises(ValueError, match=r"greater than 0|not a threshold that float32 can hold"):
            QuantizedGradient(tau=tau)


def test_a_nan_among_zeros_is_not_held_back() -> None:
    parts = [Part("p", torch.tensor([0.0, NAN]), torch.zeros(2))]
    update, _ = compress("wgt", 1.0, parts, CpuOps(), hold_back_zeros=True)
    assert isinstance(update, NonFinite)


def test_scratch_serves_rules_of_different_types_in_turn() -> None:
    ops = CpuOps()
    for rule in ("bgt", "wgt", "qgt", "strom", "wgt", "bgt"):
        for n in (3, 40, 17):
            parts = [Part("p", torch.full((n,), 2.5), torch.zeros(n))]
            update, _ = compress(rule, 1.0, parts, ops)
            assert isinstance(update, Update)
            assert update.k == n
            expected = {"wgt": [2.5] * n, "bgt": [], "qgt": [2] * n, "strom": []}[rule]
            assert update.values.tolist() == expected
            assert update.values.dtype == VALUE_DTYPE[rule]


@in_turn("line, keeps", [("linear(8, decay=0)", False), ("linear(8)", True), ("strom(0.1, decay=0)", True)])
def test_only_what_is_added_to_the_next_gradient_takes_memory(line: str, keeps: bool) -> None:
    """A dense rule without a residual needs none; a sparse one builds its sum in it."""
    assert Compressor(read_config(line), CpuOps()).keeps_residuals == keeps
