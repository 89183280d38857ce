"""A stream of weight patches in a folder or a bucket: numbered patches, and now and then a whole snapshot.

Patch n (`0000000012.patch`) leads from the weights of number 11 to those of 12, a snapshot
(`0000000050.safetensors`) has all of them. With shards, each worker writes its part of either.
"""

import json
import os
import re
import secrets
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from logging import getLogger
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import fsspec
import numpy as np
import psutil
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from .errors import CorruptMessage, PatchMismatch
from .ops.array import Bytes
from .patch_weights import (
    Entry,
    Weights,
    digest_of,
    entries_of,
    make,
    prepare,
    require_same,
    rows_digest,
    threads_of,
)
from .wire.message import HEADER_BYTES, length_of
from .wire.patch import Row, Table, merge_patches, read_patch_table, row_of

log = getLogger("taugrad")

_TRIES = 100
"""Files that vanish between the listing and the reading, or are damaged, before a reader waits for others."""

_NAME = re.compile(r"(\d{10})(?:\.(\d+)of(\d+))?\.(patch|safetensors)")
_SAFETENSORS = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0"},
    **{f"{kind}{bits}": f"{kind[0].upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}
"""Types that the format knows; others are written as bytes."""


class Published(NamedTuple):
    """What one call of `PatchWriter.write` wrote."""

    number: int
    patch_bytes: int
    """0 for the first one."""
    snapshot_bytes: int
    """0 without one."""
    changed: float
    """Share of the elements that changed; 1 for the first one."""
    digest: int
    """Of the weights, or of this worker's shards."""


class Store:
    """A folder or a bucket, whose files are there whole or not at all."""

    def __init__(self, place: str | os.PathLike[str], writer: int = 0) -> None:
        """Opens a path, or an address that fsspec knows, such as s3://bucket/run.

        Args:
            place: the path or the address.
            writer: which one of several writers this is.
        """
        self.place, self._part = os.fspath(place), f".{writer}.part"
        self._system, self._folder = _system_of(self.place)
        self._local = "file" in _protocols(self._system)

    def sizes(self) -> dict[str, int]:
        """Bytes of each file that belongs to a stream; nothing, where there is no such folder yet."""
        self._system.invalidate_cache()
        try:
            found = self._system.ls(self._folder, detail=True)
        except FileNotFoundError:
            return {}
        names = ((each["name"].rpartition("/")[2], int(each["size"] or 0)) for each in found)
        return {name: size for name, size in names if _NAME.fullmatch(name)}

    def read(self, name: str, end: int | None = None) -> bytes:
        """A file, or its beginning.

        Raises:
            FileNotFoundError: it is gone.
        """
        with self._system.open(f"{self._folder}/{name}", "rb") as file:
            data: bytes = file.read() if end is None else file.read(end)
        return data

    def write(self, name: str, data: Iterable[Any], *, new: bool = True) -> int:
        """Writes a file of several buffers, and returns its bytes.

        Raises:
            FileExistsError: it is to be new, and is there.
            OSError: it cannot be written; then nothing is left of it.
        """
        self._system.makedirs(self._folder, exist_ok=True)
        path = f"{self._folder}/{name}"
        if not self._local:  # an object is there when it is complete
            if new and self._system.exists(path):
                raise FileExistsError(f"{path} is there")
            with self._system.open(path, "wb") as file:
                return sum(file.write(each) or len(each) for each in data)
        part = f"{path}.{secrets.token_hex(4)}{self._part}"
        try:
            with open(part, "wb") as file:
                size = sum(file.write(each) for each in data)
                file.flush()
                os.fsync(file.fileno())
            if new:
                os.link(part, path)
            else:
                os.replace(part, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part)
        return size

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        with suppress(FileNotFoundError):
            self._system.rm_file(f"{self._folder}/{name}")

    def remove_parts(self) -> None:
        """Removes what a writer that was killed has left behind."""
        if self._local:
            for path in Path(self._folder).glob(f"*{self._part}"):
                path.unlink(missing_ok=True)


def _system_of(place: str) -> tuple[Any, str]:
    try:
        system, folder = fsspec.url_to_fs(place)
    except ImportError as missing:
        try:  # pyarrow, which the platform has, has clients of its own
            from fsspec.implementations.arrow import ArrowFSWrapper  # noqa: PLC0415
            from pyarrow.fs import FileSystem  # noqa: PLC0415
        except ImportError:
            raise missing from None
        found, folder = FileSystem.from_uri(place)
        system = ArrowFSWrapper(found)
    return system, str(folder).rstrip("/")


def _protocols(system: Any) -> tuple[str, ...]:
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


@dataclass(frozen=True)
class _Files:
    """What a folder has, where all parts are there: by number, names, and bytes of all."""

    patches: dict[int, list[str]] = field(default_factory=dict)
    snapshots: dict[int, list[str]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, sizes: dict[str, int]) -> "_Files":
        sets = dict[tuple[str, int, int], list[str]]()
        for name in sorted(sizes):
            if match := _NAME.fullmatch(name):
                sets.setdefault((match[4], int(match[1]), int(match[3] or 1)), []).append(name)
        files = cls(sizes=sizes)
        for (kind, number, parts), names in sorted(sets.items()):
            if len(names) == parts:
                (files.patches if kind == "patch" else files.snapshots)[number] = names
        return files

    def cost(self, names: Iterable[str]) -> int:
        return sum(self.sizes[name] for name in names)

    def way(self, number: int | None) -> tuple[int | None, list[tuple[int, list[str]]]]:
        """The snapshot to begin with, if any, and the patches that go furthest, for the fewest bytes."""
        ways = []
        for begin, snapshot in [(number, None), *((each, each) for each in self.snapshots)]:
            if begin is None or (number is not None and begin < number):
                continue
            at, patches = begin, list[tuple[int, list[str]]]()
            while at + 1 in self.patches:
                at += 1
                patches.append((at, self.patches[at]))
            cost = sum(self.cost(names) for _, names in patches)
            cost += self.cost(self.snapshots[snapshot]) if snapshot is not None else 0
            ways.append((-at, cost, snapshot is not None, begin, snapshot, patches))
        if not ways:
            return None, []
        *_, snapshot, patches = min(ways, key=lambda way: way[:4])
        return snapshot, patches


class PatchWriter:
    """Publishes a model's weights, again and again, as patches and snapshots."""

    def __init__(
        self,
        place: str | os.PathLike[str],
        *,
        full_every: int = 50,
        keep: int | None = None,
        take_over: bool = False,
        threads: int | None = None,
    ) -> None:
        """Takes a folder, which another writer may have left; its stream goes on with a snapshot.

        Args:
            place: a path, or an address that fsspec knows, such as s3://bucket/run.
            full_every: after so many patches, a snapshot is written beside the patch.
            keep: how many snapshots stay, with the patches that follow them; all by default.
            take_over: whether to take it from a writer that may be alive on another machine: that one's next
                `write` fails.
            threads: as for `make_patch`.

        Raises:
            FileExistsError: another process writes there, or may do so on another machine.
            ValueError: full_every or keep is less than 1.
        """
        for name, value in (("full_every", full_every), ("keep", 1 if keep is None else keep)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        running = dist.is_initialized()
        self._rank, self._world = (dist.get_rank(), dist.get_world_size()) if running else (0, 1)
        self._store, self._full_every, self._keep = Store(place, self._rank), full_every, keep
        self._threads = threads_of(threads)
        self._lease = _Lease(self._store, f"writer-{self._rank}.json", take_over)
        self._last: dict[str, Entry] | None = None
        self._digest, self._snapshot_due = 0, 0
        self._store.remove_parts()
        self.number = max((_number(name) for name in self._store.sizes()), default=-1)
        """Of what was written last; -1 for nothing."""

    def write(self, weights: Weights) -> Published:
        """Publishes weights under the next number.

        Args:
            weights: by name, as for `make_patch`; always the same names, types and shapes. Where some are
                DTensors, every rank calls this; each writes its shards, and rank 0 what all have alike.

        Raises:
            FileExistsError: another writer has taken the place over.
            OSError: it could not be written. The stream is as it was before, or without the snapshot that was
                due: the next call writes one.
            PatchMismatch: the weights are not of the same model as before.
        """
        self._lease.require()
        parts = self._world if any(isinstance(each, DTensor) for each in weights.values()) else 1
        entries = entries_of(weights)
        if parts > 1:
            entries = {
                name: each if each.owned(self._rank) else each.empty() for name, each in entries.items()
            }
        number = self.number + 1
        name = f"{number:010d}" + (f".{self._rank}of{parts}" if parts > 1 else "")
        patch_bytes, snapshot_bytes, changed = 0, 0, 1.0
        if self._last is None:
            digest, self._snapshot_due = digest_of(entries, self._threads), number
        else:
            made = make(self._last, entries, self._digest, self._threads)
            digest, changed = made.table.after, made.table.changed / max(made.table.count, 1)
            patch_bytes = self._store.write(f"{name}.patch", [made.data])
            self._remember(entries, number, digest)
        if number >= self._snapshot_due:  # behind the patch: where this fails, the stream goes on
            snapshot_bytes = self._store.write(f"{name}.safetensors", _snapshot(entries, number, digest))
            self._snapshot_due = number + self._full_every
            self._remember(entries, number, digest)
            self._trim()
        return Published(number, patch_bytes, snapshot_bytes, changed, digest)

    def _remember(self, entries: Mapping[str, Entry], number: int, digest: int) -> None:
        self.number, self._digest = number, digest
        if self._last is None:
            copies = {each.place: each.bits.clone() for each in entries.values()}
            self._last = {name: each.apart(copies[each.place]) for name, each in entries.items()}
        for name, each in entries.items():
            self._last[name].bits.copy_(each.bits)

    def _trim(self) -> None:
        files = self._store.sizes()
        snapshots = sorted({_number(name) for name in files if name.endswith(".safetensors")})
        if self._keep is None or len(snapshots) <= self._keep:
            return
        for name in files:
            if _number(name) < snapshots[-self._keep]:
                self._store.remove(name)

    def close(self) -> None:
        """Lets another writer have the place. What was written stays."""
        self._lease.release()

    def __enter__(self) -> "PatchWriter":
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()


class _Lease:
    """A file that says who writes to a place."""

    def __init__(self, store: Store, name: str, take_over: bool) -> None:
        self._store, self._name = store, name
        me = psutil.Process()
        mine = {"host": socket.gethostname(), "pid": me.pid, "began": me.create_time(), "since": time.time()}
        self._data = json.dumps(mine | {"key": secrets.token_hex(8)}).encode()
        try:
            store.write(name, [self._data])
        except FileExistsError:
            other = json.loads(store.read(name))
            if not take_over and _may_live(other):
                since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(other["since"]))
                raise FileExistsError(
                    f"{store.place} is written by process {other['pid']} on {other['host']}, since {since}; "
                    "if that one is gone, take_over=True takes its place"
                ) from None
            store.write(name, [self._data], new=False)

    def require(self) -> None:
        if not self._held():
            raise FileExistsError(f"{self._store.place}: another writer has taken it over")

    def release(self) -> None:
        if self._held():
            self._store.remove(self._name)

    def _held(self) -> bool:
        try:
            return bool(self._store.read(self._name) == self._data)
        except FileNotFoundError:
            return False


def _may_live(other: Mapping[str, Any]) -> bool:
    """Whether a writer may be alive; one of another machine may always be."""
    if other["host"] != socket.gethostname():
        return True
    try:
        return bool(abs(psutil.Process(other["pid"]).create_time() - other["began"]) < 1)
    except psutil.NoSuchProcess:
        return False


class PatchReader:
    """Follows what a `PatchWriter` publishes."""

    def __init__(self, place: str | os.PathLike[str], *, threads: int | None = None) -> None:
        """Looks at a path or an address; nothing needs to be there yet.

        Args:
            place: as for `PatchWriter`.
            threads: as for `apply_patch`.
        """
        self._store, self._threads = Store(place), threads_of(threads)
        self._bad, self._digest = set[str](), 0
        self.number: int | None = None
        """Of the weights that `update` has last written; None before."""

    def update(self, weights: Weights) -> int | None:
        """Brings weights to the newest number that can be reached, by as few bytes as possible.

        Weights change in place, from one number to another at once. A file that is damaged or does not fit is
        left out, with a warning; the next snapshot goes on behind it. Weights that something else has changed
        are replaced by a snapshot, too.

        Args:
            weights: by name, whole tensors; what they are at first does not matter.

        Returns:
            The number that weights have now; None if there is nothing yet.

        Raises:
            PatchMismatch: what is published has other names, types or shapes.
        """
        entries = entries_of(weights)
        for _ in range(_TRIES):
            sizes = {name: size for name, size in self._store.sizes().items() if name not in self._bad}
            snapshot, patches = _Files.of(sizes).way(self.number)
            steps = [(number, names, False) for number, names in patches]
            if snapshot is not None:
                steps.insert(0, (snapshot, _Files.of(sizes).snapshots[snapshot], True))
            if all(self._go(entries, *step) for step in steps):
                break
        return self.number

    def _go(self, entries: Mapping[str, Entry], number: int, names: list[str], whole: bool) -> bool:
        """Brings weights to a number; whether that was possible."""
        try:
            files = [np.frombuffer(self._store.read(name), np.uint8) for name in names]
            if whole:
                digest = _load(files, number, entries, self._threads)
            else:
                patch = files[0] if len(files) == 1 else np.frombuffer(merge_patches(files), np.uint8)
                fitting = prepare(entries, patch, self._threads)
                fitting.commit()
                digest = fitting.table.after
        except FileNotFoundError:  # the writer keeps newer ones only
            return False
        except (CorruptMessage, PatchMismatch) as problem:
            if isinstance(problem, PatchMismatch) and problem.tensor:
                raise
            if not whole and digest_of(entries, self._threads) != self._digest:
                log.warning("%s: weights are not those of number %s any more", self._store.place, self.number)
                self.number = None
            else:
                log.warning("%s: %s is left out: %s", self._store.place, " ".join(names), problem)
                self._bad.update(names)
            return False
        self.number, self._digest = number, digest
        return True


def _number(name: str) -> int:
    return int(name.partition(".")[0])


def _snapshot(entries: Mapping[str, Entry], number: int, digest: int) -> Iterator[Any]:
    """A safetensors file; what is no tensor of its own there, or a shard, is one of bytes."""
    header = dict[str, Any]()
    rows, end = list[Any](), 0
    for name, entry in entries.items():
        row, size = entry.row, entry.bits.numel() * entry.bits.element_size()
        rows.append([row.names, *row[1:]])
        known = row.elements == prod(row.shape) and row.dtype in _SAFETENSORS
        dtype, shape = (_SAFETENSORS[row.dtype], list(row.shape)) if known else ("U8", [size])
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    about = json.dumps({"number": number, "digest": f"{digest:016x}", "tensors": rows})
    text = json.dumps({"__metadata__": {"format": "pt", "taugrad": about}} | header).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text))
    yield text
    for entry in entries.values():
        yield entry.bits.cpu().numpy().view(np.uint8).data


