"""CIFAR's binary version, against records that the tests write."""

import hashlib

import numpy as np
import pytest
import torch
from feeds import all_examples, check_augments, refused

from taugrad.platform.data import load
from taugrad.platform.spec.data import Cifar10, Cifar100

torch.set_num_threads(1)
TEN = {f"data_batch_{i}.bin": 3 for i in range(1, 6)} | {"test_batch.bin": 4}
"""Examples by file."""


def record(*columns):
    """Records of bytes: each example's labels, then its red, green and blue by rows."""
    return np.hstack([np.reshape(column, (len(column), -1)) for column in columns]).tobytes()


def images(generator, count):
    return generator.integers(0, 256, (count, 3, 32, 32), np.uint8)


@pytest.fixture
def ten(tmp_path):
    """The labels and images of six files."""
    generator = np.random.default_rng(0)
    made = {name: (np.arange(n, dtype=np.uint8), images(generator, n)) for name, n in TEN.items()}
    for name, columns in made.items():
        (tmp_path / name).write_bytes(record(*columns))
    return tmp_path, made


def check(data, train, test):
    """Against labels and images of both parts; normalised by channel of the training part."""
    pixels = train[1].astype(np.float64)
    mean, deviation = (tensor.reshape(3, 1, 1) for tensor in (pixels.mean((0, 2, 3)), pixels.std((0, 2, 3))))
    for examples, (labels, images) in ((data.train, train), (data.test, test)):
        inputs, result = all_examples(examples)
        assert (inputs.dtype, result.dtype) == (torch.float32, torch.int64)
        np.testing.assert_allclose(inputs.numpy(), (images - mean) / deviation, rtol=1e-5, atol=1e-5)
        assert result.tolist() == labels.tolist()


def test_cifar10_is_read(ten):
    folder, made = ten
    data = load(Cifar10(path=folder))
    assert (data.shape.inputs, data.shape.outputs) == ((3, 32, 32), 10)
    *train, test = made.values()
    check(data, [np.concatenate(column) for column in zip(*train, strict=True)], test)
    assert (
        data.fingerprint
        == hashlib.sha256(b"".join(record(*arguments) for arguments in made.values())).hexdigest()
    )


@pytest.mark.parametrize(("labels", "classes"), [("coarse", 20), ("fine", 100)])
def test_cifar100_is_read(tmp_path, labels, classes):
    generator, parts = np.random.default_rng(1), []
    for name, n in (("train.bin", 7), ("test.bin", 3)):
        coarse, fine = (generator.integers(below, size=n, dtype=np.uint8) for below in (20, 100))
        pixels = images(generator, n)
        (tmp_path / name).write_bytes(record(coarse, fine, pixels))
        parts.append((coarse if labels == "coarse" else fine, pixels))
    data = load(Cifar100(path=tmp_path, labels=labels))
    assert data.shape.outputs == classes
    check(data, *parts)


@pytest.mark.parametrize(
    ("name", "length", "said"),
    [
        *((name, None, "cannot be read .* binary version") for name in TEN),
        ("data_batch_3.bin", 0, "holds 0 bytes"),
        ("data_batch_3.bin", 3 * 3073 - 1, "record at offset 6146 has 3072"),
        ("data_batch_3.bin", 3072, "record at offset 0 has 3072"),
        ("data_batch_3.bin", 3 * 3074, "record at offset 9219 has 3"),
    ],
)
def test_a_missing_file_and_one_of_a_wrong_length_are_named(ten, name, length, said):
    path = ten[0] / name
    if length is None:
        path.unlink()
    else:
        path.write_bytes((path.read_bytes() + bytes(10))[:length])
    with refused(path, match=said):
        load(Cifar10(path=ten[0]))


# Augmentation.


def test_augmentation_follows_from_seed_epoch_and_example_alone(ten):
    augmented, plain = (load(Cifar10(path=ten[0], augment=augment)) for augment in (True, False))
    check_augments(augmented, plain)
    assert not augmented.train.in_memory
    assert plain.train.in_memory
