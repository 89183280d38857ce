"""`taugrad submit`: another command as a job on a Ray cluster."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from taugrad.platform.spec import refusal

from .auto import read_auto
from .shared import add_spec_command
from .train import read_train

if TYPE_CHECKING:
    from .shared import Commands

SUBMITTED = ("train", "search", "auto")
"""The commands that can run as a job."""


def add_submit(commands: "Commands", parser: Callable[[], argparse.ArgumentParser]) -> None:
    """Adds the command; `parser` makes the whole command line's, which reads the arguments of the job."""
    command = add_spec_command(
        commands,
        "submit",
        lambda options, overrides: run_submit(parser(), options, overrides),
        "run train, search or auto as a job on a Ray cluster",
        "[train | search | auto] SPEC [SPEC ...] --address URL [--FIELD VALUE ...]",
    )
    command.add_argument(
        "specs",
        nargs="+",
        type=Path,
        metavar="SPEC",
        help="as for the command before it (default: train); so are all options",
    )
    command.add_argument(
        "--address", required=True, metavar="URL", help="the cluster's job server, such as http://HOST:8265"
    )


def run_submit(parser: argparse.ArgumentParser, options: argparse.Namespace, overrides: list[str]) -> int:
    """Checks the job's arguments here, and submits it."""
    words = [str(spec) for spec in options.specs]
    command = words.pop(0) if len(words) > 1 and words[0] in SUBMITTED else "train"
    job_options, fields = parser.parse_known_args([command, *words, *overrides])
    if getattr(job_options, "resume", None):
        raise refusal(f"--resume {job_options.resume}: submit does not have this option")
    if command == "train":
        read_train(job_options, fields)
    elif command == "auto":
        read_auto(job_options, fields)
    else:
        from taugrad.search.reading import name_search, read_search  # noqa: PLC0415

        # The front of a finished search is where the job runs.
        (read_search if job_options.pick is None else name_search)(job_options.spec, fields)
    from taugrad.platform.launching.driver.submit import submit  # noqa: PLC0415

    calibration = getattr(job_options, "calibration", None)
    files = [] if calibration is None else [calibration]
    return submit(command, [Path(word) for word in words], overrides, options.address, files)
