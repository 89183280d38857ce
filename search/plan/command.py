"""The command `taugrad plan`: how long a step takes over a link, and which way to train is fastest."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console

from taugrad.platform.advice import PAGE, Advice, Situation, advise, lines_of
from taugrad.platform.exit_codes import OK
from taugrad.platform.spec import COMMAND_LINE, RunSpec, SpecError
from taugrad.platform.synchronization.config import HybridSync, real
from taugrad.platform.terminal import open_console, say, short

from . import table
from .calibrated import Calibration
from .calibration import CalibrationError, calibrate
from .candidates import Candidate, candidates_of, check_candidates, measured_methods
from .link import Link, Trunk
from .planning import Comparison, plan
from .probing import PORT, ProbeError, answer, measure, slowest

MOST_WORKERS = 1000
Draw = Callable[[Sequence[Comparison], Path], None]
"""Draws a plan into a file."""


@dataclass(frozen=True)
class Wishes:
    """What to plan for.

    Attributes:
        links: as the user wrote them; empty if they are measured.
        workers: as the user wrote them, such as 4,16,64.
        between: the link between sites, as the user wrote it; None if there is one site.
        sites: number of sites; None for 2 if there is a link between them.
        hosts: machines to which the link is measured, HOST or HOST:PORT.
        methods: lines of compressors instead of the usual ones.
        sharing: how many workers share this machine.
        recalibrate: whether to measure the model again.
        calibration: a calibration file, instead of measuring.
        output: the folder for tables and the figure.
    """

    links: Sequence[str]
    workers: str
    between: str | None = None
    sites: int | None = None
    hosts: Sequence[str] = ()
    methods: Sequence[str] = ()
    sharing: int = 1
    recalibrate: bool = False
    calibration: Path | None = None
    output: Path | None = None


def run_plan(spec: RunSpec, source: str, wishes: Wishes, draw: Draw) -> int:
    """Makes a plan and prints it.

    Args:
        spec: the run.
        source: its file's name, for messages.
        wishes: what to plan for.
        draw: draws the figure.

    Returns:
        0.

    Raises:
        SpecError: something cannot be read, measured or planned.
    """
    workers = _workers(wishes.workers)
    links = _links(wishes)
    trunk = _trunk(wishes)
    candidates = _candidates(spec, source, wishes.methods, sites=trunk is not None)
    console = open_console()
    if wishes.hosts:
        say(console, f"measuring the link to {', '.join(wishes.hosts)} ...")
        links.append(measured_link(wishes.hosts))
        say(console, f"the slowest: {links[-1]}, as payload")
    links = [link.model_copy(update={"trunk": trunk}) for link in links]
    calibration = calibrated(
        spec,
        source,
        measured_methods(candidates),
        console.print,
        given=wishes.calibration,
        sharing=wishes.sharing,
        renew=wishes.recalibrate,
    )
    comparisons = plan(calibration, candidates, links, workers)
    for each in comparisons:
        console.print()
        console.print(table.shown(each))
        say(console, table.sentence(each), "bold")
    console.print()
    say(
        console,
        f"A worker has {calibration.batch} examples in a step, and computes for "
        f"{table.number(calibration.compute_s)} s; more workers share larger batches. {table.LIMITS}",
    )
    _advise(console, spec, comparisons)
    if wishes.output is not None:
        wishes.output.mkdir(parents=True, exist_ok=True)
        (wishes.output / "plan.md").write_text(table.markdown(comparisons), encoding="utf-8")
        (wishes.output / "plan.csv").write_text(table.as_csv(comparisons), encoding="utf-8")
        draw(comparisons, wishes.output / "plan.png")
        say(console, f"{short(wishes.output.absolute())}: plan.md, plan.csv, plan.png")
    return OK


def _advise(console: Console, spec: RunSpec, comparisons: Sequence[Comparison]) -> None:
    """Prints which methods are known to learn well in such cases, because a plan predicts only seconds."""
    found = dict[str, Advice]()
    for each in comparisons:
        link, trunk = each.link, each.link.trunk
        situation = Situation(
            optimizer=spec.training.optimizer.kind,
            rate=min(link.rate, trunk.link.rate) if trunk else link.rate,
            delay=link.delay + (trunk.link.delay if trunk else 0.0),
            workers=each.workers,
            sites=trunk.sites if trunk else 1,
            precision=spec.training.precision,
        )
        found |= {advice.name: advice for advice in advise(situation)}
    console.print()
    say(console, f"What was measured in such cases ({PAGE}):", "bold")
    for line in lines_of(list(found.values())):
        say(console, line)


def run_answer(port: int) -> int:
    """Answers measurements of other machines until it is interrupted.

    Raises:
        SpecError: the port is taken.
    """
    console = open_console()
    try:
        answer(port, lambda found: say(console, f"answering on port {found}; end it with Ctrl-C"))
    except OSError as error:
        raise SpecError(COMMAND_LINE, [f"--answer {port}: {error.strerror or error}"]) from None
    except OverflowError:
        raise SpecError(COMMAND_LINE, [f"--answer {port}: must be a port, 0 to 65535"]) from None
    return OK


def _workers(text: str) -> list[int]:
    counts = [each.strip() for each in text.split(",")]
    for each in counts:
        if not each.isdecimal() or not 1 <= int(each) <= MOST_WORKERS:
            raise SpecError(
                COMMAND_LINE,
                [f"--workers {text}: {each!r} is none; write 1 to {MOST_WORKERS}, as in 4,16,64"],
            )
    return sorted({int(each) for each in counts})


def _links(wishes: Wishes) -> list[Link]:
    if not wishes.links and not wishes.hosts:
        raise SpecError(
            COMMAND_LINE, ["--link: is missing; give one such as 100mbit,20ms, or --measure HOST"]
        )
    try:
        return [Link.parse(each) for each in wishes.links]
    except ValueError as error:
        raise SpecError(COMMAND_LINE, [f"--link: {error}"]) from None


def _trunk(wishes: Wishes) -> Trunk | None:
    if wishes.between is None:
        if wishes.sites is not None:
            raise SpecError(COMMAND_LINE, [f"--sites {wishes.sites}: needs --between, such as 50mbit,30ms"])
        return None
    sites = 2 if wishes.sites is None else wishes.sites
    if sites < 2:
        raise SpecError(COMMAND_LINE, [f"--sites {sites}: must be at least 2"])
    try:
        return Trunk(link=Link.parse(wishes.between), sites=sites)
    except ValueError as error:
        raise SpecError(COMMAND_LINE, [f"--between: {error}"]) from None


def measured_link(hosts: Sequence[str]) -> Link:
    """The slowest of the links to machines that answer, HOST or HOST:PORT.

    Raises:
        SpecError: an address is not valid, or a machine does not answer.
    """
    found = []
    for each in hosts:
        host, _, port = each.rpartition(":") if each.count(":") == 1 else (each, "", "")
        if port and not port.isdecimal():
            raise SpecError(COMMAND_LINE, [f"--measure {each}: must be HOST or HOST:PORT"])
        try:
            found.append(measure(host, int(port or PORT)))
        except (ProbeError, OverflowError) as error:
            raise SpecError(COMMAND_LINE, [f"--measure {error}"]) from None
    return slowest(found)


def check_plannable(spec: RunSpec, source: str) -> None:
    """Raises SpecError for modes that the plan does not model."""
    if isinstance(real(spec.sync), HybridSync):
        raise SpecError(
            source,
            [
                "sync.mode = hybrid: taugrad plan does not support it; docs/synchronization.md has "
                "formulas for its bytes"
            ],
        )


def _candidates(spec: RunSpec, source: str, methods: Sequence[str], *, sites: bool) -> list[Candidate]:
    check_plannable(spec, source)
    try:
        candidates = candidates_of(spec, methods, sites=sites)
        check_candidates(candidates)
    except ValidationError as error:
        raise SpecError(COMMAND_LINE, [f"--candidates: {error.errors()[0]['msg']}"]) from None
    except ValueError as error:
        raise SpecError(COMMAND_LINE, [f"--candidates: {error}"]) from None
    return candidates


def calibrated(
    spec: RunSpec,
    source: str,
    methods: Sequence[str],
    tell: Callable[[str], None],
    *,
    given: Path | None = None,
    sharing: int = 1,
    renew: bool = False,
) -> Calibration:
    """A calibration with these methods: from a given file, from the cache, or measured now.

    Args:
        spec: the run.
        source: its file's name, for messages.
        methods: lines of compressors.
        tell: called with a message before something that takes a while.
        given: a calibration file, instead of measuring.
        sharing: see `calibrate`.
        renew: see `calibrate`.

    Raises:
        SpecError: there is no calibration, or it lacks a method.
    """
    if given is not None:
        return _given(given, methods)
    sys.path.insert(0, str(Path.cwd()))  # a user's own models and data
    tell("calibrating: seconds of the model and its methods on this machine ...")
    try:
        return calibrate(spec, methods, sharing=sharing, renew=renew)
    except CalibrationError as error:
        raise SpecError(source, [str(error)]) from None


def _given(path: Path, methods: Sequence[str]) -> Calibration:
    try:
        found = Calibration.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(COMMAND_LINE, [f"--calibration {path}: {error.strerror}"]) from None
    except ValidationError as error:
        raise SpecError(
            COMMAND_LINE, [f"--calibration {path}: is not a calibration: {error.errors()[0]['msg']}"]
        ) from None
    missing, known = found.missing(methods), ", ".join(sorted(found.methods))
    if missing:
        raise SpecError(
            COMMAND_LINE, [f"--calibration {path}: has not measured {missing[0]}; it knows {known}"]
        )
    return found
