"""Weight patches: what changed in a model's weights, exactly, in a hundredth of their bytes.

    from taugrad.compressors import apply_patch, make_patch

    patch = make_patch(before, after)  # dictionaries of tensors; bytes
    apply_patch(weights, patch)        # in place; weights must be `before`, bit for bit

Neither needs a process group. `PatchWriter` and `PatchReader` make a stream of them in a folder or a bucket;
`python -m taugrad.compressors.patches show PATH` lists it.
"""

from .make import WeightPatch, apply_patch, make_patch
from .stream import PatchReader, PatchWriter, Published, listing

__all__ = ["PatchReader", "PatchWriter", "Published", "WeightPatch", "apply_patch", "listing", "make_patch"]
