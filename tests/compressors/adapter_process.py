"""The scripts on the pages of docs/how-to, in each of two processes, and the same training without a library.

All doors train the same model with the same data, so that the losses of each step are compared. Libraries
share the examples out in three ways: in turns (torch's DistributedSampler), the same in another order each
epoch (Lightning), or a batch for each rank (Accelerate).
"""

import functools
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "docs" / "site"))
import fences  # noqa: E402

from taugrad.compressors import LocalSteps, compress_gradients  # noqa: E402

EVERYTHING = "wgt(2e-38) | packed32"
SPARSE = "strom(density(0.01), momentum=0.9) | golomb_rice"
DOORS = {
    "torchrun": ("torchrun.md", "train.py"),
    "lightning": ("lightning.md", "train.py"),
    "fabric": ("lightning.md", "fabric_train.py"),
    "accelerate": ("accelerate.md", "train.py"),
}
cross_entropy = functional.cross_entropy


def script(page: str, file: str = "train.py") -> dict[str, Any]:
    """What a page's script defines."""
    (block,) = [each for each in fences.blocks(f"docs/how-to/{page}") if each.file == file]
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(block.text, block.where, "exec"), names)
    return names


@contextmanager
def recorded(calls: Callable[[float], Any]) -> Iterator[None]:
    """Gives every loss that is computed to `calls`."""

    @functools.wraps(cross_entropy)
    def recording(*args: Any, **options: Any) -> torch.Tensor:
        loss = cross_entropy(*args, **options)
        calls(loss.item())
        return loss

    functional.cross_entropy = recording
    try:
        yield
    finally:
        functional.cross_entropy = cross_entropy


def losses(run: Callable[[], Any]) -> list[float]:
    found: list[float] = []
    with recorded(found.append):
        run()
    return found


def batches_of(rank: int, order: str) -> Iterator[torch.Tensor]:
    """Two epochs' batches of a rank, by their examples' places."""
    for epoch in range(2):
        sampler = DistributedSampler(range(1536), 2, rank, shuffle=order == "shuffled")
        sampler.set_epoch(epoch)
        yield from (
            torch.arange(1536).split(32)[rank::2]
            if order == "by batches"
            else torch.tensor([*sampler]).split(32)
        )


def plainly(method: str | None, rank: int, order: str) -> None:
    """The training of all doors, on torch alone; None: DDP without a hook."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    if method is not None:
        compress_gradients(model, method)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches_of(rank, order):
        x, y = torch.tensor(images[batch] / 16).float(), torch.tensor(labels[batch])
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def local_steps_plainly(rank: int, order: str) -> None:
    """Local steps without a library."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    local = LocalSteps(
        net, optimizer, every=4, compressor="strom(density(0.1, every=1)) | golomb_rice", unsent="1/n"
    )
    for batch in batches_of(rank, order):
        x, y = torch.tensor(images[batch] / 16).float(), torch.tensor(labels[batch])
        optimizer.zero_grad()
        functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        local.step()


def local_steps_with_accelerate(rank: int) -> dict[str, list[float]]:
    """The plain loop, and the page's script, which is cut after an epoch."""
    names = script("accelerate.md", "local_train.py")
    names["EPOCHS"] = 1
    cut = losses(lambda: names["main"](resume=False))
    names["EPOCHS"] = 2
    cut += losses(lambda: names["main"](resume=True))
    return {"plain": losses(lambda: local_steps_plainly(rank, "by batches")), "cut": cut}


def at_the_door(page: str, file: str) -> dict[str, Any]:
    """One that sends everything; one that is cut after an epoch; one that finds others' files."""
    names, found = script(page, file), {}
    main = names["main"]
    names |= {"METHOD": EVERYTHING, "EPOCHS": 1}
    fresh()
    found["everything"] = losses(lambda: main(resume=False))
    names["METHOD"] = SPARSE
    fresh()
    found["cut"] = losses(lambda: main(resume=False))
    names["EPOCHS"] = 2
    kept("save")
    found["cut"] += losses(lambda: main(resume=True))
    kept("restore")
    swap_files()
    return found | {"refused": refused(lambda: main(resume=True))}


