"""Gradient compression: what to send and how to encode it. Works in any script, without Ray and MLflow.

    from taugrad.compressors import compress_gradients, compress_replicas

    state = compress_gradients(ddp, "wgt(density(0.01)) | golomb_rice")
    state = compress_replicas(model, mesh["replicate"], "linear(8)")  # under FSDP2's fully_shard

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
    "ReplicaState",
    "Step",
    "Totals",
    "WorkersDisagree",
    "chain",
    "compress_gradients",
    "compress_replicas",
    "compressed_allgather",
]

if TYPE_CHECKING:
    from .bucket.ledger import Step, Totals
    from .errors import CorruptMessage, NonFiniteGradient, PeerLost, WorkersDisagree
    from .hook import compress_gradients, compressed_allgather
    from .local_steps import LocalSteps, Outer
    from .method import CompressorConfig, chain
    from .replica_state import ReplicaState
    from .replicas import compress_replicas
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
            "ReplicaState": ".replica_state",
            "Step": ".bucket.ledger",
            "Totals": ".bucket.ledger",
            "WorkersDisagree": ".errors",
            "chain": ".method",
            "compress_gradients": ".hook",
            "compress_replicas": ".replicas",
            "compressed_allgather": ".hook",
        },
    )
