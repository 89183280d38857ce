"""The page "Which method should I use?": `python docs/make_choose.py` writes docs/choose.md.

The advice is in `taugrad.search.advice`; `taugrad doctor` and `taugrad plan` print it, too. Figures are
read from docs/results/, where benchmarks write them. The sentences below refer to a figure as
{benchmark: first cells of its row: its column}.
"""

import re
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness.pages import cell, results_of

from taugrad.search.advice import BESIDES, CLEARLY, LR, METHODS, WORKERS, WORTH_KNOWING, Advice

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "choose.md"
MEASURED = {
    "fast link": (
        "5,000 digits over loopback, the fastest link: {quickstart: none: time s} s without "
        "compression and {quickstart: wgt: time s} s with `wgt`."
    ),
    "adaptive optimizer": (
        "A GPT with AdamW. Its loss, compared with 16 bits (95% intervals): {adamw: auto: every 4, 10%, "
        "rate 0.00282843: more than 16 bits at 2e-3 (95%)} nats with {adamw: auto: every 4, 10%, "
        "rate 0.00282843: than 16 bits} fewer bytes. With a threshold on gradients instead: {adamw: "
        "gradients, 1%: more than 16 bits at 2e-3 (95%)} nats (one seed). On 4 hosts at 50 Mbit/s, each "
        "kind at its best after the same search, times faster to the same loss than with 16 bits: "
        "{network_target_gpt: `strom`, every 4: times faster than 16 bits} with `strom` at 2% every 4 steps, "
        "{network_target_gpt: SparseLoCo, every 4: times faster than 16 bits} with SparseLoCo's message "
        "every 4 steps (`chunked_topk(keep=128, decay=0.95) | quantile(bits=2) | chunked`: more bytes, no "
        "more steps), and {network_target_gpt: DiLoCo, every 30, 8 bits: times faster than 16 bits} with "
        "DiLoCo in 8 bits. 10% every 4 steps took as many steps as 2%; the intervals are of its final loss. "
        "Over [2 Mbit/s](network.md#over-slower-links), about what 200 Mbit/s are to a billion parameters, "
        "the same for each kind at its best of six trainings: {network_target_slow: `strom`, every 4: times "
        "faster than 16 bits} with `strom` at 1% every 4 steps, {network_target_slow: SparseLoCo, every 6: "
        "times faster than 16 bits} with SparseLoCo's message every 6 steps, {network_target_slow: MuLoCo, "
        "every 30, 4 bits: times faster than 16 bits} with MuLoCo in 4 bits."
    ),
    "sgd": (
        "LeNet by SGD, 4 hosts, 50 Mbit/s. Times faster to 96% accuracy than with 16 bits: "
        "{network_target_lenet: `strom`, 10%, every 4: times faster than 16 bits} with `strom` at 10% every "
        "4 steps, {network_target_lenet: `strom`, 1%: times faster than 16 bits} with 1% in every step, "
        "{network_target_lenet: `wgt`, 1%: times faster than 16 bits} with `wgt`."
    ),
    "sites": (
        "Two sites of two hosts, 50 Mbit/s and 20 ms between them: {network_sites: 2 / 50mbit,20ms / * / "
        "`exact`: ms a step} ms per step with `exact`, {network_sites: 2 / 50mbit,20ms / * / "
        "`hierarchical`: ms a step} ms with `hierarchical`."
    ),
    "many workers": (
        "What a worker receives in a step of LeNet, 64 workers, 1% sent: {synchronization: allgather / "
        "64 / simulated: 1%, kB} kB in `allgather`, {synchronization: sharded / 64 / simulated: 1%, "
        "kB} kB in `sharded`."
    ),
    "long link": (
        "4 hosts, 100 Mbit/s, 20 ms. Milliseconds per step: `strom` {network_exchange: 100mbit,20ms / 4 / "
        r"* / `strom(density(0.01)) \| golomb_rice`: ms}, PowerSGD {network_exchange: 100mbit,20ms / 4 / *"
        " / `powersgd`: ms}, 16 bits {network_exchange: 100mbit,20ms / 4 / * / `fp16`: ms}."
    ),
    "fp16": (
        "nothing. [Training](training.md#memory-and-precision) explains the loss scale; tests compare "
        "skipped steps bit for bit."
    ),
    "unknown threshold": (
        "4 models on 3 data sets, SGD, short trainings, one seed. Of the 12 pairs, within 0.5 points of no "
        "compression: {thresholds: 0.5 points: allocate(0.003)} with the first density that it tries, 0.3%, "
        "and {thresholds: 0.5 points: allocate(0.03)} with the second, 3%; within 2 points: {thresholds: 2 "
        "points: allocate(0.003)} and {thresholds: 2 points: allocate(0.03)}; within 4: {thresholds: 4 "
        "points: allocate(0.003)} and {thresholds: 4 points: allocate(0.03)}. So do not count on the default "
        "tolerance, 0.5. Points of accuracy more than no compression, and times fewer bytes, with the first "
        "density: the best, ResNet-8 on small digits, {thresholds: resnet, digits: allocate(0.003)}; the "
        "worst, ResNet-8 on speech, {thresholds: resnet, speech: allocate(0.003)}. Not measured: the second "
        "with momentum in the optimizer, as `auto` has it."
    ),
    "every step": (
        "7.6 million elements, 4 hosts, 100 Mbit/s. A step is as many times faster than with 16 bits: "
        r"`strom` {network_exchange: 100mbit,0ms / 4 / * / `strom(density(0.01)) \| golomb_rice`: than fp16},"
        " `wgt` {network_exchange: 100mbit,0ms / 4 / * / `wgt(density(0.01))`: than fp16}, PowerSGD "
        "{network_exchange: 100mbit,0ms / 4 / * / `powersgd`: than fp16}."
    ),
    "target": (
        "[Time to the same accuracy](network.md#time-to-the-same-accuracy) has each method on its links. "
        "What `auto` chooses among all of them has not been measured there yet. [Plan](plan.md#limits) shows "
        "how well it predicts steps."
    ),
    "uneven steps": (
        "4 workers, a slow step takes 4 times as long. Steps per second, compared with `allgather`: "
        "{asynchronous: now and then / 4.00: speed-up} times if it is another worker each time, "
        "{asynchronous: one / 4.00: speed-up} times if it is always the same worker."
    ),
    "fully connected": (
        "AlexNet, 2 workers with 8 images each. A worker receives {hybrid: alexnet / 2 real / 8 / hybrid b, "
        "fp32: received, MB} MB per step, and {hybrid: alexnet / 2 real / 8 / data parallel, sharded: "
        "received, MB} MB with data parallelism."
    ),
    "nearly the same numbers": (
        "Weights of Oland and Raj's network in 8 bits: {oland_raj: `linear(bits=8, block=0)`: points more"
        " than uncompressed (95%)} points, {oland_raj: `linear(bits=8, block=0)`: than float32} fewer"
        " bytes than float32."
    ),
}
"""What was measured, by the name of the advice."""
QUOTED = re.compile(r"\{(\w+): (.+?): ([^:{}]+?)\}")
INTRODUCTION = """# Which method should I use?

Go down the list and take the first method that fits. Each box has lines for your
[spec](tutorial.md#3-a-spec). They are filled in for {workers} workers and a learning rate of {lr:g};
remarks say how they follow from yours. [Methods](methods.md) explains the names in `compressor`, and
[Synchronization](synchronization.md) those in `sync`. Where FSDP2 shards the model, see how to
[compress between islands](how-to/fsdp2.md), in a spec (`sync.island`) or in your own script, and
[inside them](how-to/fsdp2.md#inside-an-island).

`taugrad plan SPEC --link 100mbit,20ms --workers 4` chooses from the same ways, with the seconds that a
step of your model would take, and fills the lines in for your spec. It keeps to this page's method unless
another way is expected to be {clearly:g} times faster to a target. `taugrad auto SPEC --link 100mbit,20ms
--target loss=1.9` measures what a step is worth for the most promising of them. `taugrad doctor` prints a
short form.

In a loop of your own, `compress_gradients` takes the same text as `compressor`: in
[your own script](how-to/own-script.md), with [torchrun](how-to/torchrun.md),
[Lightning or Fabric](how-to/lightning.md), [Accelerate](how-to/accelerate.md),
[Transformers' Trainer](how-to/transformers.md) or [Ray Train](how-to/ray-train.md).

[`LocalSteps`](how-to/local-steps.md) has the fields of `sync: {{mode: weights, ...}}` as arguments; the
optimizer is what `training` says.
"""
CLOSING = """
Every figure comes from the results of a benchmark, where you find its command, date and machine:
{pages}.

`python docs/make_choose.py` writes this page.
"""


