"""Folders of images: which there are, and what becomes of their pixels."""

import io
import logging
import shutil
import sys

import numpy as np
import pytest
import torch
from bits import same
from feeds import all_examples, batches, check_augments, check_resumes, refused
from image_files import noise, png, ppm, tiff, write_tree

from taugrad.platform.data import DataError, load
from taugrad.platform.data.image_file import Framing
from taugrad.platform.spec.data import ImageFolder

torch.set_num_threads(1)
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def normalised(pixels):
    """Of [n, height, width, 3], in float64: [n, 3, height, width]."""
    return ((np.asarray(pixels, np.float64) / 255 - MEAN) / STD).transpose(0, 3, 1, 2)


# From an image to an example.


def test_the_middle_is_cut_out(tmp_path):
    pixels = noise(1, 8, 12)
    (tmp_path / "wide.png").write_bytes(png(pixels))
    np.testing.assert_array_equal(
        Framing(4, 8, 3, 0.08).pixels(tmp_path / "wide.png", "it", None), pixels[2:6, 4:8]
    )
    tall = pixels.transpose(1, 0, 2)
    np.testing.assert_array_equal(Framing(4, 8, 3, 0.08).pixels(ppm(tall), "it", None), tall[4:8, 2:6])


DEEP = np.random.default_rng(9).integers(0, 1 << 16, (6, 6)).astype(np.uint16)
DEEP[0, :3] = 0, 255, 65535
TWELVE = DEEP >> 4


def pgm(values, white):
    return b"P5\n6 6\n%d\n" % white + values.astype(">u2").tobytes()


def packed12(values):
    """Rows of 12 bits a value, the high bits first."""
    return b"".join(int("".join(f"{v:012b}" for v in row), 2).to_bytes(9, "big") for row in values.tolist())


@pytest.mark.parametrize(
    ("encoded", "values", "white"),
    [
        (png(DEEP), DEEP, 65535),
        (pgm(DEEP, 65535), DEEP, 65535),
        (pgm(TWELVE, 4095), TWELVE, 4095),
        (pgm(DEEP % 1000, 999), DEEP % 1000, 999),
        (b"P2\n6 6\n4095\n" + b" ".join(b"%d" % v for v in TWELVE.ravel()), TWELVE, 4095),
        (tiff(DEEP.tobytes(), 6, 6, 16), DEEP, 65535),
        (tiff(DEEP.astype(">u2").tobytes(), 6, 6, 16, big=True), DEEP, 65535),
        (tiff(DEEP.tobytes(), 6, 6, 16, photometric=0), 65535 - DEEP, 65535),
        (tiff(packed12(TWELVE), 6, 6, 12), TWELVE, 4095),
        (tiff((DEEP >> 8).astype(np.uint8).tobytes(), 6, 6, 8), DEEP >> 8, 255),
    ],
)
def test_more_than_eight_bits_are_scaled_to_eight(encoded, values, white):
    wanted = np.round(values / white * 255)
    result = Framing(6, 6, 1, 0.08).pixels(encoded, "it", None)
    np.testing.assert_array_equal(result[:, :, 0], wanted)
    colours = Framing(6, 6, 3, 0.08).pixels(encoded, "it", None)
    np.testing.assert_array_equal(colours, np.stack([wanted] * 3, axis=2))


@pytest.mark.parametrize(
    ("encoded", "said"),
    [
        (tiff(DEEP.astype("<i2").tobytes(), 6, 6, 16, sample_format=2), "mode I with signed values"),
        (tiff(DEEP.astype("<i4").tobytes(), 6, 6, 32, sample_format=2), "mode I with signed values"),
        (tiff(DEEP.astype("<u4").tobytes(), 6, 6, 32), "mode I, of which"),
        (tiff((DEEP / 65535).astype("<f4").tobytes(), 6, 6, 32, sample_format=3), "mode F"),
        (tiff(bytes(36), 6, 6, 8, sample_format=2), "mode L with signed values"),
        (b"Pf\n6 6\n-1.0\n" + DEEP.astype("<f4").tobytes(), "mode F"),
    ],
)
def test_values_without_a_known_white_are_refused(encoded, said):
    with pytest.raises(DataError, match=f"^it: is a (TIFF|PPM) image of {said}.* save it with 8 bits"):
        Framing(6, 6, 1, 0.08).pixels(encoded, "it", None)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG", "WEBP"])
def test_a_file_of_several_images_is_refused_and_of_one_is_read(kind):
    from PIL import Image

    first, second = (Image.fromarray(np.full((6, 6), value, np.uint8)) for value in (200, 50))
    one, both = io.BytesIO(), io.BytesIO()
    first.save(one, kind)
    first.save(both, kind, save_all=True, append_images=[second])
    result = Framing(6, 6, 1, 0.08).pixels(one.getvalue(), "it", None)
    np.testing.assert_allclose(result, 200, atol=3)
    with pytest.raises(DataError, match=r"^it: holds several images"):
        Framing(6, 6, 1, 0.08).pixels(both.getvalue(), "it", None)


GOOD = png(noise(5, 9, 9))


@pytest.mark.parametrize(
    "content", [b"", b"no image", GOOD[:20], GOOD[:-30], GOOD[:60] + b"\x55" + GOOD[61:], b"P6\n9 9\n255\n12"]
)
def test_a_damaged_image_is_named(tmp_path, content):
    path = tmp_path / "damaged.png"
    path.write_bytes(content)
    with refused(path, match="is not a complete image"):
        Framing(4, 4, 3, 0.08).pixels(path, str(path), None)


