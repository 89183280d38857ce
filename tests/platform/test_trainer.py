"""The trainer against single-process SGD that is written out, with batches that grow, too."""

import itertools
import math
from functools import partial
from pathlib import Path

import numba
import numpy as np
import pytest
import recorder
import torch
from bits import same
from group import run_group
from plain import plain_loop, sgd, small

from taugrad.platform.data.batches import epoch_order
from taugrad.platform.data.examples import Tensors
from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.builtin import ClassificationTask
from taugrad.platform.training import trainer as trainers
from taugrad.platform.training.evaluation import evaluate
from taugrad.platform.training.manifest import CheckpointError
from taugrad.platform.training.trainer import Trainer

EXAMPLES, TESTS, WORKERS = 250, 101, 3
SPEC = small(EXAMPLES, TESTS, epochs=1, batch_size=30)
EPOCHS, FIRST, MOST, RATE, DECAY, WARMUP = 5, 10, 60, 0.02, 5e-3, 20
GROWN = small(
    EXAMPLES,
    TESTS,
    epochs=EPOCHS,
    batch_size=FIRST,
    batch_growth={"kind": "adabatch", "most": MOST},
    optimizer=sgd(RATE, 0.9, DECAY),
    schedule={"kind": "halving", "epochs": 2},
    warmup={"iterations": WARMUP},
    scaling={"kind": "sqrt"},
)
RESUMED = GROWN | {
    "training": GROWN["training"]
    | {"optimizer": {"kind": "lamb", "lr": 0.05, "weight_decay": 0.01}, "warmup": {"epochs": 1}},
    "compressor": "bgt(0.02)",
    "checkpoint": {"interval": 1},
}


def work(rank: int, workers: int, folder: Path) -> dict[str, dict]:
    """In each worker: batches that grow; the same resumed in an epoch."""
    results = {
        "grown": _outcome(*recorder.trained(GROWN)),
        "whole": _outcome(*recorder.trained(RESUMED, folder)),
    }
    saved = recorder.saved_in(folder / str(results["whole"]["evaluations"][-2][0] + 1), rank)
    results["resumed"] = _outcome(*recorder.trained(RESUMED, folder / "resumed", saved))
    return results | {"evaluation": evaluation(rank, workers)}


def _outcome(trainer: Trainer, heard: recorder.Recorder) -> dict:
    kept = {name: getattr(heard, name) for name in ("logged", "losses", "evaluations", "checkpoints")}
    return kept | {"weights": trainer.model.state_dict(), "own": trainer.sync.worker_state()}


