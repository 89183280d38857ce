"""`taugrad train`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taugrad.platform.spec import refusal

from .shared import SPEC_HELP, add_spec_command, train_specs

if TYPE_CHECKING:
    from taugrad.platform.spec import RunSpec

    from .shared import Commands


def add_train(commands: "Commands") -> None:
    """Adds the command."""
    parser = add_spec_command(
        commands,
        "train",
        run_train,
        "train one or more specs and compare the runs",
        "SPEC [SPEC ...] [--FIELD VALUE ...]",
    )
    parser.add_argument("specs", nargs="*", type=Path, metavar="SPEC", help=SPEC_HELP)
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help=(
            "continue an interrupted run, by its MLflow run id; add --workers.count N "
            "--workers.on_resize merge to change the number of workers"
        ),
    )


def run_train(options: argparse.Namespace, overrides: list[str]) -> int:
    """Trains specs, or resumes a run."""
    if not options.resume:
        return train_specs(read_train(options, overrides))
    from taugrad.platform.spec.resizing import CHANGEABLE  # noqa: PLC0415

    changes = worker_changes(overrides, [str(spec) for spec in options.specs])
    if changes is None:
        raise refusal(
            "--resume uses the run's own spec; the only other arguments that it accepts are "
            + ", ".join(f"--workers.{field}" for field in CHANGEABLE)
        )
    from taugrad.dashboards.console import ConsoleDisplay  # noqa: PLC0415
    from taugrad.platform.launching.driver.train import resume  # noqa: PLC0415

    return resume(options.resume, ConsoleDisplay(), changes)


def worker_changes(overrides: Sequence[str], specs: Sequence[str]) -> dict[str, str] | None:
    """The fields of `workers` that `--resume` changes; None if any other argument is given.

    Args:
        overrides: fields and values.
        specs: what was read as SPEC: the value of the first field, if it is a word of its own.
    """
    from taugrad.platform.spec.resizing import CHANGEABLE  # noqa: PLC0415

    words, values = list(overrides), list(specs)
    changes: dict[str, str] = {}
    while words:
        field, _, value = words.pop(0).partition("=")
        if not value:
            from_words = bool(words) and not words[0].startswith("--")
            value = words.pop(0) if from_words else values.pop(0) if values else ""
        name = field.removeprefix("--workers.")
        if name == field or name not in CHANGEABLE or not value:
            return None
        changes[name] = value
    return None if values else changes


def read_train(options: argparse.Namespace, overrides: list[str]) -> "list[tuple[str, RunSpec]]":
    """The specs to train, with the names of their files; raises SpecError."""
    from taugrad.platform.spec.reading import read_spec  # noqa: PLC0415

    if not options.specs:
        raise refusal("SPEC: is missing; try experiments/quickstart/*.yaml")
    return [(str(path), read_spec(path, overrides)) for path in options.specs]
