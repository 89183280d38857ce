"""The traffic of each link of a run: from every worker to every other."""

import csv
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_WORKERS = 64
"""Of which each link is shown: 4,032 of them."""


@dataclass(frozen=True)
class Links:
    """Sums over a run, and over all its processes."""

    messages: NDArray[np.int64]
    """int64 [workers, workers], from row to column; the numbers told before a round are none."""
    nbytes: NDArray[np.int64]
    """int64 [workers, workers], of messages and of the numbers told: what the ledger counts as received."""

    def to_csv(self) -> str:
        """Columns from, to, messages, bytes: a row for each ordered pair of ranks."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("from", "to", "messages", "bytes"))
        for sender, receiver in np.argwhere(~np.eye(len(self.nbytes), dtype=bool)).tolist():
            link = sender, receiver
            writer.writerow((*link, int(self.messages[link]), int(self.nbytes[link])))
        return text.getvalue()
