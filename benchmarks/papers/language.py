"""A GPT on text: loss against wire bytes, for every rule, its peers, and what `taugrad auto` tries.

    python -m benchmarks.papers.language [--quick] [--write]

Can be stopped and continued: finished trainings are in build/language.jsonl.
"""

from ..harness.report import Options, Report, run_benchmark
from .language_runs import QUICK, Setting, Size, report, tried_by_auto

SEEDS = 1
SIZE = Size(workers=4, batch=3)
OUTER = {"lr": 0.7, "momentum": 0.9, "nesterov": True}

INTRODUCTION = (
    "GPT of {layers} layers x {width}, context 64, {iterations} iterations of {workers} simulated workers "
    "with {batch} examples each (nanoGPT's recipe for a CPU has 2,000 of 12), AdamW (learning rate 2e-3, "
    "betas 0.9 and 0.99, decay 0.1) with a cosine schedule, norms clipped at 1. Data: bytes of the source "
    "code of Python's standard library; loss on 500 x 64 tokens of held-out files; {seeds} seed. "
    "Differences are relative to the first row; the loss varies by some 0.01 from seed to seed. Bytes are "
    "relative to float32 gradients in each iteration. PowerSGD has a process for each worker."
)

WITHOUT = [Setting("float32", "none"), Setting("16 bits", "fp16")]
GRADIENTS = [
    *(
        Setting(f"`{rule}`, {share:.3g}%", f"{rule}(density({share / 100:g}, every=1)){code}")
        for rule, code in (("wgt", ""), ("bgt", ""), ("qgt", ""), ("strom", " | golomb_rice"))
        for share in (10, 1, 0.1)
    ),
    *(Setting(f"`topk`, {share:g}%", f"topk({share / 100:g})") for share in (10, 1, 0.1)),
    *(
        Setting(f"`chunked_topk`, {keep} of 4,096", f"chunked_topk({keep}) | quantile(bits=2)")
        for keep in (512, 64, 8)
    ),
    *(Setting(f"`linear`, {bits} bits", f"linear({bits})") for bits in (8, 4, 2)),
    *(Setting(f"`quantile`, {bits} bits", f"quantile({bits})") for bits in (8, 4, 2)),
    *(Setting(f"`entropy`, floor {floor}", f"entropy(floor={floor}) | huffman") for floor in (5, 2, 0)),
    *(Setting(f"PowerSGD, rank {rank}", f"powersgd({rank})", real=True) for rank in (8, 4, 1)),
]
LOCAL = [
    Setting("DiLoCo, every 30", "none", {"mode": "weights", "every": 30, "outer": OUTER}),
    Setting("averaged, every 30", "none", {"mode": "weights", "every": 30}),
    Setting(
        "SparseLoCo, every 30",
        "chunked_topk(keep=64, decay=0.95) | quantile(bits=2) | chunked",
        {"mode": "weights", "every": 30},
    ),
]


def main(options: Options) -> Report:
    size = QUICK if options.quick else SIZE
    groups = [
        ("Without compression", WITHOUT, SEEDS),
        ("Gradients in every iteration", GRADIENTS, SEEDS),
        ("Local steps", [*LOCAL, *tried_by_auto(WITHOUT[0], size)], SEEDS),
    ]
    return report("language", options, INTRODUCTION, size, groups, {WITHOUT[0].name: WITHOUT[0]})


if __name__ == "__main__":
    run_benchmark(main)
