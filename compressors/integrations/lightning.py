"""Lightning's Trainer: a strategy that compresses, and a callback that logs what was sent.

Lightning has a place for hooks of DDP (`ddp_comm_hook`), but registers them on CUDA devices alone, and says
nothing elsewhere. The strategy registers ours on any device.
"""

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.strategies import DDPStrategy

from ..bucket.ledger import Step
from ..hook import compress_gradients
from ..method import Method
from ..state import CompressionState
from .metrics import ledger_metrics
from .rank_files import load_rank, save_rank


class TaugradStrategy(DDPStrategy):
    """DDP with compressed gradients; each rank's residuals lie beside each checkpoint, in CHECKPOINT.taugrad.

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
        """Takes what is to be compressed how.

        Args:
            method: see `compress_gradients`.
            compress: more arguments of `compress_gradients`, such as {"exchange": "hierarchical"}. The
                precision plugin's scaler is given to it.
            options: of Lightning's `DDPStrategy`, such as `find_unused_parameters`.
        """
        super().__init__(**options)
        self.compression: CompressionState | None = None
        self._method, self._compress = method, dict(compress or {})

    def configure_ddp(self) -> None:
        """Wraps the model, compresses what it synchronizes, and loads residuals if there is a `ckpt_path`."""
        super().configure_ddp()
        scaler = getattr(self.precision_plugin, "scaler", None)
        self.compression = compress_gradients(self.model, self._method, scaler=scaler, **self._compress)
        if path := self.lightning_module.trainer.ckpt_path:
            load_rank(self.compression, _beside(path))

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None
    ) -> None:
        """Saves each rank's residuals, too, unless only weights are saved."""
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if self.compression is not None and "optimizer_states" in checkpoint:
            save_rank(self.compression, _beside(filepath))

    def remove_checkpoint(self, filepath: Any) -> None:
        """Removes the residuals of all ranks, too."""
        super().remove_checkpoint(filepath)
        if self.is_global_zero:
            self.checkpoint_io.remove_checkpoint(_beside(filepath))


class TaugradCallback(pl.Callback):
    """Logs what was sent to every logger of the trainer, in the rows in which the trainer logs."""

    _logged: Step | None = None

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Logs the latest step, every `log_every_n_steps`; once, where batches are accumulated.

        Raises:
            TypeError: the trainer has another strategy.
        """
        if not isinstance(trainer.strategy, TaugradStrategy):
            raise TypeError(f"strategy of {type(trainer.strategy).__name__}: must be TaugradStrategy(METHOD)")
        every, state = trainer.log_every_n_steps, trainer.strategy.compression
        if state is None or state.last_step is self._logged or not every or trainer.global_step % every:
            return
        self._logged = state.last_step
        for logger in trainer.loggers:
            logger.log_metrics(ledger_metrics(state), step=trainer.global_step - 1)


def _beside(checkpoint: Any) -> str:
    return f"{checkpoint}.taugrad"
