"""The names of exchange patterns, and what goes with each."""

from collections.abc import Iterator
from typing import Literal

from .methods.base import Method

PatternName = Literal["allgather", "hierarchical", "ring", "parameter_server", "sharded", "collective"]
"""Who sends to whom, of gradients as of local updates; collective is for gradients."""
FIXED_SIZE = (
    "is for methods that send every element in 1, 2, 4, 8 or 16 bits, such as linear(4), without huffman"
)


def pattern_refusals(
    pattern: str,
    method: Method,
    downlink: Method | None,
    name: str,
    prefix: str = "",
    *,
    in_local_steps: bool = False,
) -> Iterator[str]:
    """Why a pattern does not go with methods: the fields, their values, and what would be valid, a line each.

    Args:
        pattern: a `PatternName`, or a mode's that has none.
        method: what is sent is compressed with.
        downlink: what sums are compressed with on their way to the workers; None: as `method` says.
        name: of the method in messages.
        prefix: of the names of pattern and downlink in messages.
        in_local_steps: whether it is of local steps.
    """
    for field, compared in ((name, method), (f"{prefix}downlink", downlink)):
        if compared is not None and compared.compares_weights and not in_local_steps:
            needs = "it needs weights that all workers agreed on, which only local steps have"
            yield f"{field}.kind = {compared.kind}: {needs} (LocalSteps, or sync.mode = weights)"
    chosen, momentum = f"{prefix}pattern = {pattern}", method.momentum_correction
    if pattern == "collective" and not method.has_fixed_size:
        sizes = "the size of its messages depends on gradients"
        yield f"{chosen} with {name} = {method}: {sizes}; it {FIXED_SIZE}"
    if pattern == "ring" and momentum:
        yield (
            f"{name}.momentum = {momentum} with {chosen}: a hop also compresses what other workers sent; use "
            f"{name}.momentum: 0, or another pattern"
        )
    if downlink is None:
        return
    field = f"{prefix}downlink"
    if pattern not in ("parameter_server", "sharded", "hybrid"):
        yield (
            f"{field} = {downlink} with {pattern}: only parameter_server and sharded, and the mode hybrid, "
            "send sums back"
        )
    if downlink.brings_exchange:
        yield f"{field}.kind = {downlink.kind}: its factors go through torch's own all-reduce"
    if downlink.momentum_correction:
        yield f"{field}.momentum = {downlink.momentum_correction}: the sum already contains momentum"
