"""LAMB, LARS and the frozen Adam against their papers' equations, in float64."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from taugrad.platform.data.shape import Shape
from taugrad.platform.models.building import build
from taugrad.platform.replica.optimizer import build_optimizer, hidden_matrices
from taugrad.platform.spec.models import Gpt
from taugrad.platform.spec.training import Adam, Lamb, Lars, Muon

STEPS = 30
Memory = dict[str, np.ndarray]
Step = Callable[[np.ndarray, np.ndarray, int, Memory], np.ndarray]


def parameters() -> list[torch.nn.Parameter]:
    """Float64 tensors of initial sizes as layers have them; the largest has a norm above 10."""
    generator = torch.Generator().manual_seed(2)
    shapes = {(20, 1, 5, 5): 25, (20,): 25, (5, 20, 5, 5): 500, (40, 30): 1, (10, 50): 500, (10,): 500}
    weights = []
    for shape, inputs in shapes.items():
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
        weights.append((2 * uniform - 1) / inputs**0.5)
    return [torch.nn.Parameter(weight) for weight in [*weights, torch.zeros(7, dtype=torch.float64)]]


def gradients(step: int, spread: float = 0) -> list[torch.Tensor]:
    """Of sizes from 1 down to 10 to minus the spread, as layers' and elements' differ."""
    generator = torch.Generator().manual_seed(100 + step)
    results = []
    for parameter in parameters():
        exponents = -spread * torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
        results.append(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 10**exponents)
    return results


def trained(settings: Adam | Lamb | Lars | Muon, spread: float = 0) -> list[np.ndarray]:
    """The weights after STEPS steps."""
    weights = parameters()
    optimizer = build_optimizer(settings, weights, [weight for weight in weights if weight.ndim > 1])
    for step in range(STEPS):
        for weight, gradient in zip(weights, gradients(step, spread), strict=True):
            weight.grad = gradient
        optimizer.step()
    return [weight.detach().numpy() for weight in weights]


def written_out(step: Step, spread: float = 0) -> list[np.ndarray]:
    """The same by a formula, tensor by tensor."""
    weights = [parameter.detach().numpy() for parameter in parameters()]
    memories = [{name: np.zeros_like(result) for name in ("m", "v")} for result in weights]
    for t in range(1, STEPS + 1):
        for i, gradient in enumerate(gradients(t - 1, spread)):
            weights[i] = step(weights[i], gradient.numpy(), t, memories[i])
    return weights


def assert_close(actual: list[np.ndarray], expected: list[np.ndarray], rtol: float = 1e-9) -> None:
    for mine, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=1e-12)


def norm(x: np.ndarray) -> float:
    return np.sqrt((x**2).sum())


SMALL = 8
"""A spread with which gradients are so small that epsilon counts."""


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_lamb_is_its_papers_formula(decay):
    """You et al., algorithm 2, with phi(z) = min(z, 10)."""

    def step(w: np.ndarray, g: np.ndarray, t: int, memory: Memory) -> np.ndarray:
        m = memory["m"] = 0.9 * memory["m"] + 0.1 * g
        v = memory["v"] = 0.999 * memory["v"] + 0.001 * g**2
        r = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + decay * w
        trust = min(norm(w), 10.0) / norm(r) if norm(w) > 0 and norm(r) > 0 else 1.0
        return w - 0.02 * trust * r

    assert_close(trained(Lamb(lr=0.02, weight_decay=decay), SMALL), written_out(step, SMALL))


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_is_its_papers(nesterov):
    lr, momentum, decay, trust = 0.5, 0.9, 0.01, 0.02

    def step(w: np.ndarray, g: np.ndarray, _: int, memory: Memory) -> np.ndarray:
        change = g  # vectors: plain SGD without decay
        if w.ndim > 1:
            change = trust * norm(w) / (norm(g) + decay * norm(w)) * (g + decay * w)
        v = memory["v"] = momentum * memory["v"] + change
        return w - lr * (change + momentum * v if nesterov else v)

    settings = Lars(lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=decay, trust=trust)
    assert_close(trained(settings), written_out(step))


@pytest.mark.parametrize("kind", ["adam", "adamw"])
@pytest.mark.parametrize("freeze", [1, 7, STEPS])
def test_a_frozen_adam_takes_no_new_squares_after_its_warm_up(kind, freeze):
    def step(w: np.ndarray, g: np.ndarray, t: int, memory: Memory) -> np.ndarray:
        g, w = (g + 0.1 * w, w) if kind == "adam" else (g, w * (1 - 0.02 * 0.1))
        m = memory["m"] = 0.9 * memory["m"] + 0.1 * g
        if t <= freeze:
            memory["v"] = 0.99 * memory["v"] + 0.01 * g * g
        return w - 0.02 * m / (1 - 0.9**t) / (np.sqrt(memory["v"] / (1 - 0.99 ** min(t, freeze))) + 1e-6)

    settings = {"lr": 0.02, "weight_decay": 0.1, "betas": (0.9, 0.99), "eps": 1e-6}
    result = trained(Adam(kind=kind, freeze=freeze, **settings))
    assert_close(result, written_out(step), rtol=1e-11)
    if freeze == STEPS:  # then it is torch's
        assert_close(result, trained(Adam(kind=kind, **settings)), rtol=1e-11)


def test_muon_orthogonalizes_matrices_and_is_adamw_for_the_rest():
    """Jordan 2024, with the factor 0.2 sqrt(max(rows, columns)) of arXiv 2502.16982, section 2.2."""

    def step(w: np.ndarray, g: np.ndarray, t: int, memory: Memory) -> np.ndarray:
        w = w * (1 - 0.02 * 0.1)
        if w.ndim > 1:
            m = memory["m"] = 0.95 * memory["m"] + 0.05 * g
            x = (0.05 * g + 0.95 * m).reshape(w.shape[0], -1)
            x = x / norm(x)
            for _ in range(5):
                squared = x @ x.T
                x = 3.4445 * x - 4.7750 * squared @ x + 2.0315 * squared @ squared @ x
            return w - 0.02 * 0.2 * np.sqrt(max(x.shape)) * x.reshape(w.shape)
        m = memory["m"] = 0.9 * memory["m"] + 0.1 * g
        v = memory["v"] = 0.99 * memory["v"] + 0.01 * g**2
        return w - 0.02 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.99**t)) + 1e-8)

    assert_close(trained(Muon(lr=0.02, weight_decay=0.1, betas=(0.9, 0.99))), written_out(step), rtol=1e-7)


@pytest.mark.parametrize("tied", [False, True])
def test_muon_is_for_a_gpts_blocks_alone(tied):
    model = build(Gpt(layers=2, heads=2, width=8, tied=tied), Shape.text(6, 11))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    hidden = {names[id(parameter)] for parameter in hidden_matrices(model)}
    layers = ("attention.qkv", "attention.out", "mlp.fc", "mlp.out")
    assert hidden == {f"blocks.{block}.{layer}.weight" for block in range(2) for layer in layers}


def test_muon_is_for_no_vectors_and_not_for_the_last_layer():
    """Such as a vision transformer has: parameters of several dimensions that are one row or one column."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Conv2d(4, 5, 1), torch.nn.Linear(4, 1))
    for name, shape in (("token", (1, 1, 4)), ("positions", (1, 7, 4)), ("factors", (4, 1, 1))):
        model.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))
    assert {id(p) for p in hidden_matrices(model)} == {id(model[0].weight), id(model[1].weight)}
