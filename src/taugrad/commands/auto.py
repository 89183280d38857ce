"""`taugrad auto`."""

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from taugrad.platform.spec import refusal

from .shared import SPEC_HELP, add_output, add_spec_command, train_specs

if TYPE_CHECKING:
    from taugrad.platform.spec import RunSpec
    from taugrad.search.auto import Goal
    from taugrad.search.auto_link.request import TargetRequest

    from .shared import Commands


def add_auto(commands: "Commands") -> None:
    """Adds the command."""
    parser = add_spec_command(
        commands,
        "auto",
        run_auto,
        "find a threshold for a byte budget or a tolerated loss of accuracy, and train with it; or find the "
        "fastest way to a target over a link",
        "SPEC [--budget MB | --tolerance AMOUNT | --once | --target METRIC=NUMBER --link LINK] "
        "[--plan-only] [-o FILE] [--FIELD VALUE ...]",
    )
    parser.add_argument("spec", type=Path, metavar="SPEC", help=SPEC_HELP)
    goal = parser.add_mutually_exclusive_group()
    goal.add_argument(
        "--budget",
        type=float,
        metavar="MB",
        help="wire bytes that the whole run may send, all workers together",
    )
    goal.add_argument(
        "--tolerance",
        type=float,
        metavar="AMOUNT",
        help="how much worse than without compression the result may be: percentage points of accuracy, nats "
        "of a loss (default: 0.5 points, 0.02 nats, 1%% for other metrics)",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="train once only, with no uncompressed run to compare with",
    )
    goal.add_argument(
        "--target",
        metavar="METRIC=NUMBER",
        help="train until, for example, loss=1.9 or accuracy=0.95, over --link or --measure. Mode, local "
        "steps, method and density are chosen by the plan's seconds per step and short probes of the run",
    )
    parser.add_argument(
        "--link",
        metavar="LINK",
        help="with --target: the link's rate, delay (one way) and lost packets, such as 100mbit,20ms",
    )
    parser.add_argument(
        "--measure",
        nargs="+",
        default=[],
        metavar="HOST",
        help="with --target: measure the link to these machines, as taugrad plan does",
    )
    parser.add_argument(
        "--probe-seconds",
        type=float,
        metavar="S",
        help="with --target: time for all probes together (default: 120)",
    )
    parser.add_argument(
        "--share-of-machine",
        type=int,
        metavar="N",
        help="with --target: number of workers that share one machine's processors (default: 1)",
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="with --target: use this calibration from another machine instead of measuring",
    )
    parser.add_argument(
        "--plan-only", action="store_true", help="with --target: choose and say why, but do not train"
    )
    add_output(parser, "FILE", "with --target: write the chosen spec here")


def run_auto(options: argparse.Namespace, overrides: list[str]) -> int:
    """Trains with a threshold for a goal, or in the fastest way to a target."""
    from taugrad.search.auto import Goal  # noqa: PLC0415
    from taugrad.search.auto import run_auto as run  # noqa: PLC0415
    from taugrad.search.auto_link.request import TargetRequest  # noqa: PLC0415
    from taugrad.search.auto_link.run_auto_link import run_auto_link  # noqa: PLC0415

    spec, goal = read_auto(options, overrides)
    source = str(options.spec)
    from taugrad.platform.launching.driver.cluster import ray_cluster  # noqa: PLC0415

    compares = isinstance(goal, Goal) and goal.budget is None and not goal.once
    again = "then give the same command again: it takes the trainings that are finished"
    if not compares:
        again = "the same command would train from the beginning"
    with ExitStack() as stack:

        def train(spec: "RunSpec") -> int:
            # All trainings share the Ray of the first.
            stack.enter_context(ray_cluster(workers=spec.processes))
            try:
                return train_specs([(source, spec)])
            except KeyboardInterrupt as interrupt:
                raise type(interrupt)(f"{interrupt}\n  {again}") from None

        if isinstance(goal, TargetRequest):
            return run_auto_link(spec, source, goal, train)
        return run(spec, source, goal, train)


_TARGET_DEFAULTS: dict[str, object] = {
    "link": None,
    "measure": [],
    "probe_seconds": None,
    "share_of_machine": None,
    "calibration": None,
    "plan_only": False,
    "output": None,
}
"""Options of `taugrad auto --target`, and their values if they are not given."""


def read_auto(options: argparse.Namespace, overrides: list[str]) -> "tuple[RunSpec, Goal | TargetRequest]":
    """The spec, and what is asked for; raises SpecError."""
    from taugrad.platform.spec.reading import read_spec  # noqa: PLC0415
    from taugrad.search.auto import Goal  # noqa: PLC0415

    given = [name for name, default in _TARGET_DEFAULTS.items() if getattr(options, name) != default]
    if options.target is not None or given:
        return read_spec(options.spec, overrides), _read_target(options, given)
    goal = Goal(options.budget, options.tolerance, once=options.once)
    return read_spec(options.spec, overrides), goal


def _read_target(options: argparse.Namespace, given: list[str]) -> "TargetRequest":
    from taugrad.search.auto_link.request import PROBE_SECONDS, TargetRequest  # noqa: PLC0415

    others = [f"--{name}" for name in ("budget", "tolerance") if getattr(options, name) is not None]
    others += ["--once"] * options.once
    if others and options.target is None:
        option = f"--{given[0].replace('_', '-')}"
        raise refusal(f"{option} with {others[0]}: {option} needs --target; leave one out")
    if others:
        raise refusal(f"--target {options.target} with {others[0]}: these cannot be combined; leave one out")
    return TargetRequest.read(
        options.target,
        options.link,
        options.measure,
        probe_seconds=PROBE_SECONDS if options.probe_seconds is None else options.probe_seconds,
        sharing=1 if options.share_of_machine is None else options.share_of_machine,
        calibration=options.calibration,
        plan_only=options.plan_only,
        output=options.output,
    )
