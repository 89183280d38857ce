"""Fitting a law: known relations are found again, what was left out is missed; best values of settings."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taugrad.compressors.tau.by_law import Features, by_law
from taugrad.platform.spec import RunSpec, SpecError
from taugrad.search.law.fitting import (
    FEWEST,
    LEAST_TOLERANCE,
    MOST_TOLERANCE,
    SHIPPED,
    TOLERANCES,
    Example,
    FittedLaw,
    LawError,
    best_value,
    fit,
    read_law,
    smoothed,
    write_law,
)
from taugrad.search.law.past import (
    BATCH,
    OPTIMIZER,
    OPTIMIZER_MOMENTUM,
    OWN_MOMENTUM,
    RATE,
    WORKERS,
    PastRun,
    PastSetting,
)
from taugrad.search.objective import Outcome

RELATION = {
    **{"rms": 0.8, "p99": -0.5, "p999": 0.3, "layer": -0.1},
    **{"tolerance": 0.6, "batch": -0.7, "lr": 0.2, "workers": -0.3},
}
CONSTANT = 2.0


def settings_of(families: int, count: int, seed: int = 0) -> list[PastSetting]:
    """Settings of several models, whose features and circumstances differ."""
    rng = np.random.default_rng(seed)
    made = []
    for family in range(families):
        for _ in range(count):
            params = {
                "model.kind": f"m{family}",
                BATCH: str(2 ** int(rng.integers(4, 9))),
                RATE: repr(float(10 ** rng.uniform(-3, 0))),
                WORKERS: str(int(rng.integers(1, 17))),
                OPTIMIZER: "sgd",
            }
            features = Features(*rng.normal([-5, 1, 2, 8], [2, 0.5, 0.5, 2]).tolist())
            made.append(PastSetting(params, "", features=features))
    return made


def value_of(setting: PastSetting, tolerance: float, relation: dict[str, float] = RELATION) -> float:
    """The relation, written out."""
    known = {"tolerance": tolerance, "batch": setting.number(BATCH)}
    known |= {"lr": setting.number(RATE), "workers": setting.number(WORKERS)}
    logarithms = {name: math.log(value) for name, value in known.items()} | setting.features._asdict()
    return CONSTANT + sum(weight * logarithms[name] for name, weight in relation.items())


def examples_of(settings: list[PastSetting], value: Callable[[PastSetting, float], float]) -> list[Example]:
    return [
        Example(setting, tolerance, value(setting, tolerance))
        for setting in settings
        for tolerance in TOLERANCES
    ]


def said_by(law: FittedLaw, setting: PastSetting, tolerance: float) -> float:
    """The law's number for a setting, as a run would evaluate it."""
    assert setting.features is not None
    fields = {
        "batch_size": int(setting.params[BATCH]),
        "optimizer": {"kind": "sgd", "lr": float(setting.params[RATE])},
    }
    workers = {"count": int(setting.params[WORKERS])}
    run = RunSpec.model_validate({"training": fields, "workers": workers, "sync": {"mode": "simulated"}})
    return by_law(law.of(run, tolerance), setting.features)


def test_a_relation_with_a_little_noise_is_found_and_holds_for_a_family_that_was_not_seen():
    rng = np.random.default_rng(1)
    noisy = examples_of(
        settings_of(6, 4), lambda setting, points: math.exp(value_of(setting, points) + rng.normal(0, 0.01))
    )
    law, judged = fit("strom", noisy)
    assert (law.kind, law.looked_for, law.optimizers, law.settings) == ("strom", "tau", ("sgd",), 24)
    for name, weight in RELATION.items():
        assert law.weights[name] == pytest.approx(weight, abs=0.05)
    assert 0.005 < law.error < 0.05
    assert [judgement.best for judgement in judged] == [setting.best for setting in noisy]
    for unseen in settings_of(7, 3, seed=2)[-3:]:
        for tolerance in TOLERANCES:
            assert said_by(law, unseen, tolerance) == pytest.approx(value_of(unseen, tolerance), abs=0.05)


