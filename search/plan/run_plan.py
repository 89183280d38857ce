"""The command `taugrad plan`: how long a step takes over a link, and which way to train is fastest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console

from taugrad.platform.exit_codes import OK
from taugrad.platform.spec import RunSpec, SpecError, refusal
from taugrad.platform.spec.synchronization import HybridSync, real
from taugrad.platform.terminal import open_console, say, short
from taugrad.platform.tracking.probe import unwritable

from ..advice import PAGE, warning_of
from . import table
from .bandwidth import whatever_rate
from .calibrated import HALF, Calibration
from .calibration import CalibrationError, calibrate
from .candidate import Candidate
from .candidates import candidates_of, changes, check_candidates, compared_candidates
from .link import Link, Trunk
from .planning import Comparison, plan
from .probing import PORT, ProbeError, answer, measure, slowest
from .step_model import HYBRID

MOST_WORKERS = 1000


@dataclass(frozen=True)
class PlanRequest:
    """The arguments of a plan.

    Attributes:
        links: as text; empty if they are measured.
        workers: as text, such as 4,16,64.
        between: the link between sites, as text; None if there is one site.
        sites: number of sites; None for 2 if there is a link between them.
        hosts: machines to which the link is measured, HOST or HOST:PORT.
        methods: lines of compressors instead of the usual ones.
        sharing: how many workers share this machine.
        recalibrate: whether to measure the model again.
        calibration: a calibration file, instead of measuring.
        output: the folder for tables.
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


def run_plan(spec: RunSpec, source: str, request: PlanRequest) -> int:
    """Makes a plan, prints it, and returns 0.

    Raises:
        SpecError: something cannot be read, measured or planned.
    """
    workers = _workers(request.workers)
    links = _links(request)
    trunk = _trunk(request)
    candidates = _candidates(spec, source, request.methods, sites=trunk is not None)
    if request.output is not None and (problem := unwritable(request.output)):
        raise refusal(f"-o {request.output}: {problem}")
    console = open_console()
    if warning := warning_of([(source, spec)]):
        say(console, warning, "yellow")
    if request.hosts:
        links.append(measured_link(request.hosts, console))
    links = [link.model_copy(update={"trunk": trunk}) for link in links]
    calibration = calibrated(
        spec,
        source,
        sorted({candidate.method for candidate in candidates if candidate.method != HALF}),
        console.print,
        given=request.calibration,
        sharing=request.sharing,
        renew=request.recalibrate,
    )
    comparisons = plan(calibration, candidates, links, workers)
    rates = [table.rates_of(calibration, comparison) for comparison in whatever_rate(comparisons)]
    for comparison in comparisons:
        say(console, table.sentence(comparison), "bold")
    _advise(console, spec, comparisons, sites=trunk is not None)
    for shown in (*map(table.steps_of, comparisons), *rates):
        console.print()
        console.print(shown)
    console.print()
    say(
        console,
        f"A worker has {calibration.batch} examples in a step, and computes for "
        f"{table.number(calibration.compute_s)} s; more workers share larger batches. {table.LIMITS}",
    )
    if request.output is not None:
        request.output.mkdir(parents=True, exist_ok=True)
        (request.output / "plan.md").write_text(table.markdown(comparisons, rates), encoding="utf-8")
        (request.output / "plan.csv").write_text(table.as_csv(comparisons), encoding="utf-8")
        say(console, f"{short(request.output.absolute())}: plan.md, plan.csv")
    return OK


def _advise(console: Console, spec: RunSpec, comparisons: Sequence[Comparison], *, sites: bool) -> None:
    """Prints the fields of the advised ways, once for links with the same."""
    printed = list[list[str]]()
    for comparison in comparisons:
        best = comparison.best
        runs = {str(run): run.run for run in reversed(candidates_of(spec, comparison.workers, sites=sites))}
        advised = runs.get(str(best))
        if getattr(best.sync, "island", None) is not None:
            alike = runs.get(best.method)
            advised = alike and alike.model_copy(update={"sync": best.sync})
        lines = [] if advised is None else changes(spec, advised)
        if lines and lines not in printed:
            printed.append(lines)
            console.print()
            say(console, f"To set for {table.title_of(comparison)} ({PAGE} says why):", "bold")
            say(console, "\n".join(f"    {line}" for line in lines))


