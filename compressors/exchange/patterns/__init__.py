"""Exchange patterns: who sends what to whom, so that every worker ends with the same mean."""

from ...method import Method
from ..sites import Sites
from .allgather import AllGather
from .base import Pattern, Setting
from .hierarchical import Hierarchical
from .ring import Ring
from .sharded import Sharded


def pattern_for(name: str, method: Method, back: Method, setting: Setting, sites: Sites | None) -> Pattern:
    """A worker's side of allgather, hierarchical (between sites), ring, parameter_server or sharded.

    Workers send by the method, owners of shards by `back`.
    """
    match name:
        case "allgather":
            return AllGather(method, setting)
        case "hierarchical":
            assert sites is not None
            return Hierarchical(method, setting, sites)
        case "ring":
            return Ring(method, setting)
        case "parameter_server":
            return Sharded(method, back, setting, owners=1)
        case _:
            return Sharded(method, back, setting, owners=None)


def returning(method: Method) -> Method:
    """A sum's method on its way back: as the gradients', but their momentum is in it already."""
    return method.model_copy(update={"momentum": 0.0}) if method.own_momentum else method


def self_contained(method: Method) -> Method:
    """Packages of weights stand for themselves: nothing is carried over to the next."""
    return method.model_copy(update={"decay": 0.0}) if hasattr(method, "decay") else method
