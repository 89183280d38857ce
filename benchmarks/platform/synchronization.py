"""What each way to synchronize moves, beside its formula.

    python -m benchmarks.platform.synchronization [--quick] [--write]

Real workers are processes on the loopback interface; simulated ones share a process. Figures of bytes are
exact, of accuracy those of the seeds named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from taugrad.compressors import Totals
from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking import names

from ..harness.in_process import trained
from ..harness.report import Options, Report, Table, number, run_benchmark, say
from ..harness.workers import run_workers


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    real: tuple[int, ...]
    """Numbers of workers that are processes."""
    simulated: tuple[int, ...]
    many: tuple[int, ...]
    """Numbers of simulated workers that are trained with all-gather and shards only."""
    epochs: int
    """Epochs of the runs whose accuracy is shown."""
    data: Mapping[str, Any]
    """Fields of the spec; none: the digits."""


def make_spec(
    sizes: Sizes, pattern: str, line: str, workers: int, *, simulated: bool, **more: Any
) -> RunSpec:
    """A run with LeNet; `simulated`: all workers in one process."""
    sync: dict[str, Any] = {"mode": "gradients", "pattern": pattern}
    fields: dict[str, Any] = {
        **sizes.data,
        "sync": {"mode": "simulated", "of": sync} if simulated else sync,
        "compressor": line,
        "workers": {"count": workers},
        "training": {"epochs": 1, "batch_size": 64},
    }
    return RunSpec.model_validate(fields | more)


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    workers: int
    totals: Totals
    """Of all workers together."""
    accuracy: float
    """On the test examples, at the end; a fraction."""
    busiest_bytes: int
    """Received by the worker that received most, in messages alone; 0 where torch exchanged."""

    @property
    def parameters(self) -> int:
        return self.totals.elements // self.totals.steps // self.workers

    def by_worker(self, count: float) -> float:
        """Of a sum over all, the part of a worker in a step."""
        return count / self.workers / self.totals.steps


def _trained(specs: Sequence[RunSpec]) -> list[Outcome]:
    """In one go: processes take long to start."""
    asked = [{"text": spec.model_dump_json()} for spec in specs]
    found = run_workers(_train, asked, specs[0].processes)
    return [Outcome(workers, Totals(**totals), *rest) for workers, totals, *rest in found]


def _train(text: str) -> tuple[Any, ...]:
    listener = trained(text)
    sync = listener.trainer.sync
    links = sync.links()
    busiest = 0 if links is None else int(links.nbytes.sum(0).max())
    return sync.workers, sync.totals.state_dict(), listener.last[names.EVAL_ACCURACY], busiest


FEW_STEPS: dict[str, Any] = {
    "data": {"kind": "synthetic", "train_examples": 128, "test_examples": 64, "height": 28, "width": 28},
    "training": {"epochs": 1, "batch_size": 64},
}
"""Bytes of a fixed share of elements do not depend on the data."""
PATTERNS = ("allgather", "ring", "parameter_server", "sharded")
MANY_PATTERNS = ("allgather", "sharded")
"""Trained with many workers too."""
WHOLE = "none"
SPARSE = "topk(density=0.01) | packed32"
"""Sends 1% of every parameter, or piece of one, in 8 bytes an element: its bytes have a formula."""
SPARSE_BYTES = 8
TRAINED = "topk(density=0.01, momentum=0.9) | linear(bits=4)"
"""With momentum corrected before the selection, and none in the optimizer: what waits in two residuals is old
by the time it is applied, and the optimizer's momentum would make it diverge."""
TRAINED_OPTIMIZER = {"kind": "sgd", "momentum": 0}
TRAINED_PATTERNS = ("allgather", "parameter_server", "sharded")
"""A ring takes no corrected momentum."""
INTRODUCTION = (
    "LeNet with {parameters:,} parameters on 4,000 digits, and 1,000 others for accuracy; SGD with learning "
    "rate 0.01 and momentum 0.9. N workers share every batch. Real workers are processes that communicate "
    "through gloo on the loopback interface. Simulated workers are bit-identical to them, as the tests "
    'show. "Received" is what arrives at a worker in a step, as the mean of the workers, including headers.'
)


FULL = Sizes(real=(2, 4, 8), simulated=(8, 16, 64), many=(64,), epochs=2, data={})
QUICK = Sizes(real=(2,), simulated=(3,), many=(3,), epochs=1, data={"data": FEW_STEPS["data"]})


def received_formula(pattern: str, payload: float, workers: int, *, whole: bool) -> float:
    """Bytes that a worker receives in a step, mean of the workers, without the messages' headers.

    `payload`: what a worker sends of its own gradient. `whole`: nothing is compressed; then all-gather is
    DDP's all-reduce, a ring of torch's.
    """
    others = workers - 1
    if pattern == "allgather" and not whole:
        return others * payload
    return 2 * others / workers * payload  # for sharded, slices to their owners and sums back to all


