"""Speech: its parts by themselves, and whole folders where espeak-ng is installed."""

import ctypes.util
import hashlib
import json
import math

import numpy as np
import pytest
from benchmarks.papers.speech_data import __main__ as command
from benchmarks.papers.speech_data import espeak
from benchmarks.papers.speech_data.features import log_mel
from benchmarks.papers.speech_data.utterances import CLASSES, labels_at

from taugrad.platform.data import load
from taugrad.platform.spec.data import Frames

try:
    espeak.loaded()
    MISSING = ""
except espeak.SpeechError as error:
    MISSING = str(error)
MINUTES = 0.1
needs_espeak = pytest.mark.skipif(bool(MISSING), reason=MISSING)


def plain_log_mel(samples, rate):
    """The definition, with the Fourier transform and the triangles of the bands as matrices."""

    def mel(frequency):
        return 2595 * np.log10(1 + frequency / 700)

    length = rate * 25 // 1000
    size = 2 ** math.ceil(math.log2(length))
    starts = [frame * rate // 100 for frame in range(100) if frame * rate // 100 + length <= len(samples)]
    n, k = np.arange(length), np.arange(size // 2 + 1)
    window = 0.54 - 0.46 * np.cos(2 * np.pi * n / (length - 1))
    frames = np.array([samples[start : start + length] * window for start in starts])
    power = np.abs(frames @ np.exp(-2j * np.pi * np.outer(n, k) / size)) ** 2 / size
    left, middle, right = np.linspace(mel(64), mel(8000), 22)[np.arange(20)[:, np.newaxis] + [0, 1, 2]].T
    at = mel(k * rate / size)[:, np.newaxis]
    triangles = np.minimum((at - left) / (middle - left), (right - at) / (right - middle)).clip(0)
    return np.log(np.maximum(power @ triangles, 1e-3))


@pytest.mark.parametrize("rate", [16000, 22050])
def test_features_are_their_definition(rate):
    generator = np.random.default_rng(rate)
    samples = 1000 * generator.standard_normal(rate * 36 // 1000)
    features = log_mel(samples, rate)
    assert features.dtype == np.float32
    assert features.shape == (2, 20)
    np.testing.assert_allclose(features, plain_log_mel(samples, rate), rtol=1e-6)
    assert log_mel(np.zeros(rate // 10), rate) == pytest.approx(math.log(1e-3))


def test_a_frame_has_the_phoneme_at_its_middle():
    starts, numbers = np.array([3, 10, 10, 25]), np.array([4, 5, 6, 7], dtype=np.uint16)
    middles = np.arange(30)

    def slow(middle):
        begun = [number for start, number in zip(starts, numbers, strict=True) if start <= middle]
        return begun[-1] if begun else 0

    labels = labels_at(middles, starts, numbers)
    assert labels.dtype == np.uint16
    assert labels.tolist() == [slow(middle) for middle in middles]
    assert labels_at(middles, starts[:0], numbers[:0]).tolist() == [0] * 30


def test_classes_never_change_their_numbers():
    assert len(CLASSES) == 49
    assert CLASSES[0] == "silence"
    assert hashlib.sha256(" ".join(CLASSES).encode()).hexdigest()[:16] == "b306fd3e7db7ddb6"


def test_without_espeak_the_packages_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ctypes.util, "find_library", lambda _: None)
    out = tmp_path / "out"
    assert speech("--out", out) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"--out {out}: libespeak-ng is missing; on Debian: apt-get install espeak-ng libespeak-ng1"
    ]
    assert list(tmp_path.iterdir()) == []


def speech(*arguments):
    return command.main([*map(str, arguments)])


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """Some seconds of speech."""
    folder = tmp_path_factory.mktemp("speech") / "out"
    assert speech("--minutes", MINUTES, "--out", folder) == 0
    return folder


@needs_espeak
def test_a_folder_of_speech_is_as_its_manifest_says(spoken):
    """A data set of frames refuses wrong hashes, types, lengths, labels, and what is not finite."""
    manifest = json.loads((spoken / "frames.json").read_text())
    assert (manifest["features"], manifest["frame_ms"], manifest["classes"]) == (20, 10, list(CLASSES))
    assert manifest["made"]["minutes"] == MINUTES
    assert manifest["sha256"].keys() | {"frames.json"} == contents(spoken).keys()
    for part in ("validation", "test"):
        load(Frames(path=spoken, evaluate_on=part))
    for part, share in (("train", 0.8), ("validation", 0.1), ("test", 0.1)):
        offsets = np.load(spoken / part / "offsets.npy")
        assert (np.diff(offsets) > 50).all()  # half a second
        assert offsets[-2] < share * MINUTES * 6000 <= offsets[-1]


@needs_espeak
def test_the_same_seed_gives_the_same_bytes_and_another_one_others(spoken, tmp_path, monkeypatch):
    monkeypatch.setattr(command.os, "sched_getaffinity", lambda _: {0})  # one block after the other
    assert speech("--minutes", MINUTES, "--out", tmp_path / "again") == 0
    assert contents(tmp_path / "again") == contents(spoken)
    assert speech("--minutes", MINUTES, "--out", tmp_path / "other", "--seed", 1) == 0
    one, other = (np.load(folder / "test" / "features.npy") for folder in (spoken, tmp_path / "other"))
    assert one.shape != other.shape or not np.allclose(one, other)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "other"]
