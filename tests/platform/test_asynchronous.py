"""Workers that do not wait: against a slow transcription, and real ones against simulated ones.

Legend: K workers, T steps of each, n parameters.
"""

import heapq
import itertools
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from async_training import CLASSES, FEATURES, RATE, batch, run, step_context, training_of, weights
from hypothesis import given, settings
from hypothesis import strategies as st

from taugrad.compressors import CorruptMessage, NonFiniteGradient
from taugrad.compressors.wire.message import NonFinite
from taugrad.platform.spec.synchronization import AsyncSync
from taugrad.platform.synchronization.asynchronous.delivery import Schedule
from taugrad.platform.synchronization.asynchronous.mode import AsynchronousTraining

pytestmark = pytest.mark.usefixtures("alone")
K, T, TAU = 3, 12, 0.0625
UNEVEN: dict[str, Any] = {"mode": "async", "step_times": [1, 1.5, 4], "delay": [0, 2], "most_behind": 5}


def simulating(sync: dict[str, Any]) -> dict[str, Any]:
    return {"mode": "simulated", "of": sync}


@pytest.mark.parametrize("most_behind", [0, 2, 20])
@pytest.mark.parametrize("delay", [0.0, 1.25])
def test_it_is_strom_s_loop(most_behind, delay):
    course = {"step_times": UNEVEN["step_times"], "delay": [delay, delay], "most_behind": most_behind}
    training = training_of(K, simulating({"mode": "async"} | course), f"strom({TAU})")
    start = weights(training).double().numpy()
    entries = run(training, 0, T, T)
    expected, ages = transcribed(start, UNEVEN["step_times"], delay, most_behind)
    np.testing.assert_allclose(weights(training).numpy(), expected, rtol=1e-5, atol=1e-6)
    actual = entries[-1].metrics
    assert [actual[f"worker/{rank}/staleness"] for rank in range(K)] == pytest.approx(ages)


def transcribed(
    start: np.ndarray, step_times: list[float], delay: float, most_behind: int
) -> tuple[np.ndarray, list[float]]:
    """Strom's loop, one event after the other, with a linear model and its gradient written out.

    Returns:
        The weights, and by worker the mean age of the messages that it applied.
    """
    weights, residuals = [start.copy() for _ in range(K)], np.zeros((K, start.size))
    arrived, done = np.eye(K, dtype=int) * T, [0] * K
    waiting: dict[int, list[tuple[int, int, np.ndarray, frozenset[Any]]]] = defaultdict(list)
    has: list[set[tuple[int, int]]] = [set() for _ in range(K)]
    ages: list[list[int]] = [[] for _ in range(K)]

    def apply(k: int) -> None:
        for sender, number, update, known in sorted(waiting.pop(k, []), key=lambda entry: entry[:2]):
            weights[k] += update
            ages[k].append(len(has[k] - known))
            has[k].add((sender, number))

    stopped: set[int] = set()
    order = itertools.count()
    events: list[tuple[float, int, int, int, int, Any]] = [
        (0.0, 1, next(order), k, k, None) for k in range(K)
    ]
    while events:
        time, kind, _, k, sender, update = heapq.heappop(events)
        if kind == 0:  # an arrival; before whoever begins at this moment
            waiting[k].append((sender, *update))
            arrived[sender, k] += 1
            if k in stopped:
                stopped.remove(k)
                heapq.heappush(events, (time, 1, next(order), k, k, None))
            continue
        if done[k] == T:
            continue
        if k in stopped or done[k] - arrived[:, k].min() > most_behind:
            stopped.add(k)
            continue
        apply(k)
        known = frozenset(has[k])
        residuals[k] += gradient(weights[k], k, done[k])
        sent = TAU * ((residuals[k] > TAU) * 1.0 - (residuals[k] < -TAU))
        residuals[k] -= sent
        weights[k] -= RATE / K * sent
        has[k].add((k, done[k]))
        message = (done[k], -RATE / K * sent, known)
        done[k] += 1
        heapq.heappush(events, (time + step_times[k], 1, next(order), k, k, None))
        for other in set(range(K)) - {k}:
            arrival = time + step_times[k] + delay
            heapq.heappush(events, (arrival, 0, next(order), other, k, message))
    for k in range(K):
        apply(k)
    for other in weights[1:]:
        np.testing.assert_allclose(other, weights[0], rtol=1e-12, atol=1e-12)
    return weights[0], [sum(age) / len(age) for age in ages]


