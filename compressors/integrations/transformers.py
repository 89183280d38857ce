"""Transformers' Trainer, and TRL's: callbacks that compress gradients, and that publish weights.

The Trainer makes Accelerate's DDP handler itself, so that no hook can be passed there.
"""

import os
import warnings
from collections.abc import Mapping
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from ..hook import CompressionState, compress_gradients, ddp_in
from ..methods import Method
from ..patches import PatchWriter
from .metrics import ledger_metrics
from .rank_files import load_rank, new_checkpoint_id, save_rank

_KEY = "taugrad"
"""The entry of the Trainer's state that names the checkpoints of a call of `train`."""


class TaugradCallback(TrainerCallback):
    """Compresses gradients from the first step on; each rank's residuals lie in each checkpoint's folder.

        trainer.add_callback(TaugradCallback(trainer, "strom(density(0.01), momentum=0.9) | golomb_rice"))

    Attributes:
        compression: the state, once training has begun.
    """

    def __init__(
        self,
        trainer: Trainer,
        method: Method | Mapping[str, Any] | str,
        *,
        resume_from: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        """Sets the method; the trainer wraps its model when training begins.

        Args:
            trainer: the one that the callback is added to.
            method: see `compress_gradients`.
            resume_from: the checkpoint that `train` resumes from, where it does not lie in the trainer's
                `output_dir` under the name that the trainer gave it.
            options: more arguments of `compress_gradients`. Accelerate's scaler is given to it.
        """
        self.compression: CompressionState | None = None
        self._trainer, self._method, self._options = trainer, method, options
        self._resume_from = resume_from
        self._ddp: ref[DistributedDataParallel] | None = None  # weak: the Trainer frees it before it retries
        self._run = ""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Compresses what the wrapped model synchronizes; restores residuals where training resumes.

        Raises:
            TypeError: the model is not in DDP, as with one process.
            FileNotFoundError: as for `load_rank`.
            ValueError: `output_dir` has a checkpoint of the same step of another training than the one that
                training resumes from, and `resume_from` is not given; or as for `load_rank`.
        """
        ddp = ddp_in(self._trainer.model_wrapped)
        if self._ddp is None or ddp is not self._ddp():  # not that of an earlier `train`
            scaler = self._trainer.accelerator.scaler
            self.compression = compress_gradients(ddp, self._method, scaler=scaler, **self._options)
            self._ddp = ref(ddp)
        assert self.compression is not None
        assert state.stateful_callbacks is not None
        if state.global_step:
            folder = self._resume_from or _checkpoint(args, state)
            if run := state.stateful_callbacks.get(_KEY):
                load_rank(self.compression, folder, checkpoint=f"{run} {state.global_step}")
            else:
                warnings.warn("the checkpoint has no residuals: they begin at zero", stacklevel=2)
        self._run = state.stateful_callbacks[_KEY] = new_checkpoint_id()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Logs the latest step wherever the trainer logs."""
        if control.should_log and self.compression is not None:
            self._trainer.log(ledger_metrics(self.compression))
            control.should_log = True  # for the trainer's own; `log` has answered it

    on_epoch_end = on_step_end

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Saves this rank's residuals."""
        if self.compression is not None and not (args.save_only_model or state.is_hyper_param_search):
            name = f"{self._run} {state.global_step}"
            save_rank(self.compression, _checkpoint(args, state), checkpoint=name)


def _checkpoint(args: TrainingArguments, state: TrainerState) -> str:
    return f"{args.output_dir}/checkpoint-{state.global_step}"


class PublishCallback(TrainerCallback):
    """Publishes the model's weights every few steps, and after the last one.

        trainer.add_callback(PublishCallback("weights", every=10))

    In a folder, the configuration and the tokenizer lie beside the weights, as servers need them.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        *,
        every: int,
        dtype: torch.dtype | None = torch.bfloat16,
        **options: Any,
    ) -> None:
        """Names the place; training opens it.

        Args:
            place: see `PatchWriter`.
            every: steps from one number to the next.
            dtype: of what is published, of weights in float32; None: as they are.
            options: more arguments of `PatchWriter`.

        Raises:
            ValueError: every is less than 1.
        """
        if type(every) is not int or every < 1:
            raise ValueError(f"every must be a whole number of at least 1, not {every!r}")
        self._place, self._every, self._dtype, self._options = os.fspath(place), every, dtype, options
        self._writer: PatchWriter | None = None
        self._published = -1

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Takes the place; raises FileExistsError if another process writes there."""
        if self._writer is not None:  # of a `train` that raised, or that the trainer begins again
            self._writer.close()
        self._writer, self._published = PatchWriter(self._place, **self._options), -1
        if state.is_world_process_zero and "://" not in self._place:
            for part in (getattr(given["model"], "config", None), given.get("processing_class")):
                if part is not None:
                    part.save_pretrained(self._place)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Publishes, if it is time."""
        if state.global_step % self._every == 0:
            self._publish(given["model"], state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Publishes the last weights, and leaves the place."""
        assert self._writer is not None
        if self._published != state.global_step:
            self._publish(given["model"], state.global_step)
        self._writer.close()

    def _publish(self, model: torch.nn.Module, step: int) -> None:
        assert self._writer is not None
        self._writer.write(self._weights(model))
        self._published = step

    def _weights(self, model: torch.nn.Module) -> dict[str, Tensor]:
        """The weights under the names of checkpoints, which differ from the module's for some models."""
        weights: dict[str, Tensor] = model.state_dict()
        if isinstance(model, PreTrainedModel):
            from transformers.core_model_loading import revert_weight_conversion  # noqa: PLC0415

            weights = revert_weight_conversion(model, weights)
        narrow = self._dtype
        return {
            name: tensor.to(narrow) if narrow and tensor.dtype == torch.float32 else tensor
            for name, tensor in weights.items()
        }
