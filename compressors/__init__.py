"""What to send and how to write it down: usable in any DDP script, without Ray and MLflow.

    from taugrad.compressors import CompressionState, compressed_allgather

    state = CompressionState(ddp, "wgt(density(0.01)) | golomb_rice")
    ddp.register_comm_hook(state, compressed_allgather)

Names are loaded when they are first used, so that reading a configuration needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bucket.ledger import Step, Totals
    from .config import CompressorConfig, chain
    from .errors import CorruptMessage, NonFiniteGradient, WorkersDisagree
    from .hook import compressed_allgather
    from .state import CompressionState

_HOME = {
    "CompressionState": "state",
    "CompressorConfig": "config",
    "CorruptMessage": "errors",
    "NonFiniteGradient": "errors",
    "Step": "bucket.ledger",
    "Totals": "bucket.ledger",
    "WorkersDisagree": "errors",
    "chain": "config",
    "compressed_allgather": "hook",
}

__all__ = [
    "CompressionState",
    "CompressorConfig",
    "CorruptMessage",
    "NonFiniteGradient",
    "Step",
    "Totals",
    "WorkersDisagree",
    "chain",
    "compressed_allgather",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
