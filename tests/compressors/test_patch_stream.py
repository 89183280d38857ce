"""Streams of weight patches: folders and buckets, readers that were away, damage, kills, full disks."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from cases import in_turn
from objects import BUCKET, Objects
from torch import Tensor

from taugrad.compressors import PatchMismatch, PatchReader, PatchWriter
from taugrad.compressors.patches import __main__ as program
from taugrad.compressors.patches import listing

Weights = dict[str, Tensor]


def model(seed: int = 0) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    weights = {
        "embed": torch.randn(300, 16, generator=generator).bfloat16(),
        "layer.weight": torch.randn(64, 32, generator=generator),
        "layer.steps": torch.tensor(7),
        "mask": torch.rand(30, generator=generator) < 0.5,
        "fp8": torch.randn(50, generator=generator).to(torch.float8_e4m3fnuz),
        "empty": torch.empty(0, 3),
    }
    return weights | {"head": weights["embed"]}


def step(weights: Weights, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for tensor in (weights["embed"], weights["layer.weight"]):
        chosen = torch.rand(tensor.shape, generator=generator) < 0.02
        tensor.copy_(torch.where(chosen, tensor * 1.01, tensor))
    weights["layer.steps"] += 1


def same(one: Weights, other: Weights) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(
        (x.numel() == y.numel() == 0)
        or bytes(x.view(-1).view(torch.uint8)) == bytes(y.view(-1).view(torch.uint8))
        for x, y in zip(one.values(), (other[name] for name in one), strict=True)
    )


def patch(number: int) -> str:
    return f"{number:010d}.patch"


def snapshot(number: int) -> str:
    return f"{number:010d}.safetensors"


def published(place: Any, count: int, **options: Any) -> list[Weights]:
    """The weights of every number."""
    weights, states = model(), []
    with PatchWriter(place, **options) as writer:
        for seed in range(count):
            assert writer.write(weights).number == seed
            states.append({name: tensor.clone() for name, tensor in weights.items()})
            step(weights, seed)
    return states


@pytest.fixture(scope="module")
def bucket() -> Iterator[None]:
    objects = Objects()
    with pytest.MonkeyPatch.context() as patched:
        for name, value in objects.variables.items():
            patched.setenv(name, value)
        yield
    objects.stop()


@in_turn("kind", ["folder", "memory", "s3"])
def test_readers_follow(
    kind: str, tmp_path: Path, bucket: None, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    names = {"folder": tmp_path / "weights", "memory": "memory://weights", "s3": f"s3://{BUCKET}/weights"}
    place = names[kind]
    follower, late = PatchReader(place), PatchReader(place)
    mine, others, weights = model(9), model(8), model()
    assert follower.update(mine) is None
    with PatchWriter(place, full_every=4) as writer:
        for number in range(10):
            made = writer.write(weights)
            assert (made.number, made.snapshot_bytes > 0) == (number, number % 4 == 0)
            assert (made.patch_bytes > 0) == (number > 0)
            if number:
                assert made.patch_bytes < 2000 < made.snapshot_bytes or number % 4
                assert 0 < made.changed < 0.03
            assert follower.update(mine) == number
            assert same(mine, weights)
            step(weights, number)
        assert follower.update(mine) == 9
    assert late.update(others) == 9
    assert same(mine, others)
    lines = list(listing(place))
    assert len(lines) == 1 + 9 + 3
    assert f"{made.digest:016x}" in lines[-1]
    monkeypatch.setattr(sys, "argv", ["patches", "show", str(place)])
    program.main()
    assert capsys.readouterr().out == "\n".join(lines) + "\n"


def test_snapshots_are_files_of_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    states = published(tmp_path, 1)
    tensors = safetensors.load_file(tmp_path / "0000000000.safetensors")
    tensors["fp8"] = tensors["fp8"].view(torch.float8_e4m3fnuz)  # which the format does not know
    assert same(tensors, states[0])


def test_the_shortest_chain_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing else is read: it would be damaged."""
    states = published(tmp_path / "all", 12, full_every=5)
    early, late = tmp_path / "early", tmp_path / "late"
    for place, needed in ((early, [patch(n) for n in range(12)]), (late, [snapshot(10), patch(11)])):
        place.mkdir()
        for path in (tmp_path / "all").iterdir():
            data = path.read_bytes()
            first = place == early and path.name == snapshot(0)
            (place / path.name).write_bytes(data if path.name in needed or first else bytes(len(data)))
    reader, weights = PatchReader(early), model(3)
    away = {path: path.read_bytes() for path in early.iterdir() if path.name >= "0000000003"}
    for path in away:
        path.unlink()
    assert reader.update(weights) == 2
    for path, data in away.items():
        path.write_bytes(data)
    assert reader.update(weights) == 11  # by patches, which are shorter than a snapshot
    assert same(weights, states[11])
    assert PatchReader(late).update(fresh := model(4)) == 11
    assert same(fresh, states[11])
    assert not caplog.records


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Weights]]:
    """Numbers 0 to 10 with snapshots 0, 5 and 10."""
    folder = tmp_path_factory.mktemp("chain")
    return folder, published(folder, 11, full_every=5)


