"""The definition of a search: a space of specs, and how to explore it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.spec.overrides import Overrides
from taugrad.platform.spec.reading import read_tree
from taugrad.platform.tasks.counting import counting_metric
from taugrad.platform.tasks.metric import Metric

from .auto_specs import problems_of, without_compression
from .config import SearchConfig
from .space import Params, at, corners


@dataclass(frozen=True, eq=False)
class Search:
    """A search."""

    source: str
    """The spec's file."""
    settings: SearchConfig
    tree: Mapping[str, Any]
    """The spec's fields with ranges read."""
    arguments: Sequence[str] = ()
    """Arguments of the command line that set fields to plain values."""

    @property
    def name(self) -> str:
        """The name by which it can be continued."""
        return self.settings.name or Path(self.source).stem

    @cached_property
    def middle(self) -> Params:
        """The point at which every dimension has its middle value."""
        return corners(self.tree)[0]

    @cached_property
    def overrides(self) -> Overrides:
        """The environment's and the command line's fields; raises SpecError for unknown ones."""
        return Overrides.read(self.arguments)

    @cached_property
    def metric(self) -> Metric:
        """The metric of the spec in the middle of the space.

        Raises:
            ValueError: the data or the task cannot be built.
        """
        return counting_metric(self.spec(self.middle))

    @property
    def evaluated_by(self) -> str:
        """The name of the step that an evaluation ends: `epoch`, or `evaluation` if iterations count."""
        training = self.spec(self.middle).training
        by_epochs = training.iterations is None and training.evaluate_every is None
        return "epoch" if by_epochs else "evaluation"

    def spec(self, params: Mapping[str, Any]) -> RunSpec:
        """The run at a point; raises SpecError if it is not valid."""
        tree = at(self.tree, params)
        return read_tree({**tree, "name": ""}, self.source, self.overrides)

    def seeds(self, spec: RunSpec) -> list[RunSpec]:
        """The trainings of a point: the run with each seed."""
        return [spec.model_copy(update={"seed": (spec.seed + i) % 2**32}) for i in range(self.settings.seeds)]

    def baseline(self) -> RunSpec:
        """The run in the middle of the space, without compression; raises SpecError if it cannot be."""
        try:
            baseline = without_compression(self.spec(self.middle))
        except ValidationError as error:
            problems = [f"without compression: {problem}" for problem in problems_of(error)]
            raise SpecError(self.source, *problems, "search.baseline = false searches without it") from None
        return baseline.model_copy(update={"name": "baseline"})

    def identity(self) -> str:
        """Twelve hex digits, equal for searches over the same space, whatever their budgets are."""
        points = [[params, self.spec(params).fingerprint()] for params in corners(self.tree)]
        whole = [points, self.settings.evaluate or "", self.spec(self.middle).experiment]
        return hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:12]


def corner_specs(search: Search) -> list[RunSpec]:
    """The runs at the ends of every dimension, one dimension at a time; the first run is in the middle.

    Raises:
        SpecError: one of them is not valid; the message says where in the space.
    """
    specs = []
    for params in corners(search.tree):
        try:
            specs.append(search.spec(params))
        except SpecError as error:
            differing = {n: v for n, v in params.items() if search.middle.get(n) != v} or params
            where = ", ".join(f"{name} = {_shown(value)}" for name, value in differing.items())
            problems = [f"at {where}: {problem}" for problem in error.problems]
            raise SpecError(error.source, *problems, sources=error.sources) from None
    return specs


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
