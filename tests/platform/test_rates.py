"""Learning-rate curves against torch's schedulers, closed forms and repeated steps."""

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, LinearLR, StepLR

from taugrad.platform.training.batch_plan import BatchPlan, Position
from taugrad.platform.training.config import TrainingConfig
from taugrad.platform.training.optimizer import build_optimizer
from taugrad.platform.training.rates import rate_at, set_rate

EPOCHS, EXAMPLES, BATCH = 7, 35, 10  # four iterations an epoch


def curve(workers: int = 2, **changes: object) -> list[float]:
    """The learning rate of every iteration."""
    settings = TrainingConfig.model_validate({"epochs": EPOCHS, "batch_size": BATCH} | changes)
    plan = BatchPlan(settings, EXAMPLES)
    return [rate_at(settings, plan.position(done), workers).lr for done in range(plan.iterations)]


def optimizer_of(lr: float = 0.01):
    return SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def torch_curve(by_epoch=None, by_iteration=None) -> list[float]:
    """The rates of torch's schedulers, stepped where their names say."""
    optimizer = optimizer_of()
    epochs = by_epoch(optimizer) if by_epoch else None
    iterations = by_iteration(optimizer) if by_iteration else None
    rates = []
    for _ in range(EPOCHS):
        for _ in range(4):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if iterations:
                iterations.step()
        if epochs:
            epochs.step()
    return rates


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, torch_curve),
        (
            {"schedule": {"kind": "step", "epochs": 3, "factor": 0.2}},
            lambda: torch_curve(lambda optimizer: StepLR(optimizer, 3, 0.2)),
        ),
        (
            {"schedule": {"kind": "halving", "epochs": 2}},
            lambda: torch_curve(lambda optimizer: StepLR(optimizer, 2, 0.5)),
        ),
        (
            {"schedule": {"kind": "exponential", "factor": 0.7}},
            lambda: torch_curve(lambda optimizer: ExponentialLR(optimizer, 0.7)),
        ),
        (
            {"warmup": {"iterations": 6, "start": 0.25}},
            lambda: torch_curve(None, lambda optimizer: LinearLR(optimizer, 0.25, total_iters=6)),
        ),
        (
            {"warmup": {"epochs": 1.5, "start": 0.25}},
            lambda: torch_curve(None, lambda optimizer: LinearLR(optimizer, 0.25, total_iters=6)),
        ),
        (
            {"warmup": {"epochs": 3}, "schedule": {"kind": "halving", "epochs": 2}},
            lambda: torch_curve(
                lambda optimizer: StepLR(optimizer, 2, 0.5),
                lambda optimizer: LinearLR(optimizer, 0.1, total_iters=12),
            ),
        ),
    ],
)
def test_the_rates_are_those_of_torchs_schedulers(changes, expected):
    assert curve(**changes) == pytest.approx(expected(), rel=1e-12)


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
    settings = TrainingConfig.model_validate(
        {
            "batch_size": 90,
            "optimizer": {"kind": kind, "lr": 0.1, "weight_decay": 0.5}
            | ({"momentum": 0.0} if kind == "sgd" else {}),
            "scaling": {"kind": "sqrt", "reference": 10},
        }
    )
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
