"""Windows of frames around each frame, cut out of the mapped files when a batch is asked for."""

import hashlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..spec.data import Frames
from .errors import DataError
from .examples import Draw, Examples, Pair, Parts, evenly_spaced
from .frames_folder import Part, read_manifest, read_part
from .shape import Shape

_CHUNK = 1 << 16
"""Frames that are added together."""

Floats = NDArray[np.float32]


def load_frames(config: Frames) -> Parts:
    """Maps a set of frames; every file of the two parts that are used is read once, to check it.

    Inputs are windows, float32 [context * F], normalised by the training part's mean and deviation of each
    feature; the label is the class of the frame in the middle. Raises DataError: a file is missing or
    damaged, or a feature is no finite number.
    """
    manifest = read_manifest(config.path)
    train = read_part(config.path, "train", manifest)
    judged = read_part(config.path, config.evaluate_on, manifest)
    _check_finite(config.path / config.evaluate_on / "features.npy", judged.features)
    mean, deviation = _statistics(config.path / "train" / "features.npy", train.features)
    everything = np.arange(len(train.labels), dtype=np.int64)
    some = evenly_spaced(len(judged.labels), config.test_examples)
    return Parts(
        _Windows(train, everything, config.context, mean, deviation),
        _Windows(judged, some, config.context, mean, deviation),
        Shape((config.context * manifest.features,), len(manifest.classes)),
        hashlib.sha256(repr(sorted(manifest.sha256.items())).encode()).hexdigest() if manifest.sha256 else "",
    )


class _Windows(Examples):
    def __init__(
        self, part: Part, frames: NDArray[np.int64], context: int, mean: Floats, deviation: Floats
    ) -> None:
        self._part, self._frames = part, frames
        self._around = np.arange(context, dtype=np.int64) - context // 2
        self._mean, self._deviation = mean, deviation

    def __len__(self) -> int:
        return len(self._frames)

    def batch(self, indices: NDArray[np.int64], draw: Draw | None) -> Pair:
        """See `Examples.batch`. Where an utterance ends, its first or last frame is repeated."""
        part, frames = self._part, self._frames[indices]
        utterances = np.searchsorted(part.offsets, frames, side="right") - 1
        first, last = part.offsets[utterances], part.offsets[utterances + 1] - 1
        places = np.clip(frames[:, np.newaxis] + self._around, first[:, np.newaxis], last[:, np.newaxis])
        windows = part.features[places] - self._mean
        windows /= self._deviation
        labels = part.labels[frames].astype(np.int64)
        return torch.from_numpy(windows.reshape(len(frames), -1)), torch.from_numpy(labels)


def _statistics(path: Path, features: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each feature, float32 [F] each; the deviation of a constant one is 1.

    Rows are added one after the other in float64, so that every machine finds the same bits.
    """
    total = np.zeros(features.shape[1])
    for start in range(0, len(features), _CHUNK):
        total += features[start : start + _CHUNK].astype(np.float64).sum(axis=0)
    if not np.isfinite(total).all():
        _check_finite(path, features)
    mean = total / len(features)
    squares = np.zeros(features.shape[1])
    for start in range(0, len(features), _CHUNK):
        squares += np.square(features[start : start + _CHUNK] - mean).sum(axis=0)
    deviation = np.sqrt(squares / len(features)).astype(np.float32)
    return mean.astype(np.float32), np.where(deviation > 0, deviation, np.float32(1))


def _check_finite(path: Path, features: Floats) -> None:
    for start in range(0, len(features), _CHUNK):
        wrong = np.argwhere(~np.isfinite(features[start : start + _CHUNK]))
        if len(wrong):
            frame, feature = start + int(wrong[0][0]), int(wrong[0][1])
            raise DataError(
                f"{path}: feature {feature} of frame {frame} is {features[frame, feature]}; "
                "every one must be finite"
            )
