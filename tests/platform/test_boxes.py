"""Rounds whose receivers are ready: whatever is sent arrives, whether it has room or not."""

from pathlib import Path

import pytest
from forked import run_workers

SCRIPT = Path(__file__).with_name("boxes_process.py")


@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_sent_arrives(workers: int, tmp_path: Path) -> None:
    run_workers(SCRIPT, lambda rank: (rank, workers, tmp_path / "store"), workers, timeout_s=200)
