"""Text and tokens: which files, which tokens, which windows."""

import gzip
import hashlib
import json
import lzma
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from bits import same
from feeds import all_examples, check_resumes, refused

from taugrad.platform.data import DataError, Draw, load
from taugrad.platform.data.text_files import split
from taugrad.platform.spec.data import Text, Tokens

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "taugrad"


LINES = "".join(f"line {i} of the text, ends here\n" for i in range(400)).encode()


@pytest.fixture
def one_file(tmp_path):
    path = tmp_path / "input.txt"
    path.write_bytes(LINES)
    return path


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "files"
    for i in range(12):
        path = folder / f"part{i % 3}" / f"{i}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([i]) * (40 + i))
    (folder / ".hidden").write_bytes(b"\xff" * 100)
    return folder


def row_of(windows):
    """The tokens of a part, put together again from windows side by side."""
    inputs, targets = all_examples(windows)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert torch.equal(inputs[1:, 0], targets[:-1, -1])
    return torch.cat([inputs.flatten(), targets[-1, -1:]]).tolist()


# By bytes.


def test_a_single_files_end_is_the_test_part(one_file):
    data = load(Text(path=str(one_file), context=16, test_fraction=0.25, test_examples=10**6))
    train, test = bytes(row_of(data.train)), bytes(row_of(data.test))
    cut = LINES.index(b"\n", int(0.75 * len(LINES))) + 1
    assert LINES[:cut].startswith(train)
    assert LINES[cut:].startswith(test)
    assert len(LINES[:cut]) - 2 * 16 < len(train)
    assert len(LINES[cut:]) - 16 <= len(test)
    assert data.shape.inputs == (16,)
    assert (data.shape.outputs, data.shape.targets, data.shape.token_inputs) == (256, "tokens", True)
    assert data.shape.bytes_per_token == 1.0


def test_whole_files_are_held_out_by_name(files):
    paths = list(files.rglob("*.txt"))
    train, test = split(paths, 0.3, seed=1)
    assert {file.name for file in train}.isdisjoint(file.name for file in test)
    assert sorted(file.name for file in [*train, *test]) == sorted(
        path.relative_to(files).as_posix() for path in paths
    )
    names = {name: hashlib.sha256(f"1:{name}".encode()).digest()[:8] for name in (file.name for file in test)}
    assert all(int.from_bytes(digest, "big") < 0.3 * 2**64 for digest in names.values())
    assert {file.name for file in split(paths[::-1], 0.3, seed=1)[1]} == set(names)
    assert {frozenset(file.name for file in split(paths, 0.3, seed)[1]) for seed in range(9)} != {
        frozenset(names)
    }


def test_the_fingerprint_is_of_names_and_contents(files):
    first = load(Text(path=str(files), context=4)).fingerprint
    train, test = split(list(files.rglob("*.txt")), 0.1, 0)
    wanted = hashlib.sha256()
    for file in [*train, *test]:
        content = (files / file.name).read_bytes()
        wanted.update(f"{file.name}\0{len(content)}\0".encode() + content)
    assert first == wanted.hexdigest()
    moved = files.rename(files.with_name("elsewhere"))
    assert load(Text(path=str(moved), context=4)).fingerprint == first
    (moved / "part0" / "0.txt").write_bytes(b"another")
    assert load(Text(path=str(moved), context=4)).fingerprint != first


# Windows.


def test_each_epoch_cuts_the_windows_at_another_place(one_file):
    data = load(Text(path=str(one_file), context=32))
    shifts = []
    for epoch in range(20):
        inputs, targets = all_examples(data.train, Draw(5, epoch))
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        text = bytes(inputs.flatten().tolist())
        assert text in LINES
        shifts.append(LINES.index(text))
        assert same([all_examples(data.train, Draw(5, epoch))], [(inputs, targets)])
    assert set(shifts) <= set(range(32))
    assert len(set(shifts)) > 8
    assert LINES.startswith(bytes(all_examples(data.train)[0].flatten().tolist()))


def test_text_resumes_at_any_iteration(one_file):
    check_resumes(lambda: load(Text(path=str(one_file), context=16)))


