"""Images to classify, in memory: four tensors and a number of classes."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .errors import DataError
from .examples import Parts, Tensors
from .pixels import Normalization
from .shape import Shape

__all__ = ["Data", "DataError", "DataSet"]


@dataclass(frozen=True, eq=False)
class DataSet:
    """A classification task, in memory, on the CPU; raises DataError: a field is not as described below."""

    train_inputs: torch.Tensor
    """float32 [N, channels, height, width], finite, N at least 1."""
    train_labels: torch.Tensor
    """int64 [N], each in 0..classes-1."""
    test_inputs: torch.Tensor
    """float32 [M, channels, height, width], finite, M at least 1."""
    test_labels: torch.Tensor
    """int64 [M], each in 0..classes-1."""
    classes: int
    """At least 2."""

    def __post_init__(self) -> None:
        if isinstance(self.classes, bool) or not isinstance(self.classes, int) or self.classes < 2:
            raise DataError(f"classes is {self.classes!r}; it must be an integer of at least 2")
        _check_inputs("train_inputs", self.train_inputs)
        _check_inputs("test_inputs", self.test_inputs)
        _check_labels("train", self.train_labels, len(self.train_inputs), self.classes)
        _check_labels("test", self.test_labels, len(self.test_inputs), self.classes)
        if self.test_inputs.shape[1:] != self.train_inputs.shape[1:]:
            raise DataError(
                f"test_inputs holds images of {_by(self.test_inputs.shape[1:])}; "
                f"they must be of {_by(self.train_inputs.shape[1:])}, as in train_inputs"
            )

    @classmethod
    def from_pixels(
        cls,
        train_pixels: NDArray[np.uint8],
        train_labels: NDArray[np.integer],
        test_pixels: NDArray[np.uint8],
        test_labels: NDArray[np.integer],
        *,
        classes: int,
    ) -> "DataSet":
        """Normalises greyscale images by the training part's mean and standard deviation over all pixels.

        Pixels are uint8 [N, height, width], labels of any integer type, [N]. The data set has one channel.
        Raises DataError: there are no training pixels, they are all equal, or the data set is not valid.
        """
        if train_pixels.size == 0:
            raise DataError(
                f"train_inputs has shape {_by(train_pixels.shape)}; it must hold at least one pixel"
            )
        normalize = Normalization.of(train_pixels[:, np.newaxis], "train_inputs")
        return cls(
            normalize(train_pixels[:, np.newaxis]),
            torch.from_numpy(train_labels.astype(np.int64)),
            normalize(test_pixels[:, np.newaxis]),
            torch.from_numpy(test_labels.astype(np.int64)),
            classes,
        )

    @property
    def train(self) -> Tensors:
        """The training part."""
        return Tensors(self.train_inputs, self.train_labels)

    @property
    def test(self) -> Tensors:
        """The part held out for evaluation."""
        return Tensors(self.test_inputs, self.test_labels)

    fingerprint = ""
    """Not taken: see `Parts.fingerprint`."""

    @property
    def shape(self) -> Shape:
        """The shape of an example."""
        channels, height, width = self.train_inputs.shape[1:]
        return Shape.image(channels, height, width, self.classes)


Data = DataSet | Parts
"""What is trained on."""


def _check_inputs(field: str, inputs: torch.Tensor) -> None:
    _check_tensor(field, inputs, torch.float32)
    if inputs.ndim != 4 or inputs.numel() == 0:
        raise DataError(
            f"{field} has shape {_by(inputs.shape)}; it must have 4 dimensions (examples, channels, height, "
            "width) and hold at least one example of at least one pixel"
        )
    finite = torch.isfinite(inputs)
    if not bool(finite.all()):
        where = tuple((~finite).nonzero()[0].tolist())
        raise DataError(f"{field} is {inputs[where].item()} at {list(where)}; every input must be finite")


def _check_labels(part: str, labels: torch.Tensor, examples: int, classes: int) -> None:
    field = f"{part}_labels"
    _check_tensor(field, labels, torch.int64)
    if labels.ndim != 1 or len(labels) != examples:
        raise DataError(
            f"{field} has shape {_by(labels.shape)}; "
            f"it must be {examples}, one label for each example of {part}_inputs"
        )
    for label in (int(labels.min()), int(labels.max())):
        if not 0 <= label < classes:
            raise DataError(
                f"{field} contains {label}; every label must be in 0..{classes - 1}, as classes is {classes}"
            )


def _check_tensor(field: str, value: object, dtype: torch.dtype) -> None:
    if not isinstance(value, torch.Tensor):
        raise DataError(f"{field} is a {type(value).__name__}; it must be a torch.Tensor of {dtype}")
    if value.dtype != dtype:
        raise DataError(f"{field} has dtype {value.dtype}; it must be {dtype}")


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) if shape else "a scalar"
