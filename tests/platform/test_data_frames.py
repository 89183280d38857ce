"""Frames of speech, against files of known numbers."""

import hashlib
import io
import json
import math

import numpy as np
import pytest
import torch
from feeds import all_examples, refused

from taugrad.platform.data import DataError, load
from taugrad.platform.spec.data import Frames

torch.set_num_threads(1)
FEATURES = 3
CLASSES = ["a", "b", "c", "d"]
LENGTHS = {"train": [4, 1, 9, 12], "validation": [6, 5], "test": [3]}


def npy(dtype, shape, numbers, *, fortran=False):
    """A .npy file."""
    file = io.BytesIO()
    np.save(file, np.array(numbers, dtype).reshape(shape, order="F" if fortran else "C"))
    return file.getvalue()


def utterances(part):
    """[(frames [n, F], labels [n])], as the test knows them."""
    generator = np.random.default_rng(list(LENGTHS).index(part))
    results = []
    for n in LENGTHS[part]:
        frames = generator.normal([5, -1, 0], [2, 1, 9], (n, FEATURES)).astype(np.float32)
        results.append((frames, generator.integers(0, len(CLASSES), n)))
    return results


@pytest.fixture
def folder(tmp_path):
    folder, hashes = tmp_path, {}
    for part, lengths in LENGTHS.items():
        (folder / part).mkdir()
        frames, labels = map(np.concatenate, zip(*utterances(part), strict=True))
        files = {
            "features": npy("<f4", frames.shape, frames),
            "labels": npy("<u2", labels.shape, labels),
            "offsets": npy("<i8", len(lengths) + 1, np.cumsum([0, *lengths])),
        }
        for name, content in files.items():
            (folder / part / f"{name}.npy").write_bytes(content)
            hashes[f"{part}/{name}.npy"] = hashlib.sha256(content).hexdigest()
    write_manifest(folder, sha256=hashes)
    return folder


def write_manifest(folder, **changes):
    path = folder / "frames.json"
    said = json.loads(path.read_text()) if path.exists() else {}
    said = {"version": 1, "features": FEATURES, "classes": CLASSES, "frame_ms": 10} | said | changes
    path.write_text(json.dumps(said))


def windows(part, context):
    """Normalised by the training part, edge frames repeated: inputs [n, context F], and labels."""
    train = np.concatenate([frames for frames, _ in utterances("train")], dtype=np.float64)
    inputs = []
    for frames, _ in utterances(part):
        normal, last = (frames - train.mean(0)) / train.std(0), len(frames) - 1
        around = np.arange(context) - context // 2
        inputs += [normal[(middle + around).clip(0, last)].ravel() for middle in range(len(frames))]
    return inputs, [label for _, labels in utterances(part) for label in labels]


@pytest.mark.parametrize("context", [1, 3, 17])
@pytest.mark.parametrize("evaluate_on", ["validation", "test"])
def test_windows_are_what_their_definition_says(folder, context, evaluate_on):
    data = load(Frames(path=folder, context=context, evaluate_on=evaluate_on))
    assert data.shape.inputs == (context * FEATURES,)
    assert (data.shape.outputs, data.shape.targets) == (len(CLASSES), "classes")
    for examples, part in ((data.train, "train"), (data.test, evaluate_on)):
        wanted, labels = windows(part, context)
        result, found_labels = all_examples(examples)
        assert result.dtype == torch.float32
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-5)
        assert found_labels.tolist() == labels
        assert not examples.in_memory


@pytest.mark.parametrize(
    "name",
    [f"{part}/{file}.npy" for part in ("train", "validation") for file in ("features", "labels", "offsets")],
)
def test_a_flipped_bit_is_found(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[-8] ^= 1
    (folder / name).write_bytes(content)
    with refused(folder / name):
        load(Frames(path=folder))


FRAMES = npy("<f4", (26, FEATURES), [0] * 78)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("features", None, "cannot be read (No such file"),
        ("features", b"", "is not a complete .npy file"),
        ("features", FRAMES[:-4], "is not a complete .npy file"),
        ("features", FRAMES.replace(b"'<f4'", b"'|O' "), "is not a complete .npy file"),  # a pickle
        ("features", npy("<f4", (0, FEATURES), []), "has no frames"),
        ("features", npy("<f4", (26, FEATURES), [0] * 78, fortran=True), "column by column; expected"),
        ("features", npy("<f4", (26, 2), [0] * 52), "has 2 features; frames.json says 3"),
        ("features", npy("<f4", (26, 3), [0] * 41 + [math.nan] + [0] * 36), "feature 2 of frame 13 is nan"),
        ("labels", npy("<u2", (25,), [0] * 25), "holds 25 labels; expected 26"),
        ("labels", npy("<u2", (26,), [0] * 20 + [4] + [0] * 5), "label 4 of frame 20; .* 0..3"),
        ("offsets", npy("<i8", (3,), [0, 9, 25]), "ends with 25; expected 26"),
        ("offsets", npy("<i8", (4,), [0, 9, 9, 26]), "entry 2 is 9 after 9; they must ascend"),
        ("offsets", npy("<i8", (1,), [0]), "begins with [0]"),
    ],
)
def test_a_wrong_file_is_named(folder, name, content, said):
    path = folder / "train" / f"{name}.npy"
    write_manifest(folder, sha256={})
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with refused(f"{path}: ", *said.split(".* ")):
        load(Frames(path=folder))


def test_a_missing_folder_says_how_to_make_one(tmp_path):
    with pytest.raises(DataError, match=r"docs/data\.md describes such a folder"):
        load(Frames(path=tmp_path / "nowhere"))