def refused(run: Callable[[], Any]) -> str:
    try:
        run()
    except ValueError as error:
        return str(error)
    return ""


def on_one(action: Callable[[], Any]) -> None:
    """Rank 0 does it; both wait."""
    dist.barrier()
    if dist.get_rank() == 0:
        action()
    dist.barrier()


def fresh() -> None:
    on_one(lambda: (shutil.rmtree("checkpoint", ignore_errors=True), os.makedirs("checkpoint")))


def kept(what: str) -> None:
    """Saves the checkpoint as it is, or restores it."""
    source, target = ("checkpoint", "copy") if what == "save" else ("copy", "checkpoint")
    on_one(
        lambda: (shutil.rmtree(target, ignore_errors=True), shutil.copytree(source, target, symlinks=True))
    )


def swap_files() -> None:
    def swap() -> None:
        for first in [*Path("checkpoint").rglob("*-rank0.pt")]:
            second = first.with_name(first.name.replace("rank0", "rank1"))
            first.rename("between")
            second.rename(first)
            Path("between").rename(second)

    on_one(swap)


class Rows(nn.Module):
    """The doors' model as the Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": functional.cross_entropy(self.net(x), y)}


def trainer_of_digits() -> list[float]:
    from sklearn.datasets import load_digits
    from transformers import Trainer, TrainingArguments

    from taugrad.compressors.integrations.transformers import TaugradCallback

    images, labels = load_digits(return_X_y=True)
    rows = [
        {"x": torch.tensor(image / 16).float(), "y": torch.tensor(label)}
        for image, label in zip(images[:1536], labels[:1536], strict=True)
    ]
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir="digits",
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=32,
        train_sampling_strategy="sequential",
        optim="sgd",
        learning_rate=0.1,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        save_strategy="no",
    )
    trainer = Trainer(Rows(), arguments, train_dataset=rows)
    trainer.add_callback(TaugradCallback(trainer, SPARSE))
    return losses(trainer.train)


def through_the_trainer() -> dict[str, Any]:
    """The page's script, without a hook, with all sent, as it is, resumed, and with others' files."""
    names = script("transformers.md")
    found: dict[str, Any] = {"digits": trainer_of_digits()}
    names["METHOD"] = EVERYTHING
    found["everything"] = losses(lambda: names["main"](resume=False))
    callback = names["TaugradCallback"]
    names["TaugradCallback"] = lambda *_: __import__("transformers").TrainerCallback()
    found["dense"] = losses(lambda: names["main"](resume=False))
    names |= {"TaugradCallback": callback, "METHOD": "linear(8)"}
    fresh()
    found["whole"] = losses(lambda: found.update(log=names["main"](resume=False).state.log_history))
    on_one(lambda: shutil.rmtree("checkpoint/checkpoint-24"))
    kept("save")
    found["resumed"] = losses(lambda: names["main"](resume=True))
    kept("restore")
    swap_files()
    return found | {"refused": refused(lambda: names["main"](resume=True))}


def without_files() -> dict[str, Any]:
    """A checkpoint of torchrun's script that has no residuals."""
    names = script("torchrun.md")
    names |= {"METHOD": SPARSE, "EPOCHS": 2}
    kept("restore")
    on_one(lambda: [each.unlink() for each in Path("checkpoint").glob("*-rank*.pt")])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = losses(lambda: names["main"](resume=True))
    return {
        "losses": found,
        "warned": [str(each.message) for each in warned if "residuals" in str(each.message)],
    }


def main(folder: str) -> None:
    os.chdir(folder)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    dist.init_process_group = dist.destroy_process_group = lambda *_, **__: None  # one for all scripts
    rank = dist.get_rank()
    found: dict[str, Any] = {}
    for order in ("in turns", "shuffled", "by batches"):
        found[order] = {
            name: losses(functools.partial(plainly, method, rank, order))
            for name, method in (("dense", None), ("sparse", SPARSE))
        }
    for name, where in DOORS.items():
        found[name] = at_the_door(*where)
        if name == "torchrun":
            found["without files"] = without_files()
    found["transformers"] = through_the_trainer()
    found["local steps"] = local_steps_with_accelerate(rank)
    Path(f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1])
