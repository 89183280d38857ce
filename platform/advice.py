"""Advice on which method to use, from what was measured; docs/choose.md shows it with its figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap

PAGE = "docs/choose.md"
FAST = 1e9
"""Bits per second. On a faster link, compression may cost more time than it saves."""
LONG_S = 0.005
"""Seconds, one way. From here on, the delay of a message matters as well as its bytes."""
MANY = 8
"""Workers. From here on, messages from each worker to all others are most of the bytes."""
_WIDTH = 100
_ADAPTIVE = ("adam", "adamw", "lamb")


@dataclass(frozen=True)
class Situation:
    """What the choice of a method depends on.

    Attributes:
        optimizer: its kind.
        rate: of the slowest link, in bits per second.
        delay: of the slowest link, one way, in seconds.
        workers: number of workers.
        sites: number of sites that are connected by a slow link.
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
    """What to set in one case.

    Attributes:
        name: of the case; `docs/make_choose.py` uses it, too.
        when: the case, in words.
        use: lines of a spec.
        because: the reason, without figures.
        fits: whether the case applies to a situation.
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
        "compression itself takes time; taugrad plan predicts whether it pays for your model",
        lambda situation: situation.rate > FAST,
    ),
    Advice(
        "adaptive optimizer",
        "The optimizer is Adam, AdamW or LAMB",
        (
            "sync: {mode: weights, every: 4, unsent: 0.5}        # unsent: 1 / workers.count",
            'compressor: "strom(density(0.1, every=1)) | golomb_rice"',
            "training: {optimizer: {kind: adamw, lr: 2.8e-3}}    # your lr x sqrt(workers.count)",
        ),
        "these optimizers divide by the size of past gradients, which a threshold distorts; so let each "
        "worker step with its own gradients, and compress the changes of the weights",
        lambda situation: situation.optimizer in _ADAPTIVE,
    ),
    Advice(
        "sgd",
        "The optimizer is SGD, with or without momentum, or LARS",
        (
            'compressor: "strom(density(0.01), momentum=0.9) | golomb_rice"',
            "training: {optimizer: {kind: sgd, momentum: 0.0}}   # the compressor applies the momentum",
        ),
        "sending 1% of the elements, as signs with a common threshold, had the fastest steps on every link "
        "that was measured; taugrad auto finds a threshold that keeps your accuracy",
        lambda _: True,
    ),
)
"""The methods, in order: the first that fits is the one to use."""

BESIDES = (
    Advice(
        "sites",
        "Workers are at several sites, connected by a slow link",
        ("sync: {mode: allgather, exchange: hierarchical}     # in the mode weights: pattern: hierarchical",),
        "a message then crosses the slow link once for each other site, not once for each worker there",
        lambda situation: situation.sites > 1,
    ),
    Advice(
        "many workers",
        "There are 8 workers or more, the delay is less than 5 ms, and every step is exchanged",
        ("sync: {mode: sharded}",),
        "what a worker receives hardly grows with the number of workers; in allgather it grows with each "
        "worker. But an exchange waits for two delays, one after the other, and in allgather for one",
        lambda situation: (
            situation.workers >= MANY
            and situation.delay < LONG_S
            and situation.sites == 1
            and situation.optimizer not in _ADAPTIVE
        ),
    ),
    Advice(
        "long link",
        "The link's delay is 5 ms one way or more",
        ("sync: {mode: allgather}                             # its exchange waits for one delay per step",),
        "PowerSGD and all-reduces wait for several delays, one after the other; local steps (sync.mode: "
        "weights) wait for one delay in `every` steps",
        lambda situation: situation.delay >= LONG_S and situation.optimizer not in _ADAPTIVE,
    ),
    Advice(
        "fp16",
        "You train in fp16",
        ("training: {precision: fp16}                         # with any compressor except powersgd",),
        "the exchange stays in float32, and all workers skip a step whose gradient overflows",
        lambda situation: situation.precision == "fp16",
    ),
)
"""What to set in addition; more than one can fit."""

WORTH_KNOWING = (
    Advice(
        "local steps",
        "Training may exchange less often than in every step",
        (
            "sync: {mode: weights, every: 10, unsent: 0.25}      # unsent: 1 / workers.count",
            'compressor: "strom(density(0.1, every=1)) | golomb_rice"',
        ),
        "between two exchanges, every worker trains by itself, so that bytes and delays count once in 10 "
        "steps. The workers' weights differ meanwhile, so check what your training reaches",
        lambda _: False,
    ),
    Advice(
        "unknown threshold",
        "You do not know which threshold keeps your accuracy",
        ("taugrad auto SPEC --tolerance 0.5",),
        "it trains with several thresholds until one is within the tolerance of no compression",
        lambda _: False,
    ),
    Advice(
        "target",
        "You want to reach a loss in the least time over a link",
        ("taugrad auto SPEC --link 50mbit,20ms --target loss=1.9",),
        "it weighs the seconds per step against what a step learns, by short probes of your own training",
        lambda _: False,
    ),
    Advice(
        "uneven steps",
        "Workers take turns at being slow",
        (
            "sync: {mode: async}",
            'compressor: "strom(density(0.01), momentum=0.9) | golomb_rice"',
            "training: {optimizer: {kind: sgd, momentum: 0.0}}   # the compressor applies the momentum",
        ),
        "nobody waits for the slowest worker of a step; if it is always the same worker, nothing is gained",
        lambda _: False,
    ),
    Advice(
        "fully connected",
        "Most parameters are in fully connected layers (AlexNet, VGG)",
        ("sync: {mode: hybrid}",),
        "these layers are split over the workers, which exchange activations instead of gradients",
        lambda _: False,
    ),
    Advice(
        "nearly the same numbers",
        "The training should change as little as possible",
        ('compressor: "linear(bits=8)"',),
        "every element is sent in every step, in a quarter of the bytes",
        lambda _: False,
    ),
)
"""Cases that cannot be seen from a spec and a link."""


def advise(situation: Situation) -> list[Advice]:
    """The method for a situation, and what to set in addition."""
    method = next(each for each in METHODS if each.fits(situation))
    return [method, *(each for each in BESIDES if each.fits(situation))]


def lines_of(advice: Sequence[Advice]) -> list[str]:
    """Advice as lines for a terminal: the case, why, and what to set."""
    lines = []
    for each in advice:
        lines += wrap(f"{each.when}: {each.because}.", _WIDTH)
        lines += [f"    {line}" for line in each.use]
    return lines
