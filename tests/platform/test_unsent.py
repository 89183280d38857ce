"""What a worker has not sent stays in its own weights: against a loop in the plainest terms."""

from typing import Any

import numpy as np
import pytest
import torch
from plain import sgd, small
from recorder import Recorder, trained
from torch import nn

from taugrad.platform.data import load
from taugrad.platform.data.batches import epoch_order
from taugrad.platform.models.building import build
from taugrad.platform.spec import RunSpec
from taugrad.platform.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("alone")
WORKERS, EVERY, BATCH, EXAMPLES, TAU, RATE = 3, 4, 30, 120, 0.02, 0.3
ITERATIONS = 14  # the last exchange comes after two steps
BASE = small(EXAMPLES, iterations=ITERATIONS, batch_size=BATCH, optimizer=sgd(RATE)) | {
    "workers": {"count": WORKERS},
    "checkpoint": {"interval": 1000},
}


def with_unsent(line: str, **sync: Any) -> tuple[Trainer, Recorder]:
    mode = {"mode": "simulated", "of": {"mode": "weights", "every": EVERY} | sync}
    return trained(BASE | {"compressor": line, "sync": mode})


def plain_loop(share: float) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Agreed weights at the end, and each worker's residuals; wgt at TAU."""
    spec = RunSpec.model_validate(BASE)
    data = load(spec.data)
    torch.manual_seed(spec.seed)
    model = build(spec.model, data.shape)
    agreed = [parameter.detach().numpy().copy() for parameter in model.parameters()]
    residuals = [[np.zeros_like(weight) for weight in agreed] for _ in range(WORKERS)]
    copies = [[tensor.copy() for tensor in agreed] for _ in range(WORKERS)]
    began = [[tensor.copy() for tensor in agreed] for _ in range(WORKERS)]
    for done in range(ITERATIONS):
        batches = EXAMPLES // BATCH
        batch = epoch_order(EXAMPLES, spec.seed, done // batches)[done % batches * BATCH :][:BATCH]
        for rank, chosen in enumerate(np.split(batch, WORKERS)):
            for parameter, value in zip(model.parameters(), copies[rank], strict=True):
                parameter.data = torch.from_numpy(value)
                parameter.grad = None
            loss = nn.functional.cross_entropy(model(data.train_inputs[chosen]), data.train_labels[chosen])
            loss.backward()
            for i, parameter in enumerate(model.parameters()):
                copies[rank][i] = copies[rank][i] - RATE * parameter.grad.numpy()
        if (done + 1) % EVERY and done + 1 < ITERATIONS:
            continue
        sums = [np.zeros_like(weight) for weight in agreed]
        for rank in range(WORKERS):
            for i in range(len(agreed)):
                wanted = residuals[rank][i] + (copies[rank][i] - began[rank][i])
                sent = np.where(np.abs(wanted) >= TAU, wanted, 0)
                sums[i] += sent
                residuals[rank][i] = wanted - sent
        agreed = [weight + total / WORKERS for weight, total in zip(agreed, sums, strict=True)]
        for rank in range(WORKERS):
            began[rank] = [a + share * r for a, r in zip(agreed, residuals[rank], strict=True)]
            copies[rank] = [tensor.copy() for tensor in began[rank]]
    return agreed, residuals


@pytest.mark.parametrize(("unsent", "share"), [(0, 0), ("1/n", 1 / WORKERS), (1, 1)])
@pytest.mark.parametrize("pattern", ["allgather", "parameter_server"])
def test_workers_go_on_from_the_agreed_weights_and_a_part_of_what_they_have_not_sent(unsent, share, pattern):
    back = {"downlink": "none"} if pattern == "parameter_server" else {}
    trainer, recorder = with_unsent(f"wgt({TAU})", unsent=unsent, pattern=pattern, **back)
    agreed, residuals = plain_loop(share)
    for parameter, expected in zip(trainer.model.parameters(), agreed, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    assert 0 < trainer.sync.totals.fraction * EVERY < 0.9  # something was sent, and something kept
    squares = np.mean([sum(np.square(residual).sum() for residual in worker) for worker in residuals])
    *_, rms = recorder.values("comm/residual_rms")
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    assert parameters * rms**2 == pytest.approx(float(squares), rel=1e-3)
