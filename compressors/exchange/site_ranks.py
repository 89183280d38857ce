"""Whether each worker is at one site: checked when a spec is read, so without NumPy. See `sites`."""

from collections import Counter
from collections.abc import Sequence


def check_site_ranks(ranks: Sequence[Sequence[int]], workers: int) -> None:
    """Raises ValueError where a rank is in no site, in two, or is no worker's; or where a site is empty."""
    times = Counter(rank for site in ranks for rank in site)
    problems = {
        "in no site": set(range(workers)) - set(times),
        "in more than one place": {rank for rank, often in times.items() if often > 1},
        "of no worker": set(times) - set(range(workers)),
    }
    found = [f"{', '.join(map(str, sorted(who)))} {what}" for what, who in problems.items() if who]
    if not all(ranks):
        found.append("a site without workers")
    if found:
        raise ValueError(
            f"sites = {[list(site) for site in ranks]}: {'; '.join(found)}; with {workers} workers "
            f"each of the ranks 0 to {workers - 1} must be in one site"
        )
