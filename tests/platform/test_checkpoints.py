"""A checkpoint is whole in every byte, or it is not used."""

import random
import re
import shutil
from pathlib import Path

import pytest
from pyarrow import fs

from taugrad.platform.launching.run_folder import RunFolder
from taugrad.platform.training import manifest as manifests
from taugrad.platform.training.manifest import CheckpointError, Digest, Manifest, Unusable

RUN = "0123456789abcdef0123456789abcdef"
FILES = ("shared.pt", "worker_00000.pt", "worker_00001.pt")
SECTOR = 512


def write(folder: RunFolder, place: Path, iteration: int) -> Path:
    """A checkpoint of random bytes: what they mean is nobody's business here."""
    checkpoint = place / f"iteration_{iteration:08d}"
    checkpoint.mkdir(parents=True, exist_ok=True)
    randomly = random.Random(iteration)
    for name, size in zip(FILES, (3000, 1100, 1), strict=True):
        (checkpoint / name).write_bytes(randomly.randbytes(size))
    folder.seal(Manifest(RUN, iteration, {name: Digest.of(checkpoint / name) for name in FILES}))
    return checkpoint


@pytest.fixture(params=["folder", "bucket"])
def place(request, tmp_path):
    """A run's folder, and where its files are; a bucket is a file system that is not this machine's."""
    if request.param == "folder":
        return RunFolder.at(str(tmp_path), RUN), tmp_path / RUN
    return RunFolder(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), RUN, RUN), tmp_path / RUN


def damages(data: bytes) -> list[bytes]:
    """Flipped bits, zeroed sectors and truncations of a file."""
    randomly = random.Random(len(data))
    bits = {0, 8 * len(data) - 1, *(randomly.randrange(8 * len(data)) for _ in range(60))}
    flipped = [data[: b // 8] + bytes([data[b // 8] ^ 1 << b % 8]) + data[b // 8 + 1 :] for b in bits]
    zeroed = [
        data[:start] + bytes(len(data[start : start + SECTOR])) + data[start + SECTOR :]
        for start in range(0, len(data), SECTOR)
    ]
    lengths = {0, len(data) - 1, *(randomly.randrange(len(data)) for _ in range(20))}
    return [*flipped, *zeroed, *(data[:length] for length in lengths), data + b"\0"]


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_whatever_byte_changes_the_one_before_is_taken_and_the_file_is_named(place, name):
    folder, files = place
    write(folder, files, 60)
    newest = write(folder, files, 120)
    whole = folder.check()
    assert (whole.iteration, whole.skipped) == (120, [])
    original = (newest / name).read_bytes()
    for damaged in damages(original):
        (newest / name).write_bytes(damaged)
        choice = folder.check()
        assert choice.iteration == 60, damaged
        (skipped,) = choice.skipped
        assert re.match(rf"iteration_00000120: {name} is damaged", skipped), skipped
    (newest / name).unlink()
    choice = folder.check()
    assert (choice.iteration, len(choice.skipped)) == (60, 1)
    assert name in choice.skipped[0]
    (newest / name).write_bytes(original)
    assert folder.check().iteration == 120


def test_without_a_good_one_each_is_named_and_nothing_is_deleted(place):
    folder, files = place
    (write(folder, files, 60) / "shared.pt").write_bytes(b"something else")
    (write(folder, files, 120) / "worker_00001.pt").unlink()
    before = sorted(files.rglob("*"))
    with pytest.raises(CheckpointError) as refused:
        folder.check()
    said = str(refused.value)
    assert "\n" not in said
    assert "iteration_00000060: shared.pt is damaged: 14 bytes, 3000 were written" in said
    assert "iteration_00000120: worker_00001.pt is missing" in said
    assert sorted(files.rglob("*")) == before


def test_a_first_checkpoint_that_was_not_finished_is_none(place):
    folder, files = place
    assert folder.check().good is None  # nothing at all
    first = write(folder, files, 60)
    (first / "manifest.json").unlink()
    choice = folder.check()
    assert choice.good is None
    assert "it has no manifest.json" in choice.skipped[0]
    # Two cannot be unfinished: somebody took a manifest away, or an older program wrote them.
    (write(folder, files, 120) / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"no good checkpoint is left: .*00000120.*; .*00000060"):
        folder.check()


def test_another_runs_another_iterations_and_another_formats_are_refused(place, monkeypatch):
    folder, files = place
    shutil.copytree(write(folder, files, 60), files / "iteration_00000180")
    with pytest.raises(Unusable, match=f"it is of run {RUN}, iteration 60"):
        folder.manifest(180)
    data = (files / "iteration_00000060" / "manifest.json").read_bytes()
    with pytest.raises(Unusable, match=f"it is of run {RUN}"):
        Manifest.from_bytes(data, "another", 60)
    monkeypatch.setattr(manifests, "FORMAT", 2)
    write(folder, files, 240)
    monkeypatch.undo()
    with pytest.raises(Unusable, match=r"it has format 2; this program reads 6"):
        folder.manifest(240)
    assert folder.check().iteration == 60


def test_so_many_checkpoints_stay_as_are_to_be_kept(place):
    folder, files = place
    for iteration in (60, 120, 180, 240):
        write(folder, files, iteration)
    (files / "iteration_00000180" / "manifest.json").unlink()  # was never finished
    write(folder, files, 300)  # of an earlier start, ahead of the one that is written now
    folder.keep(240, 2)
    assert folder.iterations() == [300, 240, 120]
    folder.keep(300, 1)
    assert folder.iterations() == [300]


def test_what_is_written_anew_is_no_checkpoint_meanwhile(place):
    folder, files = place
    write(folder, files, 60)
    write(folder, files, 120)
    folder.reopen(120)
    folder.reopen(180)  # was not there
    assert folder.check().iteration == 60
