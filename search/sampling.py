"""Optuna chooses the points, using everything in the journal. Interrupted points come first."""

import hashlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .journal import Trial
from .objective import Objective, TrialOutcome
from .progress import Point, SearchProgress
from .space import Choice, Dimension, Interval, active, fill
from .trial import FIRST_VALUE, SECOND_VALUE

if TYPE_CHECKING:
    import optuna

_STUDY = "taugrad"


def make_sampler(progress: SearchProgress, objective: Objective, concurrency: int) -> Any:
    """Ray Tune's Optuna search, with all trials that have ended before; `concurrency` trials at a time."""
    import optuna  # noqa: PLC0415
    from ray.tune.search.optuna import OptunaSearch  # noqa: PLC0415

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    modes = objective.modes
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(
        storage=storage,
        study_name=_STUDY,
        directions=["maximize" if mode == "max" else "minimize" for mode in modes],
    )
    for trial in progress.record.ended:
        study.add_trial(_frozen(progress, trial, objective))
    for trial in progress.record.interrupted:
        study.enqueue_trial(trial.params)

    def suggest(optuna_trial: "optuna.Trial") -> dict[str, str]:
        return {"task": progress.begin(_suggested(progress.search.tree, optuna_trial)).model_dump_json()}

    chosen = set[str]()
    """Trials whose end the sampler does not know yet."""

    class Journalled(OptunaSearch):
        def set_max_concurrency(self, max_concurrent: int) -> bool:
            return True  # Tune would wait forever for a trial that it has aborted

        def suggest(self, trial_id: str) -> Any:
            if len(chosen) >= concurrency:
                return None
            chosen.add(trial_id)
            return super().suggest(trial_id)

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            chosen.discard(trial_id)
            super().on_trial_complete(trial_id, result, error)

        def save(self, checkpoint_path: str) -> None:
            Path(checkpoint_path).touch()  # a search goes on from its journal

    names = [FIRST_VALUE, SECOND_VALUE][: len(modes)]
    return Journalled(
        space=suggest,
        metric=names if len(names) > 1 else names[0],
        mode=list(modes) if len(modes) > 1 else modes[0],
        sampler=_optuna_sampler(progress, concurrency),
        study_name=_STUDY,
        storage=storage,
    )


def _optuna_sampler(progress: SearchProgress, concurrency: int) -> "optuna.samplers.BaseSampler":
    import optuna  # noqa: PLC0415

    settings = progress.settings
    # A continued search must not draw the same points as its first start.
    seed = (settings.seed + 1_000_003 * len(progress.record.trials)) % 2**32
    first = max(4, min(10, settings.trials // 4))
    match settings.sampler:
        case "random":
            return _random(progress)
        case "nsga2":
            return optuna.samplers.NSGAIISampler(seed=seed, population_size=max(first, settings.trials // 8))
        case "tpe":
            return optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=first, constant_liar=concurrency > 1
            )


def _random(progress: SearchProgress) -> "optuna.samplers.BaseSampler":
    """A random sampler seeded by seed, trial and dimension, so that a continued search misses no point."""
    import optuna  # noqa: PLC0415

    class ByNumber(optuna.samplers.RandomSampler):
        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            drawn_for = f"{progress.settings.seed} {progress.next_number} {param_name}"
            seed = int.from_bytes(hashlib.sha256(drawn_for.encode()).digest()[:4], "little")
            drawn = optuna.samplers.RandomSampler(seed=seed)
            return drawn.sample_independent(study, trial, param_name, param_distribution)

    return ByNumber()


def _suggested(tree: Any, optuna_trial: "optuna.Trial") -> dict[str, Any]:
    params: dict[str, Any] = {}

    def decide(dimension: Dimension) -> Any:
        match dimension:
            case Choice(name=name):
                params[name] = optuna_trial.suggest_categorical(name, list(dimension.alternatives))
            case Interval(name=name, whole=True):
                params[name] = optuna_trial.suggest_int(name, int(dimension.low), int(dimension.high))
            case Interval(name=name):
                params[name] = optuna_trial.suggest_float(
                    name, dimension.low, dimension.high, log=dimension.log
                )
        return params[dimension.name]

    fill(tree, decide)
    return params


def _frozen(progress: SearchProgress, trial: Trial, objective: Objective) -> "optuna.trial.FrozenTrial":
    """A trial of an earlier start, in Optuna's form."""
    import optuna  # noqa: PLC0415

    counted = active(progress.search.tree, trial.params)
    if trial.ending == "full":
        values = objective.values(Point.of(trial, objective.metric))
    elif trial.ending == "failed":
        values = objective.worst()
    else:
        last = trial.course[trial.evaluation]
        values = objective.values(TrialOutcome(last.value, last.wire_bytes / trial.share))
    return optuna.trial.create_trial(
        values=values,
        params={dimension.name: trial.params[dimension.name] for dimension in counted},
        distributions={dimension.name: _distribution(dimension) for dimension in counted},
    )


def _distribution(dimension: Dimension) -> "optuna.distributions.BaseDistribution":
    from optuna import distributions  # noqa: PLC0415

    if isinstance(dimension, Choice):
        return distributions.CategoricalDistribution(list(dimension.alternatives))
    if dimension.whole:
        return distributions.IntDistribution(int(dimension.low), int(dimension.high))
    return distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.log)
