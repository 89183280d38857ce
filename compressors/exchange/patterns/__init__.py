"""Exchange patterns: who sends what to whom, so that every worker ends with the same mean."""

from collections.abc import Mapping, Sequence
from typing import get_args

from ...bucket.compressor import Worker
from ...bucket.feedback import Feedback
from ...bucket.layout import Shard, cut
from ...methods import CompressedMethod, Method, NoCompression
from ...pattern_names import PatternName, pattern_refusals
from ..sites import Sites
from .allgather import AllGather
from .base import Pattern
from .ring import Ring
from .sharded import Sharded

IN_MESSAGES = ("ring", "parameter_server", "sharded")
"""Patterns in which uncompressed gradients, too, are messages of ours, not torch's all-reduce."""


def require_fitting(
    pattern: str, method: Method, downlink: Method | None, sites: Sequence[Sequence[int]] | None
) -> None:
    """Raises ValueError where there is no such pattern, or it does not go with methods or with sites."""
    names = get_args(PatternName)
    if pattern not in names:
        raise ValueError(f"pattern = {pattern!r}: must be one of {', '.join(names)}")
    if sites is not None and pattern != "hierarchical":
        raise ValueError(f"sites = {[*sites]} with pattern = {pattern}: they are for pattern = hierarchical")
    in_messages = isinstance(method, CompressedMethod) or (
        isinstance(method, NoCompression) and pattern in IN_MESSAGES
    )
    if pattern not in ("allgather", "hierarchical") and not in_messages:
        raise ValueError(
            f"pattern = {pattern} with {method.kind}: torch's own all-reduce exchanges it; leave out pattern"
        )
    for problem in pattern_refusals(pattern, method, downlink, "method"):
        raise ValueError(problem)


def pattern_for(
    name: str,
    method: Method,
    downlink: Method,
    worker: Worker,
    sizes: Mapping[str, int],
    *,
    sites: Sites | None = None,
    shards: Sequence[Shard] | None = None,
    feedback: Feedback | None = None,
) -> Pattern:
    """A worker's side of a `PatternName` for some parameters; of the mode hybrid it is sharded.

    Args:
        name: of the pattern.
        method: what workers send by.
        downlink: what owners of shards send by.
        worker: this one.
        sizes: elements of the parameters by name, in the same order on all workers.
        sites: those of hierarchical.
        shards: of the parameters; by default ranges of equal lengths.
        feedback: what the worker has not sent yet; by default it begins with nothing.
    """
    match name:
        case "allgather":
            return AllGather(method, worker, sizes, feedback)
        case "hierarchical":
            assert sites is not None
            return AllGather(method, worker, sizes, feedback, sites=sites)
        case "ring":
            return Ring(method, worker, sizes, feedback, shards=shards)
        case _:
            shards = shards or cut(sizes, 1 if name == "parameter_server" else worker.workers)
            return Sharded(method, downlink, worker, sizes, shards, feedback)


def downlink_method(method: Method) -> Method:
    """The method for sums on their way back: as for gradients, whose momentum they already have."""
    return method.model_copy(update={"momentum": 0.0}) if method.momentum_correction else method


def self_contained(method: Method) -> Method:
    """Packages of weights stand for themselves: nothing is carried over to the next."""
    return method.model_copy(update={"decay": 0.0}) if hasattr(method, "decay") else method
