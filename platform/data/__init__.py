"""Data sets, and which examples a worker gets when.

`config` and `batches` need no torch, so the names below are imported only when they are asked for.
"""

from typing import TYPE_CHECKING

from taugrad.compressors.lazy import export_lazily

__all__ = ["Data", "DataError", "DataSet", "Draw", "Examples", "Parts", "Shape", "load"]

if TYPE_CHECKING:
    from .dataset import Data, DataSet
    from .errors import DataError
    from .examples import Draw, Examples, Parts
    from .loading import load
    from .shape import Shape
else:
    __getattr__ = export_lazily(
        __name__,
        {
            "DataError": ".errors",
            **dict.fromkeys(("Data", "DataSet"), ".dataset"),
            **dict.fromkeys(("Draw", "Examples", "Parts"), ".examples"),
            "load": ".loading",
            "Shape": ".shape",
        },
    )