# By a tokenizer.


@pytest.fixture
def tokenizer(tmp_path):
    """Words, as a tokenizer.json written here; every unknown word is token 0."""
    words = ["[UNK]", "line", "of", "the", "text", "ends", "here", ",", *map(str, range(390))]
    path = tmp_path / "tokenizer.json"
    model = {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(words)}, "unk_token": "[UNK]"}
    path.write_text(
        json.dumps(
            {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
        )
    )
    return path, words


def test_a_tokenizer_makes_the_tokens(one_file, tokenizer):
    path, words = tokenizer
    config = Text(path=str(one_file), tokenizer=path, context=8, test_fraction=0.5, test_examples=10**6)
    data = load(config)
    split_text = LINES.decode().replace(",", " ,").split()
    numbers = [words.index(word) if word in words else 0 for word in split_text]
    train, test = row_of(data.train), row_of(data.test)
    assert numbers[: len(train)] == train
    cut = LINES.index(b"\n", len(LINES) // 2) + 1
    before = len(LINES[:cut].decode().replace(",", " ,").split())
    assert numbers[before : before + len(test)] == test
    assert data.shape.outputs == len(words)
    assert data.shape.bytes_per_token == pytest.approx((len(LINES) - cut) / (len(numbers) - before))
    assert load(config).fingerprint == data.fingerprint


def test_a_wrong_tokenizer_is_named(one_file, tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(DataError, match="cannot be read"):
        load(Text(path=str(one_file), tokenizer=path))
    path.write_text("{}")
    with refused(path, match=r"is not a tokenizer\.json"):
        load(Text(path=str(one_file), tokenizer=path))


# The cache.


@pytest.mark.parametrize("damage", ["flipped in its head", "flipped", "cut", "gone", "longer"])
def test_a_damaged_cache_is_made_anew(one_file, cache, damage):
    config = Text(path=str(one_file), context=8)
    whole = row_of(load(config).train)
    (path,) = cache.iterdir()
    good, made = path.read_bytes(), path.stat().st_mtime_ns
    load(config)
    assert path.stat().st_mtime_ns == made  # tokens are made once
    if damage == "gone":
        path.unlink()
    else:
        at = 20 if damage == "flipped in its head" else len(good) // 2
        flipped = good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :]
        path.write_bytes({"cut": good[:-5], "longer": good + b"x"}.get(damage, flipped))
    assert row_of(load(config).train) == whole
    assert path.read_bytes() == good


@pytest.mark.parametrize("given", ["{}", "{}/part0/*", "{}/part0/0.txt"], ids=["folder", "pattern", "file"])
def test_a_link_without_a_target_is_named(files, given):
    link = files / "part0" / "0.txt"
    link.unlink()
    link.symlink_to("/nowhere/else.txt")
    with refused(link, match="is a link to /nowhere/else.txt, which does not exist"):
        load(Text(path=given.format(files), context=5))


# nanoGPT's tokens.


def write_tokens(folder, train, val):
    for name, tokens in (("train.bin", train), ("val.bin", val)):
        (folder / name).write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))


def test_nanogpts_tokens_are_read(tmp_path):
    train, val = [*range(90), 50_256], [7, 8, 9, 65, 66, 67, 68]
    write_tokens(tmp_path, train, val)
    data = load(Tokens(path=tmp_path, context=5, test_examples=100))
    assert data.shape.outputs == 50_257
    assert data.shape.bytes_per_token is None
    assert row_of(data.train) == train[:86]
    inputs, targets = all_examples(data.test)
    assert (inputs.tolist(), targets.tolist()) == ([val[:5]], [val[1:6]])
    assert inputs.dtype == targets.dtype == torch.int64
    assert load(Tokens(path=tmp_path, context=5, vocabulary=50_304)).shape.outputs == 50_304
    content = (tmp_path / "train.bin").read_bytes() + (tmp_path / "val.bin").read_bytes()
    assert data.fingerprint == hashlib.sha256(content).hexdigest()
    check_resumes(lambda: load(Tokens(path=tmp_path, context=1)))


