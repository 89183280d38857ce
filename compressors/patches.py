"""Weight patches: what changed in a model's weights, exactly, in a hundredth of their bytes.

    from taugrad.compressors import apply_patch, make_patch

    patch = make_patch(before, after)  # dictionaries of tensors; bytes
    apply_patch(weights, patch)        # in place; weights must be `before`, bit for bit

Neither needs a process group. `PatchWriter` and `PatchReader` make a stream of them in a folder or a bucket;
`python -m taugrad.compressors.patches show PATH` lists it.
"""

import argparse

import numpy as np
import torch

from .ops.array import Bytes
from .patch_stream import listing
from .patch_weights import SparseTensor, Weights, entries_of, make, prepare
from .wire.patch import PatchSection, read_sections


class WeightPatch(bytes):
    """The bytes of a patch. Patches of all shards of a model, joined, are one of the whole model."""

    _made_from: Weights | None = None

    @property
    def sections(self) -> list[PatchSection]:
        """Tensors, digests, and how many elements change; raises CorruptMessage."""
        return read_sections(_array(self))

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
        return prepare(entries_of(weights), _array(self), torch.get_num_threads()).sparse()


def make_patch(before: Weights, after: Weights, *, threads: int | None = None) -> WeightPatch:
    """Computes what changed between two states of a model's weights.

    Args:
        before: by name, tensors of any dtype and shape on any device: bits count, so that NaN payloads and
            -0.0 are kept. Of DTensors, the patch is about this process's shards.
        after: the same names, dtypes and shapes.
        threads: how many may work at once; by default as many as torch uses. The bytes do not depend on it,
            nor on the dictionaries' order.

    Returns:
        The patch, never longer than the raw tensors and a table of their names, dtypes and shapes.

    Raises:
        PatchMismatch: the states are not of one model; it names the first tensor that differs.
        TypeError: a value is no tensor of plain numbers.
        ValueError: a DTensor is not sharded along its first dimension.
    """
    threads = torch.get_num_threads() if threads is None else threads
    patch = WeightPatch(b"".join(make(entries_of(before), entries_of(after), None, threads)))
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
        TypeError: a value of weights is no tensor of plain numbers.
    """
    threads = torch.get_num_threads() if threads is None else threads
    prepare(entries_of(weights), _array(patch), threads).apply()


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
