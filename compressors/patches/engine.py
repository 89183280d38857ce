"""Follows a stream in an inference engine's memory, on one rank or several, without a copy of the weights."""

import os
import threading
from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from ..errors import CorruptMessage, PatchMismatch
from .format import Summary
from .make import DecodedPatch, decode
from .parts import EngineRefused, EngineTensor, Sums, Write, merge, missing
from .reload import Reloader
from .store import File, Store, log
from .stream import TRIES, Link, StreamReader, complete, load, number_of, summary_of
from .weights import Entry, entries_of, factor_of

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
    result: Any = None
    refusal: tuple[str, list[str] | None, bool] | None = None
    cause: Exception | None = None
    try:
        result = work()
    except Exception as problem:
        cause, refusal = problem, (f"{type(problem).__name__}: {problem}", None, False)
        if isinstance(problem, EngineRefused):
            refusal = str(problem), problem.names, problem.other_stream
    results: list[Any] = [(refusal, result)]
    if gather is not None:
        texts = [text.decode() for text in gather(repr(results[0]).encode())]
        with _PARSING:
            results = [literal_eval(text) for text in texts]
    refusals = [(rank, *refusal) for rank, (refusal, _) in enumerate(results) if refusal]
    if refusals:
        _, reason, names, other_stream = refusals[0]
        if names is None:
            reason = "; ".join(f"rank {rank}: {reason}" for rank, reason, *_ in refusals)
        raise EngineRefused(reason, names, other_stream) from cause
    return [result for _, result in results]


class Ahead(NamedTuple):
    """A patch that was fetched ahead, and its files as they were listed."""

    files: dict[str, File]
    patch: DecodedPatch


