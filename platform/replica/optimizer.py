"""Builds optimizers from the configuration: torch's, LARS, and Adam's relatives that torch does not have.

Libraries leave LAMB's bias correction out, as the paper's third version does: without a weight decay the
trust ratio takes out a common factor of a step. But epsilon stays as it is then, and counts up to
1/sqrt(1 - beta2), some 30 times, as much.

A rule that rarely sends an element sends a large value. Its square makes Adam's second moment large, and
Adam's step short. A second moment of uncompressed gradients does not have this problem (1-bit Adam, Tang et
al. 2021, arXiv 2102.02888).
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, assert_never

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW, Optimizer

from ..spec import training as config

_Entries = dict[str, Any]


class _Moments(Optimizer):
    """Keeps Adam's two moments; a subclass changes a tensor by them.

    State by tensor: `step`, an int; `exp_avg` (m) and `exp_avg_sq` (v), of the tensor's shape and dtype.
    """

    def __init__(self, parameters: Iterable[Any], **settings: Any) -> None:
        """Prepares to train parameters, with `lr`, `betas` of the two moments, `eps` and `weight_decay`.

        Settings of the class follow. Betas are from 0 to below 1; `eps` keeps quotients finite where
        gradients are 0.
        """
        super().__init__(parameters, settings)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One step along the parameters' gradients; a parameter without a gradient stays as it is."""
        for group in self.param_groups:
            for weights in (parameter for parameter in group["params"] if parameter.grad is not None):
                state = self.state[weights]
                if not state:
                    state["step"] = 0
                    state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(weights) for _ in range(2))
                state["step"] += 1
                self._change(weights, weights.grad, state, group)

    @abstractmethod
    def _change(self, weights: Tensor, gradient: Tensor, state: _Entries, group: _Entries) -> None:
        """Updates a tensor's moments and its weights; `state["step"]` counts from 1."""


def _take_in(gradient: Tensor, state: _Entries, group: _Entries, freeze: float) -> tuple[Tensor, Tensor]:
    """Updates a tensor's moments, the second until step `freeze`: m, and sqrt(v / (1 - beta2^s)) + eps."""
    beta1, beta2 = group["betas"]
    mean = state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
    square = state["exp_avg_sq"]
    if state["step"] <= freeze:
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    counted = min(state["step"], freeze)
    return mean, (square / (1 - beta2**counted)).sqrt_().add_(group["eps"])


class LambOptimizer(_Moments):
    """Adam whose step along a tensor is as long as the tensor's norm says (You et al. 2019, algorithm 2).

    At step t = 1, 2, ..., for each tensor w with gradient g:

        m = beta1 m + (1 - beta1) g             v = beta2 v + (1 - beta2) g^2
        u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay w
        w = w - lr u min(norm(w), largest_norm) / norm(u)

    Where norm(w) or norm(u) is 0, the quotient is 1 (Rae, section 2.5). Both papers' phi is
    min(norm, `largest_norm`).
    """

    def _change(self, weights: Tensor, gradient: Tensor, state: _Entries, group: _Entries) -> None:
        mean, root = _take_in(gradient, state, group, math.inf)
        update = mean / (1 - group["betas"][0] ** state["step"]) / root
        update.add_(weights, alpha=group["weight_decay"])
        norm, length = torch.linalg.vector_norm(weights), torch.linalg.vector_norm(update)
        ratio = norm.clamp(max=group["largest_norm"]) / length
        ratio = torch.where((norm > 0) & (length > 0), ratio, torch.ones_like(ratio))
        weights.sub_(update.mul_(ratio), alpha=group["lr"])


class FrozenAdam(_Moments):
    """Adam, or AdamW, until step `freeze`; from then on without new second moments.

    At step t = 1, 2, ..., with s = min(t, freeze), for each tensor w with gradient g:

        m = beta1 m + (1 - beta1) g             v = beta2 v + (1 - beta2) g^2   while t <= freeze
        w = w - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^s)) + eps)

    after the decay, which is w = w - lr weight_decay w (`decoupled`) or g = g + weight_decay w.
    """

    def _change(self, weights: Tensor, gradient: Tensor, state: _Entries, group: _Entries) -> None:
        if group["decoupled"]:
            weights.mul_(1 - group["lr"] * group["weight_decay"])
        elif group["weight_decay"]:
            gradient = gradient.add(weights, alpha=group["weight_decay"])
        mean, root = _take_in(gradient, state, group, group["freeze"])
        weights.addcdiv_(mean, root, value=-group["lr"] / (1 - group["betas"][0] ** state["step"]))


