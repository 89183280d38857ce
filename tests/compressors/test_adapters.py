"""Adapters in one process: what they refuse, log and know; two processes train in ddp_adapters.py."""

import csv
import gc
import json
import shutil
import warnings
from typing import Any
from weakref import ref

import pytest
import torch
from cases import in_turn
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from taugrad.compressors import PatchReader, compress_gradients
from taugrad.compressors.integrations.metrics import ledger_metrics
from taugrad.compressors.integrations.rank_files import load_rank, new_checkpoint_id, save_rank
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


@in_turn("damage", [lambda file: file[:500], lambda file: file[:-9], lambda _: b"", lambda _: b"text"])
def test_a_damaged_file_is_named(alone, tmp_path, damage):
    state = trained()
    save_rank(state, tmp_path)
    path = tmp_path / "taugrad-rank0.pt"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"^{path} is damaged, or was not written by save_rank"):
        load_rank(state, tmp_path)


def test_a_file_of_another_checkpoint_is_refused(alone, tmp_path):
    state = trained()
    first, second = new_checkpoint_id(), new_checkpoint_id()
    assert first != second
    save_rank(state, tmp_path, checkpoint=first)
    for fits in (first, None):
        load_rank(state, tmp_path, checkpoint=fits)
    with pytest.raises(ValueError, match=r"taugrad-rank0.pt belongs to another checkpoint"):
        load_rank(state, tmp_path, checkpoint=second)


def test_files_of_another_number_of_workers_are_resharded_where_asked(alone, tmp_path):
    state = trained()
    residual = state.feedback.residuals["weight"].clone()
    for rank in range(2):
        kept = {**state.state_dict(), "rank": rank, "workers": 2, "checkpoint": None}
        kept["residuals"] = {name: (rank + 1) * residual for name, residual in kept["residuals"].items()}
        torch.save(kept, tmp_path / f"taugrad-rank{rank}.pt")
    with pytest.raises(ValueError, match=r"rank 0 of 2 workers, this is rank 0 of 1: .*reshard=True"):
        load_rank(state, tmp_path)
    load_rank(state, tmp_path, reshard=True)
    torch.testing.assert_close(state.feedback.residuals["weight"], 1.5 * residual)
    save_rank(state, tmp_path)  # rank 1's file stays behind
    load_rank(state, tmp_path, reshard=True)
    (tmp_path / "taugrad-rank0.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"no taugrad-rank0.pt: .*reshard=True"):
        load_rank(state, tmp_path)


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


def test_the_trainer_publishes_weights_that_a_server_can_load(tmp_path):
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from taugrad.compressors.integrations.transformers import PublishCallback

    size = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**size, num_attention_heads=2))
    tokens = torch.arange(10)
    place, output = tmp_path / "weights", str(tmp_path / "output")
    arguments = TrainingArguments(
        output_dir=output, use_cpu=True, max_steps=5, report_to=[], save_strategy="no"
    )
    trainer = Trainer(model, arguments, train_dataset=[{"input_ids": tokens, "labels": tokens}] * 8)
    callback = PublishCallback(place, every=2, full_every=2)
    callback.on_train_begin(arguments, trainer.state, trainer.control, model=model)  # training that raises
    trainer.add_callback(callback)
    trainer.train()
    due = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
    mine = {name: torch.zeros_like(tensor) for name, tensor in due.items()}
    assert PatchReader(place).update(mine) == 2  # after steps 2, 4 and 5
    assert all(mine[name].equal(tensor) for name, tensor in due.items())
    files = set(json.loads((place / "model.safetensors.index.json").read_text())["weight_map"].values())
    (file,) = files
    assert all(load_file(place / file)[name].equal(tensor) for name, tensor in due.items())
    assert LlamaForCausalLM.from_pretrained(place).lm_head.weight.equal(due["lm_head.weight"].float())
    with pytest.raises(ValueError, match="every must be a whole number of at least 1, not 0"):
        PublishCallback(place, every=0)


def test_the_scaler_of_a_library_is_that_of_the_compressor(alone, monkeypatch, tmp_path):
    from accelerate import Accelerator
    from lightning.pytorch.plugins import MixedPrecision

    from taugrad.compressors.integrations.accelerate import compress_prepared
    from taugrad.compressors.integrations.lightning import TaugradStrategy

    accelerator = Accelerator(cpu=True)
    monkeypatch.setattr(accelerator, "scaler", torch.amp.GradScaler("cpu"))
    state = compress_prepared(accelerator, DistributedDataParallel(nn.Linear(8, 4)), "bgt(0.1)")
    assert state._scaler is accelerator.scaler

    precision, strategy = (
        MixedPrecision("16-mixed", "cpu"),
        TaugradStrategy("bgt(1e-9)", compress={"threads": 1}),
    )
    fit(strategy, lightning_module(), tmp_path, epochs=1, plugins=[precision])
    assert strategy.compression._scaler is precision.scaler
    assert strategy.compression.totals.steps == 4


