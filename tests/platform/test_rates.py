"""Learning-rate curves against torch's schedulers, closed forms and repeated steps."""

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ConstantLR, ExponentialLR, LinearLR, StepLR

from taugrad.platform.data.batch_plan import BatchPlan, Position
from taugrad.platform.replica.optimizer import build_optimizer
from taugrad.platform.replica.rates import rate_at, set_rate
from taugrad.platform.spec.training import TrainingConfig

EPOCHS, EXAMPLES, BATCH = 7, 35, 10  # four iterations an epoch


def curve(workers: int = 2, **changes: object) -> list[float]:
    """The learning rate of every iteration."""
    settings = TrainingConfig.model_validate({"epochs": EPOCHS, "batch_size": BATCH} | changes)
    plan = BatchPlan(settings, EXAMPLES)
    return [rate_at(settings, plan.position(done), workers).lr for done in range(plan.iterations)]


def torch_curve(by_epoch, by_iteration) -> list[float]:
    """The rates of torch's schedulers, stepped where their names say."""
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
    epochs, iterations = (schedule(optimizer) for schedule in (by_epoch, by_iteration))
    rates = []
    for _ in range(EPOCHS):
        for _ in range(4):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            iterations.step()
        epochs.step()
    return rates


def constant(optimizer):
    return ConstantLR(optimizer, 1.0)


@pytest.mark.parametrize(
    ("changes", "by_epoch", "by_iteration"),
    [
        ({}, constant, constant),
        ({"schedule": {"kind": "step", "epochs": 3, "factor": 0.2}}, lambda o: StepLR(o, 3, 0.2), constant),
        ({"schedule": {"kind": "halving", "epochs": 2}}, lambda o: StepLR(o, 2, 0.5), constant),
        ({"schedule": {"kind": "exponential", "factor": 0.7}}, lambda o: ExponentialLR(o, 0.7), constant),
        ({"warmup": {"iterations": 6, "start": 0.25}}, constant, lambda o: LinearLR(o, 0.25, total_iters=6)),
        ({"warmup": {"epochs": 1.5, "start": 0.25}}, constant, lambda o: LinearLR(o, 0.25, total_iters=6)),
        (
            {"warmup": {"epochs": 3}, "schedule": {"kind": "halving", "epochs": 2}},
            lambda o: StepLR(o, 2, 0.5),
            lambda o: LinearLR(o, 0.1, total_iters=12),
        ),
    ],
)
def test_the_rates_are_those_of_torchs_schedulers(changes, by_epoch, by_iteration):
    assert curve(**changes) == pytest.approx(torch_curve(by_epoch, by_iteration), rel=1e-12)


@pytest.mark.parametrize(("kind", "factor"), [("linear", 4.0), ("sqrt", 2.0)])
def test_the_rate_is_multiplied_by_k_or_its_root(kind, factor):
    by_batch = curve(batch_size=40, scaling={"kind": kind, "reference": 10})
    assert by_batch == pytest.approx([0.01 * factor] * EPOCHS)
    by_workers = curve(workers=8, scaling={"kind": kind, "by": "workers", "reference": 2})
    assert by_workers == pytest.approx([0.01 * factor] * len(by_workers))
    assert curve(workers=4, scaling={"kind": kind, "by": "workers"})[0] == pytest.approx(0.01 * factor)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_k_decaying_steps_of_torchs_optimizers_equal_one_scaled_step(kind):
    """Without a gradient only the decay moves a weight."""
    optimizer = {"kind": kind, "lr": 0.1, "weight_decay": 0.5} | ({"momentum": 0.0} if kind == "sgd" else {})
    scaling = {"kind": "sqrt", "reference": 10}
    settings = TrainingConfig.model_validate({"batch_size": 90, "optimizer": optimizer, "scaling": scaling})
    small, large = (torch.nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2))
    plain = build_optimizer(settings.optimizer, [small])
    scaled = build_optimizer(settings.optimizer, [large])
    set_rate(scaled, rate_at(settings, Position(0, 0, 1, 0, 90), workers=1))
    small.grad, large.grad = torch.zeros_like(small), torch.zeros_like(large)
    for _ in range(9):
        plain.step()
    scaled.step()
    torch.testing.assert_close(large, small, rtol=1e-12, atol=0)
    assert large[0] < 0.9
