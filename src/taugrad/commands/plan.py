"""`taugrad plan`: what can be said before a training."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from taugrad.platform.spec import refusal

from .shared import SPEC_HELP, add_output, add_spec_command

if TYPE_CHECKING:
    from .shared import Commands


def add_plan(commands: "Commands") -> None:
    """Adds the command `plan`."""
    parser = add_spec_command(
        commands,
        "plan",
        run_plan,
        "predict how long a step takes over a link, for each way to train, and say which is best",
        "SPEC --link LINK [--workers N,N,...] [--measure HOST ...] [--candidates LINE ...] [-o DIR] "
        "[--FIELD VALUE ...]",
    )
    parser.add_argument("spec", nargs="?", type=Path, metavar="SPEC", help=SPEC_HELP)
    parser.add_argument(
        "--link",
        action="append",
        default=[],
        metavar="LINK",
        help="rate, delay (one way) and lost packets, such as 100mbit,20ms or 50mbit,10ms,0.1%%; "
        "may be repeated",
    )
    parser.add_argument(
        "--between",
        metavar="LINK",
        help="the link between sites; each site has one. Workers are spread evenly over the sites",
    )
    parser.add_argument("--sites", type=int, metavar="N", help="number of sites with --between (default: 2)")
    parser.add_argument(
        "--workers",
        default="2,4,8,16",
        metavar="N,N,...",
        help="numbers of workers, up to 1000 (default: 2,4,8,16)",
    )
    parser.add_argument(
        "--measure",
        nargs="+",
        default=[],
        metavar="HOST",
        help="measure the link to these machines, HOST or HOST:PORT; "
        "run `taugrad plan --answer` on them first",
    )
    parser.add_argument(
        "--answer",
        nargs="?",
        const=9472,
        type=int,
        metavar="PORT",
        help="answer --measure of other machines (default: port 9472)",
    )
    parser.add_argument(
        "--candidates",
        nargs="+",
        default=[],
        metavar="LINE",
        help="compressors to compare, such as 'wgt(density(0.01)) | golomb_rice', instead of the defaults",
    )
    parser.add_argument(
        "--recalibrate", action="store_true", help="measure the model again, even if it was measured before"
    )
    parser.add_argument(
        "--share-of-machine",
        type=int,
        default=1,
        metavar="N",
        help="calibrate for N workers that share one machine's processors (default: 1)",
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="use this calibration from another machine instead of measuring",
    )
    add_output(parser, "DIR", "write the tables to this folder")


def run_plan(options: argparse.Namespace, overrides: list[str]) -> int:
    """Makes a plan, or answers measurements of other machines."""
    if options.answer is not None:
        if options.spec is not None or overrides:
            raise refusal("--answer: takes no SPEC and no fields")
        from taugrad.search.plan.run_plan import run_answer  # noqa: PLC0415

        return run_answer(options.answer)
    if options.spec is None:
        raise refusal("SPEC: is missing; try experiments/quickstart/2-wgt.yaml")
    if options.share_of_machine < 1:
        raise refusal(f"--share-of-machine {options.share_of_machine}: must be at least 1")
    from taugrad.platform.spec.reading import read_spec  # noqa: PLC0415
    from taugrad.search.plan.run_plan import PlanRequest  # noqa: PLC0415
    from taugrad.search.plan.run_plan import run_plan as run  # noqa: PLC0415

    request = PlanRequest(
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
    return run(read_spec(options.spec, overrides), str(options.spec), request)
