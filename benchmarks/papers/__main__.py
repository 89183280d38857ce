"""Writes docs/papers.md, after measuring what is missing of the papers that are named.

python -m benchmarks.papers [PAPER ...]
"""

import argparse
import sys
from collections.abc import Sequence

from .claims import PAGE, page


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "papers", nargs="*", metavar="PAPER", help="anoosheh, strom, oland_raj, rae, krizhevsky"
    )
    if wanted := parser.parse_args(arguments).papers:
        from .measure import PAPERS, measure  # torch and Numba

        if unknown := [paper for paper in wanted if paper not in PAPERS]:
            parser.error(f"{unknown[0]}: choose from {', '.join(PAPERS)}")
        for paper in wanted:
            measure(paper)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written: {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
