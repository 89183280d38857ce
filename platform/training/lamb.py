"""LAMB by its formula: Adam with a trust ratio (You et al. 2019, algorithm 2; Rae, section 2.5).

Libraries leave the bias correction out, as the paper's third version does: without a weight decay the trust
ratio takes out a common factor of a step. But epsilon stays as it is then, and counts up to
1/sqrt(1 - beta2), some 30 times, as much.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer


class Lamb(Optimizer):
    """Adam whose step along a tensor is as long as the tensor's norm says.

    At step t = 1, 2, ..., for each tensor w with gradient g:

        m = beta1 m + (1 - beta1) g             v = beta2 v + (1 - beta2) g^2
        u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay w
        w = w - lr u min(norm(w), largest_norm) / norm(u)

    Where norm(w) or norm(u) is 0, the quotient is 1. State by tensor: `step`, an int; `exp_avg` (m) and
    `exp_avg_sq` (v), of the tensor's shape and dtype.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        largest_norm: float = 10.0,
    ) -> None:
        """Prepares to train `parameters`.

        Args:
            parameters: what `step` changes.
            lr: the learning rate.
            betas: of the two moments, from 0 to below 1.
            eps: keeps quotients finite where gradients are 0.
            weight_decay: is scaled by the trust ratio, as the rest of the step.
            largest_norm: of a tensor's weights, as far as it counts: phi of both papers is min(norm, this).
        """
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "largest_norm": largest_norm,
        }
        super().__init__(parameters, defaults)

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
            for weights in group["params"]:
                if weights.grad is None:
                    continue
                update = self._update(weights, group["betas"], group["eps"])
                update.add_(weights, alpha=group["weight_decay"])
                norm, length = torch.linalg.vector_norm(weights), torch.linalg.vector_norm(update)
                ratio = norm.clamp(max=group["largest_norm"]) / length
                ratio = torch.where((norm > 0) & (length > 0), ratio, torch.ones_like(ratio))
                weights.sub_(update.mul_(ratio), alpha=group["lr"])
        return loss

    def _update(self, weights: Tensor, betas: tuple[float, float], eps: float) -> Tensor:
        """Adam's direction at a tensor's next step."""
        state, gradient = self.state[weights], weights.grad
        assert gradient is not None
        if not state:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weights), torch.zeros_like(weights)
        state["step"] += 1
        beta1, beta2 = betas
        mean = state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        corrected = (square / (1 - beta2 ** state["step"])).sqrt_().add_(eps)
        update: Tensor = mean / (1 - beta1 ** state["step"]) / corrected
        return update
