"""Groups runs that differ only in their seed, and settings that can be compared; means with intervals."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from taugrad.platform.tasks.claims import half_interval
from taugrad.platform.tasks.metric import Metric
from taugrad.platform.tracking import names

from .runs import RunHistory, number

_NOT_COMPUTATION = (
    "name", "seed", "experiment", "storage", "paper", "tracking.", "checkpoint.", "publish.",
    "workers.max_restarts", "workers.min_count", "workers.on_resize",
)  # fmt: skip
"""How params begin that do not change what is computed."""
_COMPARED = (
    "compressor.", "sync.", "training.optimizer.lr", "training.optimizer.momentum",
    "training.optimizer.nesterov",
)  # fmt: skip
"""How params begin that may differ between runs that are compared."""
_WORDS = {
    "training.epochs": "{} epochs",
    "training.iterations": "{} iterations",
    "workers.count": "{} workers",
    "sync.mode": "{}",
    "sync.of.mode": "{}",
    "simulated": "{}",
    "metric": "{}",
}
"""Params in words; others by the last part of their name."""
_WORDS_ALONE = ("metric", "simulated")  # no params
_MOST_WORDS = 5
SIXTEEN_BITS = 0.5
"""The bytes of a 16-bit exchange over those of float32."""
_FEWEST = 3  # seeds for an interval: with two it is twelve times their distance


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds."""

    mean: float
    low: float
    """The 95% interval of the mean (Student's t) from three seeds on; of two the smaller value."""
    high: float
    count: int
    """Seeds in it."""

    @property
    def spread(self) -> float:
        """Half of the interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one setting."""

    runs: tuple[RunHistory, ...]
    detail: str = ""
    """What tells it apart from groups of the same rule and parameter; empty if there are none."""

    @property
    def rule(self) -> str:
        """The compressor's kind."""
        return self.runs[0].rule

    @property
    def name(self) -> str:
        """The name of the first run."""
        return self.runs[0].name

    @property
    def is_baseline(self) -> bool:
        """Whether these runs sent everything in every step."""
        return self.runs[0].is_baseline

    @property
    def metric(self) -> Metric:
        """What these runs are judged by."""
        return self.runs[0].metric

    @property
    def values(self) -> dict[str, float]:
        """The metric's last values, as they are logged, by seed."""
        return self.by_seed(names.eval_metric(self.metric.name))

    @property
    def value(self) -> Estimate | None:
        """The mean over seeds of the metric's last value, in its displayed unit."""
        return self.estimate(names.eval_metric(self.metric.name), self.metric.scale)

    @property
    def tau(self) -> float | None:
        """The threshold, where it is one number."""
        return self.runs[0].tau

    @property
    def setting(self) -> str:
        """The parameter that decides how much this rule sends: `0.01` of a threshold, or `floor 2`."""
        return ", ".join(filter(None, (setting(self.runs[0]), self.detail)))

    def param(self, name: str) -> float | None:
        """A param that is a number."""
        return number(self.runs[0].params.get(name))

    def by_seed(self, metric: str, factor: float = 1.0) -> dict[str, float]:
        """A metric's last finite values by seed, times a factor; of several runs of one seed their mean."""
        by_seed: dict[str, list[float]] = {}
        for run in self.runs:
            value = run.final(metric)
            if value is not None:
                by_seed.setdefault(run.params.get("seed", run.run_id), []).append(factor * value)
        return {seed: float(np.mean(values)) for seed, values in by_seed.items()}

    def estimate(self, metric: str, factor: float = 1.0) -> Estimate | None:
        """The mean over seeds of a metric's last values, times a factor; None if no run has a finite one."""
        values = list(self.by_seed(metric, factor).values())
        return estimate(values) if values else None

    @property
    def compression(self) -> Estimate | None:
        """Baseline bytes over wire bytes, of the mean bytes over seeds."""
        ratios = [ratio for ratio in self.by_seed(names.TOTAL_COMPRESSION_RATIO).values() if ratio > 0]
        if not ratios:
            return None
        parts = estimate([1 / ratio for ratio in ratios])
        high = 1 / parts.low if parts.low > 0 else max(ratios)
        return Estimate(1 / parts.mean, 1 / parts.high, high, parts.count)

    def mean_run(self) -> RunHistory:
        """A run without histories whose last values are the means over seeds, for figures of single runs."""
        metrics = {name for run in self.runs for name in run.finals}
        means = {name: mean.mean for name in metrics if (mean := self.estimate(name)) is not None}
        return replace(self.runs[0], metrics={}, finals=means)


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of at least one value, with its 95% interval; two values are too few for one."""
    mean = float(np.mean(values))
    if len(values) < _FEWEST:
        return Estimate(mean, min(values), max(values), len(values))
    half = half_interval(values)
    return Estimate(mean, mean - half, mean + half, len(values))


def by_setting(runs: Iterable[RunHistory]) -> list[Group]:
    """Groups of runs whose params and metric agree, whatever their seed and name.

    Runs that did not train to their end, or have no final value of their metric or no wire bytes, are left
    out. The baseline comes first, then rules by name; settings of a rule by wire bytes, most first.
    """
    settings: dict[tuple[tuple[str, str], ...], list[RunHistory]] = {}
    for run in runs:
        if run.is_complete and run.value is not None and run.final(names.TOTAL_WIRE_GB):
            settings.setdefault(_computation(run), []).append(run)
    groups = [Group(tuple(members)) for members in settings.values()]
    return sorted(groups, key=lambda group: (not group.is_baseline, group.rule, -_wire(group)))


@dataclass(frozen=True, eq=False)
class Comparison:
    """Settings that differ in compressor, synchronization, momentum and learning rate alone."""

    groups: tuple[Group, ...]
    name: str
    """What differs from the other comparisons; empty if there are none."""

    @property
    def metric(self) -> Metric:
        """What all of its runs are judged by."""
        return self.groups[0].metric


def comparisons(groups: Iterable[Group]) -> list[Comparison]:
    """The groups in comparisons: first those with a baseline and a compressed run, of most runs first.

    Simulated workers are not compared with real ones, whose seconds are others.
    """
    contexts: dict[tuple[tuple[str, str], ...], list[Group]] = {}
    for group in groups:
        contexts.setdefault(_context(group.runs[0]), []).append(group)
    named = zip(_differences([dict(context) for context in contexts]), contexts.values(), strict=True)
    found = [Comparison(_told_apart(members), name) for name, members in named]
    return sorted(
        found,
        key=lambda comparison: (
            len({group.is_baseline for group in comparison.groups}) < 2,
            -sum(len(group.runs) for group in comparison.groups),
        ),
    )


def varied(found: Iterable[Comparison]) -> list[str]:
    """The params in which comparisons differ."""
    contexts = [dict(_context(comparison.groups[0].runs[0])) for comparison in found]
    names_of_all = dict.fromkeys(name for context in contexts for name in context)
    return [
        name
        for name in names_of_all
        if name not in _WORDS_ALONE and len({context.get(name) for context in contexts}) > 1
    ]


def _context(run: RunHistory) -> tuple[tuple[str, str], ...]:
    """The params that must agree between runs that are compared."""
    simulated = run.params.get("sync.mode") == "simulated"
    return (
        ("metric", " ".join(("judged by", run.metric.label, run.metric.unit)).strip()),
        ("simulated", "simulated workers" if simulated else "real workers"),
        *((param, value) for param, value in _computation(run) if param and not param.startswith(_COMPARED)),
    )


def _told_apart(groups: Sequence[Group]) -> tuple[Group, ...]:
    """The groups, with the detail of those whose rule and parameter are alike."""
    alike: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        alike.setdefault((group.rule, setting(group.runs[0])), []).append(group)
    details = {
        id(group): detail
        for members in alike.values()
        for group, detail in zip(
            members, _differences([dict(_computation(group.runs[0])) for group in members]), strict=True
        )
    }
    return tuple(replace(group, detail=details[id(group)]) for group in groups)


def _differences(params: Sequence[Mapping[str, str]]) -> list[str]:
    """What differs between several sets of params, in words; one set has none.

    Params that only some sets have, such as an optimizer's own, count where others do not tell sets apart.
    """
    moved = [name for name in dict.fromkeys(name for each in params for name in each)
             if len({each.get(name) for each in params}) > 1]  # fmt: skip
    shared = [name for name in moved if all(name in each for each in params)]
    names_used = shared if len({_phrase(each, shared) for each in params}) == len(params) else moved
    return [_phrase(each, names_used) for each in params]


def _phrase(params: Mapping[str, str], shown: Sequence[str]) -> str:
    words = [_word(name, params[name]) for name in shown if params.get(name, "None") != "None"]
    more = f" and {len(words) - _MOST_WORDS} more" if len(words) > _MOST_WORDS else ""
    return ", ".join(words[:_MOST_WORDS]) + more


def _word(name: str, value: str) -> str:
    if name in _WORDS:
        return _WORDS[name].format(_tidy(value))
    return f"{name.removesuffix('.kind').rpartition('.')[2]} {_tidy(value)}"


def rules(groups: Iterable[Group]) -> dict[str, list[Group]]:
    """The groups by rule, without the baseline."""
    by_rule: dict[str, list[Group]] = {}
    for group in groups:
        if not group.is_baseline:
            by_rule.setdefault(group.rule, []).append(group)
    return by_rule


def baseline(groups: Iterable[Group]) -> Group | None:
    """The runs without compression; of several settings the one with most seeds, then the best."""
    baselines = [group for group in groups if group.is_baseline]
    return max(baselines, key=lambda group: (len(group.values), goodness(group)), default=None)


def goodness(group: Group) -> float:
    """The metric's value such that more is better."""
    value = group.value
    return group.metric.sign * value.mean if value else -math.inf