def _read_snapshot(data: Bytes) -> tuple[int, int, list[tuple[Row, Bytes]]]:
    """Number, digest and tensors of a snapshot, untrusted.

    Raises:
        CorruptMessage: it is none of a writer's.
    """
    try:
        about, header, begin = _about(bytes(data[: 8 + _header_size(data)]))
        tensors = list[tuple[Row, Bytes]]()
        for each in about["tensors"]:
            row = row_of(*each)
            low, high = header[row.names[0]]["data_offsets"]
            size = row.elements * row.pattern.parts * row.pattern.width
            if not 0 <= low <= high <= data.size - begin or high - low != size or len(row.names) > 1:
                raise ValueError(f"tensor {row.names[0]} is not where the file says")
            tensors.append((row, data[begin + low : begin + high]))
        return about["number"], int(about["digest"], 16), tensors
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as problem:
        raise CorruptMessage(f"no snapshot that taugrad wrote: {problem}") from None


def _header_size(data: Bytes) -> int:
    (size,) = struct.unpack("<Q", bytes(data[:8]))
    return int(size)


def _about(head: bytes) -> tuple[Any, Any, int]:
    header = json.loads(head[8:])
    return json.loads(header["__metadata__"]["taugrad"]), header, len(head)


def _load(files: list[Bytes], number: int, entries: Mapping[str, Entry], threads: int) -> int:
    """Writes a snapshot's tensors to weights, once all is checked; returns their digest."""
    tensors, digest, names = list[tuple[Row, Bytes]](), 0, dict[str, Row]()
    for data in files:
        said, own, found = _read_snapshot(data)
        if said != number:
            raise CorruptMessage(f"it is a snapshot of number {said}")
        digest = (digest + own) % 2**64
        tensors += found
        names |= {row.names[0]: row for row, _ in found}
    require_same(names, {name: entry.row for name, entry in entries.items()}, "the weights")
    bits = [
        torch.from_numpy(data.copy().view(f"i{row.pattern.width}")).view(entries[row.names[0]].bits.dtype)
        for row, data in tensors
    ]
    if rows_digest([(row, each) for (row, _), each in zip(tensors, bits, strict=True)], threads) != digest:
        raise CorruptMessage(f"the tensors do not have digest {digest:016x}")
    covered = dict.fromkeys(names, 0)
    for row, _ in tensors:
        covered[row.names[0]] += row.elements
    if any(covered[name] != prod(row.shape) for name, row in names.items()):
        raise CorruptMessage("a tensor's shards are not all there")
    for (row, _), each in zip(tensors, bits, strict=True):
        entry = entries[row.names[0]]
        begin = row.first * row.pattern.parts
        entry.bits[begin : begin + each.numel()].copy_(each)
    for entry in entries.values():
        entry.write_back()
    return digest