def evaluation(rank: int, workers: int) -> dict:
    """What the workers make of a net with random weights, and what it needs to do the same elsewhere."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 10))
    inputs, labels = 3 * torch.randn(1903, 20), torch.randint(10, (1903,))
    examples, device = Tensors(inputs, labels), torch.device("cpu")
    result = evaluate(model, ClassificationTask(), examples, rank, workers, device)
    return {
        "accuracy": result["accuracy"],
        "loss": result["loss"],
        "training": model.training,
        "weights": dict(model.state_dict()),
        "inputs": inputs,
        "labels": labels,
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """By rank."""
    return run_group("test_trainer", "work", WORKERS, tmp_path_factory.mktemp("workers"))


def test_no_bit_of_an_evaluation_depends_on_the_number_of_workers(results, alone):
    result = [evaluation(0, 1), *(result["evaluation"] for result in results)]
    assert len({(row["accuracy"], row["loss"]) for row in result}) == 1
    assert all(row["training"] for row in result)


def test_an_evaluation_is_that_of_the_formula_in_float64(results):
    result = results[1]["evaluation"]
    w1, b1, w2, b2 = (tensor.double().numpy() for tensor in result["weights"].values())
    scores = np.tanh(result["inputs"].double().numpy() @ w1.T + b1) @ w2.T + b2
    truth = result["labels"].numpy()
    losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(truth)), truth]
    assert result["loss"] == pytest.approx(losses.mean(), rel=1e-6)
    assert result["accuracy"] == (scores.argmax(1) == truth).mean()


# Batches and rates that change.


@pytest.fixture(scope="module")
def plain_grown():
    """AdaBatch, sqrt(k) and the decay of k steps, halving and warm-up, in one process."""
    spec, sizes, ends, errors = RunSpec.model_validate(GROWN), [], [], []

    def wrong(model, data) -> int:
        with torch.no_grad():
            return int((model(data.test_inputs).argmax(1) != data.test_labels).sum())

    def batches(model, data):
        untrained, present, done = wrong(model, data), wrong(model, data), 0
        for epoch in range(EPOCHS):
            size = min(MOST, FIRST * 2 ** max(0, untrained // present - 1)) if present else MOST
            k = size / FIRST
            order = epoch_order(EXAMPLES, spec.seed, epoch)
            for start in range(0, EXAMPLES, size):
                plain_rate = RATE * 0.5 ** (epoch // 2) * min(1, 0.1 + 0.9 * done / WARMUP)
                rate = plain_rate * math.sqrt(k)
                decay = (1 - (1 - plain_rate * DECAY) ** k) / rate
                yield order[start : start + size], {"lr": rate, "weight_decay": decay}
                done += 1
            present = wrong(model, data)
            sizes.append(size)
            ends.append(done)
            errors.append(present / TESTS)

    model, losses = plain_loop(spec, batches, partial(torch.optim.SGD, lr=RATE, momentum=0.9))
    weights = model.state_dict()
    return {"weights": weights, "losses": losses, "sizes": sizes, "ends": ends, "errors": errors}


@pytest.fixture
def grown(results):
    return [result["grown"] for result in results]


def test_a_run_with_growing_batches_is_the_one_written_out(grown, plain_grown):
    assert len(set(plain_grown["sizes"])) >= 3
    assert plain_grown["sizes"][0] == FIRST
    assert grown[0]["losses"] == pytest.approx(plain_grown["losses"], rel=1e-4)
    errors = [1 - metrics["eval/accuracy"] for _, metrics in grown[0]["evaluations"]]
    assert errors == pytest.approx(plain_grown["errors"], abs=1 / TESTS + 1e-9)
    for name, expected in plain_grown["weights"].items():
        torch.testing.assert_close(grown[0]["weights"][name], expected, rtol=1e-4, atol=1e-5)


def test_every_worker_decides_the_same_batches_and_every_fifth_of_the_epochs_ends_with_a_checkpoint(
    grown, plain_grown
):
    for rank, result in enumerate(grown):
        assert bool(result["logged"]) == (rank == 0)
        assert [step for step, _ in result["evaluations"]] == result["checkpoints"] == plain_grown["ends"]
        assert [metrics["epoch"] for _, metrics in result["evaluations"]] == [1, 2, 3, 4, 5]
        assert same(result["weights"], grown[0]["weights"])


def test_a_grown_run_that_is_resumed_ends_with_the_same_bits(results):
    whole = results[0]["whole"]
    losses, ends = whole["losses"], [step for step, _ in whole["evaluations"]]
    assert ends[-1] < EPOCHS * ends[0]  # it has grown
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])  # and learnt
    start = ends[-2] + 1
    for rank in results:
        resumed = rank["resumed"]
        assert resumed["checkpoints"] == list(range(start + 1, ends[-1] + 1))
        assert same(rank["whole"]["weights"], resumed["weights"])
        assert same(rank["whole"]["own"], resumed["own"])
    assert results[0]["resumed"]["losses"] == losses[start:]


def test_a_run_that_was_over_when_it_resumed_has_its_evaluation(alone, tmp_path):
    first, kept = recorder.trained(SPEC, tmp_path)
    again, nothing = recorder.trained(SPEC, saved=recorder.saved_in(tmp_path / str(first.done), 0))
    assert not nothing.evaluations
    _, metrics = kept.evaluations[-1]
    result = again.last_evaluation()
    assert result == {name: metrics[name] for name in metrics if name.startswith("eval/") or name == "epoch"}
    assert {"eval/accuracy", "eval/loss", "eval/examples", "epoch"} == set(result)


def test_a_run_does_not_go_on_with_other_data_of_the_same_size(alone, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a line of many\n" * 100)
    spec = {
        "task": {"kind": "language_model"},
        "data": {"kind": "text", "path": str(text), "context": 16},
        "model": {"kind": "gpt", "layers": 1, "heads": 1, "width": 8},
        "training": {"iterations": 2, "batch_size": 4},
        "checkpoint": {"interval": 1},
    }
    recorder.trained(spec, tmp_path)
    saved = recorder.saved_in(tmp_path / "1", 0)
    recorder.trained(spec, saved=saved)
    text.write_text("another of many\n"[:15] * 100)
    with pytest.raises(CheckpointError, match=r"other examples: the files of data\.kind = text changed"):
        recorder.trained(spec, saved=saved)


# What is shown.


@pytest.mark.parametrize(
    ("sync", "recorded"),
    [
        ({"mode": "gradients"}, [*range(1, 11), 51, 101, 151, 201]),
        ({"mode": "weights", "every": 4}, [4, 8, 12, 52, 104, 152, 204]),
        ({"mode": "weights", "every": 16}, [16, 64, 112, 160, 208]),
        (
            {"mode": "weights", "every": 4, "fragments": 2, "delay_steps": 1},
            [3, 5, 7, 9, 11, 13, 51, 53, 101, 103, 151, 153, 201, 203],
        ),
        ({"mode": "weights"}, [60, 120, 180]),
    ],
)
def test_layers_are_recorded_at_an_interval_and_in_exchanges(sync, recorded, alone):
    spec = small(600, 10, iterations=210, evaluate_every=100, batch_size=10)
    sync = {"mode": "simulated", "of": sync}
    _, kept = recorder.trained(spec | {"sync": sync, "compressor": "wgt(0.001)", "workers": {"count": 2}})
    layers = [at for at, row in kept.logged if any(name.startswith("layer/") for name in row)]
    assert layers == recorded


@pytest.mark.parametrize(
    ("sync", "own_models"),
    [({"mode": "simulated"}, False), ({"mode": "simulated", "of": {"mode": "weights", "every": 20}}, True)],
)
def test_slow_iterations_are_shown_before_they_are_averaged(sync, own_models, monkeypatch, alone):
    seconds = itertools.count(step=10.0)  # between any two looks at the clock
    monkeypatch.setattr(trainers, "perf_counter", lambda: next(seconds))
    spec = small(240, 10, epochs=1, batch_size=10) | {"tracking": {"flush_interval": 1000}, "sync": sync}
    _, shown = recorder.trained(spec | {"workers": {"count": 2}})
    # Averages at checkpoints show some of them once more.
    assert list(dict.fromkeys(progress.iteration for progress in shown.progresses)) == list(range(1, 25))
    assert {progress.own_models for progress in shown.progresses} == {own_models}


def test_compiling_kernels_takes_no_training_time(monkeypatch, alone):
    """It happens once on a machine: the first run of a comparison looked slower than the others."""

    class Slow(numba.core.compiler.CompilerBase):
        def define_pipelines(self):
            clock.append(clock[-1] + 100.0)
            return [numba.core.compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)]

    clock = [0.0]
    monkeypatch.setattr(trainers, "perf_counter", lambda: clock[-1])
    monkeypatch.setattr(numba.core.event, "timer", lambda: clock[-1])
    kernel = numba.njit(pipeline_class=Slow)(lambda value: value + 1)
    batch = Tensors.batch

    def compiles(self, indices, draw):
        seconds = kernel(1.0)
        clock.append(clock[-1] + seconds)
        return batch(self, indices, draw)

    monkeypatch.setattr(Tensors, "batch", compiles)
    trainer, _ = recorder.trained(SPEC)
    assert 100 < clock[-1] < 1000
    assert trainer.seconds == pytest.approx(clock[-1] - 100)