@in_turn("kind", ["missing", "doubled", "swapped", "flipped", "short", "empty", "flipped snapshot"])
def test_a_gap_waits_for_the_next_snapshot(
    kind: str, chain: tuple[Path, list[Weights]], tmp_path: Path
) -> None:
    folder, states = chain
    tmp_path /= kind.replace(" ", "-")
    shutil.copytree(folder, tmp_path)
    later = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name >= "0000000005"}
    for name in later:
        (tmp_path / name).unlink()
    reader, weights = PatchReader(tmp_path), model(5)
    assert reader.update(weights) == 4
    wrong = later[patch(7)]
    damage = {
        "missing": {patch(7): b""},
        "doubled": {patch(7): later[patch(6)]},
        "swapped": {patch(7): later[patch(8)], patch(8): wrong},
        "flipped": {patch(7): wrong[:60] + bytes([wrong[60] ^ 4]) + wrong[61:]},
        "short": {patch(7): wrong[:-1]},
        "empty": {patch(7): b""},
        "flipped snapshot": {snapshot(10): later[snapshot(10)][:-3] + b"abc"},
    }[kind]
    before = {name: data for name, data in (later | damage).items() if name < "0000000010"}
    if kind == "missing":
        del before[patch(7)]
    for name, data in before.items():
        (tmp_path / name).write_bytes(data)
    due = 9 if kind == "flipped snapshot" else 6
    for _ in range(2):
        assert reader.update(weights) == due
        assert same(weights, states[due])
    fresh = model(6)
    assert PatchReader(tmp_path).update(fresh) == due
    for name, data in (later | damage).items():
        if name >= "0000000010":
            (tmp_path / name).write_bytes(data)
    assert reader.update(weights) == 10
    assert same(weights, states[10])
    assert PatchReader(tmp_path).update(fresh) == (10)
    assert same(fresh, states[10])


def test_weights_that_something_else_has_changed_are_replaced(tmp_path: Path) -> None:
    states = published(tmp_path, 4, full_every=2)
    (tmp_path / patch(3)).rename(tmp_path / "away")
    reader, weights = PatchReader(tmp_path), model(1)
    assert reader.update(weights) == 2
    weights["layer.weight"][3, 3] = 5
    (tmp_path / "away").rename(tmp_path / patch(3))
    assert reader.update(weights) == 3
    assert same(weights, states[3])
    with pytest.raises(PatchMismatch, match=r"the weights have 'mask' with shape \(31,\), not \(30,\)"):
        PatchReader(tmp_path).update(weights | {"mask": torch.ones(31, dtype=torch.bool)})


