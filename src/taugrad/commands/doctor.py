"""`taugrad doctor`."""

import argparse
from typing import TYPE_CHECKING

from taugrad.platform.exit_codes import FAILED, OK

if TYPE_CHECKING:
    from .shared import Commands

_MARKS = {"ok": "ok    ", "absent": "absent", "wrong": "WRONG "}


def add_doctor(commands: "Commands") -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "doctor", help="check this machine: what it has, what is wrong, how to fix it", allow_abbrev=False
    )
    parser.set_defaults(handler=run_doctor)


def run_doctor(_: argparse.Namespace, __: list[str]) -> int:
    """Prints the state of this machine, and which method to use."""
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
