"""Sums of replicas that received the same messages in different orders."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taugrad.compressors.bucket.compressor import Compressor, Worker
from taugrad.compressors.bucket.layout import Shard
from taugrad.compressors.errors import Diverged
from taugrad.compressors.exchange.patterns.base import as_messages
from taugrad.compressors.methods import read_config
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.platform.synchronization.asynchronous.accumulator import Accumulator

SIZES = {"head": 7, "empty": 0, "body": 90, "tail": 31}
N = sum(SIZES.values())
LINES = [
    "strom(tau=0.5)",
    "strom(density(0.2))",
    "bgt(tau=0.5)",
    "qgt(tau=0.5)",
    "wgt(tau=0.5)",
    "topk(0.1) | linear(4)",
    "fp16",
    "none",
    "strom(tau=0.5, exempt=exempt(smaller_than=10))",
]


def sender_side(line):
    method = as_messages(read_config(line))
    return Compressor(method, Worker(CPU), Shard.whole(SIZES))


def messages_of(line, workers, steps, seed):
    """By sender, its messages, each with its factor."""
    sent = []
    for rank in range(workers):
        rng = np.random.default_rng([seed, rank])
        side, updates = sender_side(line), []
        for step in range(steps):
            gradients = [torch.from_numpy(rng.standard_normal(n).astype(np.float32)) for n in SIZES.values()]
            payload = side.compress(gradients, step, None).payload.copy()
            side.commit()
            updates.append((side.read(payload), -0.1 / (1 + step)))
        sent.append(updates)
    return sent


def replica(sent, order, start):
    """The weights of a replica that received `order`: pairs of sender and number of its message."""
    accumulator = Accumulator(start, len(sent))
    for sender, number in order:
        incoming, factor = sent[sender][number]
        accumulator.add(sender, incoming, factor)
    return accumulator


def start_weights():
    return np.random.default_rng(3).standard_normal(N).astype(np.float32)


def in_sequence(workers, steps):
    return [(sender, number) for number in range(steps) for sender in range(workers)]


@settings(max_examples=25)
@given(
    line=st.sampled_from(LINES),
    workers=st.integers(1, 4),
    steps=st.integers(1, 4),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_updates_add_up_alike_in_any_order(line, workers, steps, seed, data):
    sent = messages_of(line, workers, steps, seed)
    order = in_sequence(workers, steps)
    one = replica(sent, order, start_weights())
    other = replica(sent, data.draw(st.permutations(order)), start_weights())
    assert one.weights().tobytes() == other.weights().tobytes()
    assert torch.equal(one.state_dict()["units"], other.state_dict()["units"])


@pytest.mark.parametrize("line", LINES)
def test_it_is_what_one_process_adds_up_in_float64(line):
    sent = messages_of(line, 3, 4, 2)
    expected = start_weights().astype(np.float64)
    for message in sent:
        for incoming, factor in message:
            for update in incoming:
                for where, behind in update.places():
                    expected[where] += factor * update.amounts(CPU)[behind].astype(np.float64)
    actual = replica(sent, in_sequence(3, 4), start_weights()).weights()
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)


def test_what_would_wrap_around_is_refused_and_changes_nothing():
    sent = messages_of("none", 1, 1, 0)
    ((incoming, _),) = sent[0]
    accumulator = Accumulator(np.full(N, 262_143, np.float32), 1)
    before = accumulator.weights().copy()
    for factor in (1e5, 1e300):
        with pytest.raises(Diverged, match="diverges"):
            accumulator.add(0, incoming, factor)
    assert np.array_equal(accumulator.weights(), before)
    for start in (3e5, np.nan):
        with pytest.raises(Diverged, match="beyond 262,144"):
            Accumulator(np.full(N, start, np.float32), 1)
