"""Gradient compression: what to send and how to encode it. Works in any DDP script, without Ray and MLflow.

    from taugrad.compressors import compress_gradients

    state = compress_gradients(ddp, "wgt(density(0.01)) | golomb_rice")

Names are loaded when they are first used, so that reading a configuration needs no torch.
"""

from typing import TYPE_CHECKING

from .lazy import export_lazily

__all__ = [
    "CompressionState",
    "CompressorConfig",
    "CorruptMessage",
    "LocalSteps",
    "NonFiniteGradient",
    "Outer",
    "PeerLost",
    "Step",
    "Totals",
    "WorkersDisagree",
    "chain",
    "compress_gradients",
    "compressed_allgather",
]

if TYPE_CHECKING:
    from .bucket.ledger import Step, Totals
    from .errors import CorruptMessage, NonFiniteGradient, PeerLost, WorkersDisagree
    from .hook import compress_gradients, compressed_allgather
    from .local_steps import LocalSteps, Outer
    from .method import CompressorConfig, chain
    from .state import CompressionState
else:
    __getattr__ = export_lazily(
        __name__,
        {
            "CompressionState": ".state",
            "CompressorConfig": ".method",
            "CorruptMessage": ".errors",
            "LocalSteps": ".local_steps",
            "NonFiniteGradient": ".errors",
            "Outer": ".local_steps",
            "PeerLost": ".errors",
            "Step": ".bucket.ledger",
            "Totals": ".bucket.ledger",
            "WorkersDisagree": ".errors",
            "chain": ".method",
            "compress_gradients": ".hook",
            "compressed_allgather": ".hook",
        },
    )
