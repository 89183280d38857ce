"""Follows a stream in an inference engine's memory, on one rank or several, without a copy of the weights."""

import os
import threading
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from ..errors import CorruptMessage, PatchMismatch
from .format import Row, Summary, read_sections, read_steps
from .kernels import Steps
from .make import prepare
from .parts import EngineRefused, EngineTensor, Sums, Write, merge, missing
from .reload import Reloader
from .snapshot import load_snapshot
from .store import File, Store, log
from .stream import TRIES, Link, StreamReader, complete, number_of, summary_of
from .weights import Entry, entries_of, factor_of, require_fit

Result = TypeVar("Result")
Gather = Callable[[bytes], list[bytes]]
"""Returns what each rank has given it, on all of them."""
_PARSING = threading.Lock()
"""CPython's AST constructor counts its depth across threads, and fails where they do not agree."""
_AHEAD = 16
"""Patches that are fetched before an update asks for them."""


def on_all(gather: Gather | None, work: Callable[[], Result]) -> list[Result]:
    """Returns what work returns on each rank; where it fails on one, raises EngineRefused on all.

    Results are literals: texts, numbers, None, and tuples, lists, sets and dictionaries of these. They travel
    as text. Without `gather` there is one rank.
    """
    problem, result = None, None
    try:
        result = work()
    except Exception as error:
        problem = error
    known = isinstance(problem, EngineRefused)
    mine = problem and (str(problem) if known else f"{type(problem).__name__}: {problem}"), result
    results: list[Any] = [mine]
    if gather is not None:
        texts = [text.decode() for text in gather(repr(mine).encode())]
        with _PARSING:
            results = [literal_eval(text) for text in texts]
    failed = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(results) if text]
    if failed:
        raise EngineRefused("; ".join(failed)) from problem
    return [result for _, result in results]


class DecodedPatch(NamedTuple):
    """A patch that is whole."""

    rows: list[Row]
    steps: list[Steps]
    before: int
    after: Summary


class Ahead(NamedTuple):
    """A patch that was fetched ahead, and its files as they were listed."""

    files: dict[str, File]
    patch: DecodedPatch


class Staged(NamedTuple):
    """What a patch does to this rank's memory, computed while the engine serves."""

    patch: DecodedPatch
    writes: list[Write]
    changes: Sums


class Refusal(NamedTuple):
    """Files that cannot be applied, and why."""

    names: list[str]
    reason: str
    other_stream: bool = False


class _Refused(Exception):
    def __init__(self, names: list[str], problem: Exception | str, other_stream: bool = False) -> None:
        self.refusal = Refusal(names, f"{names[0]}: {problem}", other_stream)


