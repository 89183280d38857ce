"""The same GPT loop through each library: the losses of every step, beside torch's DDP alone.

    python -m benchmarks.platform.doors [--quick] [--write]

Two processes over gloo on the loopback interface; Ray Train starts its own. Lightning, Accelerate and
Transformers must be installed.
"""

import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from taugrad.compressors import compress_gradients
from taugrad.platform.models.config import Gpt
from taugrad.platform.models.gpt import GptNetwork

from ..harness.report import Table, number, publish, read_options
from ..harness.workers import found_by

CONTEXT, BATCH, WORKERS = 32, 8, 2
GPT = Gpt(layers=2, heads=2, width=64)
PLAIN = "DDP alone"
METHODS = {
    PLAIN: "adamw",
    "wgt(2e-38) | packed32": "adamw",
    "linear(8)": "adamw",
    "strom(density(0.01), momentum=0.9) | golomb_rice": "sgd",
}
"""What is compressed how, and its optimizer."""
SETTINGS: dict[str, dict[str, float]] = {"adamw": {"lr": 0.002, "weight_decay": 0.0}, "sgd": {"lr": 0.1}}
"""Without decay: the Trainer leaves biases and norms out of it."""
INTRODUCTION = (
    "A GPT of {parameters:,} parameters learns the bytes of Python's argparse for {steps} steps, by "
    "AdamW (lr 0.002, no decay), or SGD (lr 0.1) where the compressor applies momentum; 2 workers, "
    "{batch} texts of {context} a worker and step. Every door trains the same model on the same texts "
    "in the same order, by its library's own way; `torchrun` is a plain loop. Differences are the "
    "largest of any step, and of worker 0."
)


class Learner(nn.Module):
    """A GPT that computes its loss itself, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = GptNetwork(GPT, CONTEXT, 256)
        self.losses: list[float] = []

    def forward(self, lines: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss on texts [batch, context + 1]."""
        loss = cross_entropy(self.net(lines[:, :-1]).flatten(0, 1), lines[:, 1:].flatten())
        self.losses.append(loss.item())
        return {"loss": loss}


def batches(steps: int) -> DataLoader[dict[str, torch.Tensor]]:
    """This worker's texts."""
    text = torch.tensor(list(Path(sys.modules["argparse"].__file__ or "").read_bytes()))
    drawing = torch.Generator().manual_seed(dist.get_rank())
    starts = torch.randint(len(text) - CONTEXT - 1, (steps * BATCH, 1), generator=drawing)
    return DataLoader([{"lines": lines} for lines in text[starts + torch.arange(CONTEXT + 1)]], BATCH)


def optimizer_of(model: nn.Module, method: str) -> torch.optim.Optimizer:
    """The method's."""
    kind = torch.optim.AdamW if METHODS[method] == "adamw" else torch.optim.SGD
    return kind(model.parameters(), **SETTINGS[METHODS[method]])


def loop(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, backward: Callable[..., Any]
) -> None:
    """Everyone's, where the loop is not the library's."""
    for batch in batches(steps):
        optimizer.zero_grad()
        backward(model(batch["lines"])["loss"])
        optimizer.step()


def torchrun(method: str, steps: int) -> list[float]:
    """A plain loop."""
    learner = Learner()
    model = DistributedDataParallel(learner)
    if method != PLAIN:
        compress_gradients(model, method)
    loop(model, optimizer_of(model, method), steps, torch.Tensor.backward)
    return learner.losses


