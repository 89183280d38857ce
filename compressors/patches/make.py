"""Makes and applies weight patches."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate, chain, groupby
from math import prod
from operator import mul
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import CorruptMessage, PatchMismatch
from .format import PATTERNS, PatchSection, Row, Summary, read_sections, read_steps, summary, write_section
from .kernels import Comparison, Piece, Steps
from .weights import Entry, Weights, batch_of, by_device, entries_of, factor_of, require_fit, rows_of


class SparseTensor(NamedTuple):
    """The elements of a tensor that a patch changes."""

    name: str
    indices: Tensor
    """int32 [k] (int64 from 2^31 elements on), ascending, into the flattened tensor."""
    values: Tensor
    """[k], what they become, of the tensor's dtype."""


class WeightPatch(bytes):
    """The bytes of a patch. Patches of all shards of a model, joined, are one of the whole model."""

    _made_from: Weights | None = None

    def __reduce__(self) -> tuple[type["WeightPatch"], tuple[bytes]]:
        return WeightPatch, (bytes(self),)  # without the weights that it was made from

    @property
    def sections(self) -> list[PatchSection]:
        """Tensors, digests, and how many elements change; raises CorruptMessage."""
        return read_sections(self)

    @property
    def changed(self) -> int:
        """How many elements change; those of tied tensors count once, complex ones twice."""
        return sum(section.changed for section in self.sections)

    def sparse(self, weights: Weights | None = None) -> list[SparseTensor]:
        """Names, indices and values of what changes, as servers take them that update weights in place.

        Args:
            weights: those that the patch is for, before it is applied; by default those that it was made
                from, if these have not changed.

        Raises:
            CorruptMessage: the patch is damaged.
            PatchMismatch: it is not for these weights.
            TypeError: no weights are known.
        """
        weights = self._made_from if weights is None else weights
        if weights is None:
            raise TypeError("sparse() needs the weights that this patch is for: values are steps from those")
        return prepare(entries_of(weights), self, torch.get_num_threads()).sparse()


def make_patch(before: Weights, after: Weights, *, threads: int | None = None) -> WeightPatch:
    """Computes what changed between two states of a model's weights.

    Args:
        before: by name, tensors of any dtype and shape: bits count, so that NaN payloads and -0.0 are kept.
            Of DTensors, the patch is about this process's shards. A `state_dict()` is no copy: it changes
            with the model, so clone its tensors.
        after: the same names, dtypes and shapes.
        threads: how many may work at once; by default as many as torch uses. The bytes do not depend on it,
            nor on the dictionaries' order.

    Returns:
        The patch, never longer than the raw tensors and a table of their names, dtypes and shapes.

    Raises:
        PatchMismatch: the states are not of one model; it names the first tensor that differs.
        TypeError: a name is not a str, or a value is not a plain tensor of numbers, or a DTensor of one.
        ValueError: before and after are the same memory; a tensor has no values yet, or lies on another
            device than a CPU or a GPU; or a DTensor is not sharded along its first dimension.
    """
    threads = torch.get_num_threads() if threads is None else threads
    old, new = entries_of(before), entries_of(after)
    sized = [name for name, entry in new.items() if entry.row.size]
    if sized and all(name in old and old[name].place == new[name].place for name in sized):
        copy = "{name: tensor.clone() for name, tensor in model.state_dict().items()}"
        raise ValueError(f"before and after are the same memory: keep a copy of the weights before, {copy}")
    patch = WeightPatch(b"".join(make(old, new, None, threads)[0]))
    patch._made_from = before
    return patch


def apply_patch(weights: Weights, patch: bytes, *, threads: int | None = None) -> None:
    """Changes weights in place to those that a patch was made to.

    All is checked before a byte is changed: that the patch is whole, that weights are those it was made from,
    bit for bit, and that they become those it was made to.

    Args:
        weights: by name; tensors may lie elsewhere, and be tied otherwise, than those it was made from.
        patch: from `make_patch`; untrusted.
        threads: how many may work at once; by default as many as torch uses.

    Raises:
        CorruptMessage: the patch is damaged.
        PatchMismatch: it is not for these weights; it names the first tensor whose name, dtype or shape
            differs.
        TypeError, ValueError: as for `make_patch`; or a tensor of weights cannot be written to, because it is
            expanded, or a lazily conjugated or negated view.
    """
    threads = torch.get_num_threads() if threads is None else threads
    prepare(entries_of(weights, writable=True), patch, threads).apply()


def make(
    before: Mapping[str, Entry], after: Mapping[str, Entry], known: Summary | None, threads: int
) -> tuple[list[bytes], Summary]:
    """The sections of a patch, and what they say; `known` has the stream, and the digest of `before`.

    Raises:
        PatchMismatch: they are not of one model, or other shards of it.
    """
    require_fit([entry.row for entry in before.values()], rows_of(after))
    rows, sections = list(_rows(before, after)), list[tuple[PatchSection, list[Steps]]]()
    stream = 0 if known is None else known.stream
    old, new = ([entries[row.names[0]].piece(row) for row in rows] for entries in (before, after))
    new = [replace(b, bits=b.bits.to(a.bits.device)) for a, b in zip(old, new, strict=True)]
    compared: list[Comparison] = by_device("compare", threads, old, new, digested=known is None)
    starts = accumulate((row.size * PATTERNS[row.dtype].width for row in rows), initial=0)
    for _, group in groupby(zip(starts, rows, compared, strict=False), lambda row: batch_of(row[0])):
        _, some, changes = zip(*group, strict=True)
        steps, factors = [change.steps for change in changes], list(map(factor_of, some))
        begin = sum(map(mul, factors, (change.digest for change in changes)))
        if known is not None and not sections:
            begin = known.digest  # of all weights
        end = begin + sum(map(mul, factors, (change.change for change in changes)))
        changed = sum(some_steps.positions.size for some_steps in steps)
        sections.append((PatchSection(some, changed, (begin % 2**64, end % 2**64), stream), steps))
    sections = sections or [(PatchSection((), 0, (0, 0), stream), [])]
    data = [write_section(section, steps, threads) for section, steps in sections]
    return data, summary([section for section, _ in sections])


