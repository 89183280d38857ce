"""Sums of replicas that received the same messages in different orders."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taugrad.compressors.bucket.feedback import FeedbackCompressor
from taugrad.compressors.config import read_config
from taugrad.platform.synchronization.asynchronous.accumulator import Accumulator
from taugrad.platform.synchronization.patterns.base import compressed

SIZES = {"head": 7, "empty": 0, "body": 90, "tail": 31}
N = sum(SIZES.values())
INTEGERS = ["strom(tau=0.5)", "bgt(tau=0.5)", "qgt(tau=0.5)", "qgt(tau=density(0.2))"]
FLOATS = ["wgt(tau=0.5)", "fp16", "none", "strom(tau=0.5, exempt=exempt(smaller_than=10))"]


def sender_side(line):
    method = compressed(read_config(line))
    return FeedbackCompressor(method, list(SIZES), [torch.zeros(n) for n in SIZES.values()], threads=1)


def exact_gradients(rng):
    """Multiples of 1/64 up to 4: all sums below are exact in float32."""
    return [torch.from_numpy((rng.integers(-256, 257, n) / 64).astype(np.float32)) for n in SIZES.values()]


def messages_of(line, workers, steps, seed, draw=None):
    """By sender, its messages, each with its factor; the sum of all gradients; and what is left unsent."""
    sent, summed, left = [], np.zeros(N), np.zeros(N)
    for rank in range(workers):
        rng = np.random.default_rng([seed, rank])
        side, own = sender_side(line), []
        for step in range(steps):
            gradients = (draw or exact_gradients)(rng)
            summed += torch.cat(gradients).double().numpy()
            payload = side.compress(gradients, step, None).payload.copy()
            side.commit()
            own.append((side.read(payload), 1.0 if draw is None else -0.1 / (1 + step)))
        sent.append(own)
        residuals = [side.feedback.residuals.get(name, torch.zeros(n)) for name, n in SIZES.items()]
        left += torch.cat(residuals).double().numpy()
    return sent, summed, left


def normal_gradients(rng):
    return [torch.from_numpy(rng.standard_normal(n).astype(np.float32)) for n in SIZES.values()]


def replica(sent, order, start):
    """The weights of a replica that received `order`: pairs of sender and number of its message."""
    found = Accumulator(start, len(sent))
    for sender, number in order:
        incoming, factor = sent[sender][number]
        found.add(sender, incoming, factor)
    return found


def start_weights():
    return np.random.default_rng(3).standard_normal(N).astype(np.float32)


def in_sequence(workers, steps):
    return [(sender, number) for number in range(steps) for sender in range(workers)]


def by_arrival(workers, steps, delays):
    """The order of arrival where each message leaves at its step and each sender's stay in their order."""
    arrivals = []
    for sender in range(workers):
        latest = 0.0
        for number in range(steps):
            latest = max(latest, number + delays[sender * steps + number])
            arrivals.append((latest, sender, number))
    return [(sender, number) for _, sender, number in sorted(arrivals)]


@settings(max_examples=40, deadline=None)
@given(
    line=st.sampled_from(INTEGERS),
    workers=st.integers(1, 4),
    steps=st.integers(1, 4),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_whole_multiples_of_tau_add_up_alike_in_any_order(line, workers, steps, seed, data):
    sent, _, _ = messages_of(line, workers, steps, seed, normal_gradients)
    order = in_sequence(workers, steps)
    one = replica(sent, order, start_weights())
    other = replica(sent, data.draw(st.permutations(order)), start_weights())
    assert one.weights().tobytes() == other.weights().tobytes()
    one.fold()
    other.fold()
    assert one.state_dict()["weights"].numpy().tobytes() == other.state_dict()["weights"].numpy().tobytes()


@settings(max_examples=40, deadline=None)
@given(
    line=st.sampled_from(INTEGERS + FLOATS),
    workers=st.integers(1, 4),
    steps=st.integers(1, 4),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_every_method_adds_up_alike_while_each_senders_messages_stay_in_order(
    line, workers, steps, seed, data
):
    sent, _, _ = messages_of(line, workers, steps, seed, normal_gradients)
    number = workers * steps
    delays = data.draw(st.lists(st.floats(0, 9), min_size=number, max_size=number))
    one = replica(sent, in_sequence(workers, steps), start_weights())
    other = replica(sent, by_arrival(workers, steps, delays), start_weights())
    assert one.weights().tobytes() == other.weights().tobytes()


@pytest.mark.parametrize("line", ["strom(tau=0.5)", "bgt(tau=0.5)", "qgt(tau=0.5)", "wgt(tau=0.5)"])
def test_nothing_is_lost(line):
    sent, summed, left = messages_of(line, 3, 5, 1)
    zeros = np.zeros(N, np.float32)
    applied = replica(sent, in_sequence(3, 5), zeros).weights()
    assert np.array_equal(applied + left, summed)
    assert left.any() or line.startswith("qgt")


@pytest.mark.parametrize("line", INTEGERS + FLOATS)
def test_it_is_what_one_process_adds_up_in_float64(line):
    sent, _, _ = messages_of(line, 3, 4, 2, normal_gradients)
    expected = start_weights().astype(np.float64)
    for own in sent:
        for incoming, factor in own:
            for update, unit in incoming:
                for position, value in zip(_positions(update, unit), update.floats(), strict=True):
                    expected[position] += factor * float(value)
    found = replica(sent, in_sequence(3, 4), start_weights()).weights()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def _positions(update, unit):
    if update.words is not None:
        return [unit.base + int(word >> 1) for word in update.words]
    return [element for place in unit.places for element in range(place.start, place.start + place.elements)]


@pytest.mark.parametrize("line", ["strom(tau=0.5)", "fp16"])
def test_a_drained_replica_is_taken_up_where_it_was(line):
    sent, _, _ = messages_of(line, 2, 4, 5, normal_gradients)
    order = in_sequence(2, 4)
    whole = replica(sent, order[:4], start_weights())
    with pytest.raises(ValueError, match="since the last drain"):
        whole.state_dict()
    whole.fold()
    resumed = Accumulator(np.zeros(N, np.float32), 2)
    resumed.load_state_dict(whole.state_dict())
    for sender, number in order[4:]:
        for each in (whole, resumed):
            each.add(sender, *sent[sender][number])
    assert resumed.weights().tobytes() == whole.weights().tobytes()
    assert resumed.messages == whole.messages == [4, 4]


def test_what_does_not_fit_is_refused_and_changes_nothing():
    sent, _, _ = messages_of("strom(tau=0.5)", 1, 1, 0)
    ((incoming, _),) = sent[0]
    short = Accumulator(np.zeros(N - 1, np.float32), 1)
    for sender, factor, reason in [(0, 1.0, "element 128"), (1, 1.0, "sender 1"), (0, np.inf, "factor inf")]:
        with pytest.raises(ValueError, match=reason):
            short.add(sender, incoming, factor)
    assert not short.weights().any()
    assert short.messages == [0]
    short.fold()
    with pytest.raises(ValueError, match="this run has"):
        Accumulator(np.zeros(N, np.float32), 1).load_state_dict(short.state_dict())
    with pytest.raises(ValueError, match="2 workers"):
        short.load_state_dict(Accumulator(np.zeros(N - 1, np.float32), 2).state_dict())
