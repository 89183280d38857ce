"""`python -m taugrad.compressors.patches show PATH`."""

import argparse

from . import __doc__ as about
from .stream import listing


def main() -> None:
    """Lists the patches and snapshots of a stream."""
    parser = argparse.ArgumentParser(prog="python -m taugrad.compressors.patches", description=about)
    show = parser.add_subparsers(required=True).add_parser("show", help="lists patches and snapshots")
    show.add_argument("path", help="a folder, or an address such as s3://bucket/run")
    for line in listing(parser.parse_args().path):
        print(line)


if __name__ == "__main__":
    main()
