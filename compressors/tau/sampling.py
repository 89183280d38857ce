"""What policies look at: magnitudes of residual + gradient at a few places of a parameter.

On a device the sample is taken there, and what comes here is a part that holds its magnitudes and nothing
else: all of them are looked at, so that a policy's tau is the same on any device.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from ..bucket.layout import Part
from ..ops.cpu.looking import sampled_magnitudes, stratified_positions
from ..ops.cpu.topk import magnitude_at
from .base import SAMPLE, as_tau


def sampled_tau(part: Part, density: float) -> np.float32:
    """The magnitude of residual + gradient that about `density` of all elements reach, by SAMPLE of them."""
    return np.float32(as_tau(float(magnitude_at(magnitudes_of(part), density))))


def magnitudes_of(part: Part) -> NDArray[np.float32]:
    """float32 [SAMPLE at most], the finite ones among a sample of magnitudes of residual + gradient."""
    residual_M, gradient_M = _arrays(part)
    return sampled_magnitudes(residual_M, gradient_M, min(SAMPLE, residual_M.size))


def _arrays(part: Part) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Residual and gradient in float32; of other types only those elements that a sample is taken of."""
    gradient, residual = part.gradient, part.residual
    if gradient.dtype != torch.float32:
        positions = torch.from_numpy(stratified_positions(part.elements, min(SAMPLE, part.elements)))
        gradient = gradient[positions].float()
        residual = None if residual is None else residual[positions]
    gradient_M: NDArray[np.float32] = gradient.numpy()
    residual_M = np.zeros_like(gradient_M) if residual is None else residual.numpy()
    return residual_M, gradient_M
