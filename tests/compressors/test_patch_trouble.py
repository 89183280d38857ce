"""Streams of patches that go wrong: weights tied anew, replaced streams, interrupted uploads, dead hosts."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from cases import in_turn
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from taugrad.compressors import PatchReader, PatchWriter, apply_patch, make_patch
from taugrad.compressors.patches import store, stream

Weights = dict[str, Tensor]


def weights(seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {f"t{i}": torch.randn(50, generator=generator) for i in range(4)}


def zeros() -> Weights:
    return {name: torch.zeros_like(tensor) for name, tensor in weights(0).items()}


def same(one: Weights, other: Weights) -> bool:
    return all(one[name].equal(other[name]) for name in one | other)


def read(place: Any) -> tuple[int | None, Weights]:
    result = zeros()
    return PatchReader(place).update(result), result


@settings(max_examples=20, deadline=None)
@given(schedule=st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), min_size=2, max_size=7))
def test_names_have_the_right_bits_however_they_are_tied(
    schedule: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each write says which memory each name has."""
    place, mine = tmp_path_factory.mktemp("tied"), zeros()
    reader = PatchReader(place)
    with PatchWriter(place, full_every=2) as writer:
        for number, owners in enumerate(schedule):
            memory = list(weights(number // 2).values())  # in every other step, bits do not change
            state = {f"t{i}": memory[owner] for i, owner in enumerate(owners)}
            assert writer.write(state).number == number
            assert reader.update(mine) == number
            assert same(mine, state)
            number_read, fresh = read(place)
            assert number_read == number
            assert same(fresh, state)


def publish(place: Path, seeds: range, **options: Any) -> None:
    with PatchWriter(place, **options) as writer:
        for seed in seeds:
            writer.write(weights(seed))


@in_turn("count", [1, 3, 4, 6])
def test_a_reader_goes_to_a_new_run_in_an_emptied_folder(count: int, tmp_path: Path) -> None:
    """Whether its numbers are smaller, the same or larger."""
    place = tmp_path / str(count)
    publish(place, range(4))
    reader, mine = PatchReader(place), zeros()
    assert reader.update(mine) == 3
    shutil.rmtree(place)
    assert reader.update(mine) == 3
    publish(place, range(10, 10 + count))
    assert reader.update(mine) == count - 1
    assert same(mine, weights(9 + count))


def test_a_late_patch_of_a_writer_that_was_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers that took it go on with the new writer's snapshot of the same number."""
    first, reader, mine = PatchWriter(tmp_path, full_every=9), PatchReader(tmp_path), zeros()
    for seed in (0, 1):
        first.write(weights(seed))
    assert reader.update(mine) == 1
    second = PatchWriter(tmp_path, full_every=9, take_over=True)
    second.write(weights(10))
    monkeypatch.setattr(first._lease, "held", lambda: True)  # asked just before
    assert first.write(weights(2)).number == 2
    assert reader.update(mine) == 2
    second.write(weights(11))
    assert reader.update(mine) == 3
    assert same(mine, weights(11))
    second.close()


def test_a_number_that_was_lost_and_written_again_is_taken(tmp_path: Path) -> None:
    """As by a power cut; a folder that was restored keeps its readers' weights until it goes on."""
    publish(tmp_path, range(4))
    reader, mine = PatchReader(tmp_path), zeros()
    assert reader.update(mine) == 3
    (tmp_path / "0000000003.patch").unlink()
    assert reader.update(mine) == 3
    publish(tmp_path, range(20, 21))
    assert reader.update(mine) == 3
    assert same(mine, weights(20))
    assert reader.update(mine) == 3


def test_a_snapshot_of_which_a_rank_has_not_written_its_part_replaces_none(tmp_path: Path) -> None:
    with PatchWriter(tmp_path, keep=1, full_every=1) as writer:
        writer.write(weights(0))
        (tmp_path / "0000000009.0of2.safetensors").write_bytes(b"x")
        writer.write(weights(1))
    number, result = read(tmp_path)
    assert number == 1
    assert same(result, weights(1))
    assert not (tmp_path / "0000000000.safetensors").exists()


def test_a_client_that_cannot_remove_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object, name: str) -> None:
        raise RuntimeError(f"no answer about {name}")  # botocore's errors are no OSErrors

    with PatchWriter(tmp_path, keep=1, full_every=1) as writer, monkeypatch.context() as patched:
        patched.setattr(store.Store, "remove", fail)
        for seed in (0, 1):
            assert writer.write(weights(seed)).snapshot_bytes
    assert read(tmp_path)[0] == 1


class Dequantized(Tensor):
    """A wrapper whose numbers are computed, as those of quantized weights."""

    @staticmethod
    def __new__(cls) -> "Dequantized":
        made = Tensor._make_wrapper_subclass(cls, (50,), dtype=torch.float32)  # type: ignore[attr-defined]
        assert isinstance(made, cls)
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [torch.ones(50) if isinstance(arg, cls) else arg for arg in args]
        return function(*plain, **(kwargs or {}))


@in_turn(
    "case",
    {
        "conj": (lambda: torch.ones(50, dtype=torch.complex64).conj(), "lazily conjugated"),
        "neg": (lambda: torch.ones(50, dtype=torch.complex64).conj().imag, "lazily conjugated or negated"),
        "expanded": (lambda: torch.ones(1).expand(50), "is expanded"),
        "unfold": (lambda: torch.ones(60).unfold(0, 11, 1), "is expanded"),
        "wrapper": (Dequantized, "is a Dequantized"),
    }.items(),
)
def test_what_cannot_be_written_to_is_refused_before_anything_is(
    case: tuple[str, tuple[Callable[[], Tensor], str]], tmp_path: Path
) -> None:
    make, said = case[1]
    view = make()
    plain = view.resolve_conj().resolve_neg().clone()
    before = {"a": torch.zeros(3), "x": plain}
    after = {"a": torch.ones(3), "x": plain * 2}
    target = {"a": torch.zeros(3), "x": view}
    publish_to = PatchWriter(tmp_path)
    publish_to.write(after)
    for write in (
        lambda: apply_patch(target, make_patch(before, after)),
        lambda: PatchReader(tmp_path).update(target),
    ):
        with pytest.raises((TypeError, ValueError), match=rf"weights\['x'\].*{said}"):
            write()
        assert not target["a"].any()
    publish_to.close()


@in_turn("modes", [[1, 0, 0, 0], [0, 1, 0, 1], [1, 1, 0, 1]])
def test_writes_in_and_outside_of_inference_mode(modes: list[int], tmp_path: Path) -> None:
    place = tmp_path / str(modes)
    reader, mine = PatchReader(place), zeros()
    with PatchWriter(place) as writer:
        for number, inside in enumerate(modes):
            with torch.inference_mode(bool(inside)):
                writer.write({name: tensor + 0 for name, tensor in weights(number).items()})
            assert reader.update(mine) == number
            assert same(mine, weights(number))


def test_a_write_that_fails_behind_its_file_is_followed_by_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, mine = PatchReader(tmp_path), zeros()
    with PatchWriter(tmp_path) as writer:
        writer.write(weights(0))
        with monkeypatch.context() as patched:

            def interrupt(*_: object) -> None:
                raise KeyboardInterrupt

            patched.setattr(PatchWriter, "_remember", interrupt)
            with pytest.raises(KeyboardInterrupt):
                writer.write(weights(1))
        made = writer.write(weights(2))
        assert (made.number, made.patch_bytes) == (2, 0)
        assert writer.write(weights(3)).patch_bytes > 0
    assert reader.update(mine) == 3
    assert same(mine, weights(3))


class Upload(AbstractBufferedFile):
    """As a client's whose `close` completes what has been written; it is interrupted in a write."""

    def _initiate_upload(self) -> None:
        self.parts: list[bytes] = []

    def _upload_chunk(self, final: bool = False) -> bool:
        self.buffer.seek(0)
        self.parts.append(self.buffer.read())
        if final:
            Bucket.objects[self.path] = b"".join(self.parts)
        return True

    def _fetch_range(self, start: int, end: int) -> bytes:
        return Bucket.objects[self.path][start:end]

    def write(self, data: Any) -> int:
        size = super().write(data)
        Bucket.writes += 1
        if Bucket.writes == Bucket.interrupted_in:
            raise KeyboardInterrupt
        return int(size)


class Bucket(AbstractFileSystem):
    """A bucket in memory, whose interrupted objects may be impossible to remove."""

    protocol, cachable = "interrupted", False
    objects: dict[str, bytes] = {}  # noqa: RUF012
    writes = interrupted_in = 0
    can_remove = True

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Upload:
        if mode == "rb" and path not in self.objects:
            raise FileNotFoundError(path)
        return Upload(self, path, mode, **options)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        return [self.info(name) for name in list(self.objects) if name.startswith(f"{path}/")]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return {"name": path, "size": len(self.objects[path]), "type": "file"}

    def rm_file(self, path: str) -> None:
        if not self.can_remove and "writer" not in path:
            raise OSError("no answer")
        self.objects.pop(path, None)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass


@pytest.fixture
def interrupted() -> Iterator[type[Bucket]]:
    fsspec.register_implementation("interrupted", Bucket, clobber=True)
    yield Bucket
    Bucket.objects.clear()
    Bucket.writes = Bucket.interrupted_in = 0
    Bucket.can_remove = True


def test_a_writer_gets_past_an_upload_that_was_interrupted(interrupted: type[Bucket]) -> None:
    for can_remove in (True, False):
        for number in range(4):
            for at in (1, 3):
                place = f"interrupted://b/{can_remove}/{number}/{at}"
                reader, mine = PatchReader(place), zeros()
                interrupted.interrupted_in, interrupted.can_remove = 0, can_remove
                writer = PatchWriter(place, full_every=3)
                for seed in range(number):
                    writer.write(weights(seed))
                reader.update(mine)
                interrupted.writes, interrupted.interrupted_in = 0, at
                try:
                    writer.write(weights(number))
                except KeyboardInterrupt:
                    name = f"{place.removeprefix('interrupted://')}/{number:010d}."
                    left = [path for path in interrupted.objects if path.startswith(name)]
                    assert bool(left) == (not can_remove or (at == 3 and number > 0))  # a patch that is whole
                interrupted.interrupted_in = 0
                last = writer.write(weights(50)).number
                writer.close()
                assert reader.update(mine) == last
                assert same(mine, weights(50))
                assert same(read(place)[1], weights(50))


@in_turn("kind", ["patch", "safetensors"])
def test_a_file_that_was_seen_half_copied_is_read_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, mirror = tmp_path / f"{kind}-source", tmp_path / f"{kind}-mirror"
    publish(source, range(2))
    mirror.mkdir()
    reader, mine = PatchReader(mirror), zeros()
    for path in sorted(source.iterdir()):
        half = path.suffix == f".{kind}"
        (mirror / path.name).write_bytes(path.read_bytes()[: -9 if half else None])
    assert reader.update(mine) == (0 if kind == "patch" else None)
    for path in source.iterdir():
        shutil.copy(path, mirror)
    assert reader.update(mine) == 1
    assert same(mine, weights(1))
    # A store that shows no change: it is read again later.
    monkeypatch.setattr(store, "_CHANGES", ())
    monkeypatch.setattr(stream, "_RETRY_S", 0.0)
    (name, data), *_ = [(path, path.read_bytes()) for path in mirror.iterdir() if path.suffix == f".{kind}"]
    name.write_bytes(bytes(len(data)))
    late, fresh = PatchReader(mirror), zeros()
    assert late.update(fresh) == (0 if kind == "patch" else None)
    name.write_bytes(data)
    assert late.update(fresh) == 1


def test_a_folder_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    publish(tmp_path, range(3))
    number, result = read(tmp_path)
    assert number == 2
    assert same(result, weights(2))
    folder = store.Store(tmp_path)
    (tmp_path / "0000000003.patch").write_bytes(b"")  # where one was killed between two steps
    with pytest.raises(FileExistsError):
        folder.write("0000000003.patch", [b"x"])
    publish(tmp_path, range(7, 8))
    assert read(tmp_path)[0] == 4


def test_ranks_with_one_host_name_and_one_process_id(tmp_path: Path) -> None:
    """As in containers: each has its own bytes; where these cannot be linked, no empty file is left."""
    one, two = store.Store(tmp_path), store.Store(tmp_path)

    def other_first() -> Iterator[bytes]:
        yield b"one"
        two.write("0000000000.1of2.patch", [b"two"])

    one.write("0000000000.0of2.patch", other_first())
    assert (tmp_path / "0000000000.0of2.patch").read_bytes() == b"one"
    assert (tmp_path / "0000000000.1of2.patch").read_bytes() == b"two"

    def removed() -> Iterator[bytes]:
        yield b"x"
        (tmp_path / one.part).unlink()

    with pytest.raises(FileNotFoundError):
        one.write("0000000001.0of2.patch", removed())
    assert not (tmp_path / "0000000001.0of2.patch").exists()


def test_the_place_of_a_writer_on_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BEAT_S", 0.05)
    monkeypatch.setattr(store, "STALE_S", 0.5)
    first = PatchWriter(tmp_path)
    first.write(weights(0))
    monkeypatch.setattr("socket.gethostname", lambda: "pod-two")
    with pytest.raises(
        FileExistsError, match=r"take_over=True takes its place, or remove writer-0\.json there"
    ):
        PatchWriter(tmp_path)  # which sees a sign of life
    first._lease._ended.set()  # as if it had been killed
    (tmp_path / "writer-0.alive").write_text("damaged")
    with PatchWriter(tmp_path) as second:
        assert second.write(weights(1)).number == 1
        with pytest.raises(FileExistsError, match="has taken it over"):
            first.write(weights(2))


def test_states_that_say_nothing_are_refused() -> None:
    model = nn.Linear(3, 2)
    before = model.state_dict()
    with torch.no_grad():
        model.weight.add_(1)
    with pytest.raises(ValueError, match=r"same memory.*tensor\.clone\(\)"):
        make_patch(before, model.state_dict())
    copy = {name: tensor.clone() for name, tensor in before.items()}
    frozen = {"weight": copy["weight"], "bias": before["bias"]}
    assert not make_patch(frozen, before).changed  # one of them is a copy
    lazy = nn.LazyLinear(3)
    for state, problem, said in (
        ({"x": torch.zeros(3, device="meta")}, ValueError, "lies on meta; patches take tensors with values"),
        (lazy.state_dict(keep_vars=True), ValueError, "UninitializedParameter, which has no values before"),
        ({3: torch.zeros(3)}, TypeError, "have the name 3, a int; names are str"),
    ):
        with pytest.raises(problem, match=said):
            make_patch(state, state)  # type: ignore[arg-type]
