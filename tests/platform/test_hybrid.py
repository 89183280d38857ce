"""Hybrid parallelism as a mode: against one process, its ledger, and what it refuses.

Legend: K = 3 workers, n examples of a batch; of a model P parameters of convolutions, F features, H hidden
neurons, C classes.
"""

from typing import Any

import pytest
import torch
from cases import in_turn
from mode_runs import same
from mode_specs import BATCH, EXAMPLES, HYBRID, ITERATIONS, MIDDLE, RATE, WORKERS, hybrid, simulating
from recorder import saved_by, trained, trainer_of

from taugrad.platform.synchronization.ledger import Iteration

K = WORKERS
P, F, H, C = 20 * 25 + 20 + 50 * 20 * 25 + 50, 50, 500, 10  # LeNet for 16 x 16
FULLY_CONNECTED = F * H + H + H * C + C


BATCHES = [BATCH] * (EXAMPLES // BATCH) + [EXAMPLES % BATCH]
"""Examples of each iteration of an epoch."""
ONE_EPOCH = {"epochs": 1}


HEADER = 28 + 4 + 8
"""Bytes of a message of one block beside its values: header, size of blocks, a smallest value and a step."""


@in_turn(
    ("activations", "value_bytes", "header"),
    [("fp32", 4, 0), ("bf16", 2, 0), ("linear(8, block=0) | raw", 1, HEADER)],
)
@in_turn("scheme", ["a", "b", "c"])
def test_bytes_and_messages_are_those_of_the_formulas(scheme, activations, value_bytes, header, alone):
    """docs/synchronization.md has them, docs/reference/messages.md the headers."""
    trainer, _ = trained(simulating(hybrid(fields=ONE_EPOCH, scheme=scheme, activations=activations)))
    totals = trainer.sync.totals.state_dict()
    values = value_bytes * (2 * F + 2 * H + C)
    received = sum((K - 1) * (n * (values + 8) + 8 * K) for n in BATCHES)
    turns = {"a": 1, "b": K, "c": K}[scheme]
    features = {"a": K * (K - 1), "b": K * (K - 1), "c": K * K * (K - 1)}[scheme]
    layers = 2
    messages = 2 * K * (K - 1) + 2 * features + turns * (2 * layers - 1) * K * (K - 1)
    steps = len(BATCHES)
    to_owners = features + turns * (layers - 1) * K * (K - 1)
    received += steps * header * (features + turns * layers * K * (K - 1) + to_owners)
    convolutions = steps * 2 * K * (K - 1)
    assert totals["messages"] == steps * messages + convolutions
    assert totals["received_bytes"] == received + steps * 2 * (K - 1) * 4 * P + 28 * convolutions
    assert totals["elements"] == steps * K * (P + FULLY_CONNECTED)
    assert totals["sent"] == steps * K * P
    # What goes to all is handed over once: features, neurons' outputs, targets, counts.
    all_to_all = sum(n * (value_bytes * (F + H + C) + 8) + 8 * K for n in BATCHES)
    to_one = sum((K - 1) * n * value_bytes * (F + H) for n in BATCHES)
    convolutions_sent = steps * (K * 4 * P + 28 * K * K)  # to owners K - 1 of K parts, and one sum to all
    headers = steps * header * (features // (K - 1) + turns * layers * K + to_owners)
    assert totals["wire_bytes"] == all_to_all + to_one + headers + convolutions_sent
    # Value bits: activations without targets and counts, gradients on their way out and sums on theirs back.
    values_sent = sum(n * value_bytes * (F + H + C) for n in BATCHES) + to_one
    assert totals["paper_bits"] == 8 * values_sent + steps * 32 * (K * P + P)


def test_a_message_may_have_the_activations_of_the_largest_batch(alone, monkeypatch):
    """A longer one closes its connection, and its sender counts as lost."""
    limits = []

    def connected(*, most_bytes, **_):
        limits.append(most_bytes)
        raise InterruptedError

    monkeypatch.setattr("taugrad.platform.synchronization.build.connected", connected)
    growth = {"kind": "staged", "stages": [{"until": 1, "batch_size": 100_000}]}
    with pytest.raises(InterruptedError):
        trainer_of(hybrid(fields={"batch_growth": growth}))
    assert limits[0] >= 4 * 100_000 * H


ONE = hybrid(fields=ONE_EPOCH) | {"workers": {"count": 1}, "sync": {"mode": "simulated"}}
"""The same model in one process."""


@pytest.fixture(scope="module")
def one(alone):
    return trained(ONE)


def test_rates_of_both_parts_follow_their_own_batches(alone):
    """Linear rule: K steps of B examples at the rate for B, one of K B at K times that (section 5)."""
    rules = {"scaling": {"kind": "linear", "reference": BATCH // K}}
    trainer, _ = trained(simulating(hybrid(fields=rules, fc_batch="per_worker")))
    sync = trainer.sync
    rates = [worker.optimizer.param_groups[0]["lr"] for worker in (mode.worker for mode in sync.by_rank)]
    assert rates == [pytest.approx(RATE)] * K
    assert sync.by_rank[0]._replica.optimizer.param_groups[0]["lr"] == pytest.approx(K * RATE)
    decay = sync.by_rank[0]._replica.optimizer.param_groups[0]["weight_decay"]
    assert 1 - K * RATE * decay == pytest.approx((1 - RATE * 1e-3) ** K, rel=1e-12)
    assert sync.by_rank[0].worker.optimizer.param_groups[0]["weight_decay"] == pytest.approx(1e-3)


def test_any_number_of_workers_trains_as_one_process_and_reloads_what_others_saved(one, tmp_path):
    """12 workers, 10 classes: two have none of the last layer's neurons."""
    spec = hybrid(fields=ONE_EPOCH, scheme="c")
    many = trained(simulating(spec, 12), tmp_path)
    saved = saved_by(tmp_path / str(MIDDLE), 1)
    fewer = trained(simulating(spec, 2), saved=saved)
    trainer, expected = one
    for actual, recorder in (many, fewer):
        weights = actual.model.state_dict()
        for key, value in trainer.model.state_dict().items():
            torch.testing.assert_close(weights[key], value, rtol=1e-4, atol=2e-5, msg=key)
        loss = recorder.evaluations[-1][1]["eval/loss"]
        assert loss == pytest.approx(expected.evaluations[-1][1]["eval/loss"], rel=1e-4)


@pytest.mark.parametrize("scheme", ["a", "b"])
def test_a_gradient_that_is_not_finite_leaves_the_step_out_or_ends_the_run(scheme, alone):
    """Of the fully connected part alone: the convolutions' gradients are finite."""
    for action in ("skip", "refuse"):
        trainer = trainer_of(simulating(hybrid(f"wgt(0.01, nonfinite='{action}')", scheme=scheme)))
        sync = trainer.sync
        last = sync.by_rank[1].worker.layers[-1]
        with torch.no_grad():
            last.weight.register_hook(lambda gradient: gradient * float("inf"))
        if action == "refuse":
            with pytest.raises(Exception, match=r"fc2\.weight"):
                trainer.fit()
            continue
        before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        trainer.fit()
        assert trainer.sync.totals.skipped_steps == ITERATIONS
        assert same({"weights": before}, {"weights": trainer.model.state_dict()})


def test_between_evaluations_nobody_has_the_whole_fully_connected_part(alone):
    sizes: list[int] = []

    trainer = trainer_of(simulating(HYBRID["b: none"]))
    iterate = trainer.sync.iterate

    def looking(*arguments: Any) -> Iteration:
        iteration = iterate(*arguments)
        sizes.append(trainer.model.get_submodule("fc1").weight.numel())
        return iteration

    trainer.sync.iterate = looking  # type: ignore[method-assign]
    trainer.fit()
    assert sizes == [0] * ITERATIONS
    assert trainer.model.get_submodule("fc1").weight.shape == (H, F)
