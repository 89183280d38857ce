"""What a density is expected to take on the wire, and the reverse; against messages and trainings."""

import math

import messages
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorder import trained
from specs import digits

from taugrad.compressors.wire.update import Update
from taugrad.search.costs import DENSEST, SPARSEST, CannotEstimate, Cost, cost_of

DENSITY = 0.01


costs = st.builds(
    Cost,
    layers=st.lists(st.integers(1, 10**7), min_size=1, max_size=20).map(tuple),
    whole=st.integers(0, 10**5),
    buckets=st.integers(1, 4),
    taus=st.booleans(),
    value_bits=st.sampled_from([1.0, 4.0, 8.0, 32.0]),
    sendings=st.integers(1, 10**6),
)
densities = st.floats(math.log(SPARSEST), math.log(DENSEST)).map(math.exp)


@settings(max_examples=50)
@given(costs, densities)
def test_a_budget_leads_to_the_density_that_takes_it(cost, density):
    budget = cost.wire_bytes(density) * (1 + 1e-9)
    result = cost.density(budget)
    assert cost.wire_bytes(result) <= budget
    assert result == DENSEST or cost.wire_bytes(result * 1.0001) > budget * (1 - 1e-6)


@pytest.mark.parametrize("density", [1e-3, 1e-2, 0.1])
def test_the_estimate_is_that_of_real_messages(density):
    n, rng = 400_000, np.random.default_rng(0)
    positions = np.flatnonzero(rng.random(n) < density).astype(np.uint32)
    words = positions << 1 | rng.integers(0, 2, positions.size, np.uint32)
    taus = np.full(1, 0.1, np.float32)
    update = Update("strom", messages.segments_of([n]), words, np.array([words.size]), taus=taus)
    size = messages.write(update, "golomb_rice").size + 8
    cost = Cost((n,), whole=0, buckets=1, taus=True, value_bits=1.0, sendings=1, swing=1.0)
    assert cost.wire_bytes(density) == pytest.approx(size, rel=0.04)


def test_a_spec_is_counted():
    cost = cost_of(digits(compressor="strom(0.1) | golomb_rice"))
    assert cost.layers == (64 * 64, 64, 64 * 10, 10)
    assert (cost.whole, cost.buckets, cost.taus, cost.value_bits) == (0, 1, True, 1.0)
    assert cost.sendings % 4 == 0  # 2 workers, 2 epochs
    assert cost.sendings // 4 == pytest.approx(1797 * 0.8 / 64, abs=1)
    exempt = cost_of(digits(compressor={"kind": "wgt", "tau": 0.1, "exempt": {"smaller_than": 100}}))
    assert (exempt.layers, exempt.whole) == ((64 * 64, 64 * 10), 64 + 10)
    assert (exempt.taus, exempt.value_bits) == (False, 32.0)
    assert exempt.elements == cost.elements == 4810


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"sync": {"mode": "gradients", "pattern": "ring"}}, "sync.pattern = ring"),
        (
            {"sync": {"mode": "simulated", "of": {"mode": "gradients", "pattern": "sharded"}}},
            "sync.of.pattern = sharded",
        ),
        ({"compressor": "strom(0.1) | bitmap"}, "compressor.codec = bitmap"),
        ({"training": {"batch_growth": {"kind": "adabatch"}}}, "batch_growth.kind = adabatch"),
        ({"compressor": "topk(0.1)"}, "compressor.kind = topk"),
    ],
)
def test_what_cannot_be_estimated_is_named(fields, problem):
    with pytest.raises(CannotEstimate, match=problem):
        cost_of(digits(**{"compressor": "strom(0.1)", **fields}))


@pytest.mark.parametrize("workers", [2, 4])
def test_a_training_takes_somewhat_less_than_is_expected(alone, workers):
    one = digits(compressor=f"strom(allocate({DENSITY})) | golomb_rice", workers={"count": workers})
    cost, totals = cost_of(one), trained(one)[0].sync.totals
    assert totals.steps * workers == cost.sendings
    expected = cost.wire_bytes(DENSITY)
    assert 0.75 * expected < totals.wire_bytes < expected
