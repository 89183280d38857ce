"""The command line: which commands there are, and what holds for all of them."""

import argparse
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING

from taugrad import __version__
from taugrad.commands.auto import add_auto
from taugrad.commands.doctor import add_doctor
from taugrad.commands.plan import add_plan
from taugrad.commands.search import add_search
from taugrad.commands.stored import add_dashboard, add_deliver, add_report
from taugrad.commands.submit import SUBMITTED, add_submit
from taugrad.commands.train import add_train
from taugrad.platform.exit_codes import INTERRUPTED, WRONG_INPUT
from taugrad.signals import run

if TYPE_CHECKING:
    from taugrad.commands.shared import Handler

_CONTINUED = (*SUBMITTED, "submit")
"""Commands that go on, or begin again, when they are given once more after Ctrl-C."""
_PLATFORM = ("ray", "mlflow", "optuna", "plotly", "rich")
"""Packages without which no command runs."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="taugrad",
        description="Trains PyTorch models on several workers with compressed gradients, and finds out how "
        "few bytes the workers need to send.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"taugrad {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_train(commands)
    add_submit(commands, build_parser)
    add_search(commands)
    add_auto(commands)
    add_plan(commands)
    add_dashboard(commands)
    add_report(commands)
    add_doctor(commands)
    add_deliver(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the process's exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    again = shlex.join(["taugrad", *words]) if words[:1] and words[0] in _CONTINUED else ""
    code = run(lambda: _main(words), again)
    if arguments is None and code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process ends now, and has said all
    return code


def _main(arguments: Sequence[str]) -> int:
    parser = build_parser()
    options, overrides = parser.parse_known_args(arguments)
    takes_fields = getattr(options, "takes_fields", False)
    if overrides and not takes_fields:
        parser.error(f"unrecognized arguments: {' '.join(overrides)}")
    if missing := [name for name in _PLATFORM if find_spec(name) is None]:
        print(
            f"taugrad: {missing[0]} is not installed, which commands need beside the library; "
            "pip install 'taugrad[platform]'",
            file=sys.stderr,
        )
        return WRONG_INPUT
    try:
        os.getcwd()
    except FileNotFoundError:
        print("taugrad: the current folder has been deleted; cd to one that exists", file=sys.stderr)
        return WRONG_INPUT
    handler: Handler = options.handler
    from taugrad.platform.spec import SpecError  # noqa: PLC0415
    from taugrad.platform.user_code import TRACEBACK  # noqa: PLC0415

    try:
        with ExitStack() as stack:
            if takes_fields:  # the others read no spec, and need not import its models
                from taugrad.platform.spec.allowing import allowed, import_from_here  # noqa: PLC0415

                import_from_here()
                stack.enter_context(allowed(options.allow_custom))
            return handler(options, overrides)
    except SpecError as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        for line in str(error).split("\n"):  # one for each field that is wrong
            print(f"taugrad: {line}", file=sys.stderr)
        return WRONG_INPUT