def _rows(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> Iterator[Row]:
    """What a patch is about; tensors that are tied, and were equal before, share rows."""
    tied = dict[Any, list[str]]()
    for name, entry in after.items():
        names = tied.setdefault(entry.place if entry.row.size else name, [])
        if names and not torch.equal(before[names[0]].bits, before[name].bits):
            names = tied.setdefault(name, [])
        names.append(name)
    for names in tied.values():
        yield from after[names[0]].rows(tuple(names))


class CheckedPatch(NamedTuple):
    """A patch that fits weights, ready to be applied."""

    entries: Mapping[str, Entry]
    after: Summary
    rows: list[Row]
    """One for each name of each row."""
    pieces: list[Piece]
    steps: list[Steps]
    bits: list[Tensor]
    """What patterns of each piece become."""
    threads: int

    def apply(self) -> Summary:
        """Writes to the weights; returns what the patch says about these."""
        by_device("scatter", self.threads, self.pieces, self.steps, self.bits)
        for entry in self.entries.values():
            entry.write_back()
        return self.after

    def sparse(self) -> list[SparseTensor]:
        """What changes, by tensor; names ascend."""
        by_name = dict[str, list[tuple[int, Steps, Tensor]]]()
        for row, steps, bits in zip(self.rows, self.steps, self.bits, strict=True):
            if PATTERNS[row.dtype].parts > 1:
                raise ValueError(f"weights[{row.names[0]!r}] is complex: servers know no such updates")
            if bits.numel():
                by_name.setdefault(row.names[0], []).append((row.first, steps, bits))
        tensors = list[SparseTensor]()
        for name, parts in sorted(by_name.items()):
            parts.sort(key=lambda part: part[0])
            local, shape = self.entries[name].local, self.entries[name].row.shape
            indices = np.concatenate([steps.positions.astype(np.int64) + first for first, steps, _ in parts])
            wide = torch.int64 if prod(shape) >= 2**31 else torch.int32
            values = torch.cat([bits for *_, bits in parts]).view(local.dtype)
            tensors.append(SparseTensor(name, torch.from_numpy(indices).to(local.device, wide), values))
        return tensors


class DecodedPatch(NamedTuple):
    """A patch that is whole, of one model with some weights."""

    changes: list[tuple[Row, Steps]]
    before: int
    """The digest of the weights that it is for."""
    after: Summary

    def require_digest(self, digest: int) -> None:
        """Raises PatchMismatch unless weights with a digest are those that it is for."""
        if digest != self.before:
            difference = f"the weights have digest {digest:016x}, the patch is for {self.before:016x}"
            raise PatchMismatch("", difference)


def decode(patch: bytes, rows: Mapping[str, Row], threads: int) -> DecodedPatch:
    """Reads a patch, untrusted, for weights of which it has all rows.

    Raises:
        CorruptMessage: the patch is damaged.
        PatchMismatch: it is about other names, dtypes, shapes or shards.
    """
    sections = read_sections(patch)
    require_fit([row for section in sections for row in section.rows], rows)
    pairs = (zip(section.rows, read_steps(section, threads), strict=True) for section in sections)
    before = sum(section.digests[0] for section in sections) % 2**64
    return DecodedPatch(list(chain.from_iterable(pairs)), before, summary(sections))


def prepare(entries: Mapping[str, Entry], data: bytes, threads: int) -> CheckedPatch:
    """Checks that a patch, untrusted, fits weights, and computes what they become; changes nothing.

    Raises:
        CorruptMessage: the patch is damaged.
        PatchMismatch: it is not for these weights.
    """
    patch = decode(data, rows_of(entries), threads)
    rows = [row._replace(names=(name,)) for row, _ in patch.changes for name in row.names]
    steps = [steps for row, steps in patch.changes for _ in row.names]
    pieces, factors = [entries[row.names[0]].piece(row) for row in rows], list(map(factor_of, rows))
    digest = sum(map(mul, factors, by_device("digest", threads, pieces))) % 2**64
    patch.require_digest(digest)
    stepped: list[tuple[Tensor, int]] = by_device("take_steps", threads, pieces, steps)
    digest = (digest + sum(map(mul, factors, (change for _, change in stepped)))) % 2**64
    if digest != patch.after.digest:
        raise CorruptMessage(f"the patch leads to digest {digest:016x}, and says {patch.after.digest:016x}")
    return CheckedPatch(entries, patch.after, rows, pieces, steps, [bits for bits, _ in stepped], threads)
