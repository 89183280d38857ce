"""Runs whose batches and rates change, through the trainer, against a single process that is written out."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from bits import same
from group import run_group
from plain import plain_loop, sgd, small
from recorder import Recorder, saved_in, trained

from taugrad.platform.data.batches import epoch_order
from taugrad.platform.spec import RunSpec
from taugrad.platform.training.trainer import Trainer

EPOCHS, FIRST, MOST, EXAMPLES, TESTS = 5, 10, 60, 250, 101
RATE, DECAY, WARMUP = 0.02, 5e-3, 20
SPEC = small(
    EXAMPLES,
    TESTS,
    epochs=EPOCHS,
    batch_size=FIRST,
    batch_growth={"kind": "adabatch", "most": MOST},
    optimizer=sgd(RATE, 0.9, DECAY),
    schedule={"kind": "halving", "epochs": 2},
    warmup={"iterations": WARMUP},
    scaling={"kind": "sqrt"},
) | {"tracking": {"flush_interval": 4, "layer_interval": 5}}
TIMEOUT_S = 120


RESUMED = SPEC | {
    "training": SPEC["training"]
    | {"optimizer": {"kind": "lamb", "lr": 0.05, "weight_decay": 0.01}, "warmup": {"epochs": 1}},
    "compressor": "bgt(0.02)",
    "checkpoint": {"interval": 1},
}


def work(rank: int, _workers: int, folder: Path) -> dict[str, dict]:
    """In each worker: a run that grows, and another one, whole and resumed within an epoch."""
    found = {"grown": _outcome(*trained(SPEC)), "whole": _outcome(*trained(RESUMED, folder))}
    start = found["whole"]["evaluations"][-2][0] + 1
    saved = saved_in(folder / str(start), rank)
    return found | {"resumed": _outcome(*trained(RESUMED, folder / "resumed", saved))}


def _outcome(trainer: Trainer, recorder: Recorder) -> dict:
    kept = {name: getattr(recorder, name) for name in ("losses", "evaluations", "checkpoints")}
    return kept | {"weights": trainer.model.state_dict(), "own": trainer.sync.own_state()}


@pytest.fixture(scope="module")
def plain():
    """AdaBatch, sqrt(k) and the decay of k steps, halving and warm-up, in one process."""
    spec, sizes, ends = RunSpec.model_validate(SPEC), [], []

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

    model, losses = plain_loop(spec, batches, partial(torch.optim.SGD, lr=RATE, momentum=0.9))
    return {"weights": model.state_dict(), "losses": losses, "sizes": sizes, "ends": ends}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_group("test_batch_training", "work", 2, tmp_path_factory.mktemp("grown"), timeout_s=TIMEOUT_S)


@pytest.fixture
def grown(ranks):
    return [each["grown"] for each in ranks]


def test_the_example_grows_step_by_step(plain):
    assert len(set(plain["sizes"])) >= 3
    assert plain["sizes"][0] == FIRST


def test_a_run_with_growing_batches_is_the_one_written_out(grown, plain):
    assert grown[0]["losses"] == pytest.approx(plain["losses"], rel=1e-4)
    for name, expected in plain["weights"].items():
        torch.testing.assert_close(grown[0]["weights"][name], expected, rtol=1e-4, atol=1e-5)


def test_every_worker_decides_the_same_batches(grown, plain):
    for result in grown:
        assert [step for step, _ in result["evaluations"]] == plain["ends"]
        assert [metrics["epoch"] for _, metrics in result["evaluations"]] == [1, 2, 3, 4, 5]
    for name, weights in grown[0]["weights"].items():
        assert torch.equal(weights, grown[1]["weights"][name])


def test_without_an_interval_every_fifth_of_the_epochs_ends_with_a_checkpoint(grown, plain):
    for result in grown:
        assert result["checkpoints"] == plain["ends"]


def test_a_grown_run_that_is_resumed_ends_with_the_same_bits(ranks):
    whole = ranks[0]["whole"]
    losses, ends = whole["losses"], [step for step, _ in whole["evaluations"]]
    assert ends[-1] < EPOCHS * ends[0]  # it has grown
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])  # and learnt
    start = ends[-2] + 1
    for rank in ranks:
        resumed = rank["resumed"]
        assert resumed["checkpoints"] == list(range(start + 1, ends[-1] + 1))
        assert same(rank["whole"]["weights"], resumed["weights"])
        assert same(rank["whole"]["own"], resumed["own"])
    assert ranks[0]["resumed"]["losses"] == losses[start:]