class Staged(NamedTuple):
    """What a patch does to this rank's memory, computed while the engine serves."""

    patch: DecodedPatch
    writes: list[Write]
    changes: Sums


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
        self._rows = {name: tensor.row for name, tensor in tensors.items()}
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
        self._ahead, self._ended = dict[int, Ahead](), threading.Event()
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
            if not plan:
                break
            try:
                self._follow(plan)
                reason = ""
                break
            except EngineRefused as problem:
                if problem.names is None:
                    raise
                reason = str(problem)
                files = {name: self._files[name] for name in problem.names if name in self._files}
                self._leave_out(files, problem, problem.other_stream)
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
        for number, names in sorted(complete(files).snapshots.items(), reverse=True):
            with suppress(CorruptMessage, FileNotFoundError):
                found = summary_of(self._store, names, files)
                if found.digest == self._weights.digest:
                    return number, tuple(found)
        return None, tuple(self._weights)

    def _plan(self, number: int | None) -> tuple[list[Link], int | None]:
        if self._rank:
            return [], None
        self._files, chain, newest = self._links(number, self._listed)
        if not (_leads_to(chain, number) and all(at in self._ahead for at, _ in chain)):
            self._files, chain, newest = self._links(number, self._store.files())
        return (chain if _leads_to(chain, number) else []), newest

    def _follow(self, plan: Sequence[Link]) -> None:
        """Goes along all links or none."""
        number, names = plan[-1]
        if plan[0][1][0].endswith(".safetensors"):
            snapshots = list[tuple[dict[str, Entry], Summary]]()
            on_all(self._gather, lambda: snapshots.append(self._whole(plan)))
            with self._changing:
                self._replace(*snapshots[0])
        else:
            patches = list[DecodedPatch]()
            on_all(self._gather, lambda: patches.extend(self._patches(plan)))
            with self._changing:
                self._step(plan, patches)
        self.number = self._at = number
        self._known = {name: self._files[name] for name in names if name in self._files}
        log.info("%s: number %s, digest %016x", self._store.place, self.number, self.digest)

    def _patches(self, plan: Sequence[Link]) -> Iterator[DecodedPatch]:
        before = self._weights
        for number, names in plan:
            ahead, patch, data = self._ahead.pop(number, None), None, list[bytes]()
            try:
                # Files may have been written again. Rank 0 has the listing; what it refuses, all refuse.
                if ahead is not None and (self._rank or ahead.files.items() <= self._files.items()):
                    with suppress(PatchMismatch):
                        patch = self._fitting(ahead.patch, before.digest)
                if patch is None:
                    data += map(self._store.read, names)
                    patch = self._fitting(decode(b"".join(data), self._rows, self._threads), before.digest)
            except (CorruptMessage, PatchMismatch, FileNotFoundError) as problem:
                other_stream = self._is_of_another_stream(problem, data)
                raise EngineRefused(f"{names[0]}: {problem}", names, other_stream) from None
            yield patch
            before = patch.after

    def _fitting(self, patch: DecodedPatch, digest: int) -> DecodedPatch:
        """Returns a patch for weights of a digest.

        Raises:
            PatchMismatch: it is for others; or tensors that have the same memory in the engine become
                different.
        """
        patch.require_digest(digest)
        steps = {(name, row.first): change for row, change in patch.changes for name in row.names}
        for (name, first), change in steps.items():
            if owner := self._tensors[name].tied_to:
                other = steps.get((owner, first))
                if other is not change and not (other and all(map(np.array_equal, change, other))):
                    raise PatchMismatch(
                        "", f"{name} and {owner} are one tensor in the engine, and become two"
                    )
        return patch

    def _stage(self, patch: DecodedPatch) -> Sums:
        """Has `_staged` say what a patch for the weights that run changes; writes nothing to memory."""
        staged = self._staged
        # Memory may have changed since it was computed.
        if staged is None or staged.patch is not patch or not all(write.fits() for write in staged.writes):
            writes, sums = list[Write](), Counter[tuple[str, Any]]()
            for row, steps in patch.changes:
                for name in row.names if steps.positions.size else ():
                    some, changes = self._tensors[name].step(row, steps)
                    writes.extend(some)
                    sums.update(changes)
            self._staged = staged = Staged(patch, writes, dict(sums))
        return staged.changes

    def _step(self, plan: Sequence[Link], patches: Sequence[DecodedPatch]) -> None:
        done, after = list[Write](), self._weights
        try:
            for (_, names), patch in zip(plan, patches, strict=True):
                changes = merge(on_all(self._gather, partial(self._stage, patch)))
                if (digest := (after.digest + self._total(changes)) % 2**64) != patch.after.digest:
                    leads = f"it leads to {digest:016x}, and says {patch.after.digest:016x}"
                    raise EngineRefused(f"{names[0]}: {leads}", names)
                staged, self._staged, after = self._staged, None, patch.after
                for write in staged.writes if staged else ():
                    done.append(write)
                    write.apply()
            changes_of = (change for patch in patches for change in patch.changes)
            changed = {name for row, steps in changes_of if steps.positions.size for name in row.names}
            if changed & self._reloaded.keys():
                self._reload({name: t.copy for name, t in self._reloaded.items()})
        except BaseException as problem:
            for write in reversed(done):
                write.undo()
            if isinstance(problem, EngineRefused):
                try:
                    self.verify()
                except EngineRefused as others:
                    log.warning("%s", others)
                    raise EngineRefused(str(others), []) from None  # and a snapshot is next
            raise
        self._weights = after

    def _whole(self, plan: Sequence[Link]) -> tuple[dict[str, Entry], Summary]:
        """All tensors of the last number of a plan, in the host's memory."""
        tensors = self._tensors.items()
        fresh = {name: torch.empty(t.row.shape, dtype=t.dtype, device="cpu") for name, t in tensors}
        entries, after = entries_of(fresh, writable=True), self._weights
        for number, names in plan:
            try:
                data = list(map(self._store.read, names))
                after = load(entries, number, names, data, self._threads)
            except (CorruptMessage, PatchMismatch, FileNotFoundError) as problem:
                raise EngineRefused(f"{names[0]}: {problem}", names) from None
        for name, tensor in self._tensors.items():
            if (owner := tensor.tied_to) and not entries[name].bits.equal(entries[owner].bits):
                names = plan[-1][1]
                reason = f"{names[0]}: {name} and {owner} are one tensor here, and two there"
                raise EngineRefused(reason, names)
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
                listed, at = store.files(), self._at
                sets, due = complete(listed), range(at + 1, at + 1 + _AHEAD) if at is not None else range(0)
                kept = (row for row in list(self._ahead.items()) if row[1].files.items() <= listed.items())
                self._ahead, self._listed = {number: ahead for number, ahead in kept if number in due}, listed
                for number in due:
                    if number not in sets.patches:
                        break
                    if number in self._ahead:
                        continue
                    names = sets.patches[number]
                    patch = decode(b"".join(map(store.read, names)), self._rows, 1)
                    self._ahead[number] = Ahead({name: listed[name] for name in names}, patch)
                    with self._changing, torch.no_grad():
                        if self._at == number - 1:
                            self._stage(self._fitting(patch, self.digest))
                self.fetched = sets.newest
            except Exception:
                self.fetched = None


def _leads_to(chain: Sequence[Link], number: int | None) -> bool:
    """Whether there is a chain, which ends at a number if one is given."""
    return bool(chain) and number in (None, chain[-1][0])
