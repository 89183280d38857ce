"""A stream of weight patches in a folder or a bucket: numbered patches, and now and then a whole snapshot.

Patch n (`0000000012.patch`) leads from the weights of number 11 to those of 12; a snapshot
(`0000000050.safetensors`) has all of them. With shards, each rank writes its part of both.
"""

import json
import os
import re
import secrets
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from logging import getLogger
from math import prod
from typing import Any, NamedTuple

import fsspec
import numpy as np
import psutil
import torch
import torch.distributed as dist
from fsspec.implementations.local import LocalFileSystem
from torch.distributed.tensor import DTensor

from .errors import CorruptMessage, PatchMismatch
from .patch_weights import BITS, Entry, Weights, digest_of, entries_of, make, prepare, require_fit
from .wire.patch import PATTERNS, row_of, summary

log = getLogger("taugrad")

_TRIES = 100
"""Files that vanish after the listing, or are damaged, before a reader waits for others."""
_NAME = re.compile(r"(\d{10})(?:\.(\d+)of(\d+))?\.(patch|safetensors)")
_SAFETENSORS = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0"},
    **{f"{kind}{bits}": f"{kind[0].upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}
"""Types that the format knows; others are written as bytes."""


class Published(NamedTuple):
    """What a call of `PatchWriter.write` wrote."""

    number: int
    patch_bytes: int
    snapshot_bytes: int
    changed: float
    """Share of the elements that changed; 1 for the first one."""
    digest: int
    """Of the weights, or of this rank's shards."""


class Store:
    """A folder or a bucket, whose files appear whole or not at all."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        """Opens a path, or an address that fsspec knows, such as s3://bucket/run."""
        self.place = os.fspath(place)
        try:
            self._system, self._folder = fsspec.url_to_fs(self.place)
        except ImportError as missing:
            try:  # pyarrow, which the platform has, has clients of its own
                from fsspec.implementations.arrow import ArrowFSWrapper  # noqa: PLC0415
                from pyarrow.fs import FileSystem  # noqa: PLC0415
            except ImportError:
                raise missing from None
            system, self._folder = FileSystem.from_uri(self.place)
            self._system = ArrowFSWrapper(system)
        self._local = isinstance(self._system, LocalFileSystem)

    def sizes(self) -> dict[str, int]:
        """Bytes of the files of a stream; none if the folder does not exist yet."""
        self._system.invalidate_cache()
        try:
            files = self._system.ls(self._folder, detail=True)
        except FileNotFoundError:
            return {}
        sizes = {file["name"].rpartition("/")[2]: int(file["size"] or 0) for file in files}
        return {name: sizes[name] for name in sorted(sizes) if _NAME.fullmatch(name)}

    def read(self, name: str, end: int | None = None) -> bytes:
        """Reads a file, or its beginning; raises FileNotFoundError."""
        with self._system.open(f"{self._folder}/{name}", "rb") as file:
            data: bytes = file.read(end)
        return data

    def write(self, name: str, buffers: Iterable[Any]) -> int:
        """Writes a new file, and returns its bytes.

        Raises:
            FileExistsError: it exists.
            OSError: it cannot be written; then nothing is left of it.
        """
        self._system.makedirs(self._folder, exist_ok=True)
        path = f"{self._folder}/{name}"
        if self._system.exists(path):
            raise FileExistsError(f"{path} exists")
        if not self._local:  # an object appears when it is complete
            with self._system.open(path, "wb") as file:
                return sum(file.write(buffer) or len(buffer) for buffer in buffers)
        part = f"{self._folder}/{part_name(socket.gethostname(), os.getpid())}"
        try:
            with open(part, "wb") as file:
                size = sum(map(file.write, buffers))
                file.flush()
                os.fsync(file.fileno())
            os.link(part, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part)
        return size

    def remove(self, name: str) -> None:
        """Removes a file, if it exists."""
        with suppress(FileNotFoundError):
            self._system.rm_file(f"{self._folder}/{name}")


def part_name(host: str, process: int) -> str:
    """The file that a process writes before it has its name, in a folder."""
    return f"{host}-{process}.part"


def _number(name: str) -> int:
    return int(name[:10])


def _chain(sizes: Mapping[str, int], number: int | None) -> list[tuple[int, list[str]]]:
    """Number and files of each link of what leads furthest from a number, for the fewest bytes."""
    sets = dict[tuple[str, int, int], list[str]]()
    for name in sorted(sizes):
        if match := _NAME.fullmatch(name):
            sets.setdefault((match[4], int(match[1]), int(match[3] or 1)), []).append(name)
    files = {(kind, at): names for (kind, at, parts), names in sets.items() if len(names) == parts}
    begins = [] if number is None else [(number, list[tuple[int, list[str]]]())]
    begins += [(at, [(at, names)]) for (kind, at), names in files.items() if kind == "safetensors"]
    chains = []
    for begin, chain in begins:
        at = begin
        while ("patch", at + 1) in files:
            at += 1
            chain.append((at, files["patch", at]))
        if begin >= (number or 0):
            cost = sum(sizes[name] for _, names in chain for name in names)
            chains.append((-at, cost, begin, chain))
    return min(chains)[-1] if chains else []


class PatchWriter(AbstractContextManager["PatchWriter"]):
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
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self._store, self._full_every, self._keep = Store(place), full_every, keep
        self._threads = torch.get_num_threads() if threads is None else threads
        self._lease = _Lease(self._store, f"writer-{self._rank}.json", take_over)
        self._last: dict[str, Entry] | None = None
        self._digest, self._snapshot_due = 0, 0
        self.number = max(map(_number, self._store.sizes()), default=-1)
        """Of what was written last; -1 for nothing."""

    def write(self, weights: Weights) -> Published:
        """Publishes weights under the next number.

        Args:
            weights: by name, as for `make_patch`; always the same names, dtypes and shapes. Where some are
                DTensors, every rank calls this; each writes its shards, and rank 0 what all ranks have.

        Raises:
            FileExistsError: another writer has taken the place over.
            OSError: it could not be written. The stream is as it was before, or without the snapshot that was
                due: the next call writes one.
            PatchMismatch: the weights are not of the same model as before.
        """
        if not self._lease.held():
            raise FileExistsError(f"{self._store.place}: another writer has taken it over")
        entries, part = entries_of(weights), ""
        if sharded := [tensor for tensor in weights.values() if isinstance(tensor, DTensor)]:
            device = sharded[0].device_mesh.device_type
            agreed = torch.tensor([self.number, -self._snapshot_due], device=device)
            dist.all_reduce(agreed, dist.ReduceOp.MAX)  # a rank may have failed, or started late
            self.number, self._snapshot_due = int(agreed[0]), -int(agreed[1])
            entries = {name: entry if entry.published else entry.empty() for name, entry in entries.items()}
            part = f".{self._rank}of{dist.get_world_size()}"
        number, name = self.number + 1, f"{self.number + 1:010d}{part}"
        patch_bytes, snapshot_bytes, changed = 0, 0, 1.0
        if self._last is None:
            digest, self._snapshot_due = digest_of(entries, self._threads), number
        else:
            patch = make(self._last, entries, self._digest, self._threads)
            changed, digest = summary(b"".join(patch))
            patch_bytes = self._store.write(f"{name}.patch", patch)
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
            copies = {entry.place: entry.bits.clone() for entry in entries.values()}
            self._last = {name: entry.with_bits(copies[entry.place]) for name, entry in entries.items()}
        for name, entry in entries.items():
            self._last[name].bits.copy_(entry.bits)

    def _trim(self) -> None:
        files = self._store.sizes()
        snapshots = sorted({_number(name) for name in files if name.endswith(".safetensors")})
        for name in files if self._keep else ():
            if _number(name) < snapshots[-(self._keep or 0) :][0]:
                self._store.remove(name)

    def close(self) -> None:
        """Lets another writer have the place. What was written stays."""
        if self._lease.held():
            self._store.remove(self._lease.name)

    def __exit__(self, *error: object) -> None:
        self.close()


class _Lease:
    """A file that says who writes to a place."""

    def __init__(self, store: Store, name: str, take_over: bool) -> None:
        self._store, self.name, me = store, name, psutil.Process()
        holder = {"host": socket.gethostname(), "pid": me.pid, "began": me.create_time()}
        self._data = json.dumps(holder | {"key": secrets.token_hex(8)}).encode()
        with suppress(FileNotFoundError):
            other = json.loads(store.read(name))
            with suppress(psutil.NoSuchProcess):
                lives = other["host"] != holder["host"]  # where nobody here sees it
                lives = lives or psutil.Process(other["pid"]).create_time() == other["began"]
                if lives and not take_over:
                    who = f"{store.place} is written by process {other['pid']} on {other['host']}"
                    raise FileExistsError(f"{who}; if that one is gone, take_over=True takes its place")
            store.remove(name)
            store.remove(part_name(other["host"], other["pid"]))  # where it was killed
        store.write(name, [self._data])

    def held(self) -> bool:
        try:
            return self._store.read(self.name) == self._data
        except FileNotFoundError:
            return False


class PatchReader:
    """Follows what a `PatchWriter` publishes."""

    def __init__(self, place: str | os.PathLike[str], *, threads: int | None = None) -> None:
        """Opens a path or an address, where nothing needs to be yet.

        Args:
            place: as for `PatchWriter`.
            threads: as for `apply_patch`.
        """
        self._store, self._damaged, self._digest = Store(place), set[str](), 0
        self._threads = torch.get_num_threads() if threads is None else threads
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
            The number that weights have now; None if nothing is published yet.

        Raises:
            PatchMismatch: what is published has other names, dtypes or shapes.
        """
        entries = entries_of(weights)
        for _ in range(_TRIES):
            sizes = {name: size for name, size in self._store.sizes().items() if name not in self._damaged}
            if all(self._advance(entries, *link) for link in _chain(sizes, self.number)):
                break
        return self.number

    def _advance(self, entries: Mapping[str, Entry], number: int, names: list[str]) -> bool:
        """Brings weights to a number; whether that was possible."""
        is_patch = names[0].endswith(".patch")
        try:
            files = [self._store.read(name) for name in names]
            if is_patch:
                patch = prepare(entries, np.frombuffer(b"".join(files), np.uint8), self._threads)
                patch.apply()
                self._digest = patch.digest
            else:
                self._digest = _load(files, number, entries, self._threads)
        except FileNotFoundError:  # the writer keeps newer ones only
            return False
        except (CorruptMessage, PatchMismatch) as problem:
            if isinstance(problem, PatchMismatch) and problem.tensor:
                raise
            if is_patch and digest_of(entries, self._threads) != self._digest:
                log.warning("%s: weights are not those of number %s any more", self._store.place, self.number)
                self.number = None
            else:
                log.warning("%s: %s is left out: %s", self._store.place, " ".join(names), problem)
                self._damaged.update(names)
            return False
        self.number = number
        return True


def _snapshot(entries: Mapping[str, Entry], number: int, digest: int) -> Iterator[Any]:
    """A safetensors file; shards, and dtypes that the format does not know, are tensors of bytes."""
    header, end = dict[str, Any](), 0
    for name, entry in entries.items():
        _, dtype, shape, _, size, _ = entry.row
        width, _, parts = PATTERNS[dtype]
        kind: dict[str, Any] = {"dtype": "U8", "shape": [size * width]}
        if dtype in _SAFETENSORS and size == prod(shape) * parts:
            kind = {"dtype": _SAFETENSORS[dtype], "shape": shape}
        header[name] = kind | {"data_offsets": [end, end + size * width]}
        end += size * width
    about = {"number": number, "digest": f"{digest:016x}", "rows": [entry.row for entry in entries.values()]}
    text = json.dumps({"__metadata__": {"format": "pt", "taugrad": json.dumps(about)}} | header).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for entry in entries.values():
        yield entry.bits.cpu().numpy().view(np.uint8).data


def _about(data: bytes) -> tuple[Any, Any, int]:
    """What a snapshot, untrusted, says of itself, of its tensors, and where these begin."""
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    return json.loads(header["__metadata__"]["taugrad"]), header, 8 + size


def _load(files: list[bytes], number: int, entries: Mapping[str, Entry], threads: int) -> int:
    """Writes a snapshot's tensors to weights, once all is checked; returns their digest.

    Raises:
        CorruptMessage: a file is damaged, or not a writer's.
        PatchMismatch: it is of another model.
    """
    shards, digest = list[Entry](), 0
    for data in files:
        try:
            about, header, begin = _about(data)
            if about["number"] != number:
                raise ValueError(f"it has number {about['number']}")
            digest += int(about["digest"], 16)
            for row in [row_of(*row) for row in about["rows"]]:
                (low, high), width = header[row.names[0]]["data_offsets"], PATTERNS[row.dtype].width
                array = np.frombuffer(data, np.uint8)[begin + low : begin + high].copy()
                if array.size != row.size * width or low < 0 or len(row.names) > 1:
                    raise ValueError(f"tensor {row.names[0]} is not where the file says")
                bits = torch.from_numpy(array.view(f"u{width}")).view(BITS[width])
                shards.append(Entry(row, bits, bits))
        except (ValueError, LookupError, TypeError, AttributeError, struct.error, RecursionError) as problem:
            raise CorruptMessage(f"no snapshot that taugrad wrote: {problem}") from None
    require_fit([shard.row for shard in shards], entries)
    actual = sum(digest_of({shard.row.names[0]: shard}, threads) for shard in shards)
    if (actual - digest) % 2**64:
        raise CorruptMessage(f"the tensors do not have digest {digest % 2**64:016x}")
    for shard in shards:
        entry, first = entries[shard.row.names[0]], shard.row.first
        entry.bits[first : first + shard.row.size].copy_(shard.bits)
    for entry in entries.values():
        entry.write_back()
    return digest % 2**64


def listing(place: str | os.PathLike[str]) -> Iterator[str]:
    """A line for each file of a stream: number, kind, bytes, changed share, and digest after."""
    store = Store(place)
    yield f"{'number':>10}  {'file':<12}{'bytes':>14}{'changed':>10}  digest"
    for name, size in store.sizes().items():
        share = ""
        try:
            if name.endswith(".patch"):
                changed, after = summary(store.read(name))
                share, text = f"{changed:.3%}", f"{after:016x}"
            else:
                (end,) = struct.unpack("<Q", store.read(name, 8))
                text = _about(store.read(name, 8 + min(end, size)))[0]["digest"]
        except (CorruptMessage, ValueError, LookupError, TypeError, struct.error) as problem:
            text = f"damaged: {problem}"
        yield f"{_number(name):>10}  {name[11:]:<12}{size:>14,}{share:>10}  {text}"