def test_old_ones_are_removed(tmp_path: Path) -> None:
    states = published(tmp_path, 14, full_every=3, keep=2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[0] == patch(9)
    assert [name for name in names if name.endswith("safetensors")] == [
        snapshot(number) for number in (9, 12)
    ]
    weights = model(2)
    assert PatchReader(tmp_path).update(weights) == 13
    assert same(weights, states[13])


def test_a_second_writer_is_refused(tmp_path: Path, bucket: None) -> None:
    for place in (tmp_path, f"memory://{uuid.uuid4()}", f"s3://{BUCKET}/two"):
        first, weights = PatchWriter(place), model()
        first.write(weights)
        with pytest.raises(FileExistsError, match=f"is written by process {os.getpid()}.*take_over=True"):
            PatchWriter(place)
        second = PatchWriter(place, take_over=True)
        assert second.write(weights).number == 1
        with pytest.raises(FileExistsError, match="another writer has taken it over, or the file"):
            first.write(weights)
        first.close()
        second.close()
        with PatchWriter(place) as third:
            assert third.write(weights).number == 2
        assert PatchReader(place).update(model(1)) == 2
    with pytest.raises(ValueError, match="full_every must be a whole number of at least 1, not 0"):
        PatchWriter(tmp_path, full_every=0)


def test_a_full_disk_leaves_the_stream_as_it_was(tmp_path: Path) -> None:
    weights = model()
    reader, mine = PatchReader(tmp_path), model(1)
    with PatchWriter(tmp_path, full_every=2) as writer:
        writer.write(weights)
        step(weights, 0)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        plain = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        for size, number in ((100, 0), (3000, 1)):  # too small for the patch, and for the snapshot
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
            if number:
                writer.write(weights)
                step(weights, 1)
            try:
                with pytest.raises(OSError, match="too large"):
                    writer.write(weights)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert not list(tmp_path.glob("*.part"))
            assert reader.update(mine) == 2 * number
        signal.signal(signal.SIGXFSZ, plain)
        assert same(mine, weights)
        step(weights, 2)
        made = writer.write(weights)
        assert (made.number, made.snapshot_bytes > 0) == (3, True)
        assert reader.update(mine) == 3
        assert same(mine, weights)


def test_the_place_of_a_dead_writer_is_taken(tmp_path: Path) -> None:
    """Whose process is gone, or whose number another process has now, as in a container that starts again."""
    PatchWriter(tmp_path).write(model())
    lease, gone = tmp_path / "writer-0.json", subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    alive = json.loads(lease.read_text())
    for number, change in enumerate(({"pid": gone.pid}, {"began": 0}), 1):
        holder = alive | change
        lease.write_text(json.dumps(holder))
        part = tmp_path / f"{holder['key']}.part"
        part.write_bytes(b"half a file")
        with PatchWriter(tmp_path) as writer:
            assert not part.exists()
            assert writer.write(model()).number == number


def test_a_clock_that_is_set_kills_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PatchWriter(tmp_path):
        began = psutil.Process().create_time()
        monkeypatch.setattr(psutil.Process, "create_time", lambda _: began + 100)
        with pytest.raises(FileExistsError, match="is written by process"):
            PatchWriter(tmp_path)


@pytest.mark.parametrize(
    "damage",
    ["xx", "[]", "{}", json.dumps(dict.fromkeys(("host", "space", "began", "pid"), 1) | {"key": "../x"})],
)
def test_a_damaged_file_of_a_writer_is_named_and_nothing_else_is_removed(damage: str, tmp_path: Path) -> None:
    place, other = tmp_path / "stream", tmp_path / "x.part"
    place.mkdir()
    other.touch()
    (place / "writer-0.json").write_text(damage)
    with pytest.raises(FileExistsError, match=r"writer-0\.json is damaged; take_over=True takes its place"):
        PatchWriter(place)
    with PatchWriter(place, take_over=True) as writer:
        assert writer.write(model()).number == 0
    assert other.exists()


def test_a_listing_leaves_out_what_vanishes_and_says_where_there_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with PatchWriter(tmp_path) as writer:
        for _ in range(2):
            writer.write(model())
    lines = listing(tmp_path)
    assert "number" in next(lines)
    assert " 0 " in next(lines)
    (tmp_path / "0000000001.patch").unlink()
    assert not list(lines)
    for place, said in (
        (tmp_path / "nowhere", "nothing is published there"),
        ("no://x", "Protocol not known"),
    ):
        monkeypatch.setattr(sys, "argv", ["patches", "show", str(place)])
        with pytest.raises(SystemExit, match=f"{place}: {said}"):
            program.main()


def test_the_place_of_a_writer_that_was_killed_while_it_took_it(tmp_path: Path) -> None:
    (tmp_path / "writer-0.json").touch()
    with PatchWriter(tmp_path) as writer:
        assert writer.write(model()).number == 0
