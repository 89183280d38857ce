"""Updates into dense tensors."""

from torch import Tensor

from .kernels import minifloat, sparse
from .quantized import Quantized
from .update import Update


def add_to(update: Update, dense: Tensor) -> None:
    """Adds an update to a contiguous float32 [n] tensor in the CPU's memory."""
    dense_N = dense.numpy()
    if update.words is None:
        if isinstance(update.values, Quantized):
            update.values.write_to(dense_N, add=True)
        elif update.form == "fp16" or update.form == "bf16":  # noqa: PLR1714 (mypy narrows by this form alone)
            minifloat.half_values(update.form, update.values, dense_N, add=True)
        else:
            dense_N += update.floats()
    elif update.form in ("bgt", "strom"):
        sparse.add_taus(update.words, update.tau, dense_N)
    elif update.form == "qgt":
        sparse.add_levels(update.words, update.values, update.tau, dense_N)
    elif update.k:
        sparse.add_values(update.words, update.floats(), dense_N)
