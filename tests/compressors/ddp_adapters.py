"""Libraries as the pages of docs/how-to say, beside the same training on torch alone; see ddp.py.

All scripts train the same model with the same data, so that the losses of each step are compared. Libraries
share the examples out in three ways: in turns (torch's DistributedSampler), the same in another order each
epoch (Lightning), or a batch for each rank (Accelerate).
"""

import csv
import functools
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp import everyone, refusal, scenario
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "docs" / "site"))
import fences  # noqa: E402

from taugrad.compressors import LocalSteps, compress_gradients  # noqa: E402

EVERYTHING = "wgt(2e-38) | packed32"
SPARSE = "strom(density(0.01), momentum=0.9) | golomb_rice"
SCRIPTS: dict[str, tuple[str, str, str, list[list[int]]]] = {
    "torchrun": ("torchrun.md", "train.py", "in turns", []),
    "lightning": ("lightning.md", "train.py", "shuffled", [[9, 19], [9, 19], [29, 39]]),
    "fabric": ("lightning.md", "fabric_train.py", "in turns", [[24], [24], [48]]),
    "accelerate": ("accelerate.md", "train.py", "by batches", []),
}
"""The page and its script; how examples are shared out; the steps of which its logger's tables tell."""
EPOCH = 24
"""Steps."""
LAUNCHED = {
    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
    **{"TORCHELASTIC_RUN_ID": "adapters", "GROUP_RANK": "0", "HF_HUB_OFFLINE": "1"},
}
"""What torchrun sets; nobody asks at this port, as there is a process group."""
cross_entropy = functional.cross_entropy


def script(page: str, file: str = "train.py") -> dict[str, Any]:
    """What a page's script defines."""
    (block,) = [block for block in fences.blocks(f"docs/how-to/{page}") if block.file == file]
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(block.text, block.where, "exec"), names)
    return names


@contextmanager
def recorded(calls: Callable[[float], Any]) -> Iterator[None]:
    """Gives every loss that is computed to `calls`."""

    @functools.wraps(cross_entropy)
    def recording(*args: Any, **options: Any) -> Tensor:
        loss = cross_entropy(*args, **options)
        calls(loss.item())
        return loss

    functional.cross_entropy = recording
    try:
        yield
    finally:
        functional.cross_entropy = cross_entropy


def losses(run: Callable[..., Any], *given: Any, **more: Any) -> list[float]:
    results: list[float] = []
    with recorded(results.append):
        run(*given, **more)
    return results


# The training of all scripts, on torch alone.


def digits() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16).float(), torch.tensor(labels)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rank: int,
    order: str,
    after: Callable[[], Any] = lambda: None,
) -> None:
    """Two epochs of a rank's batches."""
    images, labels = digits()
    for epoch in range(2):
        sampler = DistributedSampler(range(1536), 2, rank, shuffle=order == "shuffled")
        sampler.set_epoch(epoch)
        by_batches = torch.arange(1536).split(32)[rank::2]
        for batch in by_batches if order == "by batches" else torch.tensor([*sampler]).split(32):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            after()


def plainly(method: str | None, rank: int, order: str) -> None:
    """None: DDP without a hook."""
    model = DistributedDataParallel(network())
    if method is not None:
        compress_gradients(model, method)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), rank, order)


def local_steps_plainly(rank: int, order: str) -> None:
    net = network()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    local = LocalSteps(
        net, optimizer, every=4, method="strom(density(0.1, every=1)) | golomb_rice", unsent="1/n"
    )
    train(net, optimizer, rank, order, local.step)


# Checkpoints' files.


@contextmanager
def launched() -> Iterator[None]:
    """As torchrun starts a script, in an empty folder, but with one process group for all scripts."""
    rank = str(dist.get_rank())
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(everyone(folder)[0])
        for name, value in {**LAUNCHED, "RANK": rank, "LOCAL_RANK": rank}.items():
            patch.setenv(name, value)
        for call in ("init_process_group", "destroy_process_group"):
            patch.setattr(dist, call, lambda *_, **__: None)
        on_one(Path("checkpoint").mkdir)
        yield
        dist.barrier()


def on_one(action: Callable[..., Any], *given: Any) -> None:
    """Rank 0 does it; both wait."""
    dist.barrier()
    if dist.get_rank() == 0:
        action(*given)
    dist.barrier()


