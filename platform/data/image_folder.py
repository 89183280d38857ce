"""Images in a folder for each class."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..spec.data import ImageFolder
from .embedded import stratified_split
from .errors import DataError, needed
from .examples import Parts, evenly_spaced
from .image_file import Framing, ImageFiles
from .pixels import Normalization
from .shape import Shape
from .streamed import Streamed

_ENDS = {
    *(".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".webp", ".avif", ".gif", ".tif", ".tiff"),
    *(".pbm", ".pgm", ".ppm", ".pnm"),
}
_ENDINGS = ", ".join(sorted(_ENDS))
_TEST = ("test", "val", "validation")


def load_image_folder(config: ImageFolder) -> Parts:
    """Lists the images of a tree; each is read when a batch needs it.

    Images are float32 [channels, size, size], and there are as many classes as folders. The fingerprint is of
    names and sizes: nobody wants to read all of a large folder for it. Raises DataError: a folder is missing,
    a class has no images or is not among those of the training part, or Pillow is not installed.
    """
    needed("PIL.Image", "data.kind = image_folder")
    framing = Framing.of(config)
    if (config.path / "train").is_dir():
        train, classes, digest = _listed(config.path / "train", framing)
        judged = next((config.path / name for name in _TEST if (config.path / name).is_dir()), None)
        if judged is None:
            raise DataError(
                f"{config.path / 'test'}: is not a folder; expected one beside {config.path / 'train'}"
            )
        test, _, digest_of_test = _listed(judged, framing, classes)
    else:
        everything, classes, digest = _listed(config.path, framing)
        chosen = stratified_split(everything.labels, config.test_fraction, config.split_seed)
        train, test = (everything.of(indices) for indices in chosen)
        digest_of_test = digest
        if len(test) == 0:
            raise DataError(
                f"{config.path}: every class has one image; expected two, one of them for the test"
            )
    normalize = Normalization.asked(config)
    return Parts(
        Streamed(train, normalize, augment=config.augment),
        Streamed(test.of(evenly_spaced(len(test), config.test_examples)), normalize, augment=False),
        Shape.image(config.channels, config.size, config.size, len(classes)),
        hashlib.sha256((digest + digest_of_test).encode()).hexdigest(),
    )


def _listed(
    root: Path, framing: Framing, classes: Sequence[str] | None = None
) -> tuple[ImageFiles, Sequence[str], str]:
    """All images below a folder of classes in the order of their names, the classes, and a hash of all names.

    If `classes` are given, there may be no others.
    """
    if not root.is_dir():
        raise DataError(f"{root}: is not a folder; expected one that holds a folder of images for each class")
    folders = sorted(entry.name for entry in _visible(root) if entry.is_dir())
    beside = min((entry.path for entry in _visible(root) if _is_image(entry)), default=None)
    if beside is not None:
        raise DataError(f"{beside}: lies in no class's folder; expected {root}/CLASS/IMAGE")
    if classes is None:
        if len(folders) < 2:
            raise DataError(
                f"{root}: holds {len(folders)} folders; expected one for each class, two at least"
            )
        classes = folders
    unknown = sorted(set(folders) - set(classes))
    if unknown:
        raise DataError(f"{root / unknown[0]}: is not a class of the training part, which has {len(classes)}")
    names: list[str] = []
    labels: list[int] = []
    digest = hashlib.sha256()
    for label, folder in ((classes.index(folder_name), folder_name) for folder_name in folders):
        files = sorted(_visible(root / folder), key=lambda entry: entry.name)
        other = next((file for file in files if not _is_image(file)), None)
        if other is not None:
            raise DataError(
                f"{other.path}: is not an image file; a class's folder must hold these alone, "
                f"and no folders: {_ENDINGS}"
            )
        if not files:
            raise DataError(f"{root / folder}: holds no image; expected {_ENDINGS}")
        images = [(file.name, file.stat().st_size) for file in files]
        names += [f"{folder}/{name}" for name, _ in images]
        labels += [label] * len(images)
        for name, size in images:
            digest.update(f"{folder}/{name}\0{size}\0".encode(errors="surrogateescape"))
    # Relative paths may mean something else in a task.
    image_files = ImageFiles(root.absolute(), names, np.array(labels, np.int64), framing)
    return image_files, classes, digest.hexdigest()


def _visible(folder: Path) -> list["os.DirEntry[str]"]:
    """What lies in a folder, but for hidden files, which systems and editors put there."""
    return [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]


def _is_image(entry: "os.DirEntry[str]") -> bool:
    return os.path.splitext(entry.name)[1].lower() in _ENDS and entry.is_file()
