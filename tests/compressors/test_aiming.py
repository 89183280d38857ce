"""Another share of elements while a run goes on: what is sent follows, and nothing is lost."""

import numpy as np
import pytest
import torch

from taugrad.compressors.bucket.feedback import FeedbackCompressor
from taugrad.compressors.method import CompressedMethod, read_config
from taugrad.compressors.wire.message import NonFinite

SIZES = [30_000, 2_000]
AIMED = [
    "wgt(density(0.01))",
    "strom(density(0.01))",
    "wgt(allocate(0.01))",
    "topk(0.01)",
    "chunked_topk(keep=41)",
]
NOT_AIMED = [
    "wgt(0.1)",
    "linear",
    "none",
    "powersgd",
    "wgt(density(0.01, warmup=warmup(9)))",
    "wgt(dl4j(1e-3))",
]


def compressor(line: str) -> FeedbackCompressor:
    method = read_config(line)
    assert isinstance(method, CompressedMethod)
    like = [torch.zeros(size) for size in SIZES]
    return FeedbackCompressor(method, ["a", "b"], like, threads=1)


def gradients(iteration: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(iteration)
    return [torch.randn(size, generator=generator) for size in SIZES]


def run(worker: FeedbackCompressor, iterations: range) -> list[tuple[bytes, float]]:
    """What each iteration sends, and the share of the elements that it is."""
    found = []
    for iteration in iterations:
        sent = worker.compress(gradients(iteration), iteration)
        share = sum(tally.sent for tally in sent.tallies) / sum(SIZES)
        found.append((sent.payload.tobytes(), share))
    return found


@pytest.mark.parametrize("line", AIMED)
def test_what_is_sent_follows(line: str) -> None:
    worker = compressor(line)
    run(worker, range(20))
    for times, start in ((0.25, 20), (3.0, 40)):
        aim = worker.feedback.aim_at(0.01 * times)
        assert aim == pytest.approx(0.01 * times, rel=0.05)
        sent = np.mean([share for _, share in run(worker, range(start, start + 20))][10:])
        assert sent == pytest.approx(aim, rel=0.35)


@pytest.mark.parametrize("line", [each for each in AIMED if not each.startswith("chunked")])
def test_nothing_is_lost(line: str) -> None:
    worker = compressor(line)
    total = [torch.zeros(size) for size in SIZES]
    received = torch.zeros(sum(SIZES))
    for iteration in range(12):
        if iteration == 6:
            worker.feedback.aim_at(0.1)
        total = [each + gradient for each, gradient in zip(total, gradients(iteration), strict=True)]
        payload = worker.compress(gradients(iteration), iteration).payload
        updates = worker.read(payload)
        assert not isinstance(updates, NonFinite)
        worker.compressor.add(updates, received)
    kept = torch.cat([worker.feedback.residuals[name] for name in ("a", "b")])
    torch.testing.assert_close(received + kept, torch.cat(total), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("line", AIMED)
def test_a_checkpoint_goes_on_with_the_share(line: str) -> None:
    worker = compressor(line)
    run(worker, range(5))
    assert "aim" not in worker.state_dict()
    worker.feedback.aim_at(0.05)
    run(worker, range(5, 8))
    resumed = compressor(line)
    resumed.load_state_dict(worker.state_dict())
    assert resumed.feedback.method == worker.feedback.method
    assert run(worker, range(8, 14)) == run(resumed, range(8, 14))


@pytest.mark.parametrize("line", NOT_AIMED)
def test_methods_without_a_share_have_none_to_change(line: str) -> None:
    method = read_config(line)
    assert method.aim is None
    with pytest.raises(ValueError, match="no target density"):
        method.aimed_at(0.01)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_what_is_no_share_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="must be above 0 and at most 1"):
        compressor("topk(0.01)").feedback.aim_at(share)
