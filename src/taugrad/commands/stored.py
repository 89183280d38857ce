"""`taugrad dashboard`, `report` and `deliver`: what is done with runs that are stored."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from taugrad.platform.exit_codes import FAILED, OK, WRONG_INPUT

from .shared import add_output

if TYPE_CHECKING:
    from .shared import Commands


def add_dashboard(commands: "Commands") -> None:
    """Adds the command `dashboard`."""
    parser = commands.add_parser(
        "dashboard", help="prepare MLflow's UI for an experiment and print its URL", allow_abbrev=False
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help="the MLflow experiment's name")
    parser.add_argument(
        "--serve",
        action="store_true",
        help="start MLflow's server on 127.0.0.1, if runs are in a local database",
    )
    _add_filter(parser)
    parser.set_defaults(handler=run_dashboard)


def _add_filter(parser: argparse.ArgumentParser) -> None:
    """Adds the choice of an experiment's runs."""
    parser.add_argument(
        "--filter",
        metavar="FILTER",
        default="",
        help="only these runs, in MLflow's search syntax, such as \"params.training.epochs = '10'\"",
    )


def run_dashboard(options: argparse.Namespace, _: list[str]) -> int:
    """Writes the views of an experiment into MLflow."""
    from taugrad.dashboards.prepare import dashboard  # noqa: PLC0415

    return dashboard(options.experiment, serve=options.serve, only=options.filter)


def add_report(commands: "Commands") -> None:
    """Adds the command `report`."""
    parser = commands.add_parser(
        "report", help="write an HTML page, figures and tables about an experiment", allow_abbrev=False
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help="the MLflow experiment's name")
    add_output(parser, "DIR", "the folder to write", required=True)
    parser.add_argument(
        "--server",
        metavar="URL",
        help="MLflow's address, for links to runs (default: the tracking server; no links "
        "with a local database)",
    )
    _add_filter(parser)
    parser.set_defaults(handler=run_report)


def run_report(options: argparse.Namespace, _: list[str]) -> int:
    """Writes the report of an experiment."""
    from taugrad.dashboards.report import report  # noqa: PLC0415

    return report(options.experiment, options.output, options.server, options.filter)


def add_deliver(commands: "Commands") -> None:
    """Adds the command `deliver`."""
    parser = commands.add_parser(
        "deliver", help="send to the stores what they did not accept during a run", allow_abbrev=False
    )
    parser.add_argument(
        "file", help="as the run named it: a file of metrics, its address, or the folder of a checkpoint"
    )
    parser.add_argument(
        "--run", metavar="ID", help="for metrics: the MLflow run (default: the name of the file's folder)"
    )
    parser.set_defaults(handler=run_deliver)


def run_deliver(options: argparse.Namespace, _: list[str]) -> int:
    """Sends undelivered metrics to MLflow, or an undelivered checkpoint to its storage."""
    from taugrad.platform.launching.driver.delivering import (  # noqa: PLC0415
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
        # The stores' errors are of many types; the file stays for another try.
        print(f"taugrad: not delivered: {reason(error)}; {place} is kept", file=sys.stderr)
        return FAILED
    return OK