def listing(place: str | os.PathLike[str]) -> Iterator[str]:
    """A line for each file of a stream: number, kind, bytes, changed share, and digest after."""
    store = Store(place)
    yield f"{'number':>10}  {'file':<12}{'bytes':>14}{'changed':>10}  digest"
    for name, size in sorted(store.sizes().items()):
        kind, share, digest = name[11:], "", ""
        try:
            if name.endswith(".patch"):
                table = _head(store, name)
                share, digest = f"{100 * table.changed / max(table.count, 1):.3f}%", f"{table.after:016x}"
            else:
                end = 8 + _header_size(np.frombuffer(store.read(name, 8), np.uint8))
                digest = _about(store.read(name, min(end, size)))[0]["digest"]
        except (CorruptMessage, ValueError, KeyError, struct.error) as problem:
            digest = f"damaged: {problem}"
        yield f"{_number(name):>10}  {kind:<12}{size:>14,}{share:>10}  {digest}"


def _head(store: Store, name: str) -> Table:
    """The table of a patch, of which no more is read."""
    head = store.read(name, HEADER_BYTES)
    if len(head) == HEADER_BYTES:
        head = store.read(name, HEADER_BYTES + struct.unpack_from("<Q", head, 16)[0])
    data: Bytes = np.frombuffer(head, np.uint8)
    length_of(data)
    return read_patch_table(data)
