"""LAMB and LARS against their papers' equations, in float64."""

import pytest
import torch

from taugrad.platform.training.config import Lamb, Lars
from taugrad.platform.training.optimizer import build_optimizer

STEPS = 30


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(6, 5), (6,), (2, 3, 2)]
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes
    ]


def gradients(step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(each.shape, generator=generator, dtype=torch.float64) for each in parameters()]


def trained(settings: Lamb | Lars) -> list[torch.Tensor]:
    weights = parameters()
    optimizer = build_optimizer(settings, weights)
    for step in range(STEPS):
        for weight, gradient in zip(weights, gradients(step), strict=True):
            weight.grad = gradient
        optimizer.step()
    return [weight.detach() for weight in weights]


def lamb(lr: float, decay: float, *, corrected: bool) -> list[torch.Tensor]:
    """Rae, section 2.5: moments, bias correction, trust ratio, step. phi is the identity for these norms."""
    weights = [weight.detach() for weight in parameters()]
    m, v = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    for step in range(STEPS):
        for i, gradient in enumerate(gradients(step)):
            m[i] = 0.9 * m[i] + 0.1 * gradient
            v[i] = 0.999 * v[i] + 0.001 * gradient * gradient
            m_hat = m[i] / (1 - 0.9 ** (step + 1)) if corrected else m[i]
            v_hat = v[i] / (1 - 0.999 ** (step + 1)) if corrected else v[i]
            update = m_hat / (v_hat.sqrt() + 1e-6) + decay * weights[i]
            r1, r2 = weights[i].norm(), update.norm()
            ratio = r1 / r2 if r1 > 0 and r2 > 0 else 1.0
            weights[i] = weights[i] - lr * ratio * update
    return weights


def test_lamb_is_raes_with_his_bias_correction_where_nothing_decays():
    for found, expected in zip(trained(Lamb(lr=0.02)), lamb(0.02, 0.0, corrected=True), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_lamb_has_its_decay_within_the_trust_ratio():
    found = trained(Lamb(lr=0.02, weight_decay=0.3))
    for weights, expected in zip(found, lamb(0.02, 0.3, corrected=False), strict=True):
        torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-6)


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
    for found, expected in zip(trained(settings), weights, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
