"""What several commands share: specs on the command line, and the training of specs."""

import argparse
import textwrap
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from taugrad.platform.spec import RunSpec
    from taugrad.platform.spec.fields import FieldHelp

    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]
    """What parsers of commands are added to."""

Handler: TypeAlias = Callable[[argparse.Namespace, list[str]], int]
"""Runs a command, given its options and the arguments that set fields of a spec; returns an exit code."""

SPEC_HELP = "a spec (YAML file); fields that it leaves out have defaults"
_FIELDS_HINT = (
    "You can set any field of the spec after the specs, such as --compressor.tau 1e-3, or by an "
    "environment variable, such as TAUGRAD_COMPRESSOR__TAU=1e-3. The command line overrides the "
    "environment, and the environment overrides the file. Set TAUGRAD_TRACEBACK=1 to see the whole "
    "traceback of an error in your own model or data."
)
_NO_DEFAULT = {"", "None", "required", "()", "{}"}
_VALUE_TYPES = {"bool", "dict", "float", "int", "list", "Path", "str"}


class FieldsHelp(argparse.Action):
    """`--help` for commands that take a spec's fields: reads the fields only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Prints it, and exits."""
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


def add_spec_command(
    commands: "Commands",
    name: str,
    handler: Handler,
    summary: str,
    usage: str,
    fields_help: type[FieldsHelp] = FieldsHelp,
) -> argparse.ArgumentParser:
    """Adds a command that takes specs and their fields."""
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
        help="allow the spec to name code to run: extensions, factories of kind custom, search.evaluate",
    )
    command.set_defaults(handler=handler, takes_fields=True)
    return command


def train_specs(specs: "Sequence[tuple[str, RunSpec]]") -> int:
    """Trains specs, each with the name of its file, one after the other; returns an exit code."""
    from taugrad.platform.terminal import going_on, open_console  # noqa: PLC0415

    with going_on(open_console(), "importing torch"):
        from taugrad.dashboards.console import ConsoleDisplay  # noqa: PLC0415
        from taugrad.platform.launching.driver.train import train  # noqa: PLC0415
        from taugrad.search.advice import warning_of  # noqa: PLC0415

    if warning := warning_of(specs):
        warn_once(warning)
    return train(specs, ConsoleDisplay())


@cache
def warn_once(warning: str) -> None:
    """Prints a warning, once: `taugrad auto` trains several specs with the same advice."""
    from taugrad.platform.terminal import open_console, say  # noqa: PLC0415

    say(open_console(), warning, "yellow")


def add_output(parser: argparse.ArgumentParser, metavar: str, text: str, *, required: bool = False) -> None:
    """Adds `-o`, a file or a folder to write."""
    parser.add_argument("-o", "--output", required=required, type=Path, metavar=metavar, help=text)
