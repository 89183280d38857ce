"""How people train - precision, accumulation, clipping, schedules - against a plain loop without taugrad."""

import math
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from plain import plain_loop, sgd, small
from recorder import trained, trainer_of
from torch import nn

from taugrad.compressors.observe import GradientStatistics
from taugrad.platform.data.batches import epoch_order
from taugrad.platform.replica.precision import LossScale
from taugrad.platform.replica.replica import Replica
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.islands import IslandGradients
from taugrad.platform.synchronization.weights import LocalTraining
from taugrad.platform.tasks.builtin import ClassificationTask

pytestmark = pytest.mark.usefixtures("alone")
EXAMPLES, BATCH, ITERATIONS = 200, 30, 17  # seven batches an epoch, the last of 20
BASE = small(EXAMPLES) | {"workers": {"count": 1}, "checkpoint": {"interval": 5}}
TRAINING: dict[str, Any] = {
    "iterations": ITERATIONS,
    "batch_size": BATCH,
    "optimizer": {"kind": "adamw", "lr": 0.01, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1},
    "schedule": {"kind": "cosine", "final": 0.2},
    "warmup": {"iterations": 4, "start": 0.25},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "accumulated": {"accumulate": 4},
    "clipped": {"clip": {"norm": 0.3}},
    "clipped, each worker's own": {"clip": {"norm": 0.3, "of": "worker"}},
    "sum of losses": {"loss_reduction": "sum", "accumulate": 2},
    "compiled": {"compile": True},
    "l1": {"l1": 0.02, "l1_exempt": ["*.bias"], "l1_schedule": {"kind": "step", "iterations": 6}},
    "by epochs": {"epochs": 2, "iterations": None, "batch_per_worker": 25},
}


def spec_of(**training: Any) -> RunSpec:
    return RunSpec.model_validate(BASE | {"training": TRAINING | training})


def penalize(model: nn.Module, factor: float) -> None:
    """Adds the gradient of factor times the sum of the weights' magnitudes, without biases."""
    weights = [weight for name, weight in model.named_parameters() if not name.endswith("bias")]
    torch.autograd.backward(
        factor * torch.stack([weight.abs().sum() for weight in weights]).sum(), inputs=weights
    )


def written_out(spec: RunSpec) -> tuple[nn.Module, list[float]]:
    """The same as a plain loop."""
    training = spec.training
    batch = 25 if training.batch_per_worker else BATCH
    a_epoch = math.ceil(EXAMPLES / batch)
    total = training.iterations or training.epochs * a_epoch
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(training.precision)

    def batches(*_):
        for done in range(total):
            order = epoch_order(EXAMPLES, spec.seed, done // a_epoch)
            rising = min(1.0, 0.25 + 0.75 * done / 4)
            fallen = 0.2 + 0.4 * (1 + math.cos(math.pi * max(0, done - 4) / (total - 4)))
            yield order[done % a_epoch * batch :][:batch], {"lr": 0.01 * rising * fallen}

    def forward(model, inputs):
        with torch.autocast("cpu", kind, enabled=kind is not None):
            return model(inputs).float()

    def before_step(model, examples):
        if training.loss_reduction == "sum":
            for parameter in model.parameters():
                parameter.grad *= examples
        if training.clip.norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip.norm)
        if training.l1:
            penalize(model, training.l1 * 0.1 ** (next(steps) // 6))

    steps = count()
    optimizer = partial(torch.optim.AdamW, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
    return plain_loop(spec, batches, optimizer, forward, before_step)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_a_run_is_a_plain_loop_with_these_options(options):
    spec = spec_of(**options)
    trainer, recorder = trained(spec)
    model, losses = written_out(spec)
    # fp16's plain loop has no scale, and loses small gradients; Adam makes much of them.
    rough = {"rtol": 0.02, "atol": 0.01} if options.get("precision") else {"rtol": 1e-4, "atol": 1e-5}
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], expected, **rough)
    np.testing.assert_allclose(recorder.losses, losses, rtol=0.01 if options.get("precision") else 1e-4)
    assert recorder.evaluations[-1][0] == len(losses) == trainer.done


@pytest.mark.parametrize(
    ("sync", "workers"),
    [({"mode": "weights", "every": 1}, 2), ({"mode": "hybrid", "scheme": "a"}, 2), ({"mode": "async"}, 1)],
    ids=["weights", "hybrid", "async"],
)
def test_l1_is_in_every_mode(sync, workers):
    training = {"iterations": 6, "batch_size": 32, "optimizer": sgd(0.05, decay=0.01)}
    spec = RunSpec.model_validate(
        small(96, 20, 16, **training, l1=0.03, l1_exempt=["*.bias"])
        | {"model": {"kind": "lenet"}, "workers": {"count": workers}}
        | {"sync": {"mode": "simulated", "of": sync}}
    )

    def batches(*_):
        for done in range(6):
            yield epoch_order(96, spec.seed, done // 3)[done % 3 * 32 :][:32], {}

    optimizer = partial(torch.optim.SGD, lr=0.05, weight_decay=0.01)
    model, _ = plain_loop(spec, batches, optimizer, before_step=lambda model, _: penalize(model, 0.03))
    trainer, _ = trained(spec)
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], expected, rtol=1e-4, atol=2e-5)