def copy(source: str, target: str) -> None:
    """Replaces a folder."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)


def assert_others_are_refused(run: Callable[..., Any]) -> None:
    """Fails unless a run does not resume from the file of the other rank."""

    def swap() -> None:
        for first in [*Path("checkpoint").rglob("*-rank0.pt")]:
            second = first.with_name(first.name.replace("rank0", "rank1"))
            first.rename("between")
            second.rename(first)
            Path("between").rename(second)

    on_one(swap)
    rank = dist.get_rank()
    words = f"ValueError: the state of rank {1 - rank} of 2 workers, this is rank {rank} of 2"
    assert refusal(functools.partial(run, resume=True)).startswith(words)


def logged_steps() -> list[list[int]]:
    """Of which the tables tell what was sent, by run."""
    tables = [list(csv.DictReader(path.open())) for path in Path("logs").rglob("metrics.csv")]
    return sorted(
        [int(row["step"]) for row in rows if float(row["comm/wire_bytes"] or 0) > 0] for rows in tables
    )


@scenario(2, values=SCRIPTS)
def a_pages_script_has_the_losses_of_the_plain_loop(name: str) -> None:
    """With all sent, those of DDP alone; a sparse method is cut after an epoch, and resumed."""
    (page, file, order, logged), rank = SCRIPTS[name], dist.get_rank()
    dense, sparse = (losses(plainly, method, rank, order) for method in (None, SPARSE))
    assert dense[-1] < 0.8 * dense[0]
    assert sparse[1:] != dense[1:]
    names = script(page, file)
    with launched():
        names |= {"METHOD": EVERYTHING, "EPOCHS": 1}
        assert losses(names["main"], resume=False) == pytest.approx(dense[:EPOCH], abs=1e-6)
        names["METHOD"] = SPARSE
        on_one(shutil.rmtree, "checkpoint")
        on_one(Path("checkpoint").mkdir)
        cut = losses(names["main"], resume=False)
        names["EPOCHS"] = 2
        on_one(copy, "checkpoint", "copy")
        cut += losses(names["main"], resume=True)
        assert cut == sparse
        if rank == 0:
            assert logged_steps() == logged
        if name == "torchrun":
            on_one(copy, "copy", "checkpoint")
            assert_missing_residuals_are_missed(names["main"], sparse)
        on_one(copy, "copy", "checkpoint")
        assert_others_are_refused(names["main"])


def assert_missing_residuals_are_missed(run: Callable[..., Any], whole: list[float]) -> None:
    """A checkpoint that has none is of a training without compression."""
    on_one(lambda: [path.unlink() for path in Path("checkpoint").glob("*-rank*.pt")])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result = losses(run, resume=True)
    said = [str(warning.message) for warning in warned if "residuals" in str(warning.message)]
    assert said == ["checkpoint has no residuals: they begin at zero"]
    assert result[0] == whole[EPOCH]  # the weights are those of the checkpoint
    assert result[1] != whole[EPOCH + 1]


class Rows(nn.Module):
    """The scripts' model as the Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"loss": functional.cross_entropy(self.net(x), y)}


@scenario(2)
def the_trainer_has_the_losses_of_the_plain_loop() -> None:
    from transformers import Trainer, TrainingArguments

    from taugrad.compressors.integrations.transformers import TaugradCallback

    sparse = losses(plainly, SPARSE, dist.get_rank(), "by batches")
    rows = [{"x": x, "y": y} for x, y in zip(*digits(), strict=True)][:1536]
    with launched():
        arguments = TrainingArguments(
            output_dir="digits",
            use_cpu=True,
            per_device_train_batch_size=32,
            train_sampling_strategy="sequential",
            optim="sgd",
            learning_rate=0.1,
            lr_scheduler_type="constant",
            max_grad_norm=0,
            num_train_epochs=2,
            save_strategy="no",
        )
        trainer = Trainer(Rows(), arguments, train_dataset=rows)
        trainer.add_callback(TaugradCallback(trainer, SPARSE))
        assert losses(trainer.train) == sparse


@scenario(2)
def the_trainers_page_with_all_sent_is_dense_and_resumed_is_whole() -> None:
    with launched():
        from transformers import TrainerCallback

        names = script("transformers.md")
        callback, run = names["TaugradCallback"], names["main"]
        names["METHOD"] = EVERYTHING
        everything = losses(run, resume=False)
        names["TaugradCallback"] = lambda *_: TrainerCallback()
        dense = losses(run, resume=False)
        assert everything == pytest.approx(dense, abs=1e-5)
        names |= {"TaugradCallback": callback, "METHOD": "linear(8)"}
        on_one(shutil.rmtree, "checkpoint")
        trainers: list[Any] = []
        whole = losses(lambda: trainers.append(run(resume=False)))
        assert whole != dense
        on_one(shutil.rmtree, "checkpoint/checkpoint-24")
        on_one(copy, "checkpoint", "copy")
        resumed = losses(run, resume=True)
        assert 0 < len(resumed) < len(whole)
        assert resumed == whole[-len(resumed) :]
        on_one(copy, "copy", "checkpoint")
        assert_others_are_refused(run)
        if dist.get_rank() == 0:
            logged = [row for row in trainers[0].state.log_history if "comm/wire_bytes" in row]
            assert [row["step"] for row in logged] == [4, 8, 12, 16, 20, 24]
            assert all(0 < row["comm/bits_per_param"] < 9 for row in logged)


@scenario(2)
def local_steps_with_accelerate_cut_and_resumed_are_the_plain_loops() -> None:
    plain = losses(local_steps_plainly, dist.get_rank(), "by batches")
    first, second = everyone(plain)
    assert first != second
    names = script("accelerate.md", "local_train.py")
    with launched():
        names["EPOCHS"] = 1
        cut = losses(names["main"], resume=False)
        names["EPOCHS"] = 2
        assert cut + losses(names["main"], resume=True) == plain
    assert len(plain) == 2 * EPOCH
