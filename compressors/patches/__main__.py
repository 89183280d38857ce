"""`python -m taugrad.compressors.patches show PATH`."""

import argparse
import sys

from . import __doc__ as about
from .stream import listing


def main() -> None:
    """Lists the patches and snapshots of a stream."""
    parser = argparse.ArgumentParser(prog="python -m taugrad.compressors.patches", description=about)
    show = parser.add_subparsers(required=True).add_parser("show", help="lists patches and snapshots")
    show.add_argument("path", help="a folder, or an address such as s3://bucket/run")
    path, lines = parser.parse_args().path, 0
    try:
        for line in listing(path):
            print(line)
            lines += 1
    except BrokenPipeError:
        raise
    except Exception as problem:  # object stores have classes of their own
        sys.exit(f"{path}: {problem}")
    if lines == 1:
        sys.exit(f"{path}: nothing is published there")


if __name__ == "__main__":
    main()
