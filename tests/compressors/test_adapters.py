"""Adapters in one process: what they refuse, log and know; two processes train in ddp_adapters.py."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import compress_gradients
from taugrad.compressors.integrations.metrics import ledger_metrics
from taugrad.compressors.integrations.rank_files import load_rank, save_rank
from taugrad.platform.tracking import names


def trained() -> Any:
    ddp = DistributedDataParallel(nn.Linear(8, 4))
    state = compress_gradients(ddp, "bgt(0.1)")
    ddp(torch.ones(2, 8)).sum().backward()
    return state


def test_metrics_have_the_names_of_the_contract(alone):
    metrics = ledger_metrics(trained())
    assert metrics.keys() <= {value for name, value in vars(names).items() if name.startswith("COMM_")}
    assert metrics["comm/elements"] > 0


def test_files_that_are_not_there_are_named(alone, tmp_path):
    state = trained()
    with pytest.raises(FileNotFoundError, match=r"nowhere: there is no such folder"):
        load_rank(state, tmp_path / "nowhere")
    save_rank(state, tmp_path / "saved", name="first")
    with pytest.warns(UserWarning, match=r"saved has no residuals"):
        load_rank(state, tmp_path / "saved")
    (tmp_path / "saved" / "first-rank0.pt").rename(tmp_path / "saved" / "first-rank3.pt")
    with pytest.raises(FileNotFoundError, match=r"saved has residuals of other ranks, and no first-rank0.pt"):
        load_rank(state, tmp_path / "saved", name="first")


def test_without_ddp_libraries_say_so(tmp_path):
    """One process: Accelerate and the Trainer wrap nothing, and Lightning's callback needs the strategy."""
    import lightning.pytorch as pl
    from accelerate import Accelerator
    from transformers import Trainer, TrainingArguments

    from taugrad.compressors.integrations.accelerate import compress_prepared
    from taugrad.compressors.integrations.lightning import TaugradCallback as LightningCallback
    from taugrad.compressors.integrations.transformers import TaugradCallback

    accelerator = Accelerator(cpu=True)
    with pytest.raises(
        TypeError, match=r"ddp is of Linear: it must be, or hold, a model in torch.nn.parallel"
    ):
        compress_prepared(accelerator, accelerator.prepare(nn.Linear(8, 4)), "bgt(0.1)")
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, max_steps=1)
    trainer = Trainer(nn.Linear(8, 4), arguments, train_dataset=[{"input": torch.ones(8)}])
    trainer.add_callback(TaugradCallback(trainer, "bgt(0.1)"))
    with pytest.raises(TypeError, match="ddp is of Linear"):
        trainer.train()
    with pytest.raises(
        TypeError, match=r"strategy of SingleDeviceStrategy: must be TaugradStrategy\(METHOD\)"
    ):
        LightningCallback().on_train_batch_end(pl.Trainer(accelerator="cpu", devices=1, logger=False))


def test_the_scaler_of_a_library_is_that_of_the_compressor(alone, monkeypatch):
    import lightning.pytorch as pl
    from accelerate import Accelerator
    from lightning.pytorch.plugins import MixedPrecision

    from taugrad.compressors.integrations.accelerate import compress_prepared
    from taugrad.compressors.integrations.lightning import TaugradStrategy

    accelerator = Accelerator(cpu=True)
    monkeypatch.setattr(accelerator, "scaler", torch.amp.GradScaler("cpu"))
    state = compress_prepared(accelerator, DistributedDataParallel(nn.Linear(8, 4)), "bgt(0.1)")
    assert state._scaler is accelerator.scaler

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(8, 4)

        def training_step(self, batch, _):
            return self.net(batch).float().square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    precision = MixedPrecision("16-mixed", "cpu")
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=TaugradStrategy("bgt(1e-9)", compress={"threads": 1}),
        plugins=[precision],
        max_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(8, 8), batch_size=4))
    assert trainer.strategy.compression._scaler is precision.scaler
    assert trainer.strategy.compression.totals.steps == 2


def test_one_call_logs_to_mlflow(alone, tmp_path, new_store):
    import mlflow

    from taugrad.compressors.integrations.mlflow import log_to_mlflow

    mlflow.set_tracking_uri(new_store(tmp_path))
    with mlflow.start_run() as run:
        log_to_mlflow(trained())
    logged = mlflow.get_run(run.info.run_id).data.metrics
    assert logged["comm/elements"] > 0
    assert mlflow.MlflowClient().get_metric_history(run.info.run_id, "comm/elements")[0].step == 1
    mlflow.set_tracking_uri(None)