def missing() -> list[str]:
    """What the sentences refer to and the results do not have, a line for each."""
    found = []
    for name, text in MEASURED.items():
        for quoted in QUOTED.finditer(text):
            try:
                cell(*quoted.groups())
            except LookupError as problem:
                found.append(f"{name}: {problem.args[0]}")
    return found


def measured(advice: Advice) -> str:
    """What was measured, with its figures."""
    return QUOTED.sub(lambda found: cell(*found.groups()), MEASURED[advice.name])


def reasons(advice: Advice) -> str:
    """Why, and what was measured."""
    because = advice.because
    return f"{because[0].upper()}{because[1:]}.\n\n*Measured:* {measured(advice)}\n"


def box(advice: Advice) -> str:
    """What to set, or the command to give."""
    language = "bash" if advice.use[0].startswith("taugrad") else "yaml"
    return "\n".join((f"```{language}", *advice.use, "```\n"))


def in_a_loop(advice: Advice) -> str:
    """The same in a training loop of one's own; nothing where that is not a method."""
    spec = {} if advice.use[0].startswith("taugrad") else yaml.safe_load("\n".join(advice.use))
    method, sync = spec.get("compressor", "none"), dict(spec.get("sync", {}))
    mode = sync.pop("mode", "gradients")
    if method == "none" or mode not in ("gradients", "weights"):
        return ""
    given = ["model", "optimizer", *(f"{name}={value!r}" for name, value in sync.items())]
    call = f'compress_gradients(ddp, "{method}")'
    if mode == "weights":
        call = (
            "\n    ".join(("LocalSteps(", *(f"{each}," for each in given), f'compressor="{method}",')) + "\n)"
        )
    return f"In a loop of your own:\n\n```python\n{call}\n```\n\n"


