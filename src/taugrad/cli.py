"""The command line: the only module that imports all four packages.

Imports happen when a command needs them, so that `--help` is fast.
"""

import argparse
import os
import shlex
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from taugrad import __version__
from taugrad.ending import run
from taugrad.platform.exit_codes import FAILED, INTERRUPTED, OK, WRONG_INPUT

if TYPE_CHECKING:
    from taugrad.platform.spec import RunSpec
    from taugrad.platform.spec.fields import FieldHelp
    from taugrad.search.auto import Goal
    from taugrad.search.auto_link.request import Request
    from taugrad.search.plan.planning import Comparison
    from taugrad.search.progress import Point, Progress

_SPEC_HELP = "a spec (YAML file); fields that it leaves out have defaults"
_FIELDS_HINT = (
    "You can set any field of the spec after the specs, such as --compressor.tau 1e-3, or by an "
    "environment variable, such as TAUGRAD_COMPRESSOR__TAU=1e-3. The command line overrides the "
    "environment, and the environment overrides the file. Set TAUGRAD_TRACEBACK=1 to see the whole "
    "traceback of an error in your own model or data."
)

_NO_DEFAULT = {"", "None", "required", "()", "{}"}
_SUBMITTED = ("train", "search", "auto")
_CONTINUED = (*_SUBMITTED, "submit")
"""Commands that go on, or begin again, when they are given once more after Ctrl-C."""
_PLATFORM = ("ray", "mlflow", "optuna", "plotly", "rich")
"""Packages without which no command runs."""
_VALUE_TYPES = {"bool", "dict", "float", "int", "list", "Path", "str"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the process's exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    again = shlex.join(["taugrad", *words]) if words[:1] and words[0] in _CONTINUED else ""
    code = run(lambda: _main(words), again)
    if arguments is None and code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process ends now, and has said all
    return code


def _main(arguments: Sequence[str]) -> int:
    parser = _parser()
    options, overrides = parser.parse_known_args(arguments)
    if overrides and not getattr(options, "takes_fields", False):
        parser.error(f"unrecognized arguments: {' '.join(overrides)}")
    if lacking := [name for name in _PLATFORM if find_spec(name) is None]:
        print(
            f"taugrad: {lacking[0]} is not installed, which commands need beside the library; "
            "pip install 'taugrad[platform]'",
            file=sys.stderr,
        )
        return WRONG_INPUT
    try:
        os.getcwd()
    except FileNotFoundError:
        print("taugrad: the current folder has been deleted; cd to one that exists", file=sys.stderr)
        return WRONG_INPUT
    handler: Callable[[argparse.Namespace, list[str]], int] = options.handler
    from taugrad.platform.spec import SpecError  # noqa: PLC0415
    from taugrad.platform.user_code import TRACEBACK, import_from_here  # noqa: PLC0415

    try:
        with ExitStack() as stack:
            if getattr(
                options, "takes_fields", False
            ):  # the others read no spec, and need not import its models
                from taugrad.platform.spec.allowing import allowed  # noqa: PLC0415

                import_from_here()
                stack.enter_context(allowed(options.allow_custom))
            return handler(options, overrides)
    except SpecError as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        print(f"taugrad: {error}", file=sys.stderr)
        return WRONG_INPUT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="taugrad",
        description="Trains PyTorch models on several workers with compressed gradients, and finds out how "
        "few bytes the workers need to send.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"taugrad {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    train = _command(
        commands,
        "train",
        _train,
        "train one or more specs and compare the runs",
        "SPEC [SPEC ...] [--FIELD VALUE ...]",
    )
    train.add_argument("specs", nargs="*", type=Path, metavar="SPEC", help=_SPEC_HELP)
    train.add_argument(
        "--resume",
        metavar="RUN",
        help=(
            "continue an interrupted run, by its MLflow run id; add --workers.count N "
            "--workers.on_resize merge to change the number of workers"
        ),
    )

    submit = _command(
        commands,
        "submit",
        _submit,
        "run train, search or auto as a job on a Ray cluster",
        "[train | search | auto] SPEC [SPEC ...] --address URL [--FIELD VALUE ...]",
    )
    submit.add_argument(
        "specs",
        nargs="+",
        type=Path,
        metavar="SPEC",
        help="as for the command before it (default: train); so are all options",
    )
    submit.add_argument(
        "--address", required=True, metavar="URL", help="the cluster's job server, such as http://HOST:8265"
    )

    search = _command(
        commands,
        "search",
        _search,
        "try values of the fields for which a spec gives ranges; run it again to continue a search",
        "SPEC [--pick POINT] [--FIELD VALUE ...] [--FIELD '{log: [LOW, HIGH]}' ...]",
        _SearchFieldsHelp,
    )
    search.add_argument("spec", type=Path, metavar="SPEC", help="a spec with ranges and a search section")
    search.add_argument("--pick", type=int, metavar="POINT", help="train this point of the search's front")

    auto = _command(
        commands,
        "auto",
        _auto,
        "find a threshold for a byte budget or a tolerated loss of accuracy, and train with it; or find the "
        "fastest way to a target over a link",
        "SPEC [--budget MB | --tolerance AMOUNT | --target METRIC=NUMBER --link LINK] [--law FILE] [--once] "
        "[--plan-only] [-o FILE] [--FIELD VALUE ...]",
    )
    auto.add_argument("spec", type=Path, metavar="SPEC", help=_SPEC_HELP)
    goal = auto.add_mutually_exclusive_group()
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
    auto.add_argument(
        "--law", type=Path, metavar="FILE", help="a law that `taugrad law` wrote (default: the built-in one)"
    )
    auto.add_argument(
        "--once", action="store_true", help="train once only, with no uncompressed run to compare with"
    )
    goal.add_argument(
        "--target",
        metavar="METRIC=NUMBER",
        help="train until, for example, loss=1.9 or accuracy=0.95, over --link or --measure. Mode, local "
        "steps, method and density are chosen by the plan's seconds per step and short probes of the run",
    )
    auto.add_argument(
        "--link",
        metavar="LINK",
        help="with --target: the link's rate, delay (one way) and lost packets, such as 100mbit,20ms",
    )
    auto.add_argument(
        "--measure",
        nargs="+",
        default=[],
        metavar="HOST",
        help="with --target: measure the link to these machines, as taugrad plan does",
    )
    auto.add_argument(
        "--probe-seconds",
        type=float,
        metavar="S",
        help="with --target: time for all probes together (default: 120)",
    )
    auto.add_argument(
        "--share-of-machine",
        type=int,
        metavar="N",
        help="with --target: number of workers that share one machine's processors (default: 1)",
    )
    auto.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="with --target: use this calibration from another machine instead of measuring",
    )
    auto.add_argument(
        "--plan-only", action="store_true", help="with --target: choose and say why, but do not train"
    )
    auto.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="with --target: write the chosen spec here"
    )

    plan = _command(
        commands,
        "plan",
        _plan,
        "predict how long a step takes over a link, for each way to train, and say which is best",
        "SPEC --link LINK [--workers N,N,...] [--measure HOST ...] [--candidates LINE ...] [-o DIR] "
        "[--FIELD VALUE ...]",
    )
    plan.add_argument("spec", nargs="?", type=Path, metavar="SPEC", help=_SPEC_HELP)
    plan.add_argument(
        "--link",
        action="append",
        default=[],
        metavar="LINK",
        help="rate, delay (one way) and lost packets, such as 100mbit,20ms or 50mbit,10ms,0.1%%; "
        "may be repeated",
    )
    plan.add_argument(
        "--between",
        metavar="LINK",
        help="the link between sites; each site has one. Workers are spread evenly over the sites",
    )
    plan.add_argument("--sites", type=int, metavar="N", help="number of sites with --between (default: 2)")
    plan.add_argument(
        "--workers",
        default="2,4,8,16",
        metavar="N,N,...",
        help="numbers of workers, up to 1000 (default: 2,4,8,16)",
    )
    plan.add_argument(
        "--measure",
        nargs="+",
        default=[],
        metavar="HOST",
        help="measure the link to these machines, HOST or HOST:PORT; "
        "run `taugrad plan --answer` on them first",
    )
    plan.add_argument(
        "--answer",
        nargs="?",
        const=9472,
        type=int,
        metavar="PORT",
        help="answer --measure of other machines (default: port 9472)",
    )
    plan.add_argument(
        "--candidates",
        nargs="+",
        default=[],
        metavar="LINE",
        help="compressors to compare, such as 'wgt(density(0.01)) | golomb_rice', instead of the defaults",
    )
    plan.add_argument(
        "--recalibrate", action="store_true", help="measure the model again, even if it was measured before"
    )
    plan.add_argument(
        "--share-of-machine",
        type=int,
        default=1,
        metavar="N",
        help="calibrate for N workers that share one machine's processors (default: 1)",
    )
    plan.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="use this calibration from another machine instead of measuring",
    )
    plan.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="write the tables and a figure to this folder"
    )

    law = commands.add_parser(
        "law",
        help="learn from past runs which tau (or floor) a new run needs, given its first gradients",
        allow_abbrev=False,
    )
    law.add_argument("experiments", nargs="+", metavar="EXPERIMENT", help="an MLflow experiment's name")
    law.add_argument(
        "-o", "--output", required=True, type=Path, metavar="FILE", help="the file to write the law to (YAML)"
    )
    law.add_argument(
        "--of",
        default="strom",
        choices=("wgt", "bgt", "qgt", "strom", "entropy"),
        help="the method whose tau (with entropy: whose floor) to learn (default: strom)",
    )
    law.set_defaults(handler=_law)

    dashboard = commands.add_parser(
        "dashboard", help="prepare MLflow's UI for an experiment and print its URL", allow_abbrev=False
    )
    dashboard.add_argument("experiment", metavar="EXPERIMENT", help="the MLflow experiment's name")
    dashboard.add_argument(
        "--serve",
        action="store_true",
        help="start MLflow's server on 127.0.0.1, if runs are in a local database",
    )
    dashboard.set_defaults(handler=_dashboard)

    report = commands.add_parser(
        "report", help="write an HTML page, figures and tables about an experiment", allow_abbrev=False
    )
    report.add_argument("experiment", metavar="EXPERIMENT", help="the MLflow experiment's name")
    report.add_argument("-o", "--output", required=True, type=Path, metavar="DIR", help="the folder to write")
    report.add_argument(
        "--server",
        metavar="URL",
        help="MLflow's address, for links to runs (default: the tracking server; no links "
        "with a local database)",
    )
    report.set_defaults(handler=_report)

    doctor = commands.add_parser(
        "doctor", help="check this machine: what it has, what is wrong, how to fix it", allow_abbrev=False
    )
    doctor.set_defaults(handler=_doctor)

    data = commands.add_parser("data", help="make data to train on", allow_abbrev=False)
    sources = data.add_subparsers(title="sources", metavar="SOURCE", required=True)
    speech = sources.add_parser(
        "speech",
        help="sentences spoken by espeak-ng, as frames of 20 log mel energies with their phonemes",
        description="Speaks sentences with espeak-ng's English voices and writes frames with their phonemes, "
        "for data: {kind: frames}. Training, validation and test have different voices and different words.",
        allow_abbrev=False,
    )
    speech.add_argument(
        "--minutes",
        type=float,
        default=30.0,
        metavar="N",
        help="minutes of speech, in all parts together (default: 30)",
    )
    speech.add_argument("--out", required=True, type=Path, metavar="DIR", help="the folder to write")
    speech.add_argument(
        "--seed", type=int, default=0, metavar="N", help="decides the texts and voices (default: 0)"
    )
    speech.set_defaults(handler=_speech)

    deliver = commands.add_parser(
        "deliver", help="send to the stores what they did not accept during a run", allow_abbrev=False
    )
    deliver.add_argument(
        "file", help="as the run named it: a file of metrics, its address, or the folder of a checkpoint"
    )
    deliver.add_argument(
        "--run", metavar="ID", help="for metrics: the MLflow run (default: the name of the file's folder)"
    )
    deliver.set_defaults(handler=_deliver)
    return parser