def run_answer(port: int) -> int:
    """Answers measurements of other machines until it is interrupted.

    Raises:
        SpecError: the port is taken.
    """
    console = open_console()
    try:
        answer(port, lambda bound_port: say(console, f"answering on port {bound_port}; end it with Ctrl-C"))
    except OSError as error:
        raise refusal(f"--answer {port}: {error.strerror or error}") from None
    except OverflowError:
        raise refusal(f"--answer {port}: must be a port, 0 to 65535") from None
    return OK


def _workers(text: str) -> list[int]:
    counts = [part.strip() for part in text.split(",")]
    for count in counts:
        if not count.isdecimal() or not 1 <= int(count) <= MOST_WORKERS:
            raise refusal(f"--workers {text}: {count!r} is none; write 1 to {MOST_WORKERS}, as in 4,16,64")
    return sorted({int(count) for count in counts})


def _links(request: PlanRequest) -> list[Link]:
    if not request.links and not request.hosts:
        raise refusal("--link: is missing; give one such as 100mbit,20ms, or --measure HOST")
    try:
        return [Link.parse(link) for link in request.links]
    except ValueError as error:
        raise refusal(f"--link: {error}") from None


def _trunk(request: PlanRequest) -> Trunk | None:
    if request.between is None:
        if request.sites is not None:
            raise refusal(f"--sites {request.sites}: needs --between, such as 50mbit,30ms")
        return None
    sites = 2 if request.sites is None else request.sites
    if sites < 2:
        raise refusal(f"--sites {sites}: must be at least 2")
    try:
        return Trunk(link=Link.parse(request.between), sites=sites)
    except ValueError as error:
        raise refusal(f"--between: {error}") from None


def measured_link(hosts: Sequence[str], console: Console) -> Link:
    """Measures links to machines, HOST or HOST:PORT, says so, and returns the slowest.

    Raises:
        SpecError: an address is not valid, or a machine does not answer.
    """
    links = []
    say(console, f"measuring the link to {', '.join(hosts)} ...")
    for address in hosts:
        host, _, port = address.rpartition(":") if address.count(":") == 1 else (address, "", "")
        if port and not port.isdecimal():
            raise refusal(f"--measure {address}: must be HOST or HOST:PORT")
        try:
            links.append(measure(host, int(port or PORT)))
        except (ProbeError, OverflowError) as error:
            raise refusal(f"--measure {error}") from None
    link = slowest(links)
    say(console, f"the slowest: {link}, as payload")
    return link


def check_plannable(spec: RunSpec, source: str) -> None:
    """Raises SpecError for modes that the plan does not model."""
    if isinstance(real(spec.sync), HybridSync):
        raise SpecError(source, HYBRID)
    if real(spec.sync).authenticated:
        why = "it is compared with torch's all-reduce, which does not encrypt; set it false to plan"
        raise SpecError(source, f"sync.authenticated = true: {why}")


def _candidates(spec: RunSpec, source: str, methods: Sequence[str], *, sites: bool) -> list[Candidate]:
    check_plannable(spec, source)
    if getattr(real(spec.sync), "island", None) == "host" and not sites:
        raise SpecError(
            source,
            "sync.island = host: a plan does not know how many workers hosts have; give a number, or "
            "--between, so that the workers of a site are an island",
        )
    try:
        candidates = compared_candidates(spec, methods, sites=sites)
        check_candidates(candidates)
    except ValueError as error:
        raise refusal(f"--candidates: {error}") from None
    return candidates


def calibrated(
    spec: RunSpec,
    source: str,
    methods: Sequence[str],
    notify: Callable[[str], None],
    *,
    given: Path | None = None,
    sharing: int = 1,
    renew: bool = False,
) -> Calibration:
    """A calibration with these methods: from the file `given`, or as `calibrate` returns it.

    Raises:
        SpecError: there is no calibration, or it lacks a method.
    """
    if given is None:
        try:
            return calibrate(spec, methods, sharing=sharing, renew=renew, notify=notify)
        except CalibrationError as error:
            raise SpecError(source, str(error)) from None
    try:
        calibration = Calibration.model_validate_json(given.read_text(encoding="utf-8"))
    except OSError as error:
        raise refusal(f"--calibration {given}: {error.strerror}") from None
    except ValidationError as error:
        raise refusal(f"--calibration {given}: is not a calibration: {error.errors()[0]['msg']}") from None
    if missing := calibration.missing(methods):
        known = ", ".join(sorted(calibration.methods))
        raise refusal(f"--calibration {given}: has not measured {missing[0]}; it knows {known}")
    return calibration