def messages_formula(pattern: str, workers: int) -> int:
    """Messages of all workers in a step, compressed."""
    others = workers - 1
    return {"allgather": workers * others, "parameter_server": 2 * others}.get(pattern, 2 * workers * others)


def measure_patterns(sizes: Sizes) -> tuple[list[Table], int]:
    """Every pattern with every number of workers: bytes beside their formulas, then bytes beside accuracy.

    Returns:
        Both tables, and how many parameters the model has.
    """
    by_formula: list[tuple[str, ...]] = []
    by_workers: list[tuple[str, ...]] = []
    counts = [(count, False) for count in sizes.real] + [(count, True) for count in sizes.simulated]
    for count, simulated in counts:
        say(f"{count} workers{', simulated' if simulated else ''}")
        trained = TRAINED_PATTERNS if not simulated else MANY_PATTERNS if count in sizes.many else ()
        make = partial(make_spec, sizes, workers=count, simulated=simulated)
        specs = [
            make(pattern=pattern, line=line, **FEW_STEPS) for pattern in PATTERNS for line in (WHOLE, SPARSE)
        ]
        epochs = {"epochs": sizes.epochs, "batch_size": 64, "optimizer": TRAINED_OPTIMIZER}
        specs += [make(pattern=pattern, line=TRAINED, training=epochs) for pattern in trained]
        outcomes = _trained(specs)
        short, long = outcomes[: 2 * len(PATTERNS)], outcomes[2 * len(PATTERNS) :]
        place = (str(count), "simulated" if simulated else "real")
        by_formula += [
            (pattern, *place, *_beside_formulas(pattern, *pair))
            for pattern, *pair in zip(PATTERNS, short[::2], short[1::2], strict=True)
        ]
        by_workers += [
            (
                *(pattern, *place, _kb(outcome.by_worker(outcome.totals.received_bytes))),
                _kb(outcome.by_worker(outcome.totals.wire_bytes)),
                *(f"{outcome.totals.compression_ratio:.0f}", f"{100 * outcome.accuracy:.1f}"),
            )
            for pattern, outcome in zip(trained, long, strict=True)
        ]
    tables = [
        Table("Received by a worker in a step", FORMULA_COLUMNS, by_formula, FORMULA_NOTES),
        Table(
            "With the number of workers: what a worker receives, and accuracy",
            ("pattern", "N", "workers", "received, kB", "handed over, kB", "times smaller", "accuracy %"),
            by_workers,
            (
                f"`{TRAINED}`, no momentum in the optimizer, batches of 64, {sizes.epochs} epochs, one seed. "
                "Received and handed over: by a worker in a step; what goes to all is handed over once. "
                "Times smaller: 4 bytes a parameter a worker a step over wire bytes (docs/accounting.md).",
            ),
        ),
    ]
    return tables, outcomes[0].parameters


FORMULA_COLUMNS = (
    *("pattern", "N", "workers", "whole, kB", "formula", "1%, kB", "formula"),
    *("busiest, kB", "messages", "formula"),
)
FORMULA_NOTES = (
    f"1%: `{SPARSE}`, {SPARSE_BYTES} bytes an element. Formulas count payloads; what is "
    "measured above them is messages' headers and padding.",
    "allgather without compression is DDP's all-reduce. Gloo does not report what it moves, so both "
    'columns show the ring\'s formula. "Busiest" is the worker that receives most, at 1%. '
    "DDP's hook sends a message for each bucket, and DDP may cut more than one bucket; a "
    "simulated all-gather counts one message, as the formula does.",
)


def _beside_formulas(pattern: str, whole: Outcome, sparse: Outcome) -> tuple[str, ...]:
    workers, totals = whole.workers, sparse.totals
    payload = SPARSE_BYTES * sparse.by_worker(totals.sent)
    return (
        _kb(whole.by_worker(whole.totals.received_bytes)),
        _kb(received_formula(pattern, 4 * whole.parameters, workers, whole=True)),
        _kb(sparse.by_worker(totals.received_bytes)),
        _kb(received_formula(pattern, payload, workers, whole=False)),
        _kb(sparse.busiest_bytes / totals.steps) if sparse.busiest_bytes else "",
        number(totals.messages / totals.steps),
        str(messages_formula(pattern, workers)),
    )


def _kb(size: float) -> str:
    return number(size / 1e3)


def main(options: Options) -> Report:
    tables, parameters = measure_patterns(QUICK if options.quick else FULL)
    return INTRODUCTION.format(parameters=parameters), tables


if __name__ == "__main__":
    run_benchmark(main)
