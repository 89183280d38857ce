"""Lightning, Fabric, Accelerate, Transformers, torchrun as their pages say: two processes, real libraries."""

import csv
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import compress_gradients
from taugrad.compressors.integrations.metrics import ledger_metrics
from taugrad.compressors.integrations.rank_files import load_rank, save_rank
from taugrad.platform.tracking import names

SCRIPT = Path(__file__).with_name("adapter_process.py")
DOORS = {
    "torchrun": "in turns",
    "lightning": "shuffled",
    "fabric": "in turns",
    "accelerate": "by batches",
}
"""How each shares the examples out."""
EPOCH = 24
"""Steps."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both processes have been."""
    folder = tmp_path_factory.mktemp("adapters")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    common |= {
        "TORCHELASTIC_RUN_ID": "adapters",
        "GROUP_RANK": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder)],
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=400)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], said[0][-3000:] + said[1][-3000:]
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """By rank, what came of each door."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("door", DOORS)
def test_a_method_that_sends_everything_has_the_losses_of_ddp_alone(found, door):
    for rank in found:
        dense = rank[DOORS[door]]["dense"]
        assert dense[-1] < 0.8 * dense[0]
        assert rank[door]["everything"] == pytest.approx(dense[:EPOCH], abs=1e-6)


@pytest.mark.parametrize("door", DOORS)
def test_a_sparse_method_cut_and_resumed_has_the_losses_of_the_plain_loop(found, door):
    for rank in found:
        sparse = rank[DOORS[door]]["sparse"]
        assert sparse[1:] != rank[DOORS[door]]["dense"][1:]
        assert rank[door]["cut"] == sparse


def test_local_steps_with_accelerate_cut_and_resumed_are_the_plain_loops(found):
    for rank in found:
        assert len(rank["local steps"]["plain"]) == 2 * EPOCH
        assert rank["local steps"]["cut"] == rank["local steps"]["plain"]
    assert found[0]["local steps"]["plain"] != found[1]["local steps"]["plain"]


def test_the_trainer_has_the_losses_of_the_plain_loop(found):
    for rank in found:
        assert rank["transformers"]["digits"] == rank["by batches"]["sparse"]


def test_the_trainers_page_with_all_sent_is_dense_and_resumed_is_whole(found):
    for each in (rank["transformers"] for rank in found):
        assert each["everything"] == pytest.approx(each["dense"], abs=1e-5)
        assert each["whole"] != each["dense"]
        assert each["resumed"] == each["whole"][-len(each["resumed"]) :]
        assert 0 < len(each["resumed"]) < len(each["whole"])


def test_residuals_of_another_rank_are_refused_and_missing_ones_are_missed(found):
    for number, rank in enumerate(found):
        said = f"the state of rank {1 - number} of 2 workers, this is rank {number} of 2"
        for door in (*DOORS, "transformers"):
            assert rank[door]["refused"].startswith(said), door
        without = rank["without files"]
        assert without["warned"] == ["checkpoint has no residuals: they begin at zero"]
        whole = rank["in turns"]["sparse"]
        assert without["losses"][0] == whole[EPOCH]  # the weights are those of the checkpoint
        assert without["losses"][1] != whole[EPOCH + 1]


def test_what_was_sent_is_in_the_logs(found, folder):
    logged = [each for each in found[0]["transformers"]["log"] if "comm/wire_bytes" in each]
    assert [each["step"] for each in logged] == [4, 8, 12, 16, 20, 24]
    assert all(0 < each["comm/bits_per_param"] < 9 for each in logged)
    tables = [list(csv.DictReader(each.open())) for each in sorted(folder.glob("logs/**/metrics.csv"))]
    assert len(tables) == 6  # three runs through Lightning, three through Fabric
    sent = [[row for row in rows if float(row["comm/wire_bytes"] or 0) > 0] for rows in tables]
    steps = [[int(row["step"]) for row in rows] for rows in sent]
    assert sorted(steps) == [[9, 19], [9, 19], [24], [24], [29, 39], [48]]


@pytest.fixture
def alone(tmp_path):
    """A process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield tmp_path
    dist.destroy_process_group()


def trained() -> Any:
    ddp = DistributedDataParallel(nn.Linear(8, 4))
    state = compress_gradients(ddp, "bgt(0.1)")
    ddp(torch.ones(2, 8)).sum().backward()
    return state


def test_metrics_have_the_names_of_the_contract(alone):
    metrics = ledger_metrics(trained())
    assert metrics.keys() <= {value for name, value in vars(names).items() if name.startswith("COMM_")}
    assert metrics["comm/elements"] > 0


def test_files_that_are_not_there_are_named(alone):
    state = trained()
    with pytest.raises(FileNotFoundError, match=r"nowhere: there is no such folder"):
        load_rank(state, alone / "nowhere")
    save_rank(state, alone / "saved", name="first")
    with pytest.warns(UserWarning, match=r"saved has no residuals"):
        load_rank(state, alone / "saved")
    (alone / "saved" / "first-rank0.pt").rename(alone / "saved" / "first-rank3.pt")
    with pytest.raises(FileNotFoundError, match=r"saved has residuals of other ranks, and no first-rank0.pt"):
        load_rank(state, alone / "saved", name="first")


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


def test_one_call_logs_to_mlflow(alone):
    import mlflow

    from taugrad.compressors.integrations.mlflow import log_to_mlflow

    mlflow.set_tracking_uri(f"sqlite:///{alone}/mlflow.db")
    with mlflow.start_run() as run:
        log_to_mlflow(trained())
    logged = mlflow.get_run(run.info.run_id).data.metrics
    assert logged["comm/elements"] > 0
    assert mlflow.MlflowClient().get_metric_history(run.info.run_id, "comm/elements")[0].step == 1
    mlflow.set_tracking_uri(None)
