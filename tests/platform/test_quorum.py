"""Rounds that close with a quorum: nothing is lost but what is counted, and real workers are simulated ones.

Legend: N workers, H steps of a round, P parameters.
"""

from typing import Any

import pytest
import torch
from async_training import Learnt, batch, kept, run, step_context, training_of, weights
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st

from taugrad.compressors import CorruptMessage, NonFiniteWeight
from taugrad.compressors.exchange.tensors import to_bytes
from taugrad.platform.synchronization.quorum.scheduled import Presence, WorkerEvent

pytestmark = pytest.mark.usefixtures("alone")
N, H = 4, 3
QUORUM: dict[str, Any] = {"mode": "weights", "every": H, "quorum": 0.51}
OUTER = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
STROM = "strom(density(0.1)) | golomb_rice"


def simulating(**more: Any) -> dict[str, Any]:
    return {"mode": "simulated", "of": QUORUM | more}


@settings(max_examples=25)
@given(
    line=st.sampled_from(
        ["strom(0.05, reduction='sum')", "none(reduction='sum')", "topk(0.2, reduction='sum')"]
    ),
    late=st.floats(0, 0.5),
    away=st.floats(0, 0.25),
    lost=st.floats(0, 0.24),
    longest=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    steps=st.integers(1, 8 * H),
)
def test_nothing_is_lost_but_what_the_ledger_says(line, late, away, lost, longest, seed, steps):
    schedule = {"late": late, "away": away, "lost": lost, "rounds": [1, longest], "seed": seed}
    training = training_of(N, simulating(schedule=schedule), line)
    learnt, start = Learnt(training), weights(training).double()
    entries = run(training, 0, steps, 9 * H)
    # What was applied is how far the agreed weights have come: updates are added up, and the rate is 1.
    missing = learnt.sum - (start - weights(training).double()) - kept(training)
    workers_lost = sum(entry.metrics.get("round/lost", 0) for entry in entries)
    assert float(missing.sum()) == pytest.approx(training.by_rank[0].lost_sum, abs=2e-5)
    if not workers_lost:
        torch.testing.assert_close(missing, torch.zeros_like(missing), rtol=0, atol=2e-5)
    elif workers_lost == 1:
        (rms,) = [entry.metrics["round/lost_rms"] for entry in entries if "round/lost" in entry.metrics]
        assert float(missing.square().mean().sqrt()) == pytest.approx(rms, abs=2e-5)


@in_turn("line", ["none", STROM, "linear(4)"])
def test_with_everybody_in_time_it_is_the_mode_without_a_quorum(line):
    plain = {"mode": "simulated", "of": {"mode": "weights", "every": H, "outer": OUTER}}
    actual, expected = training_of(N, simulating(outer=OUTER), line), training_of(N, plain, line)
    for training in (actual, expected):
        run(training, 0, 10, 10)
        training.flush()
    assert torch.equal(weights(actual), weights(expected))
    assert actual.totals.sent == expected.totals.sent
    assert actual.totals.wire_bytes == expected.totals.wire_bytes


class Listed:
    """A schedule written down: `events` by round, everybody here in the rest."""

    def __init__(self, *rounds: str) -> None:
        self.rounds = rounds

    def events(self, number: int) -> list[Any]:
        kinds = {".": Presence.PRESENT, "l": Presence.LATE, "a": Presence.AWAY, "x": Presence.LOST}
        said = self.rounds[number] if number < len(self.rounds) else "." * N
        return [
            WorkerEvent(kinds[text.lower()], 2 if text in "lAX" else 0, begins=text.isupper())
            for text in said
        ]


def listed(rounds: list[str], line: str, steps: int) -> tuple[Any, list[dict[str, float]]]:
    """A training on a schedule, and the metrics of each iteration."""
    training = training_of(N, simulating(), line)
    for worker in training.by_rank:
        worker._schedule = Listed(*rounds)
    return training, [row.metrics for row in run(training, 0, steps, 100)]


