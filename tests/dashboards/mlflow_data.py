"""MLflow experiments for tests: real specs and params, curves of the shape that training gives."""

import base64
import json
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from taugrad.compressors.spans import Lane, Span
from taugrad.dashboards.runs import RunHistory
from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.metric import ACCURACY, Metric
from taugrad.platform.tracking import names
from taugrad.platform.tracking.names import layer_metric
from taugrad.platform.tracking.store import start_run
from taugrad.platform.tracking.timeline import Timeline

EPOCHS, PER_EPOCH, WORKERS = 3, 10, 2
PARAMETERS = 431_080
LAYERS = ("conv1.weight", "fc1.weight", "fc2.bias")
_START_MS = 1_700_000_000_000

CHAINS: tuple[tuple[str, float, float], ...] = (
    # compressor, share of elements that it sends on average, accuracy
    ("none", 1.0, 0.975),
    ("wgt(tau=0.002)", 0.15, 0.975),
    ("wgt(tau=0.01)", 0.03, 0.974),
    ("bgt(tau=0.05)", 0.010, 0.973),
    ("strom(tau=0.05) | golomb_rice", 0.011, 0.971),
    ("entropy(floor=1) | huffman", 1.0, 0.973),
    ("entropy(floor=3) | huffman", 1.0, 0.976),
    ("linear(bits=8, block=2048)", 1.0, 0.976),
)
STEP: tuple[tuple[str, Lane, float, float], ...] = (
    ("step", "compute", 0.0, 10.0),
    ("data", "compute", 0.0, 0.5),
    ("forward", "compute", 0.5, 3.0),
    ("backward", "compute", 3.0, 9.0),
    ("compress", "compute", 4.0, 5.0),
    ("exchange", "wire", 5.0, 8.0),
    ("wait", "compute", 6.0, 8.0),
    ("decode", "compute", 8.0, 8.5),
    ("optimizer", "compute", 9.0, 9.5),
)
"""Of a step: kind, lane, from and to in milliseconds."""
_VALUE_BITS = {"none": 32, "wgt": 32, "bgt": 1, "strom": 1, "entropy": 3.5, "linear": 8}
_WIRE_BITS = {"none": 32, "wgt": 42, "bgt": 9, "strom": 9, "entropy": 2.2, "linear": 7}


def write_run(client: Any, spec: RunSpec, density: float, accuracy: float, **tags: str) -> str:
    """One run, finished; its id."""
    run_id = start_run(client, spec, tags=tags)
    rng = np.random.default_rng([spec.seed, int(1e6 * density), int(1e6 * accuracy)])
    rule = spec.compressor.kind
    iterations = EPOCHS * PER_EPOCH
    wire_total = paper_total = sent = 0.0
    epoch_wire = epoch_paper = 0.0
    metrics: list[tuple[str, float, int]] = []
    for i in range(1, iterations + 1):
        share = 1.0
        if density < 1:
            share = min(0.9, density * 3 * math.exp(-3 * i / iterations) * float(np.exp(rng.normal(0, 0.3))))
        elements = PARAMETERS * WORKERS
        paper, wire = share * elements * _VALUE_BITS[rule] / 8, share * elements * _WIRE_BITS[rule] / 8
        wire_total, paper_total, sent = wire_total + wire, paper_total + paper, sent + share * elements
        epoch_wire, epoch_paper = epoch_wire + wire, epoch_paper + paper
        values = {
            names.TRAIN_LOSS: 2.3 * math.exp(-4 * i / iterations) * float(np.exp(rng.normal(0, 0.2))),
            names.COMM_FRACTION: share,
            names.COMM_ELEMENTS: share * elements,
            names.COMM_PAPER_BYTES: paper,
            names.COMM_WIRE_BYTES: wire,
            names.COMM_WIRE_MB_TOTAL: wire_total / 1e6,
            names.COMM_BITS_PER_PARAM: 8 * wire / elements,
            names.COMM_COMPRESSION_RATIO: 4 * elements / wire,
            names.COMM_RESIDUAL_RMS: 1e-3,
            names.TIME_DATA: 0.0005,
            names.TIME_COMPUTE: 0.017,
            names.TIME_COMPRESS: 0.0 if rule == "none" else 0.002,
            names.TIME_WAIT: 0.006 if rule == "none" else 0.003,
            names.TIME_DECOMPRESS: 0.0 if rule == "none" else 0.001,
            names.TIME_STEP: 0.0235,
            names.TIME_EXCHANGE: 0.008,
            names.TIME_OVERLAP: 0.002 if rule == "none" else 0.005,
            names.NET_MBIT: 8 * wire / WORKERS / 0.008 / 1e6,
        }
        tau = getattr(spec.compressor, "tau", None)
        if tau is not None:
            values[names.COMM_TAU] = float(tau)
        if i % 5 == 1:
            values |= _layers(i / iterations, share, tau)
        if i % PER_EPOCH == 0:
            part = PER_EPOCH * elements
            reached = accuracy - 0.05 * (1 - i / iterations) + 0.002 * spec.seed * (i < iterations)
            values |= {
                names.EVAL_ACCURACY: reached + (0.001 * spec.seed if i == iterations else 0),
                names.EVAL_LOSS: 0.1,
                names.EVAL_EXAMPLES: 1000.0,
                names.EPOCH: i / PER_EPOCH,
                names.EPOCH_BITS_PER_PARAM: 8 * epoch_wire / part,
                names.EPOCH_VALUE_BITS_PER_PARAM: 8 * epoch_paper / part,
                names.TOTAL_WIRE_GB: wire_total / 1e9,
                names.TOTAL_WIRE_MB_LOG10: math.log10(wire_total / 1e6),
                names.TOTAL_PAPER_GB: paper_total / 1e9,
                names.TOTAL_FRACTION: sent / (i * elements),
                names.TOTAL_COMPRESSION_RATIO: 4 * i * elements / wire_total,
                names.TOTAL_ACCURACY_PER_GB: 100 * reached / (paper_total / 1e9),
                names.TOTAL_SECONDS: 0.03 * i,
                names.TOTAL_SKIPPED_STEPS: 0.0,
            }
            epoch_wire = epoch_paper = 0.0
        metrics += [(name, value, i) for name, value in values.items()]
    log(client, run_id, metrics)
    client.log_text(run_id, timeline().to_json(), names.ARTIFACT_TIMELINE)
    client.set_terminated(run_id)
    return run_id


