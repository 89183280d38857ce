"""Weight patches: lossless for every type, the same as the page's decoder, and never half applied."""

import json
import pickle
import struct
import zlib
from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np
import page_decoder
import pytest
import torch
from cases import in_turn
from formats import forged, sealed
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from taugrad.compressors import CorruptMessage, PatchMismatch, WeightPatch, apply_patch, make_patch
from taugrad.compressors.patches import weights as bit_patterns
from taugrad.compressors.patches.format import PATTERNS

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
DTYPES = [getattr(torch, name) for name in PATTERNS if hasattr(torch, name)]
SHAPES = [(), (0,), (3, 0, 2), (1,), (7,), (20, 15), (5, 6, 7)]


def tensor_of(patterns: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not patterns.size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(np.ascontiguousarray(patterns).view(np.uint8).copy()).view(dtype).reshape(shape)


def patterns_of(tensor: Tensor) -> list[int]:
    """As the page has them; with NumPy's own reading of memory."""
    name = str(tensor.dtype).removeprefix("torch.")
    plain = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    if not plain.numel():
        return []
    data = plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    patterns: list[int] = np.frombuffer(data, f"<u{PATTERNS[name].width}").tolist()
    return patterns


def bits(weights: Mapping[str, Tensor]) -> dict[str, list[int]]:
    return {name: patterns_of(tensor) for name, tensor in weights.items()}


def changed(
    dtype: torch.dtype, shape: tuple[int, ...], share: float, spread: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """A tensor of any bits, NaNs and -0.0 among them, and what it becomes: some elements by some units."""
    _, _, parts = PATTERNS[str(dtype).removeprefix("torch.")]
    width = dtype.itemsize // parts
    n = int(np.prod(shape, dtype=int)) * parts
    special = [0, 1, 2 ** (8 * width - 1), 2 ** (8 * width) - 1, 2 ** (8 * width - 1) - 1]
    before = rng.integers(0, 2**64, n, np.uint64) % np.uint64(2 ** (8 * width) - 1)
    before = np.where(rng.random(n) < 0.1, rng.choice(np.array(special, np.uint64), n), before)
    steps = rng.integers(-spread, spread + 1, n).astype(np.uint64)
    if spread > 1000:
        steps = rng.integers(0, 2**64, n, np.uint64)
    after = np.where(rng.random(n) < share, before + steps, before)
    if dtype == torch.bool:
        before, after = before & np.uint64(1), after & np.uint64(1)
    made = [tensor_of(array.astype(f"u{width}"), dtype, shape) for array in (before, after)]
    return made[0], made[1]


def copies(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in weights.items()}


def raw_bytes(weights: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in weights.values())


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_changed_comes_back_bit_for_bit(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    count = data.draw(st.integers(0, 5))
    before, after = {}, {}
    for i in range(count):
        dtype, shape = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(SHAPES))
        share = data.draw(st.sampled_from([0.0, 0.002, 0.05, 0.5, 0.9, 1.0]))
        spread = data.draw(st.sampled_from([1, 3, 100, 10**6]))
        before[f"t{i}"], after[f"t{i}"] = changed(dtype, shape, share, spread, rng)
    names = list(before)[::-1]
    piece = data.draw(st.sampled_from([16, 2**27]))
    with mock.patch.object(bit_patterns, "_PIECE", piece):  # rows and sections of small ones
        patch = make_patch(before, after)
        states = ({name: state[name] for name in names} for state in (before, after))
        assert make_patch(*states, threads=2) == patch
    weights = copies(before)
    apply_patch(weights, bytes(patch))
    assert bits(weights) == bits(after)
    assert page_decoder.apply_patch(patch, bits(before)) == bits(after)
    differing = sum(
        x != y for name in names for x, y in zip(bits(before)[name], bits(after)[name], strict=True)
    )
    table = 4 * 28 + 200 + 80 * count
    assert patch.changed == differing
    if piece == 16:
        return
    assert len(patch) <= raw_bytes(before) + table
    if differing == 0:
        assert len(patch) <= table


@in_turn("dtype", DTYPES)
def test_every_pattern_of_short_types_and_every_edge(dtype: torch.dtype) -> None:
    """All 2^16 patterns of a short type; each becomes a neighbour, and the one that stands opposite."""
    width = PATTERNS[str(dtype).removeprefix("torch.")].width
    some = (np.arange(2**16, dtype=np.uint64) * np.uint64(2 ** max(0, 8 * width - 16) + 1)).astype(
        f"u{width}"
    )
    some &= 1 if dtype == torch.bool else some
    before, *others = (
        tensor_of(array, dtype, (-1,)) for array in (some, some[::-1], np.roll(some, 1), np.roll(some, 300))
    )
    for other in others:
        weights = {"w": before.clone()}
        apply_patch(weights, make_patch({"w": before}, {"w": other}))
        assert patterns_of(weights["w"]) == patterns_of(other)


def test_neighbouring_floats_cost_a_position_and_a_sign() -> None:
    """Zeros of both signs, infinities and the smallest numbers are neighbours of what is next to them."""
    n = 2**16
    before = torch.randn(n, generator=torch.Generator().manual_seed(0)).bfloat16()
    before[:1000] = 0.0
    chosen = torch.rand(n, generator=torch.Generator().manual_seed(1)) < 0.01
    after = torch.where(chosen, torch.nextafter(before, torch.tensor(torch.inf).bfloat16()), before)
    after[:1000:50] = -0.0
    patch = make_patch({"w": before}, {"w": after})
    p = patch.changed / n
    entropy = n * (-p * np.log2(p) - (1 - p) * np.log2(1 - p) + p) / 8
    assert len(patch) < 1.03 * entropy + 250


@in_turn("case", ["transposed", "sliced", "tied", "views", "expanded", "parameter"])
def test_memory_of_every_layout(case: str) -> None:
    generator = torch.Generator().manual_seed(5)
    base = torch.randn(60, 40, generator=generator)
    weights = {
        "transposed": {"a": base.t(), "b": base.t()[3:]},
        "sliced": {"a": base[::2, 1:]},
        "tied": {"a": base, "b": base},
        "views": {"whole": base, "q": base[:20], "k": base[20:40], "column": base[:, 3]},
        "expanded": {"a": base, "b": base[5]},
        "parameter": {"a": torch.nn.Parameter(base)},
    }[case]
    before = copies(weights)
    with torch.no_grad():
        base[7:30, ::3] *= 1.0001
    after = copies(weights)
    patch = make_patch(before, weights)
    if case == "tied":
        assert len(patch) < len(make_patch(before, after))  # which are not
        assert patch.sections[0].rows[0].names == ("a", "b")
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(before[name])
    apply_patch(weights, patch)
    assert bits(weights) == bits(after)
    apart = copies(before)
    apply_patch(apart, patch)
    assert bits(apart) == bits(after)


def test_what_does_not_fit_is_refused_by_name() -> None:
    before, after = changed(torch.float32, (50, 4), 0.1, 2, np.random.default_rng(0))
    states = {"a": before, "m": torch.zeros(3)}, {"a": after, "m": torch.zeros(3)}
    patch = make_patch(*states)
    for weights, tensor, said in (
        ({"a": before}, "m", "no tensor 'm'"),
        ({"a": before, "m": torch.zeros(3), "b": before}, "b", "'b' that should not be there"),
        ({"a": before.reshape(4, 50), "m": torch.zeros(3)}, "a", r"shape \(4, 50\), not \(50, 4\)"),
        ({"a": before, "m": torch.zeros(3).double()}, "m", "dtype float64, not float32"),
        ({"a": after, "m": torch.zeros(3)}, "", "the weights have digest"),
        ({"a": before, "m": torch.tensor([0.0, -0.0, 0.0])}, "", "the weights have digest"),
        ({"a": torch.zeros(50, 4), "m": before.flatten()[:3].clone()}, "", "the weights have digest"),
    ):
        kept = bits(weights)
        with pytest.raises(PatchMismatch, match=said) as refused:
            apply_patch(weights, patch)
        assert refused.value.tensor == tensor
        assert bits(weights) == kept
    with pytest.raises(PatchMismatch, match="no tensor 'm'"):
        make_patch(states[0], {"a": after})
    with pytest.raises(TypeError, match=r"weights\['x'\] is a dict"):
        make_patch({"x": {}}, {"x": {}})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="sparse_coo"):
        make_patch({"x": torch.eye(3).to_sparse()}, {"x": torch.eye(3).to_sparse()})
    with pytest.raises(ValueError, match="lies on meta"):
        make_patch({"x": torch.zeros(3, device="meta")}, {"x": torch.zeros(3, device="meta")})
    wrong = PatchMismatch("a", "differs")
    make, arguments = wrong.__reduce__()[:2]  # as a pickle carries it
    again = make(*arguments)
    assert (type(again), str(again), again.tensor) == (PatchMismatch, str(wrong), "a")


def damaged(patch: bytes, other: bytes, rng: np.random.Generator) -> tuple[bytes, bool]:
    """Flipped bits, lost, doubled and foreign bytes; half of them under checksums that are right: whether."""
    data = bytearray(patch)
    kind, at = rng.integers(0, 6), int(rng.integers(0, len(data)))
    if kind == 0:
        data = data[:at]
    elif kind == 1:
        data[at:at] = data[at : at + int(rng.integers(1, 40))]
    elif kind == 2:
        size = int(rng.integers(1, 40))
        data[at : at + size] = other[at : at + size]
    else:
        for _ in range(int(rng.integers(1, 4))):
            data[int(rng.integers(0, len(data)))] ^= 1 << int(rng.integers(0, 8))
    if rng.random() < 0.5:
        return bytes(data), False
    messages, at = bytearray(), 0
    while at + 28 <= len(data):
        size = 28 + struct.unpack_from("<Q", data, at + 16)[0]
        message = bytes(data[at : at + size])
        messages += sealed(message)
        at += len(message)
    return bytes(messages + data[at:]), True


def test_ten_thousand_damaged_patches_are_refused_and_nothing_is_changed() -> None:
    rng, originals = np.random.default_rng(11), []
    kinds = [
        (torch.bfloat16, (300,), 0.05, 3),
        (torch.float32, (50,), 1.0, 10**6),
        (torch.int8, (90,), 1.0, 2),
    ]
    for seed in range(4):
        pairs = {str(kind[0]): changed(*kind, np.random.default_rng(seed)) for kind in kinds[seed % 2 :]}
        before = {name: pair[0] for name, pair in pairs.items()}
        after = {name: pair[1] for name, pair in pairs.items()}
        with mock.patch.object(bit_patterns, "_PIECE", 64 if seed == 3 else 2**27):
            originals.append((before, bytes(make_patch(before, after)), bits(before), bits(after)))
    sections = [section for _, patch, *_ in originals for section in WeightPatch(patch).sections]
    assert {row.mode for section in sections for row in section.rows} == {0, 1, 2}
    tried = 0
    while tried < 10_000:
        before, patch, kept, due = originals[tried % 4]
        wrong, is_sealed = damaged(patch, originals[(tried + 2) % 4][1], rng)
        if wrong == patch:
            continue
        tried += 1
        try:
            apply_patch(before, wrong, threads=1)
        except (CorruptMessage, PatchMismatch):
            assert tried % 50 >= 4 or bits(before) == kept
            continue
        # Under a right checksum, what is written in another way means the same.
        assert is_sealed
        assert bits(before) == due
        for name, tensor in before.items():
            tensor.copy_(tensor_of(np.array(kept[name], f"u{tensor.itemsize}"), tensor.dtype, tensor.shape))
    assert all(bits(before) == kept for before, _, kept, _ in originals)


def rewritten(patch: bytes, **fields: Any) -> bytes:
    """The same with other fields in the table, under a right checksum."""
    size = 28 + struct.unpack_from("<Q", patch, 16)[0]
    table = json.loads(zlib.decompress(patch[28:size])) | fields
    body = zlib.compress(json.dumps(table).encode())
    head = patch[:8] + struct.pack("<IIQI", len(body), len(body), len(body), 0)
    return sealed(head + body) + patch[size:]


def row(**fields: Any) -> list[Any]:
    return list(
        (
            {"names": ["w"], "dtype": "float32", "shape": [500], "first": 0, "size": 500, "mode": 0} | fields
        ).values()
    )


@in_turn(
    "fields",
    [
        {"digests": ["0" * 16, "f" * 16]},
        {"digests": ["0" * 16, "f" * 17]},
        {"digests": 5},
        {"changed": "x"},
        {"changed": 0},
        {"rows": []},
        {"rows": [row(), row()]},
        *(
            {"rows": [row(**{field: value})]}
            for field, values in {
                "names": [[], ["w", "w"], [1]],
                "dtype": ["float64", "nothing"],
                "shape": [[2, 250], [-500], [2.5]],
                "first": [1, -1],
                "size": [499, 501, 2.5],
                "mode": [1, 2, 3],
            }.items()
            for value in values
        ),
        {"rows": ["w"]},
        {"version": 1},
        {"stream": "f" * 17},
        {"stream": None},
    ],
)
def test_tables_that_contradict_themselves_are_refused(fields: dict[str, Any]) -> None:
    before, after = changed(torch.float32, (500,), 0.05, 2, np.random.default_rng(0))
    weights = {"w": before}
    patch = make_patch(weights, {"w": after})
    with pytest.raises((CorruptMessage, PatchMismatch)):
        apply_patch(weights, rewritten(patch, **fields))
    assert bits(weights) == bits({"w": before})
    apply_patch(weights, rewritten(patch))
    assert bits(weights) == bits({"w": after})


def test_a_table_that_would_fill_memory_is_refused() -> None:
    patch = make_patch({}, {})
    with pytest.raises(CorruptMessage, match="cut off, or too long"):
        apply_patch({}, rewritten(patch, more="0" * (2**26 + 1)))


def test_a_patch_of_floats_that_another_program_would_read() -> None:
    """Golden bytes: bf16 3f80, 3f81, 0, 4000 become 3f81, 3f81, 8000, 4064: up, down, 100 steps up,
    which are written as 200 less 3: symbol 197, of 11 bits."""
    old, new = np.full((2, 200), 5, np.uint16)
    old[:4], new[:4] = (0x3F80, 0x3F81, 0, 0x4000), (0x3F81, 0x3F81, 0x8000, 0x4064)
    before, after = (tensor_of(array, torch.bfloat16, (200,)) for array in (old, new))
    patch = make_patch({"w": before}, {"w": after})
    size = 28 + struct.unpack_from("<Q", patch, 16)[0]
    assert json.loads(zlib.decompress(patch[28:size])) == {
        "version": 2,
        "stream": "0" * 16,
        "changed": 3,
        "digests": [f"{page_decoder.digest({'w': patterns_of(array)}):016x}" for array in (before, after)],
        "rows": [[["w"], "bfloat16", [200], 0, 200, 0]],
    }
    messages = [
        forged("strom", "packed32", 200, 2, bytes.fromhex("00 00 00 00  05 00 00 00"), tau=1.0),
        forged("steps", "packed32", 200, 1, bytes.fromhex("06 00 00 00  c5 00"), bits=11),
    ]
    assert patch[size:].hex(" ") == b"".join(messages).hex(" ")
    apply_patch({"w": before}, patch)
    assert patterns_of(before) == patterns_of(after)


def test_sparse_updates_are_what_servers_scatter() -> None:
    rng = np.random.default_rng(2)
    pairs = {
        "few": changed(torch.bfloat16, (30, 20), 0.05, 2, rng),
        "all": changed(torch.float8_e4m3fn, (30, 20), 1.0, 100, rng),
        "none": changed(torch.float32, (4,), 0, 1, rng),
        "raw": changed(torch.int16, (300,), 0.9, 10**6, rng),
    }
    before, after = ({name: pair[i] for name, pair in pairs.items()} for i in (0, 1))
    patch = make_patch(before, after)
    updates = patch.sparse()
    assert [update.name for update in updates] == ["all", "few", "raw"]
    weights = copies(before)
    for name, indices, values in updates:
        assert indices.dtype == torch.int32
        assert (indices.diff() > 0).all()
        assert values.dtype == weights[name].dtype
        flat = weights[name].view(-1).view(BITS[values.itemsize])
        assert (flat[indices] != values.view(flat.dtype)).all()
        flat[indices] = values.view(flat.dtype)
    assert bits(weights) == bits(after)
    received = pickle.loads(pickle.dumps(patch))
    again = received.sparse(before)
    assert all(x.indices.equal(y.indices) for x, y in zip(updates, again, strict=True))
    with pytest.raises(TypeError, match="needs the weights"):
        received.sparse()
    with pytest.raises(PatchMismatch, match="digest"):
        received.sparse(after)