def section(advice: Advice) -> str:
    """A case, with what to do in it."""
    return f"### {advice.when}\n\n{box(advice)}\n{in_a_loop(advice)}{reasons(advice)}"


def step(number: int, advice: Advice) -> str:
    """A case of the list from which the first that fits is taken."""
    then = "If not, go on. If so:" if number < len(METHODS) else "Then:"
    return f"### {number}. {advice.when}\n\n{then}\n\n{box(advice)}\n{in_a_loop(advice)}{reasons(advice)}"


def page() -> str:
    """The page as it should be.

    Raises:
        LookupError: the results do not have all figures; all that are missing are named.
    """
    if lacking := missing():
        raise LookupError("\n".join(lacking))
    names = dict.fromkeys(found[1] for text in MEASURED.values() for found in QUOTED.finditer(text))
    pages = ", ".join(f"[{name}](results/{results_of(name).name})" for name in names)
    return "\n".join(
        (
            INTRODUCTION.format(workers=WORKERS, lr=LR, clearly=CLEARLY),
            "## The method\n",
            *(step(number, each) for number, each in enumerate(METHODS, start=1)),
            "## What to add for your link, workers and precision\n\nMore than one case may apply. A `sync` "
            "here replaces the method's, which it contains; it is not for links faster than 1 Gbit/s.\n",
            *map(section, BESIDES),
            "## Other questions\n",
            *map(section, WORTH_KNOWING),
            "## Where the figures come from",
            CLOSING.format(pages=pages).rstrip(),
            "",
        )
    )


if __name__ == "__main__":
    if lacking := missing():
        sys.exit("\n".join(("docs/choose.md is not written; change MEASURED:", *lacking)))
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written: {PAGE}")
