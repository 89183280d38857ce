"""Networks to train.

`config` needs no torch, so the names below are imported only when they are asked for.
"""

from typing import TYPE_CHECKING

from taugrad.compressors.lazy import export_lazily

__all__ = ["build", "try_out"]

if TYPE_CHECKING:
    from .building import build, try_out
else:
    __getattr__ = export_lazily(__name__, {"build": ".building", "try_out": ".building"})