# Folders.


COUNTS = {"cat": 9, "dog": 6, "emu": 7}


@pytest.fixture
def tree(tmp_path):
    train = write_tree(tmp_path / "train", COUNTS)
    test = write_tree(tmp_path / "test", {"dog": 2, "emu": 3})
    return tmp_path, train, test


def check(examples, made, classes):
    inputs, labels = all_examples(examples)
    assert inputs.dtype == torch.float32
    names = sorted(made)
    np.testing.assert_allclose(
        inputs.numpy(), normalised([made[name] for name in names]), rtol=1e-5, atol=1e-6
    )
    assert labels.tolist() == [classes.index(name.split("/")[0]) for name in names]


def test_a_tree_with_a_test_part_is_read(tree):
    path, train, test = tree
    data = load(ImageFolder(path=path, size=12))
    assert data.shape.inputs == (3, 12, 12)
    assert (data.shape.outputs, data.shape.targets) == (3, "classes")
    check(data.train, train, sorted(COUNTS))
    check(data.test, test, sorted(COUNTS))


def test_one_tree_is_split_by_class(tree):
    path, train, _ = tree
    data = load(ImageFolder(path=path / "train", size=12, test_fraction=0.34))
    parts = [all_examples(part) for part in (data.train, data.test)]
    assert np.bincount(parts[1][1]).tolist() == [3, 2, 2]
    together = torch.cat([inputs for inputs, _ in parts]).numpy()
    wanted = normalised([train[name] for name in sorted(train)])
    np.testing.assert_allclose(np.sort(together, axis=0), np.sort(wanted, axis=0), rtol=1e-5, atol=1e-6)
    others = [load(ImageFolder(path=path / "train", size=12, split_seed=seed)) for seed in range(4)]
    assert not all(same([all_examples(others[0].test)], [all_examples(other.test)]) for other in others)


def test_augmentation_follows_from_seed_epoch_and_example_alone(tree):
    check_augments(*(load(ImageFolder(path=tree[0], size=10, augment=augment)) for augment in (True, False)))


@pytest.mark.parametrize("augment", [False, True])
def test_images_resume_at_any_iteration(tree, augment):
    check_resumes(lambda: load(ImageFolder(path=tree[0], size=6, augment=augment)))


@pytest.mark.parametrize(
    "other", ["dog/notes.txt", "dog/Thumbs.db", "dog/a.jp2", "dog/b.png.bak", "dog/more/0.png", "dog/empty/"]
)
def test_a_file_that_is_no_image_and_a_deeper_folder_are_named(tree, other):
    path = tree[0] / "train" / other
    path.parent.mkdir(exist_ok=True)
    path.mkdir() if other.endswith("/") else path.write_bytes(b"x")
    named = tree[0] / "train" / "/".join(other.split("/")[:2])
    with refused(f"{named}: is not an image file"):
        load(ImageFolder(path=tree[0]))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shutil.rmtree, "is not a folder; expected one that holds a folder of images"),
        (lambda root: shutil.rmtree(root / "train") or (root / "train").mkdir(), "train: holds 0 folders"),
        (lambda root: [path.unlink() for path in (root / "train/dog").iterdir()], "train/dog: holds no"),
        (lambda root: [path.unlink() for path in (root / "test/emu").iterdir()], "test/emu: holds no image"),
        (lambda root: (root / "test" / "fox").mkdir(), "test/fox: is not a class of the training part"),
    ],
)
def test_a_wrong_tree_is_named(tree, damage, said):
    damage(tree[0])
    with refused(tree[0], said):
        load(ImageFolder(path=tree[0]))


# Ray's part, with a Ray that is none: the true one is in tests/integration.


class FakeRay:
    def __init__(self, cpus):
        self.cpus = cpus

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return {"CPU": 2 + self.cpus}

    @property
    def util(self):
        return self

    def placement_group_table(self):
        """Two workers at work, each with a CPU, and one that is gone."""
        bundles = {0: {"CPU": 1.0}, 1: {"CPU": 1.0, "GPU": 1.0}}
        return {"a": {"state": "REMOVED", "bundles": bundles}, "b": {"state": "CREATED", "bundles": bundles}}


@pytest.mark.parametrize("read", [0, 1, 4])
def test_what_broken_tasks_leave_is_read_here(tree, monkeypatch, caplog, read):
    from taugrad.platform.data import ray_stream

    data = load(ImageFolder(path=tree[0], size=6, augment=True))
    wanted = batches(data)

    def breaking(ray, wanted, reader, draw):
        for at in range(read):
            numbers = wanted[4 * at : 4 * at + 4]
            yield reader.of(numbers)(numbers, draw)
        raise RuntimeError("a task\ndied")

    monkeypatch.setitem(sys.modules, "ray", FakeRay(1))
    monkeypatch.setattr(ray_stream, "_blocks", breaking)
    ray_stream._say.cache_clear()
    with caplog.at_level(logging.WARNING, "taugrad"):
        assert same(batches(data), wanted)
    assert caplog.messages == [
        "Ray's tasks stopped (RuntimeError: a task died): a worker reads its examples itself"
    ]
