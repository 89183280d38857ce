"""Samples of parameters, taken on a device, for policies to look at on the host."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from ..bucket.layout import Part
from ..ops.cuda.returns import Returns
from ..ops.cuda.runtime import Runtime
from ..ops.cuda.topk import start_sampling
from ..tau import SAMPLE
from .rules import gradient_of


def with_samples(runtime: Runtime, parts: Sequence[Part], wanted: Iterable[int]) -> list[Part]:
    """The parts, with a sample of its magnitudes on the host in place of each that is wanted, by ordinal."""
    returns, taken = Returns(runtime), {}
    for ordinal in sorted(wanted):
        part = parts[ordinal]
        gradient, gradient_type = gradient_of(runtime, part.gradient)
        slot = returns.take(min(SAMPLE, part.elements), np.uint32)
        kept = part.residual
        residual = runtime.zeros(part.elements, np.float32) if kept is None else runtime.array(kept)
        start_sampling(runtime, residual, gradient, slot.array, gradient_type=gradient_type)
        taken[ordinal] = slot
    returns.fetch()
    samples = list(parts)
    for ordinal, slot in taken.items():
        magnitudes = torch.from_numpy(slot.values.view(np.float32))
        samples[ordinal] = Part(parts[ordinal].name, magnitudes)
    return samples