class EngineReader(StreamReader):
    """Follows what a `PatchWriter` publishes, where checkpoint tensors lie in parts of an engine's memory.

    All ranks call each method together. What one of them cannot do, none does.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        tensors: Mapping[str, EngineTensor],
        *,
        reloader: Reloader | None = None,
        rank: int = 0,
        gather: Gather | None = None,
        verify_every: int | None = None,
        poll_s: float | None = None,
        threads: int | None = None,
    ) -> None:
        """Finds the number of the weights that an engine was loaded from, by the digest of what runs.

        Args:
            place: as for `PatchReader`.
            tensors: by name, all tensors of the checkpoint, and which parts of them this rank has.
            reloader: loads the tensors that say so; none does by default.
            rank: of those that `gather` gathers from; rank 0 decides where to go.
            gather: returns what each rank has given it, on all of them; by default there is one rank.
            verify_every: after so many updates, `verify` is called.
            poll_s: so many seconds after one look for new patches, a thread looks again, and fetches and
                decodes them before an update asks; by default only an update fetches.
            threads: as for `apply_patch`.

        Raises:
            EngineRefused: some elements are in no rank's memory, or a rank cannot read the place.
        """
        super().__init__(place, threads=threads)
        self._tensors, self._rank, self._gather = tensors, rank, gather
        self._reloader = reloader
        self._reloaded = {n: t for n, t in sorted(tensors.items()) if t.reloaded and not t.tied_to}
        self._verify_every, self._updates, self._files = verify_every, 0, dict[str, Any]()
        self._entries = {name: Entry(t.row, _NONE, _NONE) for name, t in tensors.items()}
        self._factors = {name: factor_of(t.row) for name, t in tensors.items()}
        digests = self._digests()
        if lost := missing(tensors, set(digests)):
            raise EngineRefused(
                f"{len(lost)} tensors are not in the engine, or not whole: {', '.join(lost[:3])}"
            )
        self._weights = Summary(0, self._total(digests))
        self._at, about = on_all(gather, self._recognize)[0]
        self._weights = Summary(*about)
        self.number = self._at
        self.fetched: int | None = None
        """The newest number at the thread's last look, behind which nothing is left to fetch."""
        self._ahead, self._ended = dict[tuple[str, ...], Ahead](), threading.Event()
        self._staged: Staged | None = None
        self._listed = dict[str, File]()
        self._changing = threading.Lock()
        """Held while memory changes, and while a patch is staged."""
        if poll_s is not None:
            threading.Thread(target=self._poll, args=(poll_s,), name="taugrad-fetch", daemon=True).start()

    @property
    def digest(self) -> int:
        """The digest that weights of `number` have."""
        return self._weights.digest

    def close(self) -> None:
        """Ends the thread that fetches."""
        self._ended.set()

    def update(self, number: int | None = None) -> int:
        """Brings what runs to a number, at once or not at all.

        Patches are fetched, decoded and checked before anything changes. What cannot be reached by patches is
        made from a snapshot in the host's memory first.

        Args:
            number: by default the newest one that can be reached, of those at the thread's last look if it
                has fetched all.

        Returns:
            The number that runs now.

        Raises:
            EngineRefused: it cannot be reached, or nothing newer than what runs, though it is there; on every
                rank. What ran before runs.
        """
        began, reason = self.number, ""
        for _ in range(TRIES):
            plan, newest = on_all(self._gather, partial(self._plan, number))[0]
            if not plan or not (reason := self._follow(plan)):
                break
        due = newest if number is None else number
        if self.number is None or (self.number != due and (number is not None or self.number == began)):
            left_out = [name for name in self._left_out if number_of(name) > (self.number or 0)]
            reason = reason or f"no files lead there; the newest number is {newest}; left out: {left_out}"
            reason = f"number {due} is not reached: {reason}; {self._served()}"
            raise EngineRefused(f"{self._store.place}: {reason}")
        if self.number != began:
            self._updates += 1
            if self._verify_every and self._updates % self._verify_every == 0:
                self.verify()
        return self.number

    def _served(self) -> str:
        return f"number {self.number}, digest {self.digest:016x}, is served"

    def verify(self) -> int:
        """Compares the digest of what runs with the stream's; reads all weights once.

        Returns:
            The digest.

        Raises:
            EngineRefused: they differ; on every rank. The next update takes a snapshot.
        """
        number, self.number, at, self._at = self.number, None, self._at, None
        digest = self._total(self._digests())
        if digest != self.digest:
            due = f"those of number {number} have {self.digest:016x}"
            raise EngineRefused(f"{self._store.place}: the weights that run have digest {digest:016x}, {due}")
        self.number, self._at = number, at
        return digest

    def _digests(self) -> Sums:
        def mine() -> Sums:
            if self._reloader is not None:
                self._reloader.check()
            return merge(tensor.digests(self._threads) for tensor in self._tensors.values())

        return merge(on_all(self._gather, mine))

    def _total(self, sums: Sums) -> int:
        return sum(self._factors[name] * value for (name, _), value in sums.items()) % 2**64

    def _recognize(self) -> tuple[int | None, tuple[Any, ...]]:
        """The newest snapshot with the digest of what runs."""
        files = self._store.files()
        snapshots = {
            at: names for (kind, at), names in complete(iter(files)).items() if kind == "safetensors"
        }
        for number in sorted(snapshots, reverse=True):
            with suppress(CorruptMessage, FileNotFoundError):
                found = summary_of(self._store, snapshots[number], files)
                if found.digest == self._weights.digest:
                    return number, tuple(found)
        return None, tuple(self._weights)

    def _plan(self, number: int | None) -> tuple[list[Link], int | None]:
        if self._rank:
            return [], None
        if chain := self._fetched_links(number):
            self._files = self._listed
            return chain, chain[-1][0]
        self._files, chain, newest = self._links(number)
        return ([] if number is not None and chain and chain[-1][0] != number else chain), newest

    def _fetched_links(self, number: int | None) -> list[Link]:
        """The patches to a number, or all, if the thread has fetched them: no store is asked."""
        names = {number_of(names[0]): list(names) for names in list(self._ahead)}
        links, at = list[Link](), self._at
        while at is not None and at != number and at + 1 in names:
            at += 1
            links.append((at, names[at]))
        return links if at == (self.fetched if number is None else number) else []

    def _follow(self, plan: Sequence[Link]) -> str:
        """Goes along all links or none; returns what prevented it."""
        fetched, is_snapshot = list[Any](), plan[0][1][0].endswith(".safetensors")

        def fetch() -> tuple[Any, ...] | None:
            try:
                fetched.append(self._whole(plan) if is_snapshot else self._patches(plan))
            except _Refused as refused:
                return tuple(refused.refusal)
            return None

        refusals = (Refusal(*refused) for refused in on_all(self._gather, fetch) if refused)
        refusal = next(refusals, None)
        with self._changing:
            if not refusal and is_snapshot:
                self._replace(*fetched[0])
            elif not refusal:
                refusal = self._step(plan, fetched[0])
        if refusal:
            for name in refusal.names:
                if name in self._files:
                    problem = PatchMismatch("", refusal.reason)
                    self._leave_out(name, self._files[name], problem, refusal.other_stream)
            return refusal.reason
        self.number, names = self._at, _ = plan[-1]
        self._known = {name: self._files[name] for name in names if name in self._files}
        for key in [key for key in list(self._ahead) if number_of(key[0]) <= self.number]:
            self._ahead.pop(key, None)
        log.info("%s: number %s, digest %016x", self._store.place, self.number, self.digest)
        return ""

    def _patches(self, plan: Sequence[Link]) -> list[DecodedPatch]:
        patches, before = list[DecodedPatch](), self._weights
        for _, names in plan:
            ahead, found, patch = self._ahead.pop(tuple(names), None), None, None
            try:
                # Files may have been written again. Rank 0 has the listing; what it refuses, all refuse.
                if ahead is not None and (self._rank or ahead.files.items() <= self._files.items()):
                    with suppress(PatchMismatch):
                        patch = self._fitting(ahead.patch, before.digest)
                if patch is None:
                    found = _decode(self._store, names, self._threads)
                    patch = self._fitting(found, before.digest)
            except (CorruptMessage, PatchMismatch, FileNotFoundError) as problem:
                other = found is not None and found.after.stream != before.stream
                raise _Refused(names, problem, other) from None
            patches.append(patch)
            before = patch.after
        return patches

    def _fitting(self, patch: DecodedPatch, digest: int) -> DecodedPatch:
        """Returns a patch for weights of a digest; raises PatchMismatch for others."""
        require_fit(patch.rows, self._entries)
        if patch.before != digest:
            raise PatchMismatch("", f"it is for digest {patch.before:016x}, not {digest:016x}")
        self._require_tied(patch)
        return patch

    def _require_tied(self, patch: DecodedPatch) -> None:
        """Raises PatchMismatch where tensors that have the same memory in the engine become different."""
        columns = zip(patch.rows, patch.steps, strict=True)
        steps = {(name, row.first): change for row, change in columns for name in row.names}
        for (name, first), change in steps.items():
            if owner := self._tensors[name].tied_to:
                other = steps.get((owner, first))
                if other is not change and not (other and all(map(np.array_equal, change, other))):
                    raise PatchMismatch(
                        "", f"{name} and {owner} are one tensor in the engine, and become two"
                    )

    def _stage(self, patch: DecodedPatch) -> Staged:
        """Computes what a patch for the weights that run changes; writes nothing."""
        writes, sums = list[Write](), list[Sums]()
        for row, steps in zip(patch.rows, patch.steps, strict=True):
            for name in row.names if steps.positions.size else ():
                some, changes = self._tensors[name].step(row, steps)
                writes.extend(some)
                sums.append(changes)
        return Staged(patch, writes, merge(sums, add=True))

    def _step(self, plan: Sequence[Link], patches: Sequence[DecodedPatch]) -> Refusal | None:
        done, summary = list[Write](), self._weights
        try:
            for (_, names), patch in zip(plan, patches, strict=True):
                staged = list[Staged]()

                def take(patch: DecodedPatch = patch, staged: list[Staged] = staged) -> Sums:
                    early = self._staged
                    if early is None or early.patch is not patch or not all(w.fits() for w in early.writes):
                        early = self._stage(patch)  # memory may have changed since
                    staged.append(early)
                    return staged[0].changes

                changes = merge(on_all(self._gather, take))
                if (digest := (summary.digest + self._total(changes)) % 2**64) != patch.after.digest:
                    raise _Refused(names, f"it leads to {digest:016x}, and says {patch.after.digest:016x}")
                summary = patch.after
                self._staged = None
                for write in staged[0].writes:
                    done.append(write)
                    write.apply()
            columns = [column for patch in patches for column in zip(patch.rows, patch.steps, strict=True)]
            changed = {name for row, steps in columns if steps.positions.size for name in row.names}
            if changed & self._reloaded.keys():
                self._reload({name: t.copy for name, t in self._reloaded.items()})
        except BaseException as problem:
            for write in reversed(done):
                write.undo()
            if not isinstance(problem, _Refused | EngineRefused):
                raise
            try:
                self.verify()
            except EngineRefused as changed:
                log.warning("%s", changed)
                return Refusal([], str(changed))  # and a snapshot is next
            if isinstance(problem, EngineRefused):
                raise
            return problem.refusal
        self._weights = summary
        return None

    def _whole(self, plan: Sequence[Link]) -> tuple[dict[str, Entry], Summary]:
        """All tensors of the last number of a plan, in the host's memory."""
        tensors = self._tensors.items()
        fresh = {name: torch.empty(t.row.shape, dtype=t.dtype, device="cpu") for name, t in tensors}
        entries, after = entries_of(fresh, writable=True), self._weights
        for number, names in plan:
            try:
                data = [self._store.read(name) for name in names]
                if names[0].endswith(".patch"):
                    patch = prepare(entries, np.frombuffer(b"".join(data), np.uint8), self._threads)
                    patch.apply()
                    after = patch.after
                else:
                    after = load_snapshot(data, number, entries, self._threads)
            except (CorruptMessage, PatchMismatch, FileNotFoundError) as problem:
                raise _Refused(names, problem) from None
        for name, tensor in self._tensors.items():
            if (owner := tensor.tied_to) and not entries[name].bits.equal(entries[owner].bits):
                raise _Refused(plan[-1][1], f"{name} and {owner} are one tensor here, and two there")
        return entries, after

    def _reload(self, flat: Mapping[str, Any]) -> None:
        """Has the model's loader take what cannot be mapped, on all ranks or on none.

        It is given copies: some loaders keep what they are given.
        """
        reloader = self._reloader
        assert reloader is not None
        weights = ((name, flat[name].clone().view(t.row.shape)) for name, t in self._reloaded.items())
        try:
            on_all(self._gather, partial(reloader.load, weights))
        except EngineRefused as problem:
            raise EngineRefused(f"{self._store.place}: {problem}; {self._served()}") from None
        else:
            reloader.keep()
        finally:
            reloader.undo()

    def _replace(self, entries: Mapping[str, Entry], after: Summary) -> None:
        if self._reloaded:
            self._reload({name: entries[name].local.reshape(-1) for name in self._reloaded})
        self._staged = None
        for name, tensor in self._tensors.items():
            whole = entries[name].local.reshape(-1)
            if tensor.copy is not None:
                tensor.copy.copy_(whole)
            for part in tensor.parts:
                part.write(whole)
        self._weights = after
        self.verify()

    def _poll(self, poll_s: float) -> None:
        """Fetches what comes next, on a thread of its own; what cannot be read is the next update's."""
        store = Store(self._store.place)
        while not self._ended.wait(poll_s):
            try:
                listed, number = store.files(), self._at
                for names, ahead in list(self._ahead.items()):
                    is_next = number is not None and 0 < number_of(names[0]) - number <= _AHEAD
                    if not is_next or not ahead.files.items() <= listed.items():
                        self._ahead.pop(names, None)
                self._listed, sets = listed, complete(iter(listed))
                while number is not None and ("patch", number + 1) in sets and len(self._ahead) < _AHEAD:
                    number += 1
                    if (names := tuple(sets["patch", number])) not in self._ahead:
                        patch = _decode(store, names, 1)
                        self._ahead[names] = Ahead({name: listed[name] for name in names}, patch)
                        with self._changing, torch.no_grad():
                            if self._at == number - 1:
                                self._staged = self._stage(self._fitting(patch, self.digest))
                self.fetched = max((number for _, number in sets), default=None)
            except Exception:
                self.fetched = None


def _decode(store: Store, names: Sequence[str], threads: int) -> DecodedPatch:
    sections = read_sections(np.frombuffer(b"".join(map(store.read, names)), np.uint8))
    rows = [row for section in sections for row in section.rows]
    steps = [change for section in sections for change in read_steps(section, threads)]
    before, after = (sum(section.digests[i] for section in sections) % 2**64 for i in (0, 1))
    return DecodedPatch(rows, steps, before, Summary(sections[0].stream, after))


_NONE = torch.empty(0, dtype=torch.uint8)