class _FieldsHelp(argparse.Action):
    """`--help` for commands that take a spec's fields: reads the fields only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.print_help()
        print("\nfields:")
        for field in self.fields():
            kinds = f" [{field.kinds}]" if field.kinds else ""
            default = "" if field.default in _NO_DEFAULT else f" (default {field.default})"
            value = field.type.upper() if field.type in _VALUE_TYPES else field.type
            print(f"  --{field.name} {value}{kinds}{default}")
            if field.description:
                print(
                    textwrap.fill(field.description, 110, initial_indent=" " * 8, subsequent_indent=" " * 8)
                )
        parser.exit()

    def fields(self) -> "list[FieldHelp]":
        """What to list."""
        from taugrad.platform.spec.fields import spec_fields  # noqa: PLC0415

        return spec_fields()


class _SearchFieldsHelp(_FieldsHelp):
    """The same with the fields of a search, which come first."""

    def fields(self) -> "list[FieldHelp]":
        """See `_FieldsHelp.fields`."""
        from taugrad.search.section import search_fields  # noqa: PLC0415

        return [*search_fields(), *super().fields()]


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    handler: Callable[[argparse.Namespace, list[str]], int],
    summary: str,
    usage: str,
    fields_help: type[_FieldsHelp] = _FieldsHelp,
) -> argparse.ArgumentParser:
    """A command that takes specs and their fields."""
    command = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}. {_FIELDS_HINT}",
        usage=f"taugrad {name} {usage}",
        allow_abbrev=False,
        add_help=False,
    )
    command.add_argument("-h", "--help", nargs=0, action=fields_help, help="show this help, with every field")
    command.add_argument(
        "--allow-custom",
        action="store_true",
        help="allow the spec to name code to run: factories of kind custom, and search.evaluate",
    )
    command.set_defaults(handler=handler, takes_fields=True)
    return command


def _train(options: argparse.Namespace, overrides: list[str]) -> int:
    if options.resume:
        from taugrad.platform.spec.resizing import CHANGEABLE  # noqa: PLC0415

        changes = _resizing(overrides, [str(spec) for spec in options.specs])
        if changes is None:
            _refuse(
                "--resume uses the run's own spec; the only other arguments that it accepts are "
                + ", ".join(f"--workers.{field}" for field in CHANGEABLE)
            )
        from taugrad.dashboards.console import ConsoleDisplay  # noqa: PLC0415
        from taugrad.platform.launching.command import resume  # noqa: PLC0415

        return resume(options.resume, ConsoleDisplay(), changes)
    return _run_training(_read_train(options, overrides))


def _resizing(overrides: Sequence[str], taken: Sequence[str]) -> dict[str, str] | None:
    """The fields of `workers` that `--resume` changes; None where anything else is there.

    Args:
        overrides: fields and values.
        taken: the first value, where it was taken for a SPEC.
    """
    from taugrad.platform.spec.resizing import CHANGEABLE  # noqa: PLC0415

    words, values = list(overrides), list(taken)
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


def _run_training(specs: "Sequence[tuple[str, RunSpec]]") -> int:
    from taugrad.dashboards.console import ConsoleDisplay  # noqa: PLC0415
    from taugrad.platform.launching.command import train  # noqa: PLC0415
    from taugrad.search.advice import warning_of  # noqa: PLC0415

    if warning := warning_of(specs):
        _warn(warning)
    return train(specs, ConsoleDisplay())


@cache
def _warn(said: str) -> None:
    """Once: `taugrad auto` trains several specs with the same advice."""
    from taugrad.platform.terminal import open_console, say  # noqa: PLC0415

    say(open_console(), said, "yellow")


def _read_train(options: argparse.Namespace, overrides: list[str]) -> "list[tuple[str, RunSpec]]":
    from taugrad.platform.spec.reading import read_spec  # noqa: PLC0415

    if not options.specs:
        _refuse("SPEC: is missing; try experiments/quickstart/*.yaml")
    return [(str(path), read_spec(path, overrides)) for path in options.specs]


def _refuse(problem: str) -> NoReturn:
    from taugrad.platform.spec import COMMAND_LINE, SpecError  # noqa: PLC0415

    raise SpecError(COMMAND_LINE, [problem])


def _search(options: argparse.Namespace, overrides: list[str]) -> int:
    if options.pick is not None:
        from taugrad.search.outputs import picked  # noqa: PLC0415

        return _run_training([picked(options.spec, options.pick, overrides)])
    from taugrad.search.reading import read_search  # noqa: PLC0415

    search = read_search(options.spec, overrides)
    from taugrad.search.command import run_search  # noqa: PLC0415

    return run_search(search, _draw_front)


def _auto(options: argparse.Namespace, overrides: list[str]) -> int:
    from taugrad.search.auto import run_auto  # noqa: PLC0415
    from taugrad.search.auto_link.command import run_auto_link  # noqa: PLC0415
    from taugrad.search.auto_link.request import Request  # noqa: PLC0415

    spec, goal = _read_auto(options, overrides)
    source = str(options.spec)
    from taugrad.platform.launching.cluster import ray_cluster  # noqa: PLC0415

    with ExitStack() as kept:

        def train_next(each: "RunSpec") -> int:
            kept.enter_context(ray_cluster())  # all trainings share the Ray of the first
            try:
                return _run_training([(source, each)])
            except KeyboardInterrupt as wish:
                raise type(wish)(
                    f"{wish}\n  auto itself does not continue: the same command starts it from the beginning"
                ) from None

        if isinstance(goal, Request):
            return run_auto_link(spec, source, goal, train_next)
        return run_auto(spec, source, goal, train_next)


_OF_A_TARGET: dict[str, object] = {
    "link": None,
    "measure": [],
    "probe_seconds": None,
    "share_of_machine": None,
    "calibration": None,
    "plan_only": False,
    "output": None,
}
"""Options of `taugrad auto --target`, and their values if they are not given."""


def _read_auto(options: argparse.Namespace, overrides: list[str]) -> "tuple[RunSpec, Goal | Request]":
    from taugrad.platform.spec.reading import read_spec  # noqa: PLC0415
    from taugrad.search.auto import Goal  # noqa: PLC0415

    if options.target is not None or any(getattr(options, n) != none for n, none in _OF_A_TARGET.items()):
        return read_spec(options.spec, overrides), _read_target(options)
    goal = Goal.read(options.budget, options.tolerance, options.law, once=options.once)
    return read_spec(options.spec, overrides), goal


def _read_target(options: argparse.Namespace) -> "Request":
    from taugrad.search.auto_link.request import PROBE_SECONDS, Request  # noqa: PLC0415

    others = [f"--{name}" for name in ("budget", "tolerance", "law") if getattr(options, name) is not None]
    others += ["--once"] * options.once
    if others and options.target is None:
        given = next(name for name, none in _OF_A_TARGET.items() if getattr(options, name) != none)
        option = f"--{given.replace('_', '-')}"
        _refuse(f"{option} with {others[0]}: {option} needs --target; leave one out")
    if others:
        _refuse(f"--target {options.target} with {others[0]}: these cannot be combined; leave one out")
    return Request.read(
        options.target,
        options.link,
        options.measure,
        probe_seconds=PROBE_SECONDS if options.probe_seconds is None else options.probe_seconds,
        sharing=1 if options.share_of_machine is None else options.share_of_machine,
        calibration=options.calibration,
        plan_only=options.plan_only,
        output=options.output,
    )


def _plan(options: argparse.Namespace, overrides: list[str]) -> int:
    if options.answer is not None:
        if options.spec is not None or overrides:
            _refuse("--answer: takes no SPEC and no fields")
        from taugrad.search.plan.command import run_answer  # noqa: PLC0415

        return run_answer(options.answer)
    if options.spec is None:
        _refuse("SPEC: is missing; try experiments/quickstart/2-wgt.yaml")
    if options.share_of_machine < 1:
        _refuse(f"--share-of-machine {options.share_of_machine}: must be at least 1")
    from taugrad.platform.spec.reading import read_spec  # noqa: PLC0415
    from taugrad.search.plan.command import Request, run_plan  # noqa: PLC0415

    request = Request(
        links=options.link,
        workers=options.workers,
        between=options.between,
        sites=options.sites,
        hosts=options.measure,
        methods=options.candidates,
        sharing=options.share_of_machine,
        recalibrate=options.recalibrate,
        calibration=options.calibration,
        output=options.output,
    )
    return run_plan(read_spec(options.spec, overrides), str(options.spec), request, _draw_plan)


def _draw_plan(comparisons: "Sequence[Comparison]", path: Path) -> None:
    from taugrad.dashboards.figures import save  # noqa: PLC0415
    from taugrad.dashboards.plan import PlannedStep, planned_steps  # noqa: PLC0415
    from taugrad.dashboards.style import as_written  # noqa: PLC0415

    steps = [
        PlannedStep(str(each.link), each.workers, str(made.candidate), made.seconds, made.step.compute_s)
        for each in comparisons
        for made in each.predictions
    ]
    with as_written():
        save(planned_steps(steps), path)


def _law(options: argparse.Namespace, _: list[str]) -> int:
    from taugrad.search.law.command import run_law  # noqa: PLC0415

    return run_law(options.experiments, options.of, options.output)


def _draw_front(progress: "Progress", path: Path) -> None:
    from taugrad.dashboards.figures import save  # noqa: PLC0415
    from taugrad.dashboards.front import FrontPoint, search_front  # noqa: PLC0415
    from taugrad.dashboards.style import as_written  # noqa: PLC0415

    places = {point.number: place for place, point in enumerate(progress.front, start=1)}
    best = progress.objective.best(progress.points)

    metric = progress.metric

    def drawn(point: "Point") -> FrontPoint:
        ends = point.interval
        return FrontPoint(
            rule=point.method.partition("(")[0].partition(" ")[0],
            value=metric.scale * point.mean,
            interval=(metric.scale * ends[0], metric.scale * ends[1]) if ends else None,
            wire_mb=point.wire_bytes / 1e6,
            place=places.get(point.number),
            best=best is not None and point.number == best.number,
        )

    baseline = drawn(progress.baseline) if progress.baseline else None
    stopped = [
        FrontPoint("", metric.scale * last.value, None, last.wire_bytes / 1e6)
        for trial in progress.record.ended
        if trial.ending == "pruned" and (last := trial.course.get(trial.evaluation)) is not None
    ]
    points = [drawn(point) for point in progress.points]
    with as_written():
        save(search_front(progress.search.name, points, baseline, metric, stopped), path)


def _submit(options: argparse.Namespace, overrides: list[str]) -> int:
    words = [str(each) for each in options.specs]
    command = words.pop(0) if len(words) > 1 and words[0] in _SUBMITTED else "train"
    there, fields = _parser().parse_known_args([command, *words, *overrides])
    if getattr(there, "resume", None):
        _refuse(f"--resume {there.resume}: submit does not have this option")
    if command == "train":
        _read_train(there, fields)
    elif command == "auto":
        _read_auto(there, fields)
    else:
        from taugrad.search.reading import name_search, read_search  # noqa: PLC0415

        # The front of a finished search is where the job runs.
        (read_search if there.pick is None else name_search)(there.spec, fields)
    from taugrad.platform.launching.submit import submit  # noqa: PLC0415

    files = [path for name in ("law", "calibration") if (path := getattr(there, name, None))]
    return submit(command, [Path(each) for each in words], overrides, options.address, files)


def _dashboard(options: argparse.Namespace, _: list[str]) -> int:
    from taugrad.dashboards.prepare import dashboard  # noqa: PLC0415

    return dashboard(options.experiment, serve=options.serve)


def _report(options: argparse.Namespace, _: list[str]) -> int:
    from taugrad.dashboards.report import report  # noqa: PLC0415

    return report(options.experiment, options.output, options.server)


def _speech(options: argparse.Namespace, _: list[str]) -> int:
    from taugrad.platform.data.speech.command import run_speech  # noqa: PLC0415

    return run_speech(options.minutes, options.out, options.seed)


_MARKS = {"ok": "ok    ", "absent": "absent", "wrong": "WRONG "}


def _doctor(_: argparse.Namespace, __: list[str]) -> int:
    from taugrad.platform.doctor import examine  # noqa: PLC0415
    from taugrad.search.advice import METHODS, PAGE, lines_of  # noqa: PLC0415

    wrong = 0
    for finding in examine():
        wrong += finding.state == "wrong"
        print(f"{_MARKS[finding.state]}  {finding.what:14} {finding.detail}")
        if finding.remedy:
            print(f"{'':8}{'':14} -> {finding.remedy}")
    print(f"{wrong} thing{'s' * (wrong != 1)} to fix" if wrong else "nothing to fix")
    print(f"\nWhich method should I use? Take the first that fits; {PAGE} has the measurements.")
    print("\n".join(lines_of(METHODS)))
    return FAILED if wrong else OK


def _deliver(options: argparse.Namespace, _: list[str]) -> int:
    from taugrad.platform.launching.delivering import (  # noqa: PLC0415
        check_place,
        deliver_checkpoint,
        deliver_metrics,
        is_checkpoint,
    )
    from taugrad.platform.launching.storage import reason  # noqa: PLC0415
    from taugrad.platform.spec import SpecError  # noqa: PLC0415
    from taugrad.platform.tracking.probe import answering_client  # noqa: PLC0415

    place: str = options.file
    check_place(place)
    try:
        if is_checkpoint(place):
            print(deliver_checkpoint(Path(place), answering_client))
        else:
            print(deliver_metrics(place, options.run, answering_client, print))
    except SpecError as error:
        print(f"taugrad: {error}; {place} is kept", file=sys.stderr)
        return FAILED
    except ValueError as error:
        print(f"taugrad: {error}", file=sys.stderr)
        return WRONG_INPUT
    except Exception as error:
        # The stores' errors are of many types; what was not delivered is still there for another try.
        print(f"taugrad: not delivered: {reason(error)}; {place} is kept", file=sys.stderr)
        return FAILED
    return OK
