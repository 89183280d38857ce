"""What a worker keeps back: an update that did not arrive returns to the residuals."""

import numpy as np
import pytest
import torch
from cases import in_turn

from taugrad.compressors.bucket.feedback import FeedbackCompressor
from taugrad.compressors.method import read_config

LINES = (
    "wgt(tau=0.5, nonfinite='skip')",
    "strom(tau=0.5, nonfinite='skip') | golomb_rice",
    "bgt(tau=0.5, nonfinite='skip')",
    "topk(density=0.1, nonfinite='skip')",
)
SIZES = {"first": 300, "second": 50}


def compressor(line: str) -> FeedbackCompressor:
    like = [torch.empty(size) for size in SIZES.values()]
    return FeedbackCompressor(read_config(line), list(SIZES), like, threads=1)


def gradients(seed: int) -> list[torch.Tensor]:
    random = np.random.default_rng(seed)
    return [torch.from_numpy(random.standard_normal(n).astype(np.float32)) for n in SIZES.values()]


def residuals(one: FeedbackCompressor) -> list[torch.Tensor]:
    return [one.feedback.residuals[name].clone() for name in SIZES]


@in_turn("line", LINES)
def test_an_update_that_did_not_arrive_returns_to_the_residuals(line):
    one = compressor(line)
    one.compress(gradients(1), 0)
    one.commit()
    before, given = residuals(one), gradients(2)
    sent = one.compress(given, 1)
    assert sum(each.sent for each in sent.tallies) > 0
    kept = residuals(one)
    one.put_back()
    for now, was, gradient, without in zip(residuals(one), before, given, kept, strict=True):
        assert not torch.equal(without, was + gradient)  # something had been taken out
        torch.testing.assert_close(now, was + gradient, rtol=0, atol=1e-6)
    again = residuals(one)
    one.put_back()  # there is nothing more to put back
    assert all(map(torch.equal, residuals(one), again))


@pytest.mark.parametrize("ends", ["commit", "refuse"])
def test_what_arrived_or_is_refused_is_not_put_back(ends):
    one = compressor(LINES[0] if ends == "commit" else "wgt(tau=0.5)")
    one.compress(gradients(1), 0)
    if ends == "commit":
        one.commit()
    before = residuals(one)
    one.put_back()
    assert all(map(torch.equal, residuals(one), before))


def test_what_is_kept_is_sent_behind_a_gradient_of_zero_unless_it_is_held_back():
    zeros = [torch.zeros(n) for n in SIZES.values()]
    for asked, held in (({}, False), ({"hold_back_zeros": True}, True)):
        like = [torch.empty(size) for size in SIZES.values()]
        one = FeedbackCompressor(read_config("strom(0.25)"), list(SIZES), like, threads=1, **asked)
        one.compress([torch.ones(n) for n in SIZES.values()], 0)  # takes 0.25 out, and keeps 0.75
        sent = [each.sent for each in one.compress(zeros, 1).tallies]
        assert sent == ([0, 0] if held else list(SIZES.values()))


def test_there_are_as_many_tensors_as_names():
    with pytest.raises(ValueError, match="shorter"):
        compressor(LINES[0]).compress(gradients(1)[:1], 0)
    with pytest.raises(ValueError, match="shorter"):
        FeedbackCompressor(read_config(LINES[0]), list(SIZES), gradients(1)[:1], threads=1)


def test_a_share_to_aim_at_is_above_0_and_at_most_1():
    one = compressor("wgt(density(0.01))")
    for share in (1e-3, 0.25, 1.0):
        assert one.feedback.aim_at(share) == share
    for share in (0.0, -0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="must be above 0 and at most 1"):
            one.feedback.aim_at(share)
    assert one.feedback.method.aim == 1.0