def with_momentum(made: list[PastSetting], where: str, momentum: float) -> None:
    for setting in made:
        setting.params = {**setting.params, where: str(momentum)}


def test_a_tau_after_momentum_is_that_much_larger():
    made = settings_of(6, 4)
    for i, setting in enumerate(made):
        with_momentum([setting], OWN_MOMENTUM, (0.0, 0.5, 0.9)[i % 3])
    law, judged = fit(
        "strom",
        examples_of(
            made,
            lambda setting, points: math.exp(value_of(setting, points)) / (1 - setting.momentum_correction),
        ),
    )
    assert law.momentum_in == "compressor"
    assert law.describe().startswith("ln(tau (1 - momentum)) = ")
    assert law.error < 0.02
    assert all(abs(judgement.missed) < 0.1 for judgement in judged)
    (unseen,) = settings_of(1, 1, seed=7)
    for momentum in (0.0, 0.8):
        tree = {"compressor": f"strom(1, momentum={momentum})", "sync": {"mode": "simulated"}}
        training = {
            "batch_size": int(unseen.params[BATCH]),
            "optimizer": {"kind": "sgd", "lr": float(unseen.params[RATE]), "momentum": 0.0},
        }
        workers = {"count": int(unseen.params[WORKERS])}
        run = RunSpec.model_validate(tree | {"training": training, "workers": workers})
        said = by_law(law.of(run, 4.0), unseen.features)
        assert said == pytest.approx(value_of(unseen, 4.0) - math.log(1 - momentum), abs=0.05)


def test_a_law_is_for_momentum_in_one_place():
    made = settings_of(4, 2)
    with_momentum(made[:4], OPTIMIZER_MOMENTUM, 0.9)
    assert fit("strom", examples_of(made, lambda *_: 1.0))[0].momentum_in == "optimizer"
    with_momentum(made[4:], OWN_MOMENTUM, 0.9)
    with pytest.raises(LawError, match=r"some runs have compressor\.momentum and others"):
        fit("strom", examples_of(made, lambda *_: 1.0))


def test_too_few_settings_are_refused_however_many_tolerances_they_have():
    examples = examples_of(settings_of(2, 1), lambda *_: 1.0)
    assert len(examples) > FEWEST
    with pytest.raises(LawError, match="2 settings have a best value, and a law needs at least 3"):
        fit("strom", examples)
    with pytest.raises(LawError, match="0 settings"):
        fit("strom", [])


def a_law(**fields: object) -> FittedLaw:
    known = {"kind": "strom", "looked_for": "tau", "constant": CONSTANT, "weights": RELATION}
    known |= {"optimizers": ("sgd", "lars"), "error": 0.25, "settings": 7}
    return FittedLaw.model_validate(known | fields)


@pytest.mark.parametrize(
    ("tolerance", "counts"), [(0.0, LEAST_TOLERANCE), (3.0, 3.0), (50.0, MOST_TOLERANCE)]
)
def test_what_is_known_before_goes_into_the_constant(tolerance, counts):
    (setting,) = settings_of(1, 1)
    law = a_law()
    assert said_by(law, setting, tolerance) == pytest.approx(value_of(setting, counts), abs=2e-3)


def test_a_law_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "law.yaml"
    for law in (a_law(), a_law(momentum_in="compressor"), a_law(kind="entropy", looked_for="floor")):
        write_law(law, path, "how it came about")
        assert path.read_text().startswith("# how it came about\n")
        assert read_law(path) == law


def test_the_law_that_ships_is_one_for_strom_and_asks_for_small_taus_of_small_tolerances():
    law = read_law(SHIPPED)
    assert (law.kind, law.looked_for, law.optimizers) == ("strom", "tau", ("sgd",))
    assert law.settings >= FEWEST
    assert law.weights["tolerance"] > 0


