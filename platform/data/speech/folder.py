"""A folder of frames: the data kind `frames` reads it."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .features import FEATURES, FRAME_MS
from .phonemes import CLASSES
from .utterances import Frames

MANIFEST = "frames.json"
_VERSION = 1
_CHUNK = 1 << 20


def is_made(folder: Path, made: Mapping[str, Any]) -> bool:
    """Whether a folder holds a whole set of frames that was made with these settings."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["version"] != _VERSION or manifest["made"] != dict(made):
            return False
        return all(_sha256(folder / name) == sha256 for name, sha256 in manifest["sha256"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextmanager
def in_one_go(folder: Path) -> Iterator[Path]:
    """A folder beside another, whose name and place it takes if all goes well; else it is removed.

    Args:
        folder: is not there, or is empty.

    Raises:
        OSError: it cannot be made.
    """
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as around:
        beside = Path(around) / folder.name
        beside.mkdir()
        yield beside
        os.replace(beside, folder)


def write_part(folder: Path, part: str, frames: Frames) -> None:
    """Writes a part's three files."""
    (folder / part).mkdir()
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(frames.lengths, dtype=np.int64)])
    for name, array, dtype in (
        ("features", frames.features, "<f4"),
        ("labels", frames.labels, "<u2"),
        ("offsets", offsets, "<i8"),
    ):
        np.save(folder / part / f"{name}.npy", np.ascontiguousarray(array, dtype=dtype), allow_pickle=False)


def write_manifest(folder: Path, made: Mapping[str, Any]) -> None:
    """Writes what the folder holds, with a hash of each file.

    Args:
        folder: holds all parts.
        made: how it was made.
    """
    manifest = {
        "version": _VERSION,
        "features": FEATURES,
        "classes": list(CLASSES),
        "frame_ms": FRAME_MS,
        "sha256": {
            path.relative_to(folder).as_posix(): _sha256(path) for path in sorted(folder.glob("*/*.npy"))
        },
        "made": dict(made),
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()
