"""What `taugrad plan` predicts beside what is measured over links of a given rate and delay.

    python -m benchmarks.network.plan [--quick] [--write]

Hosts are network namespaces (benchmarks/network), which needs root. Can be stopped and continued:
build/plan.jsonl has the cells that were measured.
"""

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from taugrad.compressors.methods import read_config
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.synchronization import GradientsSync
from taugrad.search.plan.calibrated import HALF, Calibration
from taugrad.search.plan.calibration import calibrate
from taugrad.search.plan.candidate import Candidate
from taugrad.search.plan.link import Link
from taugrad.search.plan.planning import predict

from ..harness.report import Options, Report, Spread, Table, number, run_benchmark
from ..harness.trainings import Kept, kept_in
from .network_cells import Asked, over_link

METHODS = (
    "none",
    HALF,
    str(read_config("powersgd(rank=4, start=2)")),
    str(read_config("strom(density(0.01)) | golomb_rice")),
    str(read_config("linear(bits=8)")),
)
MODELS: dict[str, dict[str, Any]] = {
    "lenet": {"model": {"kind": "lenet"}, "data": {"kind": "mnist5k"}},
    "nin": {"model": {"kind": "nin"}, "data": {"kind": "mnist5k"}},
}
BATCH = 8
"""Examples of a host in a step."""
LINKS = ("50mbit,0ms", "200mbit,0ms", "1gbit,0ms", "50mbit,10ms", "200mbit,10ms", "1gbit,50ms")
QUICK_LINKS = ("100mbit,10ms",)
HOSTS = (2, 4)
STEPS, QUICK_STEPS = 24, 8
WARM_UP = 8
"""Steps in which DDP forms its buckets anew, connections speed up and tau is found."""
WINDOW = 4
"""Steps whose mean is taken: over a long link, long and short steps may take turns."""
NEVER = 10**6
WITHIN = 0.2
"""How far a prediction may be from what is measured."""
JUMBO_BITS = 200e6
PLAIN_HEADERS, JUMBO_HEADERS = 0.045, 0.008
"""Share that TCP's and IP's headers take of these links' frames of 1,500 and 9,000 bytes, as `tc` counts."""
INTRODUCTION = (
    "Seconds of a training step through DDP, {batch} examples per host. Every host is a network namespace "
    "with one thread, and all share this machine's {cores} cores. Measured: {steps} steps of the platform's "
    "trainer, after {warm} that are not counted, as means of {window}; their median, and in brackets the "
    "10th to the 90th percentile. Predicted: from a calibration with as many processes computing at once as "
    "there are hosts, and from the rate and delay that the link was configured with. Delays are one way. "
    "Error: predicted over measured, less 1."
)


def spec_of(model: str, hosts: int, method: str = "none", iterations: int = STEPS) -> RunSpec:
    """What is trained, evaluated at its end."""
    return RunSpec.model_validate(
        {
            **MODELS[model],
            "training": {
                "batch_per_worker": BATCH,
                "iterations": iterations,
                "evaluate_every": iterations,
                "optimizer": {"kind": "sgd", "lr": 0.01, "momentum": 0.9},
            },
            "compressor": "none" if method == HALF else method,
            "workers": {"count": hosts},
            "checkpoint": {"interval": NEVER},
        }
    )


def predicted(calibration: Calibration, method: str, link: str, hosts: int) -> float:
    """Seconds of a step."""
    asked = Link.parse(link)
    headers = JUMBO_HEADERS if asked.rate >= JUMBO_BITS else PLAIN_HEADERS
    planned = asked.model_copy(update={"headers": headers})
    return predict(calibration, Candidate(method, GradientsSync()), planned, hosts).seconds


def measured(model: str, link: str, hosts: int, steps: int) -> dict[str, list[float]]:
    """Seconds of steps by each method, on one network."""
    asked = [
        Asked(spec_of(model, hosts, method, WARM_UP + steps + 1), "fp16" if method == HALF else "")
        for method in METHODS
    ]
    cells = zip(METHODS, over_link(link, asked), strict=True)
    return {method: (np.diff(cell["done"][WARM_UP::WINDOW]) / WINDOW).tolist() for method, cell in cells}


def both(model: str, link: str, hosts: int, steps: int) -> dict[str, Any]:
    """All methods measured on one network, and predicted."""
    compressed = [method for method in METHODS if method != HALF]
    calibration = calibrate(spec_of(model, hosts), compressed, sharing=hosts)
    return {
        "seconds": measured(model, link, hosts, steps),
        "predicted": {method: predicted(calibration, method, link, hosts) for method in METHODS},
    }


def error_of(cell: Mapping[str, Any], method: str) -> float:
    """Predicted over measured, less 1."""
    return float(cell["predicted"][method] / np.median(cell["seconds"][method]) - 1)


def rows_of(cell: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A line for each method."""
    return [
        (
            *(cell["model"], cell["link"], str(cell["hosts"]), f"`{method}`"),
            str(Spread.of([1000 * value for value in cell["seconds"][method]])),
            number(1000 * cell["predicted"][method]),
            f"{100 * error_of(cell, method):+.0f}",
        )
        for method in METHODS
    ]


def main(options: Options) -> Report:
    steps = QUICK_STEPS if options.quick else STEPS
    wanted = (
        [("lenet", link, 2) for link in QUICK_LINKS]
        if options.quick
        else [(model, link, hosts) for model in MODELS for hosts in HOSTS for link in LINKS]
    )
    kept, cells = Kept(kept_in("plan", quick=options.quick)), []
    for model, link, hosts in wanted:
        asked = {"model": model, "link": link, "hosts": hosts, "steps": steps}
        cells.append(kept.of(asked, partial(both, **asked)))
    errors = np.abs([error_of(cell, method) for cell in cells for method in METHODS])
    near = int((errors <= WITHIN).sum())
    table = Table(
        "A step, measured and predicted",
        ("model", "link", "hosts", "method", "measured ms", "predicted ms", "error %"),
        [row for cell in cells for row in rows_of(cell)],
        (
            f"Within {100 * WITHIN:.0f}%: {near} of {len(errors)} cells; median error "
            f"{100 * float(np.median(errors)):.0f}%, largest {100 * float(errors.max()):.0f}%.",
        ),
    )
    introduction = INTRODUCTION.format(
        batch=BATCH, cores=os.cpu_count(), steps=steps, warm=WARM_UP, window=WINDOW
    )
    return introduction, [table]


if __name__ == "__main__":
    run_benchmark(main, network=True)