def test_accelerate_saves_compiled_models_and_forgets_those_that_are_freed(alone, tmp_path):
    from accelerate import Accelerator

    from taugrad.compressors.integrations.accelerate import compress_prepared

    accelerator = Accelerator(cpu=True)
    freed = []
    for attempt in ("first", "second", "listed plain"):  # as `find_executable_batch_size` tries
        accelerator.free_memory()
        gc.collect()
        assert [reference() for reference in freed] == [None] * len(freed)
        ddp = DistributedDataParallel(nn.Linear(8, 4))
        compiled = torch.compile(ddp, backend="eager")
        # What `prepare` does, with more processes; on CPUs it lists the model as it was.
        accelerator._models.append(ddp.module if attempt == "listed plain" else compiled)
        state = compress_prepared(accelerator, compiled, "bgt(0.1)")
        compiled(torch.ones(2, 8)).sum().backward()
        accelerator.save_state(str(tmp_path / attempt))
        kept = state.feedback.residuals["weight"].clone()
        state.feedback.residuals["weight"].zero_()
        accelerator.load_state(str(tmp_path / attempt))
        assert torch.equal(state.feedback.residuals["weight"], kept)
        assert compiled._orig_mod is ddp
        assert [path.name for path in (tmp_path / attempt).glob("taugrad*")] == ["taugrad-rank0.pt"]
        freed.append(ref(ddp))
        del state, ddp, compiled


def lightning_module(two_optimizers=False):
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = not two_optimizers
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

        def training_step(self, batch, _):
            loss = self.second(self.first(batch)).float().square().mean()
            if two_optimizers:
                for optimizer in self.optimizers():
                    optimizer.zero_grad()
                    self.manual_backward(self.second(self.first(batch)).square().mean())
                    optimizer.step()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            if not two_optimizers:
                return torch.optim.SGD(self.parameters(), lr=0.1)
            return [torch.optim.SGD(module.parameters(), lr=0.1) for module in (self.first, self.second)]

    return Module()


def fit(strategy, module, folder, *, epochs, logger=False, callbacks=(), ckpt_path=None, plugins=()):
    import lightning.pytorch as pl

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=strategy,
        max_epochs=epochs,
        log_every_n_steps=2,
        logger=logger,
        callbacks=list(callbacks),
        plugins=list(plugins),
        default_root_dir=folder,
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
    )
    trainer.fit(module, DataLoader(torch.ones(16, 8), batch_size=4), ckpt_path=ckpt_path)
    return trainer


def test_lightnings_links_lead_to_residuals_and_without_them_it_warns(alone, tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    from taugrad.compressors.integrations.lightning import TaugradStrategy

    def trained_by(strategy, **options):
        saving = ModelCheckpoint(tmp_path, save_last="link")
        return fit(strategy, lightning_module(), tmp_path, callbacks=[saving], **options)

    last, method = tmp_path / "last.ckpt", "bgt(0.01)"
    trained_by(TaugradStrategy(method), epochs=1)
    assert last.is_symlink()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*no residuals")
        trainer = trained_by(TaugradStrategy(method), epochs=2, ckpt_path=last)
    assert trainer.strategy.compression.totals.steps == 8
    copied = shutil.copy(last, tmp_path / "copied.ckpt")
    plain = trained_by("ddp", epochs=1).checkpoint_callback.best_model_path
    shutil.copytree(f"{last.resolve()}.taugrad", f"{plain}.taugrad", dirs_exist_ok=True)  # of another one
    for path in (copied, plain):
        with pytest.warns(UserWarning, match=r"ckpt has no residuals: they begin at zero"):
            trainer = trained_by(TaugradStrategy(method), epochs=3, ckpt_path=path)
        assert trainer.strategy.compression.totals.steps < trainer.global_step


@in_turn("two_optimizers", [False, True])
def test_what_was_sent_is_in_the_rows_in_which_lightning_logs(alone, tmp_path, two_optimizers):
    from lightning.pytorch.loggers import CSVLogger

    from taugrad.compressors.integrations.lightning import TaugradCallback, TaugradStrategy

    logger = CSVLogger(tmp_path)
    options = {"epochs": 2, "logger": logger, "callbacks": [TaugradCallback()]}
    fit(TaugradStrategy("bgt(0.01)"), lightning_module(two_optimizers), tmp_path, **options)
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = list(csv.DictReader(file))
    logged = {key: [int(row["step"]) for row in rows if row[key]] for key in ("loss", "comm/elements")}
    assert logged == {"loss": [1, 3, 5, 7], "comm/elements": [1, 3, 5, 7]}


def test_one_call_logs_to_mlflow(alone, tmp_path, new_store):
    import mlflow

    from taugrad.compressors.integrations.metrics import log_to_mlflow

    mlflow.set_tracking_uri(new_store(tmp_path))
    with mlflow.start_run() as run:
        log_to_mlflow(trained())
    logged = mlflow.get_run(run.info.run_id).data.metrics
    assert logged["comm/elements"] > 0
    assert mlflow.MlflowClient().get_metric_history(run.info.run_id, "comm/elements")[0].step == 1
    mlflow.set_tracking_uri(None)
