"""Lightning's Trainer: a strategy that compresses, and a callback that logs what was sent.

Lightning registers hooks of DDP (`ddp_comm_hook`) on CUDA devices alone, and ignores them silently elsewhere.
The strategy registers ours on any device.
"""

import os
import warnings
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch.strategies import DDPStrategy

from ..bucket.ledger import Step
from ..hook import CompressionState, compress_gradients
from ..methods import Method
from .metrics import ledger_metrics
from .rank_files import load_rank, new_checkpoint_id, save_rank

_KEY = "taugrad"
"""The entry of Lightning's checkpoint that names it, as the residuals' files do."""


class TaugradStrategy(DDPStrategy):
    """DDP with compressed gradients; each checkpoint has a folder of residuals beside it, CHECKPOINT.taugrad.

    As with optimizers, each `fit` begins anew unless it is given a `ckpt_path`.

    Attributes:
        compression: the state of the latest `fit`.
    """

    def __init__(
        self,
        method: Method | Mapping[str, Any] | str,
        *,
        compress: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Sets the method and options.

        Args:
            method: see `compress_gradients`.
            compress: more arguments of `compress_gradients`, such as {"pattern": "hierarchical"}. The
                precision plugin's scaler is given to it.
            options: of Lightning's `DDPStrategy`, such as `find_unused_parameters`.
        """
        super().__init__(**options)
        self.compression: CompressionState | None = None
        self._method, self._compress = method, dict(compress or {})
        self._resumed: str | None = None
        """The name of the checkpoint that was loaded last."""

    def configure_ddp(self) -> None:
        """Wraps the model, compresses what it synchronizes, and loads residuals if there is a `ckpt_path`."""
        super().configure_ddp()
        scaler = getattr(self.precision_plugin, "scaler", None)
        self.compression = compress_gradients(self.model, self._method, scaler=scaler, **self._compress)
        if path := self.lightning_module.trainer.ckpt_path:
            # A link, as `save_last="link"` makes one, leads to the checkpoint that residuals lie beside.
            folder = _residuals_of(os.path.realpath(path) if os.path.islink(path) else path)
            if self._resumed is not None and get_filesystem(folder).exists(folder):
                load_rank(self.compression, folder, checkpoint=self._resumed)
            else:
                warnings.warn(f"{path} has no residuals: they begin at zero", stacklevel=2)

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """Notes the checkpoint's name."""
        checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **options)
        self._resumed = checkpoint.get(_KEY)
        return checkpoint

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None
    ) -> None:
        """Saves each rank's residuals, too, unless only weights are saved."""
        if self.compression is None or "optimizer_states" not in checkpoint:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        checkpoint[_KEY] = new_checkpoint_id()
        super().save_checkpoint(checkpoint, filepath, storage_options)
        save_rank(self.compression, _residuals_of(filepath), checkpoint=checkpoint[_KEY])

    def remove_checkpoint(self, filepath: Any) -> None:
        """Removes the residuals of all ranks, too."""
        super().remove_checkpoint(filepath)
        if self.is_global_zero:
            self.checkpoint_io.remove_checkpoint(_residuals_of(filepath))


class TaugradCallback(pl.Callback):
    """Logs what was sent to every logger of the trainer, in the rows in which the trainer logs."""

    _latest: Step | None = None

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Logs the latest step, every `log_every_n_steps` batches that stepped.

        Raises:
            TypeError: the trainer has another strategy.
        """
        if not isinstance(trainer.strategy, TaugradStrategy):
            raise TypeError(f"strategy of {type(trainer.strategy).__name__}: must be TaugradStrategy(METHOD)")
        state = trainer.strategy.compression
        if state is None or state.last_step is self._latest:  # an accumulated batch
            return
        self._latest = state.last_step
        if trainer._logger_connector.should_update_logs:
            # Lightning's own rows count batches; `global_step` counts each optimizer's steps.
            step = trainer.fit_loop.epoch_loop._batches_that_stepped
            for logger in trainer.loggers:
                logger.log_metrics(ledger_metrics(state), step=step)


def _residuals_of(checkpoint: Any) -> str:
    return f"{checkpoint}.taugrad"