@pytest.mark.parametrize(
    ("line", "instead", "problem"),
    [
        ("constant:", "constant: .nan", "constant: .*finite"),
        ("  rms:", "  rms: .inf", "weights.rms: .*finite"),
        ("  rms:", "", "does not contain a law: weights of p99, .*: must be those of rms, p99"),
        ("kind:", "kind: topk", "kind: .*'strom'"),
        ("kind:", "kind: entropy", "does not contain a law: looked_for = tau: for entropy it must be floor"),
        ("settings:", "", "settings: .*required"),
    ],
)
def test_a_file_with_a_wrong_field_is_refused(tmp_path, line, instead, problem):
    path = tmp_path / "law.yaml"
    write_law(a_law(), path, "")
    lines = path.read_text().splitlines()
    assert sum(text.startswith(line) for text in lines) == 1
    path.write_text("\n".join(instead if text.startswith(line) else text for text in lines))
    with pytest.raises(SpecError, match=f"^{path}: {problem}"):
        read_law(path)


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path):
    with pytest.raises(SpecError, match=r"none\.yaml: cannot be read: No such file"):
        read_law(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="cannot be read"):
        read_law(tmp_path)


# A setting's best value


Run = tuple[float, float, float]
"""A value, an accuracy and bytes."""


def setting(runs: list[Run], baselines: tuple[float, ...] = ()) -> PastSetting:
    return PastSetting(
        params={},
        around="",
        runs=[
            PastRun(value, Outcome(accuracy, sent), f"{i}") for i, (value, accuracy, sent) in enumerate(runs)
        ],
        baselines=[Outcome(accuracy, 1e9) for accuracy in baselines],
    )


@given(
    st.lists(st.tuples(st.floats(-10, 10), st.floats(0, 1)), min_size=1, max_size=12),
    st.floats(0.05, 5),
)
def test_a_smoothed_value_is_a_mean_weighted_by_a_normal_density(pairs, width):
    places, values = [place for place, _ in pairs], [value for _, value in pairs]
    for here, result in zip(places, smoothed(places, values, width), strict=True):
        density = [math.exp(-((there - here) ** 2) / (2 * width**2)) for there in places]
        mean = sum(weight * value for weight, value in zip(density, values, strict=True)) / sum(density)
        assert result == pytest.approx(mean, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("tolerance", [2.0, 4.0, 8.0])
def test_on_a_noisy_plateau_with_a_drop_the_edge_within_the_tolerance_is_chosen(seed, tolerance):
    rng = np.random.default_rng(seed)

    def accuracy(tau: float) -> float:
        return 0.95 - 0.15 * max(0.0, math.log10(tau))  # level up to 1, then 15 points a decade

    taus = np.geomspace(1e-3, 100, 60).tolist()
    runs = [(tau, accuracy(tau) + rng.normal(0, 0.004), 1e6 / tau) for tau in taus]
    best = best_value(setting(runs, baselines=(0.94, 0.96)), "strom", tolerance)
    edge = 10 ** (tolerance / 15)
    # Smoothing is as wide as a factor of 1.5, and rounds the edge off.
    assert edge / 1.6 < best < edge * 1.6
    assert 100 * (0.95 - accuracy(best)) <= tolerance + 1.5


def test_a_lucky_run_among_bad_ones_is_not_believed():
    bad = [(tau, 0.5, 10 / tau) for tau in (8.0, 9.0, 11.0, 12.0)]
    runs = [(1.0, 0.9, 10.0), *bad, (10.0, 0.9, 1.0)]
    assert best_value(setting(runs, baselines=(0.9,)), "strom", 2) == 1.0


def test_without_baselines_the_best_of_the_runs_counts():
    runs = [(1e-3, 0.90, 5.0), (1.0, 0.89, 3.0), (1e3, 0.80, 1.0)]
    assert best_value(setting(runs), "strom", 2) == 1.0
    assert best_value(setting(runs), "strom", 11) == 1e3
    assert best_value(setting(runs), "strom", 0) == 1e-3
