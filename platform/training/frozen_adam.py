"""Adam whose second moment stays as it is after a warm-up (1-bit Adam, Tang et al. 2021, arXiv 2102.02888).

A rule that rarely sends an element sends a large value. Its square makes Adam's second moment large, and
Adam's step short. A second moment of uncompressed gradients does not have this problem.
"""

from collections.abc import Callable, Iterable

import torch
from torch.nn import Parameter
from torch.optim import Optimizer


class FrozenAdam(Optimizer):
    """Adam, or AdamW, until step `freeze`; from then on without new second moments.

    At step t = 1, 2, ..., with s = min(t, freeze), for each tensor w with gradient g:

        m = beta1 m + (1 - beta1) g             v = beta2 v + (1 - beta2) g^2   while t <= freeze
        w = w - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^s)) + eps)

    after the decay, which is w = w - lr weight_decay w (decoupled) or g = g + weight_decay w. State by
    tensor: `step`, an int; `exp_avg` (m) and `exp_avg_sq` (v), of the tensor's shape and dtype.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        decoupled: bool,
        freeze: int,
    ) -> None:
        """Prepares to train `parameters`.

        Args:
            parameters: what `step` changes.
            lr: the learning rate.
            betas: of the two moments, from 0 to below 1.
            eps: keeps quotients finite where gradients are 0.
            weight_decay: how much of the weights goes at each step of rate 1.
            decoupled: as AdamW has it.
            freeze: steps with new second moments, at least 1.
        """
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, {**defaults, "decoupled": decoupled, "freeze": freeze})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step along the parameters' gradients; a parameter without a gradient stays as it is.

        Args:
            closure: computes the loss anew; its gradients are taken.

        Returns:
            The closure's loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weights in group["params"]:
                gradient = weights.grad
                if gradient is None:
                    continue
                if group["decoupled"]:
                    weights.mul_(1 - group["lr"] * group["weight_decay"])
                elif group["weight_decay"]:
                    gradient = gradient.add(weights, alpha=group["weight_decay"])
                state = self.state[weights]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(weights)
                    state["exp_avg_sq"] = torch.zeros_like(weights)
                state["step"] += 1
                mean = state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
                square = state["exp_avg_sq"]
                if state["step"] <= group["freeze"]:
                    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                counted = min(state["step"], group["freeze"])
                root = (square / (1 - beta2**counted)).sqrt_().add_(group["eps"])
                weights.addcdiv_(mean, root, value=-group["lr"] / (1 - beta1 ** state["step"]))
        return loss