def gradient(flat: np.ndarray, rank: int, number: int) -> np.ndarray:
    """Of the mean cross entropy of a linear model: the bias comes first, as it is sent first."""
    examples = batch(rank, number)
    x, labels = examples.inputs.double().numpy().reshape(-1, FEATURES), examples.targets.numpy()
    scores = x @ flat[CLASSES:].reshape(CLASSES, FEATURES).T + flat[:CLASSES]
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    error = (shares - np.eye(CLASSES)[labels]) / len(labels)
    return np.concatenate([error.sum(axis=0), (error.T @ x).ravel()])


@pytest.mark.parametrize("line", ["strom(0.05)", "qgt(0.02)", "wgt(0.05)", "topk(0.1) | linear(4)"])
def test_nothing_is_lost(line, monkeypatch):
    training = training_of(K, simulating(UNEVEN), line)
    before = weights(training).double()
    summed = [torch.zeros_like(before) for _ in range(K)]
    for total, worker in zip(summed, training.by_rank, strict=True):
        taking(worker.replica, total, monkeypatch)
    *_, last = run(training, 0, T, T)
    residuals = [
        torch.cat([worker.compressor.feedback.residuals[name] for name in worker.replica.names]).double()
        for worker in training.by_rank
    ]
    applied = (weights(training).double() - before) * K / -RATE
    owed = sum(residuals)
    torch.testing.assert_close(applied + owed, sum(summed), rtol=1e-4, atol=1e-4)
    assert owed.abs().max() > 0
    squares = sum(float(residual.square().sum()) for residual in residuals) / K
    assert last.step.residual_squares == pytest.approx(squares, rel=1e-5)


def taking(replica: Any, total: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a replica's gradients added up."""
    take = replica.take_gradients

    def took() -> list[torch.Tensor]:
        gradients = take()
        total.add_(torch.cat(gradients).double())
        return gradients

    monkeypatch.setattr(replica, "take_gradients", took)


@settings(max_examples=25)
@given(
    times=st.lists(st.floats(0.1, 8), min_size=1, max_size=4),
    delay=st.tuples(st.floats(0, 3), st.floats(0, 3)).map(sorted).map(tuple),
    seed=st.integers(0, 99),
    behind=st.integers(0, 6),
)
def test_any_schedule_leaves_replicas_alike_and_nobody_too_far_ahead(times, delay, seed, behind):
    workers = len(times)
    course = {"step_times": times, "delay": delay, "schedule_seed": seed, "most_behind": behind}
    schedule = Schedule(AsyncSync(**course), workers, first=3)
    for step in range(8):
        for worker in range(workers):
            received = schedule.received(worker, step)
            assert received[worker] == step
            assert min(received) >= step - behind
    training = training_of(workers, simulating({"mode": "async"} | course))
    run(training, 0, 8, 8)
    weights = {worker.received.weights().tobytes() for worker in training.by_rank}
    assert len(weights) == 1
    assert all(worker.received.messages == [8] * workers for worker in training.by_rank)


def test_a_gradient_that_is_not_finite_ends_the_run_or_is_left_out():
    for nonfinite in ("refuse", "skip"):
        training = training_of(K, simulating(UNEVEN), f"strom(0.0625, nonfinite='{nonfinite}')")
        run(training, 0, 2, T)
        broken = batch(1, 2)
        broken.inputs[0] = torch.nan
        batches = [batch(0, 2), broken, batch(2, 2)]
        if nonfinite == "refuse":
            with pytest.raises(NonFiniteGradient, match=r"(worker|rank) 1"):
                training.iterate(batches, step_context(2, T))
            continue
        training.iterate(batches, step_context(2, T))
        training.sync_model()
        assert training.totals.skipped_steps == 1
        assert weights(training).isfinite().all()
        assert len({worker.received.weights().tobytes() for worker in training.by_rank}) == 1


def test_a_refusal_of_a_parameter_that_there_is_not_is_corrupt():
    reader = SimpleNamespace(read=lambda _: NonFinite("wgt", 10, 7))
    worker = SimpleNamespace(_reader=reader, replica=SimpleNamespace(names=["w"]))
    message = SimpleNamespace(payload=None, sender=1, factor=1.0)
    with pytest.raises(CorruptMessage, match="worker 1: a refusal of parameter 7"):
        AsynchronousTraining._add(worker, message)
