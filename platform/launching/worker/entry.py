"""Where Ray Train's workers begin. Light to import: the controller needs no torch."""

from typing import Any


def train_worker(config: dict[str, Any]) -> None:
    """The train loop that Ray Train calls in each worker, with `{"job": Job}`."""
    from ray.train import get_context  # noqa: PLC0415

    if get_context().get_world_rank() == 0:
        config["job"].status.add_stage.remote("importing torch")
    from .training import train  # noqa: PLC0415 - imports torch, which the controller does not need

    train(config["job"])
