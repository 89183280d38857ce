"""Rules, quantizers, threshold policies and codecs of your own (docs/extending.md)."""

from typing import TypeVar

from .method.dense import dense_method
from .method.methods import CompressedMethod
from .method.policies import Policy
from .method.quantizers import Quantizer
from .method.registry import CODECS, POLICIES, QUANTIZERS, RULES
from .wire.codec import Codec

C = TypeVar("C", bound=type)


def register(added: C) -> C:
    """Adds a rule, quantizer, threshold policy or codec under its name; a decorator of its class.

    A quantizer also becomes a rule, which quantizes every element. A class of the same address, of a module
    that is imported again, replaces the one before.

    Args:
        added: a subclass of `CompressedMethod` (mostly of `SparseMethod`), `Quantizer`, `Policy` or `Codec`.

    Raises:
        TypeError: it is none of these.
        ValueError: its name, or a codec's code, is taken; or the class lacks something, which the message
            names.
    """
    if not isinstance(added, type) or not issubclass(added, CompressedMethod | Policy | Quantizer | Codec):
        raise TypeError(f"{added!r}: must be a subclass of CompressedMethod, Quantizer, Policy or Codec")
    if issubclass(added, CompressedMethod):
        RULES.add(added)
    elif issubclass(added, Quantizer):
        QUANTIZERS.add(added)
        RULES.add(dense_method(added))
    else:
        (POLICIES if issubclass(added, Policy) else CODECS).add(added)
    return added
