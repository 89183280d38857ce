"""Updates into dense arrays on a device. Nothing here waits."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..bucket.layout import Part, Unit
from ..ops.cuda import sparse_add
from ..ops.cuda.minifloat import half_values
from ..ops.cuda.runtime import Runtime
from ..wire.quantized import Quantized
from ..wire.update import Update
from .quantizing import floats, write_values


def add_to(runtime: Runtime, update: Update, dense: Tensor) -> None:
    """Adds an update to a contiguous float32 [n] tensor of the device."""
    dense_N, values = runtime.array(dense), update.values
    if update.words is None:
        if isinstance(values, Quantized):
            write_values(runtime, values, dense_N, add=True)
        elif update.form == "fp16" or update.form == "bf16":  # noqa: PLR1714 (mypy narrows by this form alone)
            half_values(runtime, update.form, values, dense_N, True)
        else:
            dense += runtime.tensor(values)
    elif update.form in ("bgt", "strom"):
        sparse_add.add_taus(runtime, update.words, float(update.tau), dense_N)
    elif update.form == "qgt":
        sparse_add.add_levels(runtime, update.words, values, float(update.tau), dense_N)
    elif update.k:
        sparse_add.add_values(runtime, update.words, floats(runtime, update.form, values), dense_N)


def add_to_bucket(runtime: Runtime, update: Update, unit: Unit, total: Tensor) -> None:
    """Adds an update about a unit to a bucket, float32 [bucket elements]."""
    if update.words is not None or len(unit.places) == 1:
        base = unit.places[0].start if update.words is None else unit.base
        add_to(runtime, update, total[base : base + unit.n])
        return
    amounts = runtime.tensor(floats(runtime, update.form, update.values))
    for place, elements in unit.slices(every=True):
        total[place.start : place.start + place.elements] += amounts[elements]


def put_back(runtime: Runtime, update: Update, unit: Unit, parts: Sequence[Part]) -> None:
    """Adds an update that was not sent to the residuals it was taken from, where there are any."""
    dense = torch.zeros(unit.n, dtype=torch.float32, device=parts[unit.places[0].ordinal].gradient.device)
    add_to(runtime, update, dense)
    for place, elements in unit.slices(every=update.words is None):
        residual = parts[place.ordinal].residual
        if residual is not None:
            residual += dense[elements]  # a zero too, as on the CPU: it makes -0.0 to 0.0
