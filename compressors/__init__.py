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
    "MemberRefused",
    "Members",
    "NonFiniteGradient",
    "NonFiniteWeight",
    "Outer",
    "PatchMismatch",
    "PatchReader",
    "PatchWriter",
    "PeerLost",
    "ReduceScatterState",
    "ReplicaState",
    "Step",
    "Totals",
    "WeightPatch",
    "WorkersDisagree",
    "apply_patch",
    "chain",
    "compress_gradients",
    "compress_reduce_scatter",
    "compress_replicas",
    "compression_hook",
    "make_patch",
    "register",
]

if TYPE_CHECKING:
    from .bucket.ledger import Step, Totals
    from .errors import (
        CorruptMessage,
        MemberRefused,
        NonFiniteGradient,
        NonFiniteWeight,
        PatchMismatch,
        PeerLost,
        WorkersDisagree,
    )
    from .exchange.members.rounds import Members
    from .hook import CompressionState, compress_gradients, compression_hook
    from .local_fields import Outer
    from .local_steps import LocalSteps
    from .methods import CompressorConfig, chain, register
    from .patches import PatchReader, PatchWriter, WeightPatch, apply_patch, make_patch
    from .reduce_scatter import ReduceScatterState, compress_reduce_scatter
    from .replicas import ReplicaState, compress_replicas
else:
    __getattr__ = export_lazily(
        __name__,
        {
            **dict.fromkeys(("Step", "Totals"), ".bucket.ledger"),
            **dict.fromkeys(
                (
                    "CorruptMessage",
                    "MemberRefused",
                    "NonFiniteGradient",
                    "NonFiniteWeight",
                    "PatchMismatch",
                    "PeerLost",
                    "WorkersDisagree",
                ),
                ".errors",
            ),
            **dict.fromkeys(("CompressionState", "compress_gradients", "compression_hook"), ".hook"),
            "LocalSteps": ".local_steps",
            "Members": ".exchange.members.rounds",
            "Outer": ".local_fields",
            **dict.fromkeys(("CompressorConfig", "chain", "register"), ".methods"),
            **dict.fromkeys(
                ("PatchReader", "PatchWriter", "WeightPatch", "apply_patch", "make_patch"), ".patches"
            ),
            **dict.fromkeys(("ReduceScatterState", "compress_reduce_scatter"), ".reduce_scatter"),
            **dict.fromkeys(("ReplicaState", "compress_replicas"), ".replicas"),
        },
    )
