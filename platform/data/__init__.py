"""Data sets, and which examples a worker sees when.

`config` and `batches` need no torch, so the names below are imported only when they are asked for.
"""

from typing import TYPE_CHECKING

from ..importing import export_lazily

__all__ = ["DataError", "DataSet", "load"]

if TYPE_CHECKING:
    from .dataset import DataError, DataSet
    from .loading import load
else:
    __getattr__ = export_lazily(__name__, {"DataError": "dataset", "DataSet": "dataset", "load": "loading"})
