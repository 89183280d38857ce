"""`taugrad data`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .shared import Commands


def add_data(commands: "Commands") -> None:
    """Adds the command."""
    data = commands.add_parser("data", help="make data to train on", allow_abbrev=False)
    sources = data.add_subparsers(title="sources", metavar="SOURCE", required=True)
    parser = sources.add_parser(
        "speech",
        help="sentences spoken by espeak-ng, as frames of 20 log mel energies with their phonemes",
        description="Speaks sentences with espeak-ng's English voices and writes frames with their phonemes, "
        "for data: {kind: frames}. Training, validation and test have different voices and different words.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=30.0,
        metavar="N",
        help="minutes of speech, in all parts together (default: 30)",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the folder to write")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="decides the texts and voices (default: 0)"
    )
    parser.set_defaults(handler=run_speech)


def run_speech(options: argparse.Namespace, _: list[str]) -> int:
    """Writes spoken sentences."""
    from taugrad.platform.data.speech.command import run_speech as run  # noqa: PLC0415

    return run(options.minutes, options.out, options.seed)