def test_a_late_worker_hands_in_what_it_has_with_the_next_round():
    """Worker 3 makes 2 of 3 steps, and then none, until its two steps are in round 1."""
    late, metrics = listed(["...l"], "none", 2 * H)
    by_hand = training_of(N, simulating(), "none")
    agreed = weights(by_hand).clone()

    def moved(rank: int, number: int, steps: int) -> torch.Tensor:
        """How far a worker comes in a round."""
        replica = by_hand.by_rank[rank]._replica
        torch.nn.utils.vector_to_parameters(agreed.clone(), replica.parameters)
        for place in range(steps):
            replica.backward(batch(rank, number * H + place))
            replica.step(step_context(0, 100).position)
        return agreed - torch.cat(replica.weights())

    waiting = moved(3, 0, 2)
    agreed = agreed - sum(moved(rank, 0, H) for rank in range(3)) / 3
    agreed = agreed - (sum(moved(rank, 1, H) for rank in range(3)) + waiting) / 4
    torch.testing.assert_close(weights(late), agreed, rtol=1e-5, atol=1e-6)
    assert [metric.get("round/members") for metric in metrics] == [None, None, 3, None, None, 4]
    assert [metric.get("round/left_out") for metric in metrics] == [None, None, 1, None, None, 0]
    assert metrics[-1]["worker/3/left_out"] == 1


def test_a_returning_worker_takes_over_weights_and_a_lost_one_has_no_residual():
    away, of_away = listed(["...A", "...a"], "strom(0.05)", 2 * H + 1)
    assert away.by_rank[3]._member.pending is not None
    assert torch.equal(torch.cat(away.by_rank[3]._replica.weights()), weights(away))
    lost, of_lost = listed(["...X", "...x"], "strom(0.05)", 2 * H + 1)
    assert lost.by_rank[3]._member.pending is None
    assert not torch.cat(lost.by_rank[3]._pattern.unsent()).any()
    assert not torch.equal(torch.cat(lost.by_rank[3]._replica.weights()), weights(lost))  # it trains already
    size = 4 * weights(lost).numel()
    for training, metrics in ((away, of_away), (lost, of_lost)):
        assert [metric.get("round/caught_up_bytes") for metric in metrics] == [*[None] * 6, size]
        links = training.links()
        assert links.messages[3].tolist() == [0, 0, 0, 0]  # it has handed in nothing yet
        assert int(links.nbytes.sum()) == training.totals.received_bytes
        assert int(links.messages.sum()) == training.totals.messages
    assert [row.get("round/lost") for row in of_lost[:3]] == [None, None, 1]


@settings(max_examples=12)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 999), st.sampled_from([0, 0.5]))
def test_residuals_survive_any_sequence_of_resizes(counts, seed, unsent):
    """The mean over workers of residuals, what waits, and what they have just learnt stays what it was."""
    schedule = {"late": 0.3, "away": 0.2, "seed": seed}
    steps = 4 * H + 2
    training = training_of(N, simulating(schedule=schedule, unsent=unsent), "strom(0.02)")
    run(training, 0, steps, 100)
    owed, agreed = kept(training) / N, weights(training).clone()
    assert owed.any()
    for workers in counts:
        smaller = training_of(workers, simulating(schedule=schedule, unsent=unsent), "strom(0.02)")
        smaller.reshard(training.shared_state(), [training.worker_state()])
        training = smaller
        torch.testing.assert_close(kept(training) / workers, owed, rtol=0, atol=3e-6)
        assert torch.equal(weights(training), agreed)
    run(training, steps, steps + H, 100)
    assert not torch.equal(weights(training), agreed)


def test_an_update_that_is_not_finite_ends_the_run():
    training = training_of(N, simulating(), "strom(0.05)")
    training.iterate([batch(rank, 0) for rank in range(N)], step_context(0, 9))
    training.by_rank[2]._replica.parameters[1].data[0] = float("nan")
    with pytest.raises(NonFiniteWeight, match="worker 2"):
        run(training, 1, H, 9)


def test_agreed_weights_travel_with_momentum_and_must_fit():
    here, there = (training_of(2, simulating(outer=OUTER), "none").by_rank[0] for _ in range(2))
    for place, tensor in enumerate(here._agreed):
        tensor.fill_(place + 1)
    data = to_bytes(here._agreed)
    assert data.size == 2 * 4 * weights(here).numel()
    there.ledger.begin()
    there._take_over(data, 3)
    assert torch.equal(weights(there), weights(here))
    assert all(torch.equal(*pair) for pair in zip(here._agreed, there._agreed, strict=True))
    with pytest.raises(CorruptMessage, match=f"{data.size - 1} bytes"):
        there._take_over(data[1:], 3)
