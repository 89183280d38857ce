"""A stream of weight patches in a folder or a bucket: numbered patches, and now and then a whole snapshot.

Patch n (`0000000012.patch`) leads from the weights of number 11 to those of 12; a snapshot
(`0000000050.safetensors`) has all of them. With shards, each rank writes its part of both. A stream is an
unbroken chain of numbers with an identity of its own, which each file carries.
"""

import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from ..errors import CorruptMessage, PatchMismatch, reaching
from ..exchange.addresses import answered, timeout_of
from ..torch_internals import PrefixStore, default_store
from .format import Summary, read_sections, summary
from .make import make, prepare
from .snapshot import load_snapshot, snapshot_summary, write_index, write_snapshot
from .store import NAME, File, Lease, Store, log
from .weights import Entry, Weights, digest_of, entries_of

TRIES = 100
"""Files that vanish after the listing, or are damaged, before a reader waits for others."""
_RETRY_S = 10.0
"""Seconds until a damaged file that looks as before is read again; doubled each time."""


class Published(NamedTuple):
    """What a call of `PatchWriter.write` wrote."""

    number: int
    patch_bytes: int
    snapshot_bytes: int
    changed: float
    """Share of the elements that changed; 1 for the first one."""
    digest: int
    """Of the weights, or of this rank's shards."""


def number_of(name: str) -> int:
    """The number of a file."""
    return int(name[:10])


class Complete(NamedTuple):
    """The files of patches and of snapshots, by number, where all of them are there."""

    patches: dict[int, list[str]]
    snapshots: dict[int, list[str]]

    @property
    def newest(self) -> int | None:
        """The largest number; None if there is none."""
        return max(self.patches | self.snapshots, default=None)


def complete(names: Iterable[str]) -> Complete:
    """The patches and snapshots of which all files are there."""
    sets = dict[tuple[str, int, int], list[str]]()
    for name in names:
        if match := NAME.fullmatch(name):
            sets.setdefault((match[4], int(match[1]), int(match[3] or 1)), []).append(name)
    whole = Complete({}, {})
    for (kind, number, parts), some in sets.items():
        if len(some) == parts:
            (whole.patches if kind == "patch" else whole.snapshots)[number] = some
    return whole


Link = tuple[int, list[str]]
"""A number, and the files of the patch or the snapshot that leads to it."""


def _chain(sets: Complete, files: Mapping[str, File], number: int | None, last: float) -> list[Link]:
    """The links of what leads furthest from a number, up to a last one, for the fewest bytes."""
    number = None if number is not None and number > last else number
    begins = [] if number is None else [(number, list[Link]())]
    begins += [(at, [(at, names)]) for at, names in sets.snapshots.items() if (number or 0) <= at <= last]
    chains = []
    for begin, chain in begins:
        at = begin
        while at < last and at + 1 in sets.patches:
            at += 1
            chain.append((at, sets.patches[at]))
        cost = sum(files[name].size for _, names in chain for name in names)
        chains.append((-at, cost, begin, chain))
    return min(chains)[-1] if chains else []


