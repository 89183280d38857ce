"""Strom's recipe (2015, section 3.3): stages of fewer workers and smaller batches; pre-training by layers."""

from functools import partial
from typing import Any

import pytest
import torch
from plain import plain_loop, sgd, small
from recorder import trained, trainer_of
from torch import nn

from taugrad.platform.data import load
from taugrad.platform.data.batches import epoch_order
from taugrad.platform.models.building import build
from taugrad.platform.spec import RunSpec

EXAMPLES, WORKERS, RATE = 200, 4, 0.1
BASE = small(EXAMPLES, epochs=2, batch_size=64, optimizer=sgd(RATE)) | {
    "workers": {"count": WORKERS},
    "sync": {"mode": "simulated"},
}
STAGES = [{"until": 0.25, "batch_size": 8, "workers": 2}, {"until": 1.25, "batch_size": 30, "workers": 3}]
"""25% of 200 examples are 6.25 batches of 8: the first stage has seven."""


def spec_of(**changes: Any) -> RunSpec:
    return RunSpec.model_validate(BASE | {"training": BASE["training"] | changes})


def batches_by_hand() -> list[tuple[int, int, int, int]]:
    """Epoch, where in its order a batch begins, its size, who shares it."""
    results = [(0, 8 * n, 8, 2) for n in range(7)]
    results += [(0, 56 + 30 * n, 30, 3) for n in range(5)]
    results += [(1, 0, 30, 3), (1, 30, 30, 3), (1, 60, 64, 4), (1, 124, 64, 4), (1, 188, 64, 4)]
    return results


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_run_in_stages_is_a_plain_loop(alone, reduction):
    rate = RATE if reduction == "mean" else RATE / 100
    spec = spec_of(
        batch_growth={"kind": "staged", "stages": STAGES},
        loss_reduction=reduction,
        optimizer=BASE["training"]["optimizer"] | {"lr": rate},
    )

    def batches(*_):
        for epoch, start, size, _ in batches_by_hand():
            chosen = epoch_order(EXAMPLES, spec.seed, epoch)[start : start + size]
            # Workers' sums of losses are averaged over all workers, those that wait with 0.
            yield chosen, {"lr": rate * (1.0 if reduction == "mean" else len(chosen) / WORKERS)}

    model, losses = plain_loop(spec, batches, partial(torch.optim.SGD, lr=rate))
    trainer, recorder = trained(spec)
    assert recorder.losses == pytest.approx(losses, rel=1e-5)
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], expected, rtol=1e-5, atol=1e-6)


def test_workers_that_wait_send_nothing(alone):
    # One of four workers has four times the gradient and its updates count a quarter: with a quarter of tau
    # that is a worker alone, to the bit.
    stages = {"kind": "staged", "stages": [{"until": 9, "batch_size": 64, "workers": 1}]}
    one_of_four = BASE | {"compressor": "strom(tau=0.04) | packed32"}
    one_of_four["training"] = BASE["training"] | {"batch_growth": stages}
    one_alone = BASE | {"compressor": "strom(tau=0.01) | packed32", "workers": {"count": 1}}
    (four, _), (alone_, _) = trained(one_of_four), trained(one_alone)
    for name, expected in alone_.model.state_dict().items():
        assert torch.equal(four.model.state_dict()[name], expected)
    assert alone_.sync.totals.paper_bytes > 0


DEEP: dict[str, Any] = {"kind": "mlp", "widths": [10, 8, 6], "activation": "sigmoid"}


def test_pretraining_is_that_of_a_plain_loop(alone):
    wanted = {"iterations": 7, "examples": 0.3, "batch_size": 25, "lr": 0.5}
    training = BASE["training"] | {"pretraining": wanted}
    spec = RunSpec.model_validate(BASE | {"training": training, "model": DEEP})
    data = load(spec.data)
    torch.manual_seed(spec.seed)
    whole = list(build(spec.model, data.shape))  # flatten, then four times linear and, but the last, sigmoid
    torch.manual_seed(spec.seed)
    seen = epoch_order(EXAMPLES, spec.seed, 0)[:60]
    for depth, width in ((1, 10), (2, 8), (3, 6)):
        outputs = whole[-1] if depth == 3 else nn.Linear(width, 10)
        net = nn.Sequential(*whole[: 1 + 2 * depth], outputs)
        for step in range(7):
            order = seen[epoch_order(60, spec.seed, step // 3)]  # batches of 25, 25 and 10
            chosen = torch.from_numpy(order[25 * (step % 3) :][:25])
            loss = nn.functional.cross_entropy(net(data.train_inputs[chosen]), data.train_labels[chosen])
            for p, g in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True):
                p.data -= 0.5 * g
    before = torch.get_rng_state()
    torch.manual_seed(spec.seed)
    trainer = trainer_of(spec)
    torch.set_rng_state(before)
    assert trainer.listener.stages == ["pre-training"]
    trained_whole = nn.Sequential(*whole).state_dict().values()
    for tensor, expected in zip(trainer.model.state_dict().values(), trained_whole, strict=True):
        torch.testing.assert_close(tensor, expected, rtol=1e-5, atol=1e-6)
