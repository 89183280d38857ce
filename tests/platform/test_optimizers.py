"""LAMB, LARS and the frozen Adam against their papers' equations, in float64."""

import numpy as np
import pytest
import torch

from taugrad.platform.training.config import Adam, Lamb, Lars
from taugrad.platform.training.optimizer import build_optimizer

STEPS = 30


def parameters() -> list[torch.nn.Parameter]:
    """Float64 tensors of initial sizes as layers have them; the largest has a norm above 10."""
    generator = torch.Generator().manual_seed(2)
    shapes = {(20, 1, 5, 5): 25, (20,): 25, (5, 20, 5, 5): 500, (40, 30): 1, (10, 50): 500, (10,): 500}
    weights = []
    for shape, inputs in shapes.items():
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
        weights.append((2 * uniform - 1) / inputs**0.5)
    return [torch.nn.Parameter(each) for each in [*weights, torch.zeros(7, dtype=torch.float64)]]


def gradients(step: int, spread: float = 0) -> list[torch.Tensor]:
    """Of sizes from 1 down to 10 to minus the spread, as layers' and elements' differ."""
    generator = torch.Generator().manual_seed(100 + step)
    found = []
    for each in parameters():
        exponents = -spread * torch.rand(each.shape, generator=generator, dtype=torch.float64)
        found.append(torch.randn(each.shape, generator=generator, dtype=torch.float64) * 10**exponents)
    return found


def trained(settings: Adam | Lamb | Lars, spread: float = 0) -> list[np.ndarray]:
    """The weights after STEPS steps."""
    weights = parameters()
    optimizer = build_optimizer(settings, weights)
    for step in range(STEPS):
        for weight, gradient in zip(weights, gradients(step, spread), strict=True):
            weight.grad = gradient
        optimizer.step()
    return [weight.detach().numpy() for weight in weights]


def assert_close(found: list[np.ndarray], expected: list[np.ndarray], rtol: float = 1e-9) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=1e-12)


SMALL = 8
"""A spread with which gradients are so small that epsilon counts."""


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_lamb_is_its_papers_formula(decay):
    """You et al., algorithm 2, with phi(z) = min(z, 10)."""
    lr, weights = 0.02, [each.detach().numpy() for each in parameters()]
    m, v = ([np.zeros_like(each) for each in weights] for _ in range(2))
    for t in range(1, STEPS + 1):
        for i, gradient in enumerate(gradients(t - 1, SMALL)):
            g = gradient.numpy()
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = 0.999 * v[i] + 0.001 * g**2
            r = (m[i] / (1 - 0.9**t)) / (np.sqrt(v[i] / (1 - 0.999**t)) + 1e-6) + decay * weights[i]
            norm, length = np.sqrt((weights[i] ** 2).sum()), np.sqrt((r**2).sum())
            trust = min(norm, 10.0) / length if norm > 0 and length > 0 else 1.0
            weights[i] = weights[i] - lr * trust * r
    assert_close(trained(Lamb(lr=lr, weight_decay=decay), SMALL), weights)


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_is_its_papers(nesterov):
    lr, momentum, decay, trust = 0.5, 0.9, 0.01, 0.02
    weights = [weight.detach() for weight in parameters()]
    velocities = [torch.zeros_like(weight) for weight in weights]
    for step in range(STEPS):
        for i, gradient in enumerate(gradients(step)):
            change = gradient  # vectors: plain SGD without decay
            if weights[i].ndim > 1:
                local = trust * weights[i].norm() / (gradient.norm() + decay * weights[i].norm())
                change = local * (gradient + decay * weights[i])
            velocities[i] = momentum * velocities[i] + change
            weights[i] = weights[i] - lr * (change + momentum * velocities[i] if nesterov else velocities[i])
    settings = Lars(lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=decay, trust=trust)
    assert_close(trained(settings), [each.numpy() for each in weights])


def frozen_adam(kind: str, freeze: int) -> list[np.ndarray]:
    """Weights after STEPS steps, tensor by tensor."""
    found = [each.detach().numpy().copy() for each in parameters()]
    for i in range(len(found)):
        m, v = np.zeros_like(found[i]), np.zeros_like(found[i])
        for t in range(1, STEPS + 1):
            g = gradients(t - 1)[i].numpy()
            if kind == "adam":
                g = g + 0.1 * found[i]
            else:
                found[i] = found[i] * (1 - 0.02 * 0.1)
            m = 0.9 * m + 0.1 * g
            if t <= freeze:
                v = 0.99 * v + 0.01 * g * g
            found[i] = found[i] - 0.02 * m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.99 ** min(t, freeze))) + 1e-6)
    return found


@pytest.mark.parametrize("kind", ["adam", "adamw"])
@pytest.mark.parametrize("freeze", [1, 7, STEPS])
def test_a_frozen_adam_takes_no_new_squares_after_its_warm_up(kind, freeze):
    settings = {"lr": 0.02, "weight_decay": 0.1, "betas": (0.9, 0.99), "eps": 1e-6}
    found = trained(Adam(kind=kind, freeze=freeze, **settings))
    assert_close(found, frozen_adam(kind, freeze), rtol=1e-11)
    if freeze == STEPS:  # then it is torch's
        assert_close(found, trained(Adam(kind=kind, **settings)), rtol=1e-11)
