"""What was sent, as numbers for a log, under the names that `taugrad train` uses, too."""

from .rank_files import State


def ledger_metrics(state: State) -> dict[str, float]:
    """The latest step's ledger, and the bytes so far, of this worker.

    Returns:
        `comm/fraction`, `comm/wire_bytes`, `comm/compression_ratio` and so on, as docs/reference/metrics.md
        lists them, there over all workers.
    """
    return state.last_step.metrics(workers=1) | {"comm/wire_mb_total": state.totals.wire_bytes / 1e6}