def lightning(method: str, steps: int) -> list[float]:
    """Lightning's Trainer."""
    import lightning.pytorch as pl

    from taugrad.compressors.integrations.lightning import TaugradStrategy

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.learner = Learner()

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            loss: torch.Tensor = self.learner(batch["lines"])["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer_of(self, method)

    module, quiet = (
        Module(),
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"),
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=WORKERS,
        max_epochs=1,
        strategy="ddp" if method == PLAIN else TaugradStrategy(method),
        use_distributed_sampler=False,
        **dict.fromkeys(quiet, False),
    )
    trainer.fit(module, batches(steps))
    return module.learner.losses


def accelerate(method: str, steps: int) -> list[float]:
    """Accelerate's `prepare` and `backward`."""
    from accelerate import Accelerator

    from taugrad.compressors.integrations.accelerate import compress_prepared

    accelerator, learner = Accelerator(cpu=True), Learner()
    model, optimizer = accelerator.prepare(learner, optimizer_of(learner, method))
    if method != PLAIN:
        compress_prepared(accelerator, model, method)
    loop(model, optimizer, steps, accelerator.backward)
    return learner.losses


def transformers(method: str, steps: int) -> list[float]:
    """Transformers' Trainer, with its own optimizer."""
    from transformers import Trainer, TrainingArguments

    from taugrad.compressors.integrations.transformers import TaugradCallback

    class OwnTexts(Trainer):  # its sampler would share them out
        def get_train_dataloader(self) -> DataLoader[dict[str, torch.Tensor]]:
            return batches(steps)

    learner, setting = Learner(), SETTINGS[METHODS[method]]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            num_train_epochs=1,
            optim={"adamw": "adamw_torch", "sgd": "sgd"}[METHODS[method]],
            learning_rate=setting["lr"],
            weight_decay=setting.get("weight_decay", 0.0),
            lr_scheduler_type="constant",
            max_grad_norm=0,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = OwnTexts(learner, arguments, train_dataset=batches(steps).dataset)
        if method != PLAIN:
            trainer.add_callback(TaugradCallback(trainer, method))
        trainer.train()
    return learner.losses


def ray_train(steps: int) -> dict[str, list[float]]:
    """A function of one's own on Ray Train, by method."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer, prepare_model

    def train(setting: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        seconds = {}
        for method in METHODS:
            learner = Learner()
            model = prepare_model(learner)
            if method != PLAIN:
                compress_gradients(model, method)
            loop(model, optimizer_of(model, method), steps, torch.Tensor.backward)
            seconds[method] = learner.losses
        if dist.get_rank() == 0:
            Path(setting["file"]).write_text(json.dumps(seconds), encoding="utf-8")

    ray.init("local", num_cpus=WORKERS + 1, include_dashboard=False, log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            run, scaling = RunConfig(storage_path=folder), ScalingConfig(num_workers=WORKERS)
            setting = {"file": f"{folder}/losses.json"}
            TorchTrainer(train, train_loop_config=setting, scaling_config=scaling, run_config=run).fit()
            losses: dict[str, list[float]] = json.loads(Path(setting["file"]).read_text(encoding="utf-8"))
            return losses
    finally:
        ray.shutdown()


DOORS = (torchrun, lightning, accelerate, transformers)
"""Those whose processes this benchmark starts."""


def through_doors(steps: int, port: int) -> dict[str, dict[str, list[float]]]:
    """The losses of each door, by method; in each of the processes."""
    rank = str(dist.get_rank())
    os.environ |= {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": str(WORKERS),
        "TORCHELASTIC_RUN_ID": "doors",
    }
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(WORKERS)}
    os.environ |= {"GROUP_RANK": "0", "HF_HUB_OFFLINE": "1"}
    return {door.__name__: {method: door(method, steps) for method in METHODS} for door in DOORS}


def rows_of(seconds: dict[str, dict[str, list[float]]]) -> Iterator[tuple[str, ...]]:
    """A row for each door and method."""
    for method, optimizer in METHODS.items():
        for door, losses in seconds.items():
            ours, plain = losses[method], seconds["torchrun"][method]
            off = max(abs(a - b) for a, b in zip(ours, plain, strict=True))
            first, last = (f"{sum(part) / len(part):.4f}" for part in (ours[:10], ours[-10:]))
            title = f"{optimizer}: {method if method == PLAIN else f'`{method}`'}"
            yield title, door.replace("_", " "), first, last, number(off)


def main(arguments: Sequence[str]) -> int:
    """Trains through each door, and publishes."""
    options = read_options("platform.doors", __doc__.partition("\n")[0], arguments)
    steps = 6 if options.quick else 200
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seconds = found_by(through_doors, (steps, port), WORKERS)[0] | {"ray_train": ray_train(steps)}
    columns = ("optimizer: exchange", "door", "loss of the first 10", "of the last 10", "off torchrun's")
    parameters = sum(parameter.numel() for parameter in Learner().parameters())
    text = INTRODUCTION.format(parameters=parameters, steps=steps, batch=BATCH, context=CONTEXT)
    publish("doors", options, text, [Table("Losses by door", columns, list(rows_of(seconds)))])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
