"""Ray Train's trainer, without the parts that runs here do not need."""

from typing import Any

# TorchTrainer is this one with a process group, which the workers make themselves (see `process_group`): its
# import alone has the controller, a process that trains nothing, load torch.
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

_CLEANER, _DATASETS = "PlacementGroupCleanerCallback", "DatasetsCallback"


class _Trainer(DataParallelTrainer):
    """A trainer that leaves signals to the command."""

    def _register_sigint_handler(self, controller: Any) -> None:
        """Does nothing: Ray Train's handler waits for the workers, and then ends the process with code 1."""


class _ShortLivedTrainer(_Trainer):
    """A trainer on a Ray that ends with the command, and takes its placement groups along.

    Ray Train's own clean-up of them is one more process to start, and without a dashboard to ask takes 12 s
    to end. Its keeper of datasets is another, which workers that read their own data never ask.
    """

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        return [each for each in callbacks if type(each).__name__ not in (_CLEANER, _DATASETS)]


def trainer_for(alone: bool) -> type[DataParallelTrainer]:
    """The trainer on a Ray that ends with the command, or on one that goes on."""
    return _ShortLivedTrainer if alone else _Trainer
