"""Parquet files: rows of images and of numbers."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from feeds import all_examples, check_augments, check_resumes, refused
from image_files import noise, png

from taugrad.platform.data import DataError, Draw, load
from taugrad.platform.spec.data import Parquet

torch.set_num_threads(1)
ROWS = 53


def write(path, columns, rows=5):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=rows)


def number_columns(part, seed=0):
    generator = np.random.default_rng([seed, part == "test"])
    count = ROWS if part == "train" else 11
    return {
        "x": pa.array(generator.normal(size=(count, 4)).tolist(), pa.list_(pa.float64())),
        "a": generator.integers(-5, 5, count),
        "b": generator.normal(size=count).astype(np.float32),
        "label": pa.array(generator.permutation(np.arange(count) % 3), pa.int32()),
        "name": pa.array([("ant", "bee", "cow")[i % 3] for i in range(count)]),
        "value": generator.normal(size=count),
    }


@pytest.fixture
def folder(tmp_path):
    """The training part in two files, with row groups of five rows and a shorter last one."""
    whole = pa.table(number_columns("train"))
    for i, part in enumerate((whole[:27], whole[27:])):
        write(tmp_path / f"train-{i}.parquet", part)
    write(tmp_path / "test-0.parquet", pa.table(number_columns("test")))
    return tmp_path


def check(examples, inputs, targets):
    result = all_examples(examples)
    np.testing.assert_array_equal(result[0].numpy(), np.asarray(inputs, np.float32))
    np.testing.assert_array_equal(result[1].numpy(), targets)
    assert result[0].dtype == torch.float32
    return result[1].dtype


def test_lists_of_numbers_and_classes_are_read(folder):
    data = load(Parquet(path=folder, input="x"))
    assert data.shape.inputs == (4,)
    assert (data.shape.outputs, data.shape.targets) == (3, "classes")
    for examples, part in ((data.train, "train"), (data.test, "test")):
        columns = number_columns(part)
        assert check(examples, columns["x"].to_pylist(), columns["label"].to_pylist()) == torch.int64


def test_columns_of_numbers_and_a_number_to_tell_are_read(folder):
    data = load(Parquet(path=folder, input=("a", "b"), label="value"))
    assert data.shape.inputs == (2,)
    assert (data.shape.outputs, data.shape.targets) == (1, "numbers")
    columns = number_columns("train")
    wanted = columns["value"].astype(np.float32)[:, np.newaxis]
    assert check(data.train, np.stack([columns["a"], columns["b"]], axis=1), wanted) == torch.float32


@pytest.mark.parametrize("form", ["bytes", "struct"])
def test_images_are_read(tmp_path, form):
    images = [noise(i, 6, 6) for i in range(9)]
    encoded = [png(image) for image in images]
    if form == "struct":
        encoded = [{"bytes": data, "path": None} for data in encoded]
    columns = {"image": encoded, "label": [i % 2 for i in range(9)]}
    for part in ("train", "test"):
        write(tmp_path / part / "0.parquet", columns, rows=4)
    data = load(Parquet(path=tmp_path, size=6, mean=(0, 0, 0), std=(1, 1, 1)))
    assert data.shape.inputs == (3, 6, 6)
    inputs, labels = all_examples(data.train)
    np.testing.assert_allclose(inputs.numpy(), np.stack(images).transpose(0, 3, 1, 2) / 255, atol=1e-7)
    assert labels.tolist() == [i % 2 for i in range(9)]
    check_augments(*(load(Parquet(path=tmp_path, size=6, augment=augment)) for augment in (True, False)))


# Order.


@pytest.mark.parametrize("mixed", [1, 3, 100])
def test_an_epoch_has_every_row_once_and_mixes_a_few_row_groups(folder, mixed):
    train = load(Parquet(path=folder, input="x", shuffle_groups=mixed)).train
    order = train.order(Draw(1, 2))
    assert sorted(order.tolist()) == list(range(ROWS))
    assert order.dtype == np.int64
    assert not np.array_equal(train.order(Draw(1, 3)), order)
    assert np.array_equal(train.order(Draw(1, 2)), order)
    # Row groups, by the files' forms: five rows each, the last of a file fewer.
    group = np.concatenate([np.arange(27) // 5, 6 + np.arange(26) // 5])[order]
    runs = [set(group[np.flatnonzero(group == g)[0] : np.flatnonzero(group == g)[-1] + 1]) for g in range(12)]
    assert max(len(run) for run in runs) <= mixed
    if mixed > 1:
        assert max(len(run) for run in runs) > 1


def test_rows_resume_at_any_iteration(folder):
    check_resumes(lambda: load(Parquet(path=folder, input="x", shuffle_groups=2)))


# What is wrong.


def rewritten(folder, file="train-1.parquet", **columns):
    path = folder / file
    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    write(path, table)
    return path


def labels(at, value, dtype):
    values = [0, 1] * 13
    values[at] = value
    return pa.array(values, dtype)


def test_a_class_that_training_does_not_know_is_named_with_its_row(folder):
    config = Parquet(path=folder, input="x")
    path = folder / "test-0.parquet"
    rewritten(folder, "test-0.parquet", label=pa.array([0, 1, 2, 2, 1, 0, 0, 0, 3, 0, 0], pa.int32()))
    with refused(path, match=r"row 8: label is 3; expected one of 0\.\.2"):
        load(config)
    names = pa.array(["ant"] * 10 + ["gnu"])
    rewritten(folder, "test-0.parquet", label=pa.array([0] * 11, pa.int32()), name=names)
    with pytest.raises(DataError, match="row 10: name is 'gnu'; expected a class of the training part"):
        load(Parquet(path=folder, input="x", label="name"))
    rewritten(folder, "train-0.parquet", label=pa.array([0, 1, 0, 2] + [0] * 23, pa.int32()))
    with pytest.raises(DataError, match=r"row 3: label is 2; expected one of 0\.\.1"):
        load(Parquet(path=folder, input="x", classes=2))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0, 1_000_000_000] * 13, "has 3 different labels, up to 1000000000, but none is 2; .* data.classes"),
        ([1, 2, 3, 5, 7] * 5 + [1], "none is 4; expected all of 0..5"),
        ([2**63 + 1] * 26, "different labels, up to 9223372036854775809"),
    ],
)
def test_labels_with_gaps_are_refused_unless_the_number_of_classes_is_given(folder, values, said):
    for file, labels in (("train-0", [0, 1, 0] * 9), ("train-1", values)):
        rewritten(folder, f"{file}.parquet", label=pa.array(labels, pa.uint64()))
    rewritten(folder, "test-0.parquet", label=pa.array([0] * 11, pa.uint64()))
    with refused("train-0.parquet: label", match=said):
        load(Parquet(path=folder, input="x"))
    if max(values) < 10:
        assert load(Parquet(path=folder, input="x", classes=8)).shape.outputs == 8


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"input": "y"}, "has no column 'y'; it has x, a, b, label, name, value"),
        ({"label": "y"}, "has no column 'y'"),
        ({"input": "name"}, "column 'name' holds string; expected encoded images (binary), numbers"),
        ({"input": ("a", "x")}, "column 'x' holds list"),
        ({"label": "x"}, "column 'x' holds list"),
    ],
)
def test_a_wrong_column_is_named(folder, fields, said):
    with refused(said, "train-0.parquet"):
        load(Parquet(**({"path": folder, "input": "x"} | fields)))


@pytest.mark.parametrize("name", ["train-1.parquet", "test-0.parquet"])
def test_a_file_that_is_no_parquet_is_named(folder, name):
    whole = (folder / name).read_bytes()
    for content in (b"", b"PAR1", whole[:-10], whole[:200]):
        (folder / name).write_bytes(content)
        with refused(folder / name, match="is not a complete Parquet file"):
            load(Parquet(path=folder, input="x"))


class _Runs:
    """When it is unpickled, a file is made: the code of whoever wrote the pickle has run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("where", ["image", "label", "test image", "inside"])
def test_pickled_objects_in_a_column_are_refused_and_not_unpickled(tmp_path, where):
    """Ray Data reads columns of its own type by unpickling them, wherever it has been imported."""
    from ray.data._internal.object_extensions.arrow import ArrowPythonObjectArray

    ran = tmp_path / "ran"
    rows = 6
    pickled = ArrowPythonObjectArray.from_objects([_Runs(ran)] * rows)
    good = {
        "image": pa.array([png(noise(i, 6, 6)) for i in range(rows)], pa.large_binary()),
        "label": pa.array([i % 2 for i in range(rows)]),
    }
    inside = pa.StructArray.from_arrays([good["image"], pickled], ["bytes", "more"])
    bad = good | (
        {"label": pickled} if where == "label" else {"image": inside if where == "inside" else pickled}
    )
    write(tmp_path / "train" / "0.parquet", good if where == "test image" else bad)
    write(tmp_path / "test" / "0.parquet", bad)
    with refused(match=r"holds .*(extension|arrow_pickled_object)"):
        data = load(Parquet(path=tmp_path, size=6))
        for part in (data.train, data.test):
            all_examples(part)
    assert not ran.exists()
