"""The section `search` of a spec: its fields, read from a file, the environment and the command line."""

import difflib
import os
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from taugrad.platform.config import Config, descriptions
from taugrad.platform.spec import COMMAND_LINE, RunSpec, SpecError
from taugrad.platform.spec.allowing import is_allowed
from taugrad.platform.spec.allowing import refusal as code_refusal
from taugrad.platform.spec.data import ImportPath
from taugrad.platform.spec.fields import FieldHelp, entered, type_name
from taugrad.platform.spec.overrides import ENVIRONMENT_PREFIX
from taugrad.platform.spec.yaml_file import read_value

_SECTION = "search"
_PREFIX = f"{ENVIRONMENT_PREFIX}{_SECTION.upper()}__"
"""Of the environment variables that set the section's fields."""

Budget = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SearchConfig(Config):
    """How to search."""

    name: str = Field(default="", max_length=100, pattern=r"^([\w.-]*[\w-])?$")
    """The search's name, by which it can be continued; empty: the spec file's name."""
    objective: Literal["front", "accuracy_per_wire_gb", "constraint"] = "front"
    """front: the task's metric against wire bytes, as a Pareto front. accuracy_per_wire_gb: accuracy over
    wire bytes (%/GB). constraint: the fewest wire bytes with a metric within `tolerance` of the run without
    compression."""
    tolerance: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """What a constraint, and the proposed point of a front, may lose: percentage points of accuracy, or nats
    of a loss. By default 0.5 points, 0.02 nats, and for other metrics 1% of the value without compression."""
    trials: int = Field(default=30, ge=1)
    """Number of points to try, including those that are stopped early or fail."""
    seeds: int = Field(default=1, ge=1, le=100)
    """Trainings per point: seed, seed + 1, ... With several, points are compared by mean minus standard
    error."""
    minutes: Budget | None = None
    """Time budget of the whole search, including its earlier starts. Running trials are then stopped."""
    wire_gb: Budget | None = None
    """Byte budget: GB (1e9 bytes) that all trainings together may send, simulated or not."""
    pruning: Literal["none", "asha", "median"] = "none"
    """Early stopping of trials that others dominate at the same evaluation (the same epoch, unless runs are
    evaluated by iterations), in the metric and in bytes so far. asha: successive halving at evaluations
    grace, grace x reduction, ...; median: at any evaluation, if half of the others are better."""
    grace: int = Field(default=1, ge=1)
    """Number of evaluations for which every trial may run."""
    reduction: int = Field(default=3, ge=2)
    """Successive halving keeps the best 1/reduction at each of its evaluations."""
    concurrency: int | None = Field(default=None, ge=1)
    """Number of trials at a time; by default, as many as the cluster's CPUs allow."""
    sampler: Literal["tpe", "nsga2", "random"] = "tpe"
    """Optuna's tree-structured Parzen estimator, its genetic algorithm, or random points."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the sampler. The seed of trainings is the spec's."""
    retry_failed: bool = False
    """Try points again that failed in earlier starts of the search."""
    baseline: bool = True
    """First train once (per seed) without compression, to compare points with."""
    evaluate: ImportPath | None = None
    """Your own training instead of taugrad's: package.module:function, a generator that takes the spec and
    yields the value of the task's metric (an accuracy from 0 to 1) and the wire bytes so far, after each
    epoch or, with iterations, at each evaluation."""

    @model_validator(mode="after")
    def _constraint_has_a_baseline(self) -> "SearchConfig":
        if self.objective == "constraint" and not self.baseline:
            raise ValueError("objective = constraint needs the baseline: leave baseline = true")
        return self


class SearchSpec(RunSpec):
    """The fields of a search's file; never instantiated."""

    search: SearchConfig


def take_section(tree: dict[str, Any], given: dict[str, str], source: str) -> SearchConfig:
    """Removes the section from a file's fields and the command line's values, and reads it.

    The command line overrides the environment, and the environment the file.

    Raises:
        SpecError: a field is wrong or unknown, or the file names code, which is not allowed.
    """
    section = tree.pop(_SECTION, None) or {}
    if not isinstance(section, dict):
        raise SpecError(source, f"{_SECTION} = {section}: give its fields, {', '.join(_fields())}")
    in_section = [name for name in given if name.partition(".")[0] == _SECTION]
    on_command_line = {
        name.partition(".")[2]: _value(name.partition(".")[2], given.pop(name)) for name in in_section
    }
    environment = _environment()
    try:
        settings = SearchConfig.model_validate(section | environment | on_command_line)
    except ValidationError as error:
        problems = error.errors()
        given_by = [_given_by(problem["loc"], on_command_line, environment) or source for problem in problems]
        raise SpecError(source, *[_explain(problem) for problem in problems], sources=given_by) from None
    own_words = "evaluate" in environment or "evaluate" in on_command_line
    if settings.evaluate is not None and not own_words and not is_allowed():
        raise SpecError(source, code_refusal(f"{_SECTION}.evaluate", settings.evaluate))
    return settings


def search_fields() -> list[FieldHelp]:
    """Every field of the section, for `--help`."""
    return [
        FieldHelp(
            f"{_SECTION}.{name}",
            type_name(info.annotation),
            str(info.get_default()),
            "",
            descriptions(SearchConfig).get(name, ""),
        )
        for name, info in SearchConfig.model_fields.items()
    ]


def _given_by(
    loc: tuple[int | str, ...], on_command_line: dict[str, Any], environment: dict[str, Any]
) -> str:
    """Where a wrong value comes from; empty for the file, or for what several fields say together."""
    field = str(loc[0]) if loc else ""
    if field in on_command_line:
        return COMMAND_LINE
    return f"{_PREFIX}{field.upper()}" if field in environment else ""


def _environment() -> dict[str, Any]:
    return {
        (field := name.removeprefix(_PREFIX).lower()): _value(field, value)
        for name, value in os.environ.items()
        if name.startswith(_PREFIX)
    }


def _value(name: str, text: str) -> Any:
    return read_value(text, entered([SearchConfig], name))


def _explain(problem: Any) -> str:
    if not problem["loc"]:
        return f"{_SECTION}: {problem['ctx']['error']}"
    field = str(problem["loc"][0])
    if problem["type"] == "extra_forbidden":
        close = difflib.get_close_matches(field, _fields(), n=1)
        hint = f"did you mean {_SECTION}.{close[0]}?" if close else f"there are {', '.join(_fields())}"
        return f"{_SECTION}.{field}: no such field; {hint}"
    problem_text = str(problem["ctx"]["error"]) if problem["type"] == "value_error" else problem["msg"]
    return f"{_SECTION}.{field} = {problem['input']}: {problem_text[0].lower()}{problem_text[1:]}"


def _fields() -> list[str]:
    return list(SearchConfig.model_fields)
