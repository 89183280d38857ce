"""The README's table of times over links, from the two tables of docs/network.md.

python -m benchmarks.network.first_screen
"""

from ..harness.pages import tables
from ..harness.report import RESULTS, Place, markdown

NETWORK = RESULTS.parent / "network.md"
README = Place(
    RESULTS.parents[1] / "README.md", "<!-- time to target: begin -->", "<!-- time to target: end -->"
)
SLOW, FAST = "slow links", "time to target"
LINKS = {"2 Mbit/s, 0 ms": SLOW, "10 Mbit/s, 0 ms": SLOW, "50 Mbit/s, 0 ms": FAST, "1 Gbit/s, 20 ms": FAST}
"""By link, the table that has it."""
CONTENDERS = ("strom (ours)", "SparseLoCo", "DiLoCo", "DDP, 16 bits")


def main() -> None:
    README.fill("\n".join(table()))


def table() -> list[str]:
    """The table's lines: seconds to the target by contender and link."""
    times = {name: _times(name) for name in (SLOW, FAST)}
    rows = [[name, *(times[LINKS[link]][name, link] for link in LINKS)] for name in CONTENDERS]
    return markdown(["to the same loss, over a link of", *LINKS], rows)


def _times(name: str) -> dict[tuple[str, str], str]:
    """Cells of a table in docs/network.md by contender and link."""
    text = NETWORK.read_text(encoding="utf-8").partition(f"<!-- {name}: begin -->")[2].partition("<!--")[0]
    _, columns, rows = next(tables(text))
    return {(row[0], link): time for row in rows for link, time in zip(columns[1:], row[1:], strict=True)}


if __name__ == "__main__":
    main()
