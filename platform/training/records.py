"""The results of one iteration: kept on each worker, averaged over the workers now and then, then logged.

Averaging costs one small all-gather every `tracking.flush_interval` iterations. It carries figures, not
gradients, and so is not in the ledgers.
"""

import math

import torch
import torch.distributed as dist

from taugrad.compressors import Step
from taugrad.compressors.bucket.ledger import Totals
from taugrad.compressors.observe import GradientStatistics

from ..synchronization.ledger import Iteration
from ..tracking import names


def local_figures(iteration: Iteration) -> dict[str, float]:
    """The figures of which processes have different ones, by the MLflow name of their mean."""
    step = iteration.step
    measured_s = iteration.data_s + step.compress_s + step.blocked_s + step.decode_s
    step_s = iteration.iterate_s + iteration.closing_s
    return {
        names.TRAIN_LOSS: iteration.loss,
        names.TIME_STEP: step_s,
        names.TIME_DATA: iteration.data_s,
        names.TIME_COMPUTE: step_s - measured_s,  # everything else: so the parts add up to the step
        names.TIME_COMPRESS: step.compress_s,
        names.TIME_WAIT: step.blocked_s,
        names.TIME_DECOMPRESS: step.decode_s,
        names.TIME_EXCHANGE: step.exchange_s,
        names.TIME_OVERLAP: step.overlap_s,
        names.COMM_RESIDUAL_RMS: step.residual_squares,
    }


def averaged(
    iterations: list[Iteration], processes: int, workers: int, device: torch.device
) -> list[dict[str, float]]:
    """Each iteration's metrics by MLflow name, averaged over the processes, which call this together.

    Every process adds the others' figures in rank order, as those of simulated workers are added; an
    all-reduce would add in an order of its own. The device is where the group's transport takes tensors.
    """
    if not iterations:
        return []
    figures = [[*local_figures(iteration).values()] for iteration in iterations]
    local = torch.tensor(figures, dtype=torch.float64, device=device)
    everybody = [torch.empty_like(local) for _ in range(processes)]
    dist.all_gather(everybody, local)
    by_record = zip(*(rows.tolist() for rows in everybody), strict=True)
    means = ([sum(figure) / processes for figure in zip(*rows, strict=True)] for rows in by_record)
    return [_metrics(*pair, workers) for pair in zip(iterations, means, strict=True)]


def _metrics(iteration: Iteration, means: list[float], workers: int) -> dict[str, float]:
    step, mean = iteration.step, dict(zip(local_figures(iteration), means, strict=True))
    squares, exchange_s = mean.pop(names.COMM_RESIDUAL_RMS), mean[names.TIME_EXCHANGE]
    layers = layer_metrics(step, iteration.statistics) if iteration.statistics else {}
    metrics = {**mean, **step.metrics(workers), **layers, **iteration.metrics}
    under_way_s = mean[names.TIME_STEP] if iteration.always_under_way else exchange_s
    if exchange_s and step.wire_bytes:
        metrics[names.NET_MBIT] = _mbit_s(step.wire_bytes / workers, under_way_s)
        metrics[names.NET_RECEIVED_MBIT] = _mbit_s(step.received_bytes / workers, under_way_s)
    if step.keeps_residuals:
        parameters = step.elements / workers
        metrics[names.COMM_RESIDUAL_RMS] = math.sqrt(squares / parameters) if parameters else 0.0
    return metrics


def _mbit_s(nbytes: float, seconds: float) -> float:
    return 8 * nbytes / seconds / 1e6


def epoch_metrics(now: Totals, before: Totals) -> dict[str, float]:
    """What an epoch's iterations sent, a parameter, by MLflow name: the ledger at its end less that before.

    Empty when nothing could be sent.
    """
    elements = now.elements - before.elements
    if not elements:
        return {}
    return {
        names.EPOCH_BITS_PER_PARAM: 8 * (now.wire_bytes - before.wire_bytes) / elements,
        names.EPOCH_VALUE_BITS_PER_PARAM: (now.paper_bits - before.paper_bits) / elements,
    }


def layer_metrics(step: Step, statistics: dict[str, GradientStatistics]) -> dict[str, float]:
    """A worker's own metrics of each layer, of whose gradient there are statistics before compression."""
    metrics: dict[str, float] = {}
    for layer in step.layers:
        seen = statistics[layer.name]
        values: dict[names.LayerQuantity, float | None] = {
            "fraction": layer.sent / layer.elements if layer.elements else 0.0,
            "elements": layer.elements,
            "bits": layer.paper_bits / layer.sent if layer.sent else None,
            "tau": layer.tau,
            "grad_p50": seen.p50,
            "grad_p90": seen.p90,
            "grad_p99": seen.p99,
            "grad_p999": seen.p999,
            "grad_rms": seen.rms,
            "zeros": seen.zeros,
        }
        metrics |= {names.layer_metric(layer.name, what): v for what, v in values.items() if v is not None}
    return metrics