class MuonOptimizer(FrozenAdam):
    """Muon with Nesterov momentum m for matrices; AdamW for the parameters of groups without `momentum`.

    m = momentum m + (1 - momentum) g; w = w - lr weight_decay w - lr 0.2 sqrt(max(rows, columns)) times
    orthogonalized((1 - momentum) g + momentum m). Tensors of more dimensions are matrices of their first one.
    """

    def _change(self, weights: Tensor, gradient: Tensor, state: _Entries, group: _Entries) -> None:
        if "momentum" not in group:
            super()._change(weights, gradient, state, group)
            return
        mean = state["exp_avg"].lerp_(gradient, 1 - group["momentum"])
        update = orthogonalized(gradient.lerp(mean, group["momentum"]).flatten(1))
        weights.mul_(1 - group["lr"] * group["weight_decay"])
        weights.sub_(update.view_as(weights), alpha=group["lr"] * 0.2 * math.sqrt(max(update.shape)))


def orthogonalized(matrix: Tensor) -> Tensor:
    """Muon's five quintic Newton-Schulz iterations: singular values come near 1; in bfloat16 on a GPU."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    result: Tensor = (matrix.T if is_tall else matrix) / matrix.norm().clamp(min=1e-7)
    result = result.bfloat16() if matrix.is_cuda else result
    for _ in range(5):
        gram = result @ result.T
        result = 3.4445 * result + (2.0315 * gram @ gram - 4.7750 * gram) @ result
    return (result.T if is_tall else result).to(matrix.dtype)


def hidden_matrices(model: nn.Module) -> list[Parameter]:
    """The parameters that Muon is for: matrices, but embeddings' and the last layer's.

    What is one row or one column, as a matrix of its first dimension, is a vector, such as a class token
    [1, 1, D], embeddings of positions [1, N, D], or channels' factors [C, 1, 1].
    """
    by_layer = [[p for p in layer.parameters(recurse=False) if p.ndim > 1] for layer in model.modules()]
    others = {p for layer in model.modules() if isinstance(layer, nn.Embedding) for p in layer.parameters()}
    others.update(next(filter(None, reversed(by_layer)), ()))
    matrices = [p for p in model.parameters() if p.ndim > 1 and 1 < p.shape[0] < p.numel()]
    return [p for p in matrices if p not in others]


def penalized(names: Iterable[str], training: config.TrainingConfig) -> list[bool]:
    """Whether each of these parameters has the l1 term."""
    return [
        training.l1 > 0 and not any(fnmatchcase(name, pattern) for pattern in training.l1_exempt)
        for name in names
    ]


def add_l1(
    optimizer: Optimizer, named: Iterable[tuple[str, Parameter]], training: config.TrainingConfig
) -> None:
    """Adds the gradient of the l1 term, l1 * sign(w), before every step of an optimizer.

    Its factor is the parameter groups' `l1`, which `rates.set_rate` sets. The subgradient at 0 is 0, and a
    parameter without a gradient stays as it is.
    """
    pairs = dict(named)
    flags = penalized(pairs, training)
    chosen = {weights for weights, has_l1 in zip(pairs.values(), flags, strict=True) if has_l1}
    if not chosen:
        return
    for group in optimizer.param_groups:
        group["l1"] = 0.0

    def add(optimizer: Optimizer, *_: object) -> None:
        for group in optimizer.param_groups:
            for weights in group["params"]:
                if weights in chosen and weights.grad is not None:
                    weights.grad.add_(weights.detach().sign(), alpha=group["l1"])

    optimizer.register_step_pre_hook(add)


def build_optimizer(
    settings: config.OptimizerConfig, parameters: Iterable[Parameter], hidden: Sequence[Parameter] = ()
) -> Optimizer:
    """The optimizer that a spec asks for; `hidden`: of the parameters, those that are Muon's."""
    given = settings.model_dump(exclude={"kind", "freeze", "trust"})  # named as torch's arguments are
    match settings:
        case config.Sgd():
            return SGD(parameters, **given)
        case config.Adam(freeze=0):
            return (Adam if settings.kind == "adam" else AdamW)(parameters, **given)
        case config.Adam():
            return FrozenAdam(parameters, decoupled=settings.kind == "adamw", freeze=settings.freeze, **given)
        case config.Lars():
            import pytorch_optimizer  # noqa: PLC0415 - takes more than a second, and only LARS is from there

            return pytorch_optimizer.LARS(parameters, trust_coefficient=settings.trust, **given)
        case config.Lamb():
            return LambOptimizer(parameters, betas=(0.9, 0.999), eps=1e-6, largest_norm=10.0, **given)
        case config.Muon():
            others = [parameter for parameter in parameters if parameter not in set(hidden)]
            groups = [{"params": list(hidden), "momentum": given.pop("momentum")}, {"params": others}]
            return MuonOptimizer(groups, eps=1e-8, decoupled=True, freeze=math.inf, **given)
        case _:
            assert_never(settings)
