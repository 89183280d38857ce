"""Thresholds under AdamW: why sparse gradients lose there, and what mends it, on a small GPT.

    python -m benchmarks.papers.adamw [--quick] [--write]

Can be stopped and continued: finished trainings are in build/adamw.jsonl.
"""

from pathlib import Path

from ..harness.report import Options, Place, Report, run_benchmark
from .language_runs import QUICK, Setting, Size, report, tried_by_auto

PAGE = Place(
    Path(__file__).resolve().parents[2] / "docs" / "adamw.md", "<!-- adamw: begin -->", "<!-- adamw: end -->"
)
SEEDS = 3
SIZE = Size(workers=2)
TUNED = 4e-3
"""The rate at which the synchronous training is best, of 2e-3, 4e-3 and 6e-3."""
ALLOCATED = "strom(allocate(density=0.018, every=1)) | golomb_rice"
SPARSE = "strom(density(0.01)) | golomb_rice"

INTRODUCTION = (
    "GPT of {layers} layers x {width}, context 64, {iterations} iterations of {workers} simulated workers "
    "with 12 examples each, AdamW (betas 0.9 and 0.99, decay 0.1) with a cosine schedule, norms clipped at "
    "1. Data: bytes of the source code of Python's standard library; loss on 500 x 64 tokens of held-out "
    "files; {seeds} seeds. Differences are relative to synchronous training with 16-bit gradients, at a "
    "learning rate of 2e-3 and at the best of three rates, 4e-3. They are computed seed by seed, with their "
    "95% interval (Student's t). Where no rate is given, it is 2e-3. `every` is the number of local steps "
    "between exchanges. Bytes are relative to an exchange in each iteration."
)


def local(name: str, every: int, line: str, lr: float = TUNED, unsent: float = 0.5) -> Setting:
    """Local steps, whose differences are exchanged."""
    sync = {"mode": "weights", "every": every, "unsent": unsent if line != "none" else 0.0}
    return Setting(name, line, sync, {"lr": lr})


def strom(density: float) -> str:
    """A density that is met in every exchange."""
    return f"strom(density({density:g}, every=1)) | golomb_rice"


SYNCHRONOUS = [
    Setting("16 bits", "fp16"),
    Setting("16 bits, rate 4e-3", "fp16", optimizer={"lr": TUNED}),
    Setting("16 bits, rate 6e-3", "fp16", optimizer={"lr": 6e-3}),
]
WHY = [
    SYNCHRONOUS[0],
    Setting("gradients, 1%", SPARSE),
    Setting("the same, rate 2e-2", SPARSE, optimizer={"lr": 2e-2}),
    Setting(
        "momentum before the threshold",
        SPARSE.replace("))", "), momentum=0.9)"),
        optimizer={"betas": [0, 0.99]},
    ),
    Setting("norms exempt", SPARSE.replace("))", "), exempt=exempt(names=['*norm*']))")),
    Setting("density falls from 25% in 300 iterations", SPARSE.replace("0.01)", "0.01, warmup=warmup(300))")),
    Setting(
        "second moment frozen after 60 whole iterations (1-bit Adam)",
        "wgt(density(0.01, warmup=warmup(60, start=1, stages=1)), momentum=0.9) | linear(8)",
        optimizer={"betas": [0, 0.99], "freeze": 60},
    ),
    local("each worker's AdamW step in place of its gradient, 2%, rate 4e-3", 1, strom(0.02), unsent=0),
    local("the same, own weights keep 1/2 of what is unsent", 1, strom(0.02)),
]
UNSENT = [
    local(f"every {every}, {density:.0%}, rate 4e-3, unsent {part}", every, strom(density), unsent=part)
    for every, density in ((1, 0.02), (4, 0.1), (10, 0.02))
    for part in (0, 0.5, 1)
]
LOCAL = [
    SYNCHRONOUS[0],
    *(local(f"uncompressed, every {every}, rate 4e-3", every, "none") for every in (1, 4, 10)),
    local("every 4, 10%, rate 4e-3", 4, strom(0.1), unsent=0),
    local("every 4, 10%, rate 4e-3, unsent 1/2", 4, strom(0.1)),
    local("every 10, 2%, rate 4e-3", 10, strom(0.02), unsent=0),
    local("every 10, 2%, rate 4e-3, unsent 1/2", 10, strom(0.02)),
    local("every 10, 1.8% allocated, rate 4e-3, unsent 1/2", 10, ALLOCATED),
    local("every 10, 1.8% allocated, rate 5.66e-3, unsent 1/2", 10, ALLOCATED, lr=5.66e-3),
]


def main(options: Options) -> Report:
    size = QUICK if options.quick else SIZE
    at_2e3, at_4e3 = (tried_by_auto(setting, size)[:2] for setting in SYNCHRONOUS[:2])
    groups = [
        ("The goal: synchronous training with 16-bit gradients", SYNCHRONOUS, SEEDS),
        ("What `taugrad auto` tries first for the run at 2e-3", at_2e3, SEEDS),
        ("What `taugrad auto` tries first for the run at 4e-3", at_4e3, SEEDS),
        ("Local steps", LOCAL, SEEDS),
        ("How much of what is unsent own weights keep; one seed", UNSENT, 1),
        ("Every iteration: why, and what mends it; one seed", WHY, 1),
    ]
    bases = {"16 bits at 2e-3": SYNCHRONOUS[0]}
    if not options.quick:
        bases["16 bits at 4e-3"] = SYNCHRONOUS[1]
    return report("adamw", options, INTRODUCTION, size, groups, bases)


if __name__ == "__main__":
    run_benchmark(main, place=PAGE)
