"""The folder of a set of frames: what lies in it, whether it is whole, and how one is written.

`frames.json` says `{"version": 1, "features": F, "classes": [names], "frame_ms": 10, "sha256": {file: hex}}`.
Beside it lie `train`, `validation` and `test`, each with `features.npy` float32 [frames, F], `labels.npy`
uint16 [frames] and `offsets.npy` int64 [utterances + 1]: utterance u is frames offsets[u] to offsets[u + 1].
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import DataError, mapped, reading

VERSION = 1
"""The version of the form above."""
MANIFEST = "frames.json"
_FILES = {"features": ("<f4", 2), "labels": ("<u2", 1), "offsets": ("<i8", 1)}
"""The files of a part, each with its type and its number of dimensions."""


class FramesManifest(BaseModel):
    """What frames.json says."""

    model_config = ConfigDict(frozen=True, strict=True)

    version: Literal[1]
    features: int = Field(ge=1)
    classes: list[str] = Field(min_length=2, max_length=1 << 16)
    sha256: dict[str, str] = {}
    """By a file's place in the folder, `train/features.npy`; what is not named is not checked."""


@dataclass(frozen=True, eq=False)
class Part:
    """Training, validation or test, mapped from its files."""

    features: NDArray[np.float32]
    """[frames, F]"""
    labels: NDArray[np.uint16]
    """[frames]"""
    offsets: NDArray[np.int64]
    """[utterances + 1], ascending, from 0 to the number of frames."""


def read_manifest(folder: Path) -> FramesManifest:
    """Reads frames.json; raises DataError: it is missing, no JSON, of another version, or lacks something."""
    path = folder / MANIFEST
    try:
        with reading(path, "docs/data.md describes such a folder"):
            return FramesManifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        what = f"{'.'.join(map(str, first['loc']))} is " if first["loc"] else "is "
        raise DataError(f"{path}: {what}{first['input']!r:.40}: {first['msg']}") from error


def read_part(folder: Path, name: str, manifest: FramesManifest) -> Part:
    """Maps the files of `train`, `validation` or `test`, after each was read once for its hash.

    Raises DataError: a file is missing, damaged, of another form, or does not fit the others.
    """
    paths = {file: folder / name / f"{file}.npy" for file in _FILES}
    features, labels, offsets = (_mapped(paths[file], *form) for file, form in _FILES.items())
    if features.shape[1] != manifest.features:
        raise DataError(
            f"{paths['features']}: has {features.shape[1]} features; {MANIFEST} says {manifest.features}"
        )
    if len(features) == 0:
        raise DataError(f"{paths['features']}: has no frames; expected one at least")
    if len(labels) != len(features):
        raise DataError(
            f"{paths['labels']}: holds {len(labels)} labels; expected {len(features)}, one for each frame"
        )
    _check_offsets(paths["offsets"], offsets, len(features))
    for path in paths.values():
        wanted = manifest.sha256.get(path.relative_to(folder).as_posix())
        if wanted is not None and (digest := _sha256(path)) != wanted:
            raise DataError(
                f"{path}: is damaged: its SHA-256 begins with {digest[:12]}, {MANIFEST} says {wanted[:12]}"
            )
    wrong = np.flatnonzero(labels >= len(manifest.classes))
    if len(wrong):
        at = int(wrong[0])
        raise DataError(
            f"{paths['labels']}: label {labels[at]} of frame {at}; every one must be in "
            f"0..{len(manifest.classes) - 1}, as {MANIFEST} names {len(manifest.classes)} classes"
        )
    return Part(features, labels, offsets)


def _mapped(path: Path, dtype: str, dimensions: int) -> NDArray[Any]:
    form = f"{np.dtype(dtype).name} with {dimensions} dimension{'s' * (dimensions > 1)}"
    return mapped(path, lambda array: array.dtype == np.dtype(dtype) and array.ndim == dimensions, form)


def _check_offsets(path: Path, offsets: NDArray[np.int64], frames: int) -> None:
    if len(offsets) < 2 or offsets[0] != 0:
        raise DataError(f"{path}: begins with {offsets[:2].tolist()}; expected 0 and the ends of utterances")
    wrong = np.flatnonzero(np.diff(offsets) <= 0)
    if len(wrong):
        at = int(wrong[0]) + 1
        raise DataError(f"{path}: entry {at} is {offsets[at]} after {offsets[at - 1]}; they must ascend")
    if offsets[-1] != frames:
        raise DataError(f"{path}: ends with {offsets[-1]}; expected {frames}, the number of frames")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_made(folder: Path, made: Mapping[str, Any]) -> bool:
    """Whether a folder holds a whole set of frames that was made with these settings."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["version"] != VERSION or manifest["made"] != dict(made):
            return False
        return all(_sha256(folder / name) == sha256 for name, sha256 in manifest["sha256"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextmanager
def in_one_go(folder: Path) -> Iterator[Path]:
    """A folder that takes the place of another, empty or not there, if all goes well; else it is removed.

    Raises OSError: it cannot be made.
    """
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as around:
        beside = Path(around) / folder.name
        beside.mkdir()
        yield beside
        os.replace(beside, folder)


def write_part(
    folder: Path,
    part: str,
    features: NDArray[np.float32],
    labels: NDArray[np.uint16],
    offsets: NDArray[np.int64],
) -> None:
    """Writes a part's three files; takes what they hold as in `Part`."""
    (folder / part).mkdir()
    for array, (name, (dtype, _)) in zip((features, labels, offsets), _FILES.items(), strict=True):
        np.save(folder / part / f"{name}.npy", np.ascontiguousarray(array, dtype=dtype), allow_pickle=False)


def write_manifest(
    folder: Path, features: int, classes: Sequence[str], frame_ms: int, made: Mapping[str, Any]
) -> None:
    """Writes what a folder with all its parts holds, with a hash of each file, and how it was `made`."""
    manifest = {
        "version": VERSION,
        "features": features,
        "classes": list(classes),
        "frame_ms": frame_ms,
        "sha256": {
            path.relative_to(folder).as_posix(): _sha256(path) for path in sorted(folder.glob("*/*.npy"))
        },
        "made": dict(made),
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
