"""Which method to use: what was measured, as advice; docs/choose.md shows it with its figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap

PAGE = "docs/choose.md"
FAST = 1e9
"""Bits a second. Above it compression may cost more time than it saves."""
LONG_S = 0.005
"""Seconds one way. From here on a message's delay counts beside its bytes."""
MANY = 8
"""Workers. From here on each worker's messages to all others are most of the bytes."""
_WIDTH = 100
_ADAPTIVE = ("adam", "adamw", "lamb")


@dataclass(frozen=True)
class Situation:
    """What a choice depends on.

    Attributes:
        optimizer: its kind.
        rate: of the slowest link, in bits a second.
        delay: one way, in seconds.
        workers: how many.
        sites: of workers that a slow link joins.
        precision: fp32, bf16 or fp16.
    """

    optimizer: str
    rate: float
    delay: float = 0.0
    workers: int = 2
    sites: int = 1
    precision: str = "fp32"


@dataclass(frozen=True)
class Advice:
    """What to set in a case.

    Attributes:
        name: of the case, in `docs/make_choose.py` too.
        when: the case, in words.
        use: lines of a spec.
        because: why, without figures.
        fits: whether a situation is that case.
    """

    name: str
    when: str
    use: tuple[str, ...]
    because: str
    fits: Callable[[Situation], bool]


METHODS = (
    Advice(
        "fast link",
        "The slowest link is faster than 1 Gbit/s",
        ("compressor: none",),
        "compression takes time itself; taugrad plan says whether it pays for your model",
        lambda situation: situation.rate > FAST,
    ),
    Advice(
        "adaptive optimizer",
        "The optimizer is Adam, AdamW or LAMB",
        (
            "sync: {mode: weights, every: 4, unsent: 0.5}        # unsent: 1 / workers.count",
            'compressor: "strom(density(0.1, every=1)) | golomb_rice"',
            "training: {optimizer: {kind: adamw, lr: 2.8e-3}}    # your rate x sqrt(workers.count)",
        ),
        "these optimizers divide by the size of past gradients, which a threshold distorts; each worker "
        "steps by its own gradients, and the weights' changes are compressed",
        lambda situation: situation.optimizer in _ADAPTIVE,
    ),
    Advice(
        "sgd",
        "The optimizer is SGD, with or without momentum, or LARS",
        (
            'compressor: "strom(density(0.01), momentum=0.9) | golomb_rice"',
            "training: {optimizer: {kind: sgd, momentum: 0.0}}   # the compressor has the momentum",
        ),
        "1% of the elements, as signs with a common threshold, is the least time a step on every link that "
        "was measured; taugrad auto finds a threshold that keeps your accuracy",
        lambda _: True,
    ),
)
"""The first that fits is the method."""

BESIDES = (
    Advice(
        "sites",
        "Workers are at several sites, joined by a slow link",
        ("sync: {mode: allgather, exchange: hierarchical}     # in the mode weights: pattern: hierarchical",),
        "a message crosses the slow link once for each other site, and not once for each worker there",
        lambda situation: situation.sites > 1,
    ),
    Advice(
        "many workers",
        "There are 8 workers or more, and each step is exchanged",
        ("sync: {mode: sharded}",),
        "what a worker receives hardly grows with their number; in allgather it grows with each worker",
        lambda situation: (
            situation.workers >= MANY and situation.sites == 1 and situation.optimizer not in _ADAPTIVE
        ),
    ),
    Advice(
        "long link",
        "The link has 5 ms one way or more",
        ("sync: {mode: allgather}                             # its exchange waits for one delay a step",),
        "PowerSGD and all-reduces wait for several delays one after the other; local steps (sync.mode: "
        "weights) wait for one in `every` steps",
        lambda situation: situation.delay >= LONG_S and situation.optimizer not in _ADAPTIVE,
    ),
    Advice(
        "fp16",
        "Training is in fp16",
        ("training: {precision: fp16}                         # with any compressor but powersgd",),
        "what is exchanged stays float32, and a step whose gradient overflows is left out by all workers",
        lambda situation: situation.precision == "fp16",
    ),
)
"""What may be set besides; more than one can fit."""

WORTH_KNOWING = (
    Advice(
        "unknown threshold",
        "You do not know which threshold keeps your accuracy",
        ("taugrad auto SPEC --tolerance 0.5",),
        "it trains with thresholds of its own until one is within the tolerance of no compression",
        lambda _: False,
    ),
    Advice(
        "target",
        "You want a loss in the least time over a link",
        ("taugrad auto SPEC --link 50mbit,20ms --target loss=1.9",),
        "it weighs seconds a step against what a step teaches, by a short probe of your own training",
        lambda _: False,
    ),
    Advice(
        "uneven steps",
        "Now one worker is slow, now another",
        (
            "sync: {mode: async}",
            'compressor: "strom(density(0.01), momentum=0.9) | golomb_rice"',
            "training: {optimizer: {kind: sgd, momentum: 0.0}}   # the compressor has the momentum",
        ),
        "nobody waits for the slowest worker of a step; where it is always the same one, nothing is gained",
        lambda _: False,
    ),
    Advice(
        "fully connected",
        "Most parameters are in fully connected layers (AlexNet, VGG)",
        ("sync: {mode: hybrid}",),
        "these layers are split over the workers, who exchange their inputs and no gradients",
        lambda _: False,
    ),
    Advice(
        "nearly the same numbers",
        "The training should change as little as possible",
        ('compressor: "linear(bits=8)"',),
        "every element is sent in each step, in a quarter of the bytes",
        lambda _: False,
    ),
)
"""Cases that neither a spec nor a link tells."""


def advise(situation: Situation) -> list[Advice]:
    """The method for a situation, and what may be set besides."""
    method = next(each for each in METHODS if each.fits(situation))
    return [method, *(each for each in BESIDES if each.fits(situation))]


def lines_of(advice: Sequence[Advice]) -> list[str]:
    """Advice for a terminal: the case, what to set, and why."""
    lines = []
    for each in advice:
        lines += wrap(f"{each.when}: {each.because}.", _WIDTH)
        lines += [f"    {line}" for line in each.use]
    return lines