def timeline(workers: int = 2) -> Timeline:
    """Two steps, alike on all workers, each of which begins a millisecond after the one before it."""
    spans = [
        [
            Span(name, lane, at + 1e-3 * began, at + 1e-3 * ended, str(number))
            for at, number in ((0.001 * rank, 11), (0.01 + 0.001 * rank, 12))
            for name, lane, began, ended in STEP
        ]
        for rank in range(workers)
    ]
    return Timeline.of(spans)


def log(client: Any, run_id: str, metrics: Sequence[tuple[str, float, int]]) -> None:
    """Metrics (name, value, step) in batches."""
    from mlflow.entities import Metric

    points = [Metric(name, value, _START_MS + step, step) for name, value, step in metrics]
    for start in range(0, len(points), 1000):
        client.log_batch(run_id, metrics=points[start : start + 1000])


def spec_of(chain: str, experiment: str, **fields: Any) -> RunSpec:
    return RunSpec.model_validate(
        {"experiment": experiment, "compressor": chain, "training": {"epochs": EPOCHS}, **fields}
    )


def write_comparison(client: Any, experiment: str, seeds: int = 1) -> list[str]:
    """Every chain with every seed; the runs' ids."""
    return [
        write_run(client, spec_of(chain, experiment, seed=seed), density, accuracy)
        for seed in range(seeds)
        for chain, density, accuracy in CHAINS
    ]


def write_search(client: Any, experiment: str, name: str, trials: int = 8) -> tuple[str, list[str]]:
    """A search over tau, as `taugrad search` tags it: its run and its trials."""
    from taugrad.platform.tracking.store import open_experiment

    parent = client.create_run(
        open_experiment(client, experiment), run_name=f"search {name}", tags={names.TAG_SEARCH: name}
    ).info.run_id
    runs = []
    for trial in range(trials):
        tau = 10 ** (-3 + 2 * trial / trials)
        tags = {"mlflow.parentRunId": parent, names.TAG_TRIAL: str(trial)}
        spec = spec_of(f"wgt(tau={tau:.4g})", experiment, name=f"trial {trial}")
        runs.append(write_run(client, spec, min(0.5, 3e-4 / tau), 0.98 - 0.3 * tau, **tags))
    client.set_terminated(parent)
    return parent, runs


def made_up(
    rule: str,
    value: float,
    seed: int = 0,
    ratio: float = 20.0,
    *,
    metric: Metric = ACCURACY,
    examples: float | None = 1000,
    **params: str,
) -> RunHistory:
    """A run without a store; what it sends so many times less is its tau where none is given."""
    ratio = 1.0 if rule == "none" else ratio
    held = {"compressor.kind": rule, "compressor.tau": str(ratio), "data.kind": "text", "seed": str(seed)}
    held |= params
    finals = {"eval/accuracy": 0.9, f"eval/{metric.name}": value, "total/compression_ratio": ratio}
    finals |= {"total/wire_gb": 1 / ratio, "total/paper_gb": 0.5 / ratio}
    if examples is not None:
        finals["eval/examples"] = examples
    name, tau = f"{rule} {ratio:g}", float(held["compressor.tau"])
    return RunHistory(f"{name} {seed}", name, rule, tau, held, {}, finals, metric)


def _layers(progress: float, share: float, tau: Any) -> dict[str, float]:
    values: dict[str, float] = {}
    for i, layer in enumerate(LAYERS):
        scale = 0.02 * math.exp(-3 * progress) / (1 + i)
        values |= {
            layer_metric(layer, "fraction"): share,
            layer_metric(layer, "bits"): 32.0,
            layer_metric(layer, "grad_p50"): scale / 20,
            layer_metric(layer, "grad_p90"): scale / 5,
            layer_metric(layer, "grad_p99"): scale,
            layer_metric(layer, "grad_p999"): 3 * scale,
            layer_metric(layer, "zeros"): 0.1 * i,
        }
        if tau is not None:
            values[layer_metric(layer, "tau")] = float(tau)
    return values


def read_view(client: Any, experiment_id: str, key: str) -> Any:
    """The state of a view that lies in an experiment's tag."""
    state = json.loads(client.get_experiment(experiment_id).tags[f"mlflow.sharedViewState.{key}"])["state"]
    return json.loads(zlib.decompress(base64.b64decode(state.removeprefix("deflate;"))))
