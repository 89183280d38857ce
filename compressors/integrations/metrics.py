"""What was sent, as numbers for a log, under the names that `taugrad train` uses, too."""

from .rank_files import State


def ledger_metrics(state: State) -> dict[str, float]:
    """The latest step's ledger, and the bytes so far, over all workers; so every rank gets nearly the same.

    Returns:
        `comm/fraction`, `comm/wire_bytes`, `comm/compression_ratio` and so on, as docs/reference/metrics.md
        lists them. `comm/tau` is that of this rank's elements.
    """
    return state.last_step.metrics(state.workers) | {"comm/wire_mb_total": state.totals.wire_bytes / 1e6}
