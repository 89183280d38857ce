"""The command `taugrad law`: reads past runs, fits a law, shows how well it predicts, and writes it."""

import math
import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from taugrad.platform.exit_codes import OK
from taugrad.platform.spec import SpecError
from taugrad.platform.terminal import open_console, say
from taugrad.platform.tracking.experiments import find_experiment
from taugrad.platform.tracking.probe import answering_client

from ..config import refusal
from ..tables import printed
from .fitting import TOLERANCES, Example, FittedLaw, Kind, LawError, best_value, fit, write_law
from .past import (
    BATCH,
    RATE,
    WORKERS,
    PastSetting,
    judged_otherwise,
    kinds_with_a_value,
    past_settings,
    value_param,
)

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_MODEL = (
    *("model.kind", "model.name", "model.form", "model.widths", "model.depth", "model.layers", "model.width"),
    *("model.activation", "model.width_multiplier", "model.factory"),
)
"""Params that tell models apart."""


def run_law(experiments: Sequence[str], kind: Kind, path: Path) -> int:
    """Fits a law for a method to the runs of experiments, writes it to a file, and returns 0.

    Raises:
        SpecError: an experiment does not exist, the file cannot be written, or no law can be fitted.
    """
    console = open_console()
    law, judged, remarks = law_of(experiments, kind)
    command = shlex.join(["taugrad", "law", *experiments, "--of", kind])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_law(law, path, f"{command}, {datetime.now().astimezone().date().isoformat()}")
    except OSError as error:
        raise refusal(f"-o {path}: {error.strerror}") from None
    console.print(_table(law, judged))
    for remark in remarks:
        say(console, remark)
    say(console, law.describe())
    say(console, f"error on held-out models and data: {_error_text(law)}")
    say(console, f"written: {path}; use it: taugrad auto SPEC.yaml --law {shlex.quote(str(path))}")
    return OK


def law_of(experiments: Sequence[str], kind: Kind) -> tuple[FittedLaw, list[Example], list[str]]:
    """The law of past runs, its examples, and remarks on settings that are left out.

    Raises:
        SpecError: an experiment does not exist, or no law can be fitted.
    """
    client = answering_client(writes=False)
    ids = [find_experiment(client, name) for name in experiments]
    examples, remarks = examples_of(past_settings(client, ids, kind), kind)
    other_runs = judged_otherwise(client, ids)
    if other_runs:
        runs = f"{other_runs} run{'s' * (other_runs != 1)}"
        remarks.append(f"left out: {runs} not judged by accuracy: a law predicts lost accuracy")
    try:
        law, judged = fit(kind, examples)
    except LawError as error:
        problems = [str(error), *remarks] if examples or remarks else [_nothing(client, ids, kind)]
        raise SpecError(", ".join(experiments), problems) from None
    return law, judged, remarks


def _nothing(client: "MlflowClient", ids: Sequence[str], kind: Kind) -> str:
    """The error if there are no examples: which runs exist, and which command could read them."""
    kinds = kinds_with_a_value(client, ids)
    counted = ", ".join(f"{runs} of {method}" for method, (runs, _) in sorted(kinds.items()))
    counts = f"there are {counted}" if counted else "there is no finished run at all"
    others = [
        f"--of {method}" for method, (_, numbers) in sorted(kinds.items()) if numbers and method != kind
    ]
    asked = f"{' or '.join(others)} reads what is there, or " if others else ""
    param = value_param(kind)
    return f"no finished run of {kind} has a number as {param}; {counts}; {asked}search over {param} first"


def examples_of(settings: Sequence[PastSetting], kind: str) -> tuple[list[Example], list[str]]:
    """Settings with their best values at each tolerance, and remarks on the others."""
    examples, remarks = list[Example](), []
    for setting in settings:
        circumstances = [setting.number(param) for param in (BATCH, RATE, WORKERS)]
        best_values = [(tolerance, best_value(setting, kind, tolerance)) for tolerance in TOLERANCES]
        if setting.features is None:
            remarks.append(f"left out: {title(setting)}: no gradients recorded in the first iteration")
        elif any(math.isnan(circumstance) for circumstance in circumstances):
            remarks.append(f"left out: {title(setting)}: batch, learning rate or workers are unknown")
        elif all(best is None for _, best in best_values):
            remarks.append(f"left out: {title(setting)}: every run lost more than {TOLERANCES[-1]:g} points")
        else:
            examples += [
                Example(setting, tolerance, best) for tolerance, best in best_values if best is not None
            ]
            tried = [run.value for run in setting.runs]
            extreme, edge = ("smallest", min(tried)) if kind == "entropy" else ("largest", max(tried))
            at_edge = [tolerance for tolerance, best in best_values if best == edge]
            if at_edge:
                remarks.append(
                    f"{title(setting)}: at {at_edge[0]:g} points the best is the {extreme} tried, "
                    f"{edge:.4g}; a wider range may hold a better one"
                )
    return examples, remarks


def title(setting: PastSetting) -> str:
    """A setting as text."""
    params = setting.params
    model = " ".join(params[name] for name in _MODEL if name in params)
    parts = [model, params.get("data.kind", "?")]
    parts += [f"batch {params.get(BATCH, '?')}", f"lr {params.get(RATE, '?')}"]
    parts += [f"momentum {setting.momentum_correction:g}"] if setting.momentum_correction else []
    return ", ".join([*parts, f"{params.get(WORKERS, '?')} workers"])


def _table(law: FittedLaw, judged: Sequence[Example]) -> Table:
    headings = ("setting", "runs", *(f"{tolerance:g} points: best / said" for tolerance in TOLERANCES))
    rows = [(title(setting), str(len(setting.runs)), *cells) for setting, cells in compared(law, judged)]
    table = printed(headings, rows)
    table.caption = (
        "best: the run that sent least within this many points; "
        "said: by the law fitted without this model and data"
    )
    return table


def compared(law: FittedLaw, judged: Sequence[Example]) -> list[tuple[PastSetting, list[str]]]:
    """For each setting, the best and the predicted value, as text, for each of TOLERANCES."""
    rows: dict[int, tuple[PastSetting, list[str]]] = {}
    for example in judged:
        _, cells = rows.setdefault(id(example.setting), (example.setting, ["-"] * len(TOLERANCES)))
        predicted = (
            example.best * math.exp(example.missed)
            if law.looked_for == "tau"
            else example.best + example.missed
        )
        cells[TOLERANCES.index(example.tolerance)] = f"{example.best:.3g} / {predicted:.3g}"
    return list(rows.values())


def _error_text(law: FittedLaw) -> str:
    if law.looked_for == "tau":
        return f"a factor of {math.exp(law.error):.2f} (root mean square of logarithms)"
    return f"{law.error:.2f} bits (root mean square)"
