"""Weight patches: what changed in a model's weights, exactly, in a hundredth of their bytes.

    from taugrad.compressors import apply_patch, make_patch

    patch = make_patch(before, after)  # dictionaries of tensors; bytes
    apply_patch(weights, patch)        # in place; weights must be `before`, bit for bit

Neither needs a process group. `PatchWriter` and `PatchReader` make a stream of them in a folder or a bucket;
`python -m taugrad.compressors.patches show PATH` lists what is there.
"""

import argparse

import numpy as np

from .ops.array import Bytes
from .patch_stream import listing
from .patch_weights import SparseTensor, Weights, entries_of, make, prepare, threads_of
from .wire.patch import Table, merge_patches, read_patch_table


class WeightPatch(bytes):
    """The bytes of a patch, and what they say of themselves."""

    _made_from: Weights | None = None

    @property
    def table(self) -> Table:
        """Tensors, digests, and how many elements change.

        Raises:
            CorruptMessage: they are no patch.
        """
        return read_patch_table(_array(self))

    def sparse(self, weights: Weights | None = None) -> list[SparseTensor]:
        """Names, indices and values of what changes, as servers take them that update weights in place.

        Args:
            weights: those that the patch is for, before it is applied; by default those that it was made
                from, if they are still what they were.

        Raises:
            CorruptMessage: the patch is damaged.
            PatchMismatch: it is not for these weights.
            TypeError: there are no weights.
        """
        weights = self._made_from if weights is None else weights
        if weights is None:
            raise TypeError("sparse() needs the weights that this patch is for: values are steps from those")
        return prepare(entries_of(weights), _array(self), threads_of(None)).sparse()

    @classmethod
    def merge(cls, patches: "list[bytes]") -> "WeightPatch":
        """The patch of whole tensors of the patches of all their shards.

        Raises:
            CorruptMessage: one of them is no patch.
        """
        return cls(merge_patches([_array(patch) for patch in patches]))


def make_patch(before: Weights, after: Weights, *, threads: int | None = None) -> WeightPatch:
    """What changed between two states of a model's weights.

    Args:
        before: by name, tensors of any type and shape on any device: bits count, so that NaN payloads and
            -0.0 are kept. Of DTensors, the patch is about this process's shard.
        after: the same names, types and shapes.
        threads: how many may work at once; by default as many as torch uses. The bytes do not depend on it,
            nor on the dictionaries' order.

    Returns:
        The patch, never longer than the raw tensors and a table of their names, types and shapes.

    Raises:
        PatchMismatch: the states are not of one model; it names the first tensor that differs.
        TypeError: something is no tensor of plain numbers.
        ValueError: a DTensor's shard is no run of its elements.
    """
    patch = WeightPatch(make(entries_of(before), entries_of(after), None, threads_of(threads)).data)
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
        PatchMismatch: it is not for these weights; it names the first tensor whose name, type or shape
            differs.
        TypeError: something in weights is no tensor of plain numbers.
    """
    prepare(entries_of(weights), _array(patch), threads_of(threads)).commit()


def _array(patch: bytes) -> Bytes:
    return np.frombuffer(patch, np.uint8)


def main() -> None:
    """`python -m taugrad.compressors.patches show PATH`."""
    parser = argparse.ArgumentParser(prog="python -m taugrad.compressors.patches", description=__doc__)
    show = parser.add_subparsers(required=True).add_parser("show", help="lists patches and snapshots")
    show.add_argument("path", help="a folder, or an address such as s3://bucket/run")
    for line in listing(parser.parse_args().path):
        print(line)


if __name__ == "__main__":
    main()