_SETTINGS = (
    ("compressor.tau.target", "density "),
    ("compressor.floor", "floor "),
    ("compressor.density", "density "),
    ("compressor.rank", "rank "),
    ("compressor.keep", "keep "),
)


def setting(run: RunHistory) -> str:
    """The parameters that decide how much a run's rule sends; empty if there are none."""
    parts = []
    if run.tau is not None:
        parts.append(f"{run.tau:.4g}")
    elif "compressor.tau.kind" in run.params and "compressor.tau.target" not in run.params:
        parts.append(run.params["compressor.tau.kind"])
    parts += [f"{word}{_tidy(run.params[param])}" for param, word in _SETTINGS if param in run.params]
    bits = run.params.get("compressor.bits", run.params.get("compressor.quantize.bits"))
    if bits is not None:
        parts.append(f"{bits} bit")
    return ", ".join(parts)


def _tidy(text: str) -> str:
    value = number(text)
    return text if value is None else f"{value:.4g}"


def _computation(run: RunHistory) -> tuple[tuple[str, str], ...]:
    defining = sorted(
        (param, value) for param, value in run.params.items() if not param.startswith(_NOT_COMPUTATION)
    )
    return (("", run.metric.to_json()), *defining)


def _wire(group: Group) -> float:
    wire = group.estimate(names.TOTAL_WIRE_GB)
    return wire.mean if wire else 0.0
