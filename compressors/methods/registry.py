"""Methods, quantizers and threshold policies of your own (docs/extending.md)."""

from typing import TypeVar

from ..fields import POLICIES, QUANTIZERS, RULES
from ..thresholds.base import Policy
from .base import CompressedMethod
from .quantizers import Quantizer

C = TypeVar("C", bound=type)


def register(added: C) -> C:
    """Adds a method, quantizer or threshold policy under its name; a decorator of its class.

    A class of the same address, of a module that is imported again, replaces the one before.

    Args:
        added: a subclass of `CompressedMethod` (mostly of `SparseMethod`), `Quantizer` or `Policy`.

    Raises:
        TypeError: it is none of these.
        ValueError: its name is taken; or the class lacks something, which the message names.
    """
    for base, family in ((CompressedMethod, RULES), (Quantizer, QUANTIZERS), (Policy, POLICIES)):
        if isinstance(added, type) and issubclass(added, base):
            family.add(added)
            return added
    raise TypeError(f"{added!r}: must be a subclass of CompressedMethod, Quantizer or Policy")
