"""The trainer against single-process SGD."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import recorder
import torch
from group import run_group
from plain import plain_loop, sgd, small

from taugrad.platform.data.batches import epoch_order
from taugrad.platform.data.examples import Tensors
from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.builtin import ClassificationTask
from taugrad.platform.training.evaluation import evaluate
from taugrad.platform.training.trainer import Trainer

EPOCHS, BATCH, EXAMPLES = 3, 30, 250  # nine batches an epoch, the last of 10: uneven among 3 workers
SPEC = small(
    EXAMPLES,
    101,
    epochs=EPOCHS,
    batch_size=BATCH,
    optimizer=sgd(0.1, 0.9, 1e-3),
    schedule={"kind": "step", "epochs": 1, "factor": 0.5},
) | {"tracking": {"flush_interval": 4, "layer_interval": 5}, "checkpoint": {"interval": 10}}
SPECS: dict[int, dict[str, dict]] = {
    1: {"base": SPEC} | {f"seed {seed}": SPEC | {"compressor": "bgt(0.01)", "seed": seed} for seed in (7, 8)},
    2: {"base": SPEC},
    3: {"base": SPEC},
}
"""By the number of workers."""
TIMEOUT_S = 240

Results = list[dict[str, dict]]
"""By rank and name."""


def train(workers: int, folder: Path, specs: dict[str, dict]) -> Results:
    """Trains specs with so many real workers."""
    return run_group("test_trainer", "work", workers, folder, json.dumps(specs), timeout_s=TIMEOUT_S)


def work(rank: int, workers: int, _folder: Path, specs: str) -> dict[str, dict]:
    """In each worker: every spec's training, since to start a process takes longer."""
    found = {name: _outcome(*recorder.trained(spec)) for name, spec in json.loads(specs).items()}
    return found | {"evaluation": evaluation(rank, workers)}


def _outcome(trainer: Trainer, heard: recorder.Recorder) -> dict:
    kept = {name: getattr(heard, name) for name in ("logged", "evaluations", "checkpoints")}
    return kept | {"weights": trainer.model.state_dict(), "totals": trainer.totals()}


def evaluation(rank: int, workers: int) -> dict:
    """What the workers make of a net with random weights, and what it needs to do the same elsewhere."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 10))
    inputs, labels = 3 * torch.randn(1903, 20), torch.randint(10, (1903,))
    examples, device = Tensors(inputs, labels), torch.device("cpu")
    found = evaluate(model, ClassificationTask(), examples, rank, workers, device)
    return {
        "accuracy": found["accuracy"],
        "loss": found["loss"],
        "training": model.training,
        "weights": dict(model.state_dict()),
        "inputs": inputs,
        "labels": labels,
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What workers of a number brought back; each number trains once."""
    done: dict[int, Results] = {}

    def of(workers: int) -> Results:
        if workers not in done:
            done[workers] = train(workers, tmp_path_factory.mktemp(f"workers-{workers}"), SPECS[workers])
        return done[workers]

    return of


@pytest.fixture(scope="module")
def plain():
    """Single-process SGD on whole batches, written out: weights, losses and accuracies."""
    spec, accuracies = RunSpec.model_validate(SPEC), []

    def batches(model, data):
        for epoch in range(EPOCHS):
            order = epoch_order(EXAMPLES, spec.seed, epoch)
            for start in range(0, EXAMPLES, BATCH):
                yield order[start : start + BATCH], {"lr": 0.1 * 0.5**epoch}
            guesses = model(data.test_inputs).argmax(1)
            accuracies.append((guesses == data.test_labels).double().mean().item())

    optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-3)
    model, losses = plain_loop(spec, batches, optimizer)
    return {"weights": model.state_dict(), "losses": losses, "accuracies": accuracies}


@pytest.fixture(params=SPECS)
def trained(request, results):
    return [each["base"] for each in results(request.param)]


def test_any_number_of_workers_trains_as_one_process_on_the_whole_batch(trained, plain):
    for name, expected in plain["weights"].items():
        torch.testing.assert_close(trained[0]["weights"][name], expected, rtol=1e-4, atol=1e-5)


def test_the_logged_loss_is_that_of_the_whole_batch(trained, plain):
    losses = {step: m["train/loss"] for step, m in trained[0]["logged"] if "train/loss" in m}
    assert list(losses) == list(range(1, len(plain["losses"]) + 1))
    np.testing.assert_allclose(list(losses.values()), plain["losses"], rtol=1e-4)


def test_the_evaluation_counts_every_test_example_once(trained, plain):
    found = [m["eval/accuracy"] for _, m in trained[0]["evaluations"]]
    assert found == pytest.approx(plain["accuracies"], abs=1 / 101 + 1e-9)
    assert [step for step, _ in trained[0]["evaluations"]] == [9, 18, 27]
    for other in trained[1:]:
        assert [m["eval/accuracy"] for _, m in other["evaluations"]] == found


def test_no_bit_of_an_evaluation_depends_on_the_number_of_workers(results):
    found = [each["evaluation"] for workers in SPECS for each in results(workers)]
    assert len(found) == 1 + 2 + 3
    assert len({(each["accuracy"], each["loss"]) for each in found}) == 1
    assert all(each["training"] for each in found)


def test_an_evaluation_is_that_of_the_formula_in_float64(results):
    found = results(2)[1]["evaluation"]
    w1, b1, w2, b2 = (each.double().numpy() for each in found["weights"].values())
    scores = np.tanh(found["inputs"].double().numpy() @ w1.T + b1) @ w2.T + b2
    truth = found["labels"].numpy()
    losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(truth)), truth]
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-6)
    assert found["accuracy"] == (scores.argmax(1) == truth).mean()


def test_only_worker_0_logs_and_all_write_checkpoints(trained):
    for rank, result in enumerate(trained):
        assert bool(result["logged"]) == (rank == 0)
        assert result["checkpoints"] == [10, 20, 27]


def test_another_seed_trains_other_weights_and_the_same_seed_the_same(results, tmp_path):
    (found,) = results(1)
    first, other = (found[f"seed {seed}"]["weights"] for seed in (7, 8))
    (elsewhere,) = train(1, tmp_path, {"again": SPECS[1]["seed 7"]})  # in a process of its own
    again = elsewhere["again"]["weights"]
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
