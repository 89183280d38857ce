"""Where Ray Train's workers begin. Light to import: the controller needs no torch."""

from typing import Any


def train_worker(config: dict[str, Any]) -> None:
    """The train loop that Ray Train calls in each worker, with `{"job": Job}`."""
    from .worker import train  # noqa: PLC0415 - imports torch, which the controller does not need

    train(config["job"])
