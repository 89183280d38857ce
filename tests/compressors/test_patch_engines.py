"""Engines that follow a stream, with tensors fused, sharded, padded, converted or in another order."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from taugrad.compressors import PatchWriter
from taugrad.compressors.integrations.loaders import map_checkpoint
from taugrad.compressors.patches.engine import EngineReader
from taugrad.compressors.patches.kernels import Piece
from taugrad.compressors.patches.kernels.cpu import CpuPatching
from taugrad.compressors.patches.parts import EnginePart
from taugrad.compressors.patches.reload import Reloader

Weights = dict[str, Tensor]
ORDER = torch.randperm(8 * 6, generator=torch.Generator().manual_seed(5))


def model(seed: int = 0) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "embed": (30, 8),
        "q": (8, 8),
        "k": (4, 8),
        "o": (8, 8),
        "e0": (8, 6),
        "e1": (8, 6),
        "norm": (8,),
    }
    weights = {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}
    return weights | {"head": weights["embed"], "unused": torch.arange(5), "empty": torch.empty(0, 3)}


def step(weights: Weights, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in weights.items():
        if name not in ("head", "unused"):
            chosen = torch.rand(tensor.shape, generator=generator) < 0.1
            tensor.copy_(torch.where(chosen, tensor * 1.05, tensor))
    weights["embed"][29, seed % 8] = float("nan")  # which no other sparse update can carry
    weights["unused"] += seed


class Engine(nn.Module):
    """A rank, whose loader does what vLLM's do; `reader` follows."""

    def __init__(self, weights: Weights, rank: int = 0, ranks: int = 1, fault: str = "") -> None:
        super().__init__()
        self.rank, self.ranks, self.fault = rank, ranks, fault
        self.weights, n = weights, ranks
        bf16: dict[str, Any] = {"dtype": torch.bfloat16}
        own = fault == "own ways"
        buffers = {
            "embed": torch.zeros(64 // n, 8, **bf16),  # padded
            "qk": torch.zeros(8 // n + 4, 8, **bf16),  # every rank has k
            "o": torch.zeros(8 // n, 8, dtype=torch.int8 if own else torch.bfloat16).t(),
            "o_scale": torch.zeros(()),
            "experts": torch.zeros(2, 8, 6, **bf16),
            "norm": torch.zeros(8),  # float32
        }
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)
        self.load_weights(weights.items())
        self.experts.copy_(torch.stack([expert.reshape(-1)[ORDER].view(8, 6) for expert in self.experts]))
        self.failing, self.reader = False, cast("EngineReader", None)
        self.loaded: list[str] = []

    def reload(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Makes a whole layer anew, of which some tensors may be mapped."""
        self.qk.zero_()

        def noted() -> Iterable[tuple[str, Tensor]]:
            for name, tensor in weights:
                self.loaded.append(name)
                yield name, tensor

        self.load_weights(noted())
        if self.failing:
            raise MemoryError("none is left")

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        size, at = 8 // self.ranks, self.rank
        for name, tensor in weights:
            if name == "embed":
                rows = tensor[at * 64 // self.ranks : (at + 1) * 64 // self.ranks]
                self.embed[: len(rows)].data.copy_(rows)
                self.embed[len(rows) :].fill_(0)
            elif name == "q":
                self.qk.narrow(0, 0, size).copy_(tensor.narrow(0, size * at, size))
                if self.fault == "clamps":
                    self.qk[:size, ::2].clamp_(-100, 100)  # which no element exceeds yet
            elif name == "k":
                self.qk[size:] = tensor * 2 if self.fault in ("computes", "own ways") else tensor
            elif name == "o" and self.fault == "own ways":  # quantized
                shard = tensor.narrow(1, size * at, size)
                scale = shard.float().abs().amax() / 127
                self.o.copy_((shard / scale).round().to(torch.int8))
                self.o_scale.copy_(scale)
            elif name == "o":
                shard = 0 if self.fault == "doubled slice" else at
                self.o.copy_(tensor.narrow(1, size * shard, size))
            elif name in ("e0", "e1"):
                self.experts[int(name[1])].copy_(tensor)
            elif name == "norm" and self.fault == "temporary":
                temporary = torch.zeros(8, dtype=torch.bfloat16)
                temporary.copy_(tensor)
                self.norm.copy_(temporary)
            elif name == "norm":
                self.norm.copy_(tensor)
                if self.fault == "own ways":
                    self.norm.copy_(-torch.exp(self.norm))

    def memory(self) -> list[Tensor]:
        return [tensor.contiguous().view(-1).view(torch.uint8) for tensor in self.buffers()]

    def reorder(self, part: EnginePart) -> EnginePart | None:
        shares = part.memory.untyped_storage().data_ptr() == self.experts.untyped_storage().data_ptr()
        return part.in_order(self.experts, torch.argsort(ORDER).numpy()) if shares else None


class Group:
    """Ranks, of which each is a thread."""

    def __init__(self, weights: Weights, ranks: int = 1, fault: str = "") -> None:
        self.engines = [Engine(weights, rank, ranks, fault) for rank in range(ranks)]
        self.mail, self.barrier = list[Any]([None] * ranks), threading.Barrier(ranks)

    def run(self, work: Callable[[Engine], Any]) -> Any:
        with ThreadPoolExecutor(len(self.engines)) as pool:
            futures = [pool.submit(work, engine) for engine in self.engines]
            problems = [future.exception() for future in futures]
            assert len({type(problem) for problem in problems}) == 1, problems  # all ranks say the same
            return futures[0].result()

    def follow(self, place: Any, **options: Any) -> None:
        def work(engine: Engine) -> None:
            def gather(mine: bytes) -> list[bytes]:
                self.mail[engine.rank] = mine
                self.barrier.wait(60)
                results = list(self.mail)
                self.barrier.wait(60)
                return results

            weights = engine.weights
            reloader = Reloader(engine, engine.reload) if engine.fault == "own ways" else None
            order = sorted(weights.items(), reverse=engine.rank > 0)  # files may be read in any order

            tensors = map_checkpoint(
                engine.load_weights, lambda: iter(order), gather, engine.reorder, reloader
            )
            engine.reader = EngineReader(
                place, tensors, reloader=reloader, rank=engine.rank, gather=gather, threads=1, **options
            )

        self.run(work)

    def update(self, number: int | None = None) -> Any:
        return self.run(lambda engine: engine.reader.update(number))

    def verify(self) -> Any:
        return self.run(lambda engine: engine.reader.verify())

    def close(self) -> None:
        for engine in self.engines:
            engine.reader.close()

    def has(self, weights: Weights) -> bool:
        """Whether each rank's memory is that of one which has just loaded these weights."""
        return all(
            all(map(torch.equal, engine.memory(), Engine(weights, engine.rank, engine.ranks, way).memory()))
            for engine in self.engines
            for way in [engine.fault if engine.fault == "own ways" else ""]
        )


def copied(weights: Weights) -> Weights:
    """Tied as they are."""
    copies = {name: tensor.clone() for name, tensor in weights.items()}
    return copies | {"head": copies["embed"]}


def published(place: Path, count: int, **options: Any) -> list[Weights]:
    weights, states = model(), list[Weights]()
    with PatchWriter(place, **options) as writer:
        for number in range(count):
            writer.write(weights)
            states.append(copied(weights))
            step(weights, number + 1)
    return states


@in_turn("ranks", [1, 2])
def test_memory_is_that_of_an_engine_that_has_loaded_the_number(ranks: int, tmp_path: Path) -> None:
    place, follower = tmp_path / f"all{ranks}", tmp_path / f"some{ranks}"
    states = published(place, 9, full_every=4)
    follower.mkdir()
    files = sorted(path for path in place.iterdir() if path.name[:1] == "0")
    group = Group(states[0], ranks)
    for last in (0, 1, 2, 5, 8):
        for path in files:
            if (int(path.name[:10]) <= last and path.suffix == ".patch") or last == 0 == int(path.name[:10]):
                (follower / path.name).write_bytes(path.read_bytes())
        if last == 0:
            group.follow(follower, poll_s=0.001, verify_every=1)
        while any(engine.reader.fetched != last for engine in group.engines):
            time.sleep(0.001)
        assert group.update() == last
        assert group.has(states[last])
    assert group.verify() == group.engines[0].reader.digest
    late, away = Group(states[4], ranks), Group(model(7), ranks)
    late.follow(place)
    away.follow(place)
    assert [engine.reader.number for engine in late.engines + away.engines] == [4] * ranks + [None] * ranks
    for number in (8, 4, 6, 2, 3):  # by patches, and by snapshots
        assert late.update(number) == number
        assert late.has(states[number])

    def updated(engine: Engine) -> Any:
        with torch.device("meta"):  # not that of new tensors
            return engine.reader.update()

    assert away.run(updated) == 8
    assert away.has(states[8])
    group.close()


@in_turn("ranks", [1, 2])
@in_turn("fault", ["flipped", "short", "missing", "another model", "untied", "gone"])
def test_an_update_that_fails_changes_nothing(ranks: int, fault: str, tmp_path: Path) -> None:
    place = tmp_path / f"{fault.replace(' ', '-')}{ranks}"
    states = published(place, 4)
    group = Group(states[0], ranks)
    group.follow(place)
    assert group.update(1) == 1
    path = place / "0000000003.patch"
    good = path.read_bytes()
    if fault in ("flipped", "short"):
        path.write_bytes(
            good[:300] + bytes([good[300] ^ 1]) + good[301:] if fault == "flipped" else good[:-1]
        )
    elif fault in ("another model", "untied"):
        wrong = copied(states[2])
        if fault == "untied":
            wrong["head"] = wrong["embed"].clone()
        else:
            del wrong["q"]
        other = tmp_path / f"other{place.name}"
        with PatchWriter(other) as writer:
            writer.write(wrong)
            (wrong["head"] if fault == "untied" else wrong["k"])[0, 0] = 5
            writer.write(wrong)
        made = other / "0000000001.patch"
        path.write_bytes(made.read_bytes())
    elif fault == "gone":
        place.rename(tmp_path / f"away{ranks}")
    else:
        path.unlink()
    reason = r"number 3 is not reached: .*number 1, digest \w+, is served"
    with pytest.raises(RuntimeError, match=reason):
        group.update(3)  # of which patch 2 would fit
    assert group.has(states[1])
    if fault != "gone":
        assert group.update() == 2
        assert group.has(states[2])
    else:
        (tmp_path / f"away{ranks}").rename(place)
    group.verify()
    ahead = Group(states[0], ranks)
    ahead.follow(place, poll_s=0.001)
    time.sleep(0.05)  # it may fetch what is wrong
    path.write_bytes(good)
    os.utime(path, (1, 1))  # another file than the one that was left out
    for follower in (group, ahead):
        assert follower.update(3) == 3  # a thread may not have looked since
        assert follower.has(states[3])
    ahead.close()


def test_a_number_that_came_since_the_threads_look_is_reached(tmp_path: Path) -> None:
    place = tmp_path / "weights"
    states = published(place, 4)
    path = place / "0000000003.patch"
    good = path.read_bytes()
    path.write_bytes(b"")  # somebody writes it
    group = Group(states[0])
    group.follow(place, poll_s=0.001)
    (engine,) = group.engines
    while engine.reader._ahead.keys() < {1, 2}:
        time.sleep(0.01)
    group.close()
    time.sleep(0.05)
    path.write_bytes(good)
    assert group.update(3) == 3
    assert group.has(states[3])


def test_what_changed_behind_the_readers_back_is_found_and_replaced(tmp_path: Path) -> None:
    states = published(tmp_path / "weights", 6, full_every=2)
    for spoil in (
        lambda engines: engines[0].embed[3].add_(1),
        lambda engines: engines[1].o.zero_(),
        lambda engines: engines[1].qk[4:].mul_(-1),  # a copy that ranks have in common
        lambda engines: engines[0].norm.add_(1),
        lambda engines: engines[1].experts[1, 2].neg_(),
    ):
        group = Group(states[2], 2)
        group.follow(tmp_path / "weights")
        assert group.update(3) == 3
        spoil(group.engines)
        with pytest.raises(RuntimeError, match=r"digest|different bits|is not what its copy"):
            group.verify()
        assert group.update() == 5
        assert group.has(states[5])
    group = Group(states[4])
    group.follow(tmp_path / "weights", verify_every=1)
    row, column = (states[4]["embed"] == states[5]["embed"]).nonzero()[0]  # which the patch does not touch
    group.engines[0].embed[row, column] += 1
    with pytest.raises(RuntimeError, match="the weights that run have digest"):
        group.update()
    assert group.update() == 5
    assert group.has(states[5])


@in_turn("ranks", [1, 2])
def test_a_copy_of_the_stream_that_goes_on_otherwise_is_followed(ranks: int, tmp_path: Path) -> None:
    place = tmp_path / f"weights{ranks}"
    states = published(place, 6, full_every=10)
    group = Group(states[0], ranks)
    group.follow(place, poll_s=0.001)
    assert group.update() == 5
    for number in (3, 4, 5):  # an older copy is put in its place
        (place / f"{number:010d}.patch").unlink()
    with pytest.raises(RuntimeError, match=r"newest number is 2.*number 5, digest .* is served"):
        group.update()
    assert group.has(states[5])
    weights = model(7)
    with PatchWriter(place) as writer:
        for number in range(3, 8):
            assert writer.write(weights).number == number
            assert group.update() == number
            assert group.has(weights)
            step(weights, number)
    group.close()


def test_a_late_patch_of_a_writer_that_was_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, weights = PatchWriter(tmp_path), model()
    first.write(weights)
    group = Group(copied(weights))
    group.follow(tmp_path)
    second, others = PatchWriter(tmp_path, take_over=True), model(7)
    second.write(others)
    monkeypatch.setattr(first._lease, "held", lambda: True)  # asked just before
    step(weights, 1)
    first.write(weights)
    assert group.update() == 1
    step(others, 1)
    second.write(others)
    assert group.update() == 2
    assert group.has(others)
    second.close()


def test_memory_that_changed_behind_a_patch_computed_ahead_is_replaced(tmp_path: Path) -> None:
    states = published(tmp_path, 2)
    group = Group(states[0])
    group.follow(tmp_path, poll_s=0.001)
    reader = group.engines[0].reader
    while reader._staged is None:
        time.sleep(0.001)
    group.engines[0].embed.zero_()
    assert group.update() == 1
    assert group.has(states[1])
    reader.close()


def test_a_patch_that_was_fetched_ahead_of_a_stream_that_was_replaced(tmp_path: Path) -> None:
    states = published(tmp_path, 2, full_every=9)
    group = Group(states[0])
    group.follow(tmp_path, poll_s=0.001)
    reader = group.engines[0].reader
    while reader.fetched != 1:
        time.sleep(0.001)
    shutil.rmtree(tmp_path)
    weights = model(7)
    with PatchWriter(tmp_path, full_every=9) as writer:
        for number in (0, 1):
            step(weights, number)
            writer.write(weights)
    while reader._listed != reader._store.files():
        time.sleep(0.001)
    assert group.update() == 1
    assert group.has(weights)
    reader.close()


def test_an_unused_tensor_with_the_bits_of_a_used_one_is_tied_only_if_they_say_something(
    tmp_path: Path,
) -> None:
    """Fresh norms of ones are alike; then one is trained."""
    weights = model() | {"norm": torch.ones(8).bfloat16(), "frozen": torch.ones(8).bfloat16()}
    with PatchWriter(tmp_path) as writer:
        writer.write(weights)
        group = Group({name: tensor.clone() for name, tensor in weights.items()})
        group.follow(tmp_path)
        assert {n: t.tied_to for n, t in group.engines[0].reader._tensors.items() if t.tied_to} == {
            "head": "embed"
        }
        weights["norm"] *= 2
        writer.write(weights)
        assert group.update() == 1
        assert group.has(weights)


def test_an_engine_that_would_be_wrong_in_silence_is_refused(tmp_path: Path) -> None:
    weights = published(tmp_path, 1)[0]
    weights["norm"].zero_()  # as a temporary tensor may be
    for ranks, fault, reason in (
        (1, "temporary", r"1 tensors \(norm\) have other bits in the engine, or its loader computes them"),
        (1, "clamps", r"1 tensors \(q\) have other bits in the engine, or its loader computes them"),
        (1, "computes", r"1 tensors \(k\) have other bits in the engine, or its loader computes them"),
        (2, "doubled slice", "1 tensors are not in the engine, or not whole: o"),
    ):
        with pytest.raises(RuntimeError, match=reason):
            Group(weights, ranks, fault).follow(tmp_path)
    group = Group(weights)
    group.engines[0].qk.mul_(2)  # as a kernel may have done
    with pytest.raises(RuntimeError, match=r"2 tensors \(k, q\) have other bits in the engine"):
        group.follow(tmp_path)


@in_turn("ranks", [1, 2])
def test_what_cannot_be_mapped_is_reloaded_whole(ranks: int, tmp_path: Path) -> None:
    """Quantized, computed, and changed after loading, in layers of which other tensors are mapped."""
    states = published(tmp_path / f"weights{ranks}", 9, full_every=4)
    group = Group(states[0], ranks, "own ways")
    before = [engine.memory() for engine in group.engines]
    group.follow(tmp_path / f"weights{ranks}")
    assert all(all(map(torch.equal, old, e.memory())) for old, e in zip(before, group.engines, strict=True))
    copies = {name for name, t in group.engines[0].reader._tensors.items() if t.copy is not None}
    assert copies == {"o", "k", "q", "norm", "unused", "empty"}  # q is in a layer with k
    for number in (1, 3, 8, 5):  # by patches, and by snapshots
        assert group.update(number) == number
        assert group.has(states[number])
    for at, number in ((-1, 6), (0, 8)):  # one of the ranks fails, behind a patch and behind a snapshot
        group.engines[at].failing = True
        with pytest.raises(RuntimeError, match=r"none is left; number 5, digest \w+, is served"):
            group.update(number)
        assert group.has(states[5])
        group.verify()
        group.engines[at].failing = False
    for name in ("o", "o_scale", "norm"):
        getattr(group.engines[-1], name).add_(1)
        with pytest.raises(RuntimeError, match=f"{name}: memory is not what the model's loader has left"):
            group.verify()
        assert group.update() == 8
        assert group.has(states[8])
        group.verify()
    orders = [engine.loaded for engine in group.engines]  # loading may be collective
    assert all(order == orders[0] for order in orders)


@in_turn("fault", ["changes more", "ignores"])
def test_a_loader_that_does_not_load_again_is_refused(fault: str, tmp_path: Path) -> None:
    group = Group(published(tmp_path / fault, 1)[0], 1, "own ways")
    (engine,) = group.engines
    before = engine.memory()
    load = engine.load_weights

    def faulty(weights: Iterable[tuple[str, Tensor]]) -> None:
        if fault == "ignores":
            load((name, tensor) for name, tensor in weights if name != "norm")
        else:
            engine.experts[0, 0, 0] += 1
            load(weights)

    engine.reload = faulty  # type: ignore[method-assign]
    reason = "change nothing when" if fault == "ignores" else "other bits in the engine than its loader"
    with pytest.raises(RuntimeError, match=reason):
        group.follow(tmp_path / fault)
    assert all(map(torch.equal, before, engine.memory()))


@settings(max_examples=100)
@given(data=st.data())
def test_parts_are_where_copies_go(data: st.DataObject) -> None:
    """Of any views; torch's own copy of indices is what they are compared with."""
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    dims = data.draw(st.permutations(range(len(shape))))
    whole = torch.arange(torch.tensor(shape).prod().item()).view(shape)
    memory = torch.full([size + 1 for size in shape], -1)
    source, target = whole, memory
    for dim, size in enumerate(shape):
        low = data.draw(st.integers(0, size - 1))
        length = data.draw(st.integers(1, size - low))
        source, target = (
            source.narrow(dim, low, length),
            target.narrow(dim, data.draw(st.integers(0, 1)), length),
        )
    source, target = source.permute(dims), target.permute(dims)
    part = EnginePart.of(target, source)
    target.copy_(source)
    places = {int(value): at for at, value in enumerate(part.memory) if value >= 0}
    assert part.size == source.numel()
    assert part.equals(whole.view(-1))
    others = whole.flatten().index_fill(0, source.flatten(), 0)
    digests = CpuPatching(1).digest([Piece(tensor, 0, False) for tensor in (whole.flatten(), others)])
    assert part.digest(1) == (digests[0] - digests[1]) % 2**64
    positions = torch.arange(whole.numel()).numpy()
    chosen, index = part.locate(positions)
    assert {int(at): int(i) for at, i in zip(chosen, index, strict=True)} == {
        int(value): places[int(value)] for value in source.flatten()
    }