class Exploding(nn.Module):
    """A linear model whose gradients overflow fp16 unless the loss's scale is small."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.fc(8 * inputs.flatten(1))


@pytest.mark.parametrize("compressor", ["none", "wgt(0.001)"])
def test_a_step_that_overflows_in_fp16_sends_nothing_and_loses_nothing(compressor, monkeypatch):
    monkeypatch.setattr("taugrad.platform.replica.precision._FIRST", 2.0**24)
    monkeypatch.setattr("taugrad.platform.training.trainer.build", lambda config, shape: Exploding())
    options = TRAINING | {"precision": "fp16", "iterations": 20}
    trainer = trainer_of(BASE | {"training": options, "compressor": compressor})
    first = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    steps = []
    step = trainer.sync.replica.step

    def counted(position: Any) -> None:
        steps.append(position.done)
        step(position)

    trainer.sync.replica.step = counted
    trainer.fit()
    skipped = int(trainer.totals()["total/skipped_steps"])
    assert 1 <= skipped < 15
    assert len(steps) == 20 - skipped
    assert 0 not in steps, "the first step overflows"
    assert trainer.sync.replica.scale.factor == 2.0 ** (24 - skipped)
    assert all(torch.isfinite(parameter).all() for parameter in trainer.model.parameters())
    assert not torch.equal(trainer.model.state_dict()["fc.weight"], first["fc.weight"])
    if compressor != "none":
        sent = {
            number - 1: metrics["comm/elements"]
            for number, metrics in trainer.listener.logged
            if "comm/elements" in metrics
        }
        assert [done for done, elements in sent.items() if elements] == steps


def test_every_workers_own_step_that_overflows_is_counted(monkeypatch):
    monkeypatch.setattr("taugrad.platform.replica.precision._FIRST", 2.0**24)
    monkeypatch.setattr("taugrad.platform.training.trainer.build", lambda config, shape: Exploding())
    options = TRAINING | {"precision": "fp16", "iterations": 20}
    for fields in {"every": 4}, {"every": 4, "quorum": 0.6}:
        sync = {"mode": "simulated", "of": {"mode": "weights", **fields}}
        trainer, _ = trained(BASE | {"training": options, "sync": sync, "workers": {"count": 3}})
        factors = [worker._replica.scale.factor for worker in trainer.sync.by_rank]
        skipped = sum(24 - math.log2(factor) for factor in factors)
        assert trainer.totals()["total/skipped_steps"] == skipped >= 3


def test_a_run_stops_where_its_metric_is_good_enough(tmp_path):
    spec = spec_of(iterations=200, evaluate_every=5, until={"accuracy": 0.9})
    trainer, recorder = trained(spec, tmp_path)
    results = [metrics["eval/accuracy"] for _, metrics in recorder.evaluations]
    assert results[-1] >= 0.9 > max(results[:-1])
    assert trainer.totals()["total/iterations_to_target"] == trainer.done == 5 * len(results) < 200
    assert (tmp_path / str(trainer.done)).is_dir()


def test_a_parameter_without_a_gradient_is_recorded_as_zeros():
    """Not as its weights, which a worker that takes local steps has there."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    replica = Replica(model, ClassificationTask(), RunSpec().training, workers=1)
    model[1].weight.grad = torch.full((2, 3), 0.5)
    result = replica.statistics()
    assert result["1.weight"] == GradientStatistics(0.5, 0.5, 0.5, 0.5, rms=0.5, zeros=0.0)
    assert result["0.weight"] == GradientStatistics(0, 0, 0, 0, rms=0.0, zeros=1.0)


def test_local_steps_look_for_overflows_also_where_the_scale_is_one_on_its_way():
    scale = LossScale("fp16")
    while scale.factor > 1:
        scale.overflowed()
    steps = []
    replica = SimpleNamespace(scale=scale, nonfinite=lambda: "w", step=steps.append)
    note: dict[str, int] = {}
    worker = SimpleNamespace(_replica=replica, rank=0, ledger=SimpleNamespace(note=lambda: note))
    LocalTraining._step_alone(worker, SimpleNamespace(position=0))  # type: ignore[arg-type]
    assert not steps
    assert note == {"skipped": 1}
    assert scale.factor == 0.5


@pytest.mark.usefixtures("alone")
def test_a_scale_falls_in_islands_also_where_steps_are_skipped():
    scale, model = LossScale("fp16"), nn.Linear(1, 1)
    step = SimpleNamespace(skipped=True, nonfinite=[("w", 0)])
    island = SimpleNamespace(
        state=SimpleNamespace(statistics={}), _factor=1.0, model=model, _transport=torch.device("cpu"),
        replica=SimpleNamespace(scale=scale, model=model, backward=lambda *_, **__: 0.0),
        _held_back=None, _parts=lambda _: 1, _of_all_shards=lambda _: step, _refuses=False,
        ledger=SimpleNamespace(begin=lambda _: SimpleNamespace()),
    )  # fmt: skip
    before = scale.factor
    IslandGradients.iterate(island, [None], SimpleNamespace(observe=False))  # type: ignore[arg-type, list-item]
    assert scale.factor == before / 2
