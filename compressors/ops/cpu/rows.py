"""Arrays of many parameters as a table, so that one kernel call takes all of them.

A row is int64: the address of a residual, the address of a gradient, their elements, and the first one's
position in the update. Whoever makes a row keeps the arrays alive until the kernel has returned.
"""

from typing import Any

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]  # numba names it in no __all__
from numba.extending import intrinsic
from numpy.typing import NDArray

COLUMNS = 4
RESIDUAL, GRADIENT, ELEMENTS, BASE = range(COLUMNS)

Rows = NDArray[np.int64]


def _pointer(typing_context: Any, address: Any) -> Any:
    """An int64 as the address of float32 elements."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.inttoptr(given[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), generate


_to_float32: Any = intrinsic(_pointer)


@njit(nogil=True, cache=True, inline="always")
def floats(address, elements):  # type: ignore[no-untyped-def]
    """The float32 [elements] at an address."""
    return carray(_to_float32(address), (elements,))
