"""Ranges in a spec: what they mean, where they may stand, what is wrong with them."""

import math
import random

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from taugrad.search.space import Interval, active, at, dimensions, find_ranges


def read(text):
    return find_ranges(yaml.safe_load(text))


METHODS = """
compressor:
  choice:
    - {kind: wgt, tau: {log: [0.00001, 0.1]}}
    - "strom(tau={'log': [0.001, 0.1]}) | golomb_rice"
    - {kind: entropy, floor: {int: [2, 8]}}
    - none
training: {batch_size: {choice: [32, 64]}}
"""


def test_ranges_become_dimensions():
    tree = read("compressor: {kind: wgt, tau: {log: [0.001, 1]}}\nmodel: {dropout: {uniform: [0, 0.5]}}")
    tau, dropout = dimensions(tree)
    assert tau == Interval("compressor.tau", 0.001, 1.0, log=True, whole=False)
    assert dropout == Interval("model.dropout", 0.0, 0.5, log=False, whole=False)
    assert tau.middle == pytest.approx(math.sqrt(0.001))
    assert at(tree, {"compressor.tau": 0.5, "model.dropout": 0.25}) == {
        "compressor": {"kind": "wgt", "tau": 0.5},
        "model": {"dropout": 0.25},
    }


def test_whole_methods_are_alternatives_with_dimensions_of_their_own():
    tree = read(METHODS)
    names = [dimension.name for dimension in dimensions(tree)]
    assert names == [
        "compressor",
        "compressor.tau [wgt]",
        "compressor.tau [strom]",
        "compressor.floor [entropy]",
        "training.batch_size",
    ]
    strom = {"compressor": "strom", "compressor.tau [strom]": 0.01, "training.batch_size": "64"}
    assert [setting.name for setting in active(tree, strom)] == list(strom)
    assert at(tree, strom) == {
        "compressor": {"kind": "strom", "tau": 0.01, "codec": "golomb_rice"},
        "training": {"batch_size": 64},
    }
    assert at(tree, {"compressor": "none", "training.batch_size": "32"})["compressor"] == {"kind": "none"}


@pytest.mark.parametrize(
    "compressor",
    [
        "{kind: wgt, tau: {kind: layers, default: 0.001, patterns: {'1.*': {log: [0.001, 0.1]}}}}",
        "{kind: wgt, tau: \"layers(0.001, patterns={'1.*': {'log': [0.001, 0.1]}})\"}",
        "\"wgt(layers(0.001, patterns={'1.*': {'log': [0.001, 0.1]}}))\"",
    ],
)
def test_a_layers_own_tau_is_a_dimension(compressor):
    tree = read(f"compressor: {compressor}")
    (tau,) = dimensions(tree)
    assert tau == Interval("compressor.tau.patterns.1.*", 0.001, 0.1, log=True, whole=False)
    result = at(tree, {tau.name: 0.02})["compressor"]["tau"]
    assert result == {"kind": "layers", "default": 0.001, "patterns": {"1.*": 0.02}}


@given(st.integers(0, 2**32))
def test_a_point_is_found_again_by_its_active_dimensions_alone(seed):
    tree, draw, params = read(METHODS), random.Random(seed), {}
    for dimension in dimensions(tree):
        labels = getattr(dimension, "alternatives", None)
        params[dimension.name] = draw.choice(list(labels)) if labels else dimension.low
    counted = {setting.name: params[setting.name] for setting in active(tree, params)}
    assert at(tree, counted) == at(tree, params)