class PatchWriter(AbstractContextManager["PatchWriter"]):
    """Publishes a model's weights, again and again, as patches and snapshots."""

    _opened: ClassVar = Counter[str]()
    """How many writers this process has opened in each place."""

    def __init__(
        self,
        place: str | os.PathLike[str],
        *,
        full_every: int = 50,
        keep: int | None = None,
        take_over: bool = False,
        threads: int | None = None,
    ) -> None:
        """Takes a folder, which another writer may have left; its numbers go on with a snapshot.

        A thread gives a sign of life every 10 seconds. Where a writer on another machine may have been
        killed, this waits for one, up to a minute.

        Args:
            place: a path, or an address that fsspec knows, such as s3://bucket/run.
            full_every: after so many patches, a snapshot is written beside the patch.
            keep: how many snapshots stay, with the patches that follow them; all by default.
            take_over: whether to take it at once from a writer that may be alive: that one's next `write`
                fails.
            threads: as for `make_patch`.

        Raises:
            FileExistsError: another process writes there.
            ValueError: full_every or keep is less than 1.
        """
        for name, value in (("full_every", full_every), ("keep", 1 if keep is None else keep)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self._store, self._full_every, self._keep = Store(place), full_every, keep
        self._threads = torch.get_num_threads() if threads is None else threads
        self._lease = Lease(self._store, self._rank, take_over)
        self._last: dict[str, Entry] | None = None
        self._owners: dict[str, str] | None = None
        self._snapshot_due = self._calls = 0
        self._after = Summary(0, 0)
        """Of what was written last."""
        self._opened[self._store.place] += 1
        self._key = f"taugrad/patches/{self._store.place}/{self._opened[self._store.place]}"
        self.number = self._newest()
        """Of what was written last; -1 for nothing."""

    def write(self, weights: Weights) -> Published:
        """Publishes weights under the next number.

        Args:
            weights: by name, as for `make_patch`; always the same names, dtypes and shapes. Where some are
                DTensors, every rank calls this; each writes its shards, and rank 0 what all ranks have.
                Where none are, one rank may call this, or all: then the first one writes, and the others
                return what it returned.

        Raises:
            FileExistsError: another writer has taken the place over, or somebody has emptied it.
            OSError: it could not be written. The stream is as it was before, or without the snapshot that was
                due: the next call writes one. So it is whatever else fails here, on any rank.
            PatchMismatch: the weights are not of the same model as before.
            PeerLost: the rank that writes, or the process group's store, does not answer in time.
            RuntimeError: another rank has raised an error.
            TypeError, ValueError: as for `make_patch`; or this rank has other weights than the one that
                writes.
        """
        # What is remembered is written to later, and must not belong to inference_mode.
        with torch.inference_mode(False), torch.no_grad():
            sharded = [tensor for tensor in weights.values() if isinstance(tensor, DTensor)]
            if sharded:
                return self._write_shards(weights, sharded[0].device_mesh.device_type)
            if dist.is_initialized() and dist.get_world_size() > 1:
                return self._write_on_one_rank(weights)
            return self._write(self._read(weights), secrets.randbits(63))

    def _write_shards(self, weights: Weights, device: str) -> Published:
        entries, problem = dict[str, Entry](), None
        try:
            entries = self._read(weights)
        except Exception as error:
            problem = error
        begins = self._last is None  # on any rank: one may have failed, or started late
        given = [self.number, -self._snapshot_due, begins, problem is not None, secrets.randbits(63)]
        agreed = torch.tensor(given, device=device)
        dist.all_reduce(agreed, dist.ReduceOp.MAX)
        self.number, due, begins, failed, stream = agreed.tolist()
        if failed:
            raise problem or RuntimeError("nothing is published: another rank has raised an error")
        self._snapshot_due, self._last = -due, None if begins else self._last
        entries = {name: entry if entry.published else entry.empty() for name, entry in entries.items()}
        return self._write(entries, stream, f".{self._rank}of{dist.get_world_size()}")

    def _write_on_one_rank(self, weights: Weights) -> Published:
        store = PrefixStore(self._key, default_store())
        assert dist.group.WORLD is not None
        timeout = timeout_of(dist.group.WORLD)
        first = answered(lambda: store.compare_set("writer", "", str(self._rank)), timeout)
        writer, key = int(first), str(self._calls)
        self._calls += 1
        if writer == self._rank:
            try:
                made = self._write(self._read(weights), secrets.randbits(63))
            except BaseException as problem:
                store.set(key, json.dumps(f"{type(problem).__name__}: {problem}"))
                raise
            store.set(key, json.dumps(made))
            return made
        with reaching(writer):
            result = json.loads(answered(lambda: store.get(key), timeout))
        if isinstance(result, str):
            raise RuntimeError(f"nothing is published: on rank {writer}, {result}")
        if digest_of(entries_of(weights), self._threads) != (made := Published(*result)).digest:
            raise ValueError(f"rank {self._rank} has other weights than rank {writer}, which publishes them")
        return made

    def _read(self, weights: Weights) -> dict[str, Entry]:
        """Reads weights, while the place is ours."""
        if not self._lease.held():
            lost = "another writer has taken it over, or the file that says whose it is was removed"
            raise FileExistsError(f"{self._store.place}: {lost}")
        if self._last is None:  # a number that failed may have left a file
            self.number = max(self.number, self._newest())
        return entries_of(weights)

    def _newest(self) -> int:
        return max(map(number_of, self._store.files()), default=-1)

    def _write(self, entries: Mapping[str, Entry], stream: int, part: str = "") -> Published:
        number, name = self.number + 1, f"{self.number + 1:010d}{part}"
        patch_bytes, snapshot_bytes = 0, 0
        try:
            if self._last is None:
                self._snapshot_due = number
                after = Summary(stream, digest_of(entries, self._threads))
            else:
                patch, after = make(self._last, entries, self._after, self._threads)
                patch_bytes = self._store.write(f"{name}.patch", patch)
                self._remember(entries, number, after)
            if number >= self._snapshot_due:  # behind the patch: where this fails, the stream goes on
                snapshot_bytes = self._store.write(
                    f"{name}.safetensors", write_snapshot(entries, number, after)
                )
                if not part:  # shards are no tensors that a server's loader knows
                    index = write_index(entries, f"{name}.safetensors")
                    self._store.replace("model.safetensors.index.json", index)
                self._snapshot_due = number + self._full_every
                if self._last is None:
                    self._remember(entries, number, after)
                self._trim()
        except BaseException:
            if self.number < number and (part or self._is_left(number)):
                self._last = None  # so that the next call writes a snapshot, under a number of its own
            raise
        return Published(number, patch_bytes, snapshot_bytes, after.changed, after.digest)

    def _is_left(self, number: int) -> bool:
        """Whether a file of a number may be in the store."""
        try:
            return any(number_of(name) == number for name in self._store.files())
        except Exception:
            return True

    def _remember(self, entries: Mapping[str, Entry], number: int, after: Summary) -> None:
        """Keeps weights as they are written; those that are tied now have one copy."""
        firsts = dict[Any, str]()
        owners = {name: firsts.setdefault(entry.place, name) for name, entry in entries.items()}
        if self._last is None or owners != self._owners:
            self._last = None
            copies = {name: entries[name].bits.clone() for name in firsts.values()}
            self._last = {name: entry.with_bits(copies[owners[name]]) for name, entry in entries.items()}
            self._owners = owners
        else:
            for name in firsts.values():
                self._last[name].bits.copy_(entries[name].bits)
        self.number, self._after = number, after

    def _trim(self) -> None:
        if not self._keep:
            return
        try:
            files = self._store.files()
            snapshots = sorted(complete(files).snapshots)
            for name in files if snapshots else ():
                if number_of(name) < snapshots[-self._keep :][0]:
                    self._store.remove(name)
        except Exception as problem:  # some clients' errors are no OSErrors
            log.warning("%s: old files are not removed: %s", self._store.place, problem)

    def close(self) -> None:
        """Lets another writer have the place. What was written stays."""
        self._lease.close()

    def __exit__(self, *error: object) -> None:
        self.close()


class StreamReader:
    """Knows the number of some weights, and finds what leads from there to another one."""

    def __init__(self, place: str | os.PathLike[str], *, threads: int | None = None) -> None:
        """Opens a path or an address, where nothing needs to be yet.

        Args:
            place: as for `PatchWriter`.
            threads: as for `apply_patch`.
        """
        self._store, self._left_out = Store(place), dict[str, tuple[File, float, float]]()
        self._threads = torch.get_num_threads() if threads is None else threads
        self._at: int | None = None  # where a patch can go on; None: only a snapshot can
        self._weights = Summary(0, 0)
        self._known = dict[str, File]()
        self.number: int | None = None
        """Of the weights; None before the first update."""

    def _links(
        self, number: int | None, found: Mapping[str, File]
    ) -> tuple[dict[str, File], list[Link], int | None]:
        """Returns the files that may be read, the links to a number or to the newest one, and the newest."""
        files = {name: file for name, file in found.items() if self._is_due(name, file)}
        sets, last = complete(files), inf if number is None else number
        if self._is_replaced(sets, files):
            log.warning("%s: another stream is there than that of number %s", self._store.place, self._at)
            self._at = None
        return files, _chain(sets, files, self._at, last), complete(found).newest

    def _is_due(self, name: str, file: File) -> bool:
        """Whether a file may be read: it is not empty, and not left out as it is now."""
        left_out, until, _ = self._left_out.get(name, (None, 0.0, 0.0))
        return file.size > 0 and (file != left_out or time.monotonic() >= until)

    def _leave_out(self, files: Mapping[str, File], problem: Exception, other_stream: bool) -> None:
        """Leaves files out for a while; a patch of another stream only where it fits no snapshot either."""
        for name, file in files.items():
            before, _, delay_s = self._left_out.get(name, (None, 0.0, 0.0))
            delay_s = 2 * delay_s if file == before else _RETRY_S
            until = time.monotonic() + delay_s
            if other_stream and file != before:
                self._at, until = None, 0.0
            self._left_out[name] = file, until, delay_s
            if file != before:
                log.warning("%s: %s is left out: %s", self._store.place, name, problem)

    def _is_of_another_stream(self, problem: Exception, patch: list[bytes]) -> bool:
        """Whether a patch does not fit because it belongs to another stream."""
        return isinstance(problem, PatchMismatch) and _patch_summary(patch).stream != self._weights.stream

    def _is_replaced(self, sets: Complete, files: Mapping[str, File]) -> bool:
        """Whether the store has other weights under our number, or ends before it with another stream."""
        if self._at is None or sets.newest is None:
            return False
        at = min(self._at, sets.newest)
        found = [{name: files[name] for name in kind[at]} for kind in sets if at in kind]
        if not found or self._known in found:  # trimmed, or still there
            return False
        names = found[-1]
        try:
            about = summary_of(self._store, list(names), names)
        except (FileNotFoundError, CorruptMessage):  # it is read again as soon as it has changed
            return False
        same = (
            about.digest == self._weights.digest
            if sets.newest >= self._at
            else about.stream == self._weights.stream
        )
        if same:
            self._known = names
        return not same


class PatchReader(StreamReader):
    """Follows what a `PatchWriter` publishes."""

    def update(self, weights: Weights) -> int | None:
        """Brings weights to the newest number that can be reached, by as few bytes as possible.

        Weights change in place, from one number to another at once. A file that is damaged or does not fit is
        left out, with a warning, until it has changed or some time has passed; the next snapshot goes on
        behind it. Weights that something else has changed are replaced by a snapshot, too, and so are those
        of a stream that another one has replaced: the number may then be a smaller one.

        Args:
            weights: by name, whole tensors; what they are at first does not matter.

        Returns:
            The number that weights have now; None if nothing is published yet.

        Raises:
            PatchMismatch: what is published has other names, dtypes or shapes.
            TypeError, ValueError: as for `apply_patch`.
        """
        entries = entries_of(weights, writable=True)
        for _ in range(TRIES):
            files, chain, _ = self._links(None, self._store.files())
            if all(self._advance(entries, files, *link) for link in chain):
                break
        return self.number

    def _advance(
        self, entries: Mapping[str, Entry], files: Mapping[str, File], number: int, names: list[str]
    ) -> bool:
        """Brings weights to a number; whether that was possible."""
        is_patch, data = names[0].endswith(".patch"), list[bytes]()
        try:
            data += map(self._store.read, names)
            self._weights = load(entries, number, names, data, self._threads)
        except FileNotFoundError:  # the writer keeps newer ones only
            return False
        except (CorruptMessage, PatchMismatch) as problem:
            if isinstance(problem, PatchMismatch) and problem.tensor:
                raise
            if is_patch and digest_of(entries, self._threads) != self._weights.digest:
                log.warning("%s: weights are not those of number %s any more", self._store.place, self.number)
                self.number = self._at = None
            else:
                other = is_patch and self._is_of_another_stream(problem, data)
                self._leave_out({name: files[name] for name in names}, problem, other)
            return False
        self.number = self._at = number
        self._known = {name: files[name] for name in names}
        return True


def load(
    entries: Mapping[str, Entry], number: int, names: list[str], data: list[bytes], threads: int
) -> Summary:
    """Brings weights to a number by the files of a patch or a snapshot; returns what these say about them.

    Raises:
        CorruptMessage, PatchMismatch: a file is damaged, or not for these weights, which are as before.
    """
    if names[0].endswith(".patch"):
        return prepare(entries, b"".join(data), threads).apply()
    return load_snapshot(data, number, entries, threads)


def listing(place: str | os.PathLike[str]) -> Iterator[str]:
    """A line for each file of a stream: number, kind, bytes, changed share, stream, and digest after."""
    store = Store(place)
    yield f"{'number':>10}  {'file':<12}{'bytes':>14}{'changed':>10}  {'stream':<16}  digest"
    for name, file in store.files().items():
        try:
            about = summary_of(store, [name], {name: file})
            share = f"{about.changed:.3%}" if name.endswith(".patch") else ""
            text = f"{share:>10}  {about.stream:016x}  {about.digest:016x}"
        except FileNotFoundError:  # removed since
            continue
        except CorruptMessage as problem:
            text = f"{'':>10}  damaged: {problem}"
        yield f"{number_of(name):>10}  {name[11:]:<12}{file.size:>14,}{text}"


def summary_of(store: Store, names: list[str], files: Mapping[str, File]) -> Summary:
    """What a patch or a snapshot, untrusted, says about itself; raises CorruptMessage."""
    if names[0].endswith(".patch"):
        return _patch_summary(map(store.read, names))
    summaries = [snapshot_summary(partial(store.read, name), files[name].size) for name in names]
    return Summary(summaries[0].stream, sum(part.digest for part in summaries) % 2**64)


def _patch_summary(data: Iterable[bytes]) -> Summary:
    return summary(read_sections(b"".join(data)))
