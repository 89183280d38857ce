"""CIFAR's binary version, against records that the tests write byte by byte."""

import hashlib

import numpy as np
import pytest
import torch
from feeds import all_examples, check_augments, refused

from taugrad.platform.data import load
from taugrad.platform.data.config import Cifar10, Cifar100

torch.set_num_threads(1)
TEN = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


def image(generator):
    """Red, green and blue, each 32 rows of 32 bytes."""
    return [[generator.integers(0, 256, 32).tolist() for _ in range(32)] for _ in range(3)]


def record(labels, planes):
    return bytes(labels) + b"".join(bytes(row) for plane in planes for row in plane)


@pytest.fixture
def ten(tmp_path):
    """The images and labels of six files."""
    generator = np.random.default_rng(0)
    made = {name: [(i % 10, image(generator)) for i in range(3 + (name == "test_batch.bin"))] for name in TEN}
    for name, examples in made.items():
        (tmp_path / name).write_bytes(b"".join(record([label], planes) for label, planes in examples))
    return tmp_path, made


def normalised(train, test):
    """In float64, by channel."""
    mean, deviation = (
        statistic.reshape(3, 1, 1) for statistic in (train.mean((0, 2, 3)), train.std((0, 2, 3)))
    )
    return (train - mean) / deviation, (test - mean) / deviation


def check(data, train, test):
    """Inputs and labels against [(label, planes)]."""
    wanted = normalised(*(np.array([planes for _, planes in part], np.float64) for part in (train, test)))
    for examples, inputs, part in zip((data.train, data.test), wanted, (train, test), strict=True):
        found, labels = all_examples(examples)
        assert found.dtype == torch.float32
        assert labels.dtype == torch.int64
        np.testing.assert_allclose(found.numpy(), inputs, rtol=1e-5, atol=1e-5)
        assert labels.tolist() == [label for label, _ in part]


def test_cifar10_is_read(ten):
    folder, made = ten
    data = load(Cifar10(path=folder))
    assert data.shape.inputs == (3, 32, 32)
    assert data.shape.outputs == 10
    check(data, [each for name in TEN[:5] for each in made[name]], made[TEN[5]])
    assert (
        data.fingerprint == hashlib.sha256(b"".join((folder / name).read_bytes() for name in TEN)).hexdigest()
    )


@pytest.mark.parametrize(("labels", "classes"), [("coarse", 20), ("fine", 100)])
def test_cifar100_is_read(tmp_path, labels, classes):
    generator = np.random.default_rng(1)
    parts = {
        name: [
            (int(generator.integers(20)), int(generator.integers(100)), image(generator))
            for _ in range(count)
        ]
        for name, count in (("train.bin", 7), ("test.bin", 3))
    }
    for name, examples in parts.items():
        content = b"".join(record([coarse, fine], planes) for coarse, fine, planes in examples)
        (tmp_path / name).write_bytes(content)
    data = load(Cifar100(path=tmp_path, labels=labels))
    assert data.shape.outputs == classes
    which = 0 if labels == "coarse" else 1
    check(data, *([(each[which], each[2]) for each in part] for part in parts.values()))


@pytest.mark.parametrize("name", TEN)
def test_a_missing_file_is_named(ten, name):
    (ten[0] / name).unlink()
    with refused(ten[0] / name, match=r"cannot be read .* binary version"):
        load(Cifar10(path=ten[0]))


@pytest.mark.parametrize(
    ("length", "said"),
    [
        (0, "holds 0 bytes"),
        (3 * 3073 - 1, "record at offset 6146 has 3072"),
        (3072, "record at offset 0 has 3072"),
        (3 * 3074, "record at offset 9219 has 3"),
    ],
)
def test_a_file_of_a_wrong_length_is_named(ten, length, said):
    path = ten[0] / "data_batch_3.bin"
    path.write_bytes((path.read_bytes() + bytes(10))[:length])
    with refused(path, match=said):
        load(Cifar10(path=ten[0]))


# Augmentation.


def test_augmentation_follows_from_seed_epoch_and_example_alone(ten):
    augmented, plain = (load(Cifar10(path=ten[0], augment=augment)) for augment in (True, False))
    check_augments(augmented, plain)
    assert not augmented.train.in_memory
    assert plain.train.in_memory
