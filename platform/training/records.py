"""What one iteration came to: kept on each worker, averaged over the workers now and then, then logged.

Averaging costs one small all-reduce every `tracking.flush_interval` iterations. It carries figures, not
gradients, and so is not in the ledgers.
"""

import math
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from taugrad.compressors import Step
from taugrad.compressors.observe import Percentiles

from ..tracking import names


@dataclass(frozen=True)
class IterationRecord:
    """One worker's view of one iteration."""

    number: int
    """Counted from 1 over the whole run: MLflow's step."""
    loss: float
    """Mean cross entropy of this worker's part, weighted so that the workers' mean is the batch's."""
    compute_s: float
    """Seconds outside compression, decompression and waiting for the exchange."""
    step: Step
    layers: dict[str, float] = field(default_factory=dict)
    """Metrics by layer, in the iterations that record them."""


def averaged(records: list[IterationRecord], workers: int, device: torch.device) -> list[dict[str, float]]:
    """Each iteration's metrics, averaged over the workers; all of them must call this together.

    Args:
        records: this worker's, of the same iterations on every worker.
        workers: how many there are.
        device: where the process group's transport takes tensors from.

    Returns:
        By MLflow name, one dictionary an iteration.
    """
    if not records:
        return []
    own = torch.tensor(
        [
            [
                r.loss,
                r.compute_s,
                r.step.compress_s,
                r.step.exchange_s,
                r.step.decompress_s,
                r.step.residual_squares,
            ]
            for r in records
        ],
        dtype=torch.float64,
        device=device,
    )
    dist.all_reduce(own)
    return [
        _metrics(record, means, workers)
        for record, means in zip(records, (own / workers).tolist(), strict=True)
    ]


def _metrics(record: IterationRecord, means: list[float], workers: int) -> dict[str, float]:
    step = record.step
    loss, compute_s, compress_s, exchange_s, decompress_s, squares = means
    metrics = {
        names.TRAIN_LOSS: loss,
        names.COMM_FRACTION: step.fraction,
        names.COMM_ELEMENTS: step.sent,
        names.COMM_PAPER_BYTES: step.paper_bytes,
        names.COMM_WIRE_BYTES: step.wire_bytes,
        names.COMM_BITS_PER_PARAM: step.bits_per_param,
        names.COMM_COMPRESSION_RATIO: step.compression_ratio,
        names.TIME_COMPUTE: compute_s,
        names.TIME_COMPRESS: compress_s,
        names.TIME_EXCHANGE: exchange_s,
        names.TIME_DECOMPRESS: decompress_s,
        **record.layers,
    }
    if step.mean_tau is not None:
        metrics[names.COMM_TAU] = step.mean_tau
    if step.keeps_residuals:
        parameters = step.elements / workers
        metrics[names.COMM_RESIDUAL_RMS] = math.sqrt(squares / parameters) if parameters else 0.0
    return metrics


def layer_metrics(step: Step, percentiles: dict[str, Percentiles]) -> dict[str, float]:
    """A worker's own metrics of each layer.

    Args:
        step: the iteration's ledger.
        percentiles: of each layer's gradient, before compression.
    """
    metrics: dict[str, float] = {}
    for layer in step.layers:
        fraction = layer.sent / layer.elements if layer.elements else 0.0
        metrics[names.layer_metric(layer.name, "fraction")] = fraction
        if layer.sent:
            metrics[names.layer_metric(layer.name, "bits")] = layer.paper_bits / layer.sent
        if layer.tau is not None:
            metrics[names.layer_metric(layer.name, "tau")] = layer.tau
        seen = percentiles[layer.name]
        metrics[names.layer_metric(layer.name, "grad_p50")] = seen.p50
        metrics[names.layer_metric(layer.name, "grad_p90")] = seen.p90
        metrics[names.layer_metric(layer.name, "grad_p99")] = seen.p99
        metrics[names.layer_metric(layer.name, "grad_p999")] = seen.p999
    return metrics