ONES = struct.pack("<100H", *[1] * 100)
BEYOND = np.random.default_rng(5).integers(0, 50_257, 100).astype("<u2")
BEYOND[37] = 60_000


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (ONES[:-1], "half a token is at offset 198"),
        (b"", "is empty"),
        (None, r"cannot be read \(No such file"),
        (bytes(8), "holds 4 tokens; .* context = 5"),
        (
            BEYOND.tobytes(),
            "token 60000 at offset 74; .* vocabulary = 50257",
        ),
        # Other forms than 16 bits a token.
        (gzip.compress(LINES), "is compressed by gzip"),
        (LINES, "bytes are alike, as in text"),
        (Path(lzma.__file__).read_bytes(), "bytes are alike, as in text"),
        (np.random.default_rng(5).zipf(1.3, 20_000).astype("u1").tobytes(), "bytes are alike"),
        (lzma.compress(np.random.default_rng(5).bytes(100_000)), "bytes are alike"),
        ((np.random.default_rng(5).zipf(1.3, 20_000) % 50_257).astype(">u2").tobytes(), "high byte first"),
        (np.random.default_rng(5).integers(0, 65, 2_000).astype(">u2").tobytes(), "high byte first"),
    ],
    ids=[
        *("half a token", "empty", "missing", "short", "beyond the vocabulary", "gzip", "lines of one form"),
        *("text", "8 bits", "xz", "big-endian", "big-endian characters"),
    ],
)
@pytest.mark.parametrize("name", ["train.bin", "val.bin"])
def test_a_wrong_file_of_tokens_is_named(tmp_path, name, content, said, monkeypatch):
    monkeypatch.setattr("taugrad.platform.data.tokens._CHUNK", 16)
    write_tokens(tmp_path, [1] * 100, [1] * 100)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content if len(content) < 200 else content[: len(content) // 2 * 2])
    vocabulary = 50_257 if said.startswith("token") else None  # none is given where the form is looked at
    with refused(tmp_path / name, match=said):
        load(Tokens(path=tmp_path, context=5, vocabulary=vocabulary))


@pytest.mark.parametrize("vocabulary", [65, 50_257, 65_536])
def test_tokens_of_16_bits_are_taken_for_such(tmp_path, vocabulary):
    """Spread evenly over a vocabulary, too; one of all numbers of 16 bits is to be said then."""
    rng = np.random.default_rng(5)
    evenly, by_frequency = rng.integers(0, vocabulary, 20_000), rng.zipf(1.3, 20_000) % vocabulary
    for tokens in (evenly, by_frequency):
        write_tokens(tmp_path, tokens.tolist(), tokens.tolist())
        said = vocabulary if vocabulary == 65_536 and tokens is evenly else None
        load(Tokens(path=tmp_path, context=5, vocabulary=said))


IDS = np.random.default_rng(3).zipf(1.3, 4000) % 120_000
"""As a large tokenizer would number them: many small, some beyond 16 bits."""


@pytest.mark.parametrize("dtype", ["u1", "<i2", "<u2", "<i4", ">u4", "<u8"])
@pytest.mark.parametrize("end", [".npy", ".bin"])
def test_tokens_of_numpy_are_read_by_their_header(tmp_path, dtype, end):
    ids = IDS % (200 if dtype == "u1" else 30_000 if dtype.endswith("2") else 120_000)
    for part in ("train", "val"):
        with (tmp_path / f"{part}{end}").open("wb") as file:
            np.save(file, ids.astype(dtype))
    data = load(Tokens(path=tmp_path, context=5, test_examples=1000))
    assert data.shape.outputs == ids.max() + 1
    assert row_of(data.train) == ids[: 5 * len(data.train) + 1].tolist()
    at = int(ids.argmax())
    offset = 128 + np.dtype(dtype).itemsize * at  # the header of a short shape has 128 bytes
    with pytest.raises(
        DataError, match=rf"token {ids.max()} at offset {offset}; .* vocabulary = {ids.max()}$"
    ):
        load(Tokens(path=tmp_path, context=5, vocabulary=int(ids.max())))
