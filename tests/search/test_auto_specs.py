"""The runs of `taugrad auto`: by a density, by a law, without compression; what is kept of the spec."""

import math

import pytest

from taugrad.platform.spec import RunSpec
from taugrad.search.auto_specs import by_law, without_compression


def spec(**fields) -> RunSpec:
    digits = {"data": {"kind": "digits"}, "model": {"kind": "mlp", "widths": [64]}}
    return RunSpec.model_validate(digits | {"sync": {"mode": "simulated"}} | fields)


def test_the_run_without_compression_has_the_methods_momentum_and_nothing_else_of_it():
    method = {"kind": "wgt", "tau": 0.1, "momentum": 0.7, "reduction": "sum"}
    training = {"optimizer": {"kind": "sgd", "momentum": 0.0}}
    back = {"mode": "simulated", "of": {"mode": "sharded", "back": {"kind": "fp16"}}}
    bare = without_compression(spec(name="mine", compressor=method, training=training, sync=back))
    assert bare.compressor.model_dump() == {"kind": "none", "reduction": "sum", "nonfinite": "refuse"}
    assert bare.training.optimizer.momentum == 0.7
    assert bare.sync.of.back is None
    assert bare.name.startswith("mine: none")


@pytest.mark.parametrize("kind", ["wgt", "bgt", "qgt", "strom", "entropy"])
def test_a_law_replaces_the_number_and_nothing_else_of_its_own_method(a_law, kind):
    law, line = a_law(kind), {"kind": kind, "decay": 0.5, "reduction": "sum"}
    given_spec = spec(compressor=line | ({} if kind == "entropy" else {"tau": 0.1}), name="mine")
    found = by_law(given_spec, law, 2.0)
    assert getattr(found.compressor, law.looked_for) == law.of(given_spec, 2.0)
    kept = found.compressor.model_dump(exclude={law.looked_for})
    assert kept == given_spec.compressor.model_dump(exclude={law.looked_for})
    assert found.training == given_spec.training
    assert found.name.startswith(f"mine: {kind}(")
    assert by_law(spec(), law, 2.0).compressor.kind == kind  # in place of none


def test_where_the_laws_runs_had_momentum_in_the_compressor_it_goes_there(a_law):
    moving = a_law("strom", momentum_in="compressor")
    optimizer = {"kind": "sgd", "lr": 0.05, "momentum": 0.8, "weight_decay": 0.001}
    given_spec = spec(compressor="strom(0.1)", training={"optimizer": optimizer}, name="mine")
    found = by_law(given_spec, moving, 2.0)
    assert found.compressor.momentum == 0.8
    changed = found.training.optimizer.model_dump(exclude={"momentum", "weight_decay"})
    assert changed == given_spec.training.optimizer.model_dump(exclude={"momentum", "weight_decay"})
    assert (found.training.optimizer.momentum, found.training.optimizer.weight_decay) == (0, 0.005)
    assert found.name.startswith("mine: strom(tau=law(")
    still = moving.of(given_spec, 2.0).constant  # of a run whose compressor has none
    assert found.compressor.tau.constant == pytest.approx(still - math.log(0.2), rel=1e-3)
    assert by_law(found, moving, 2.0) == found.model_copy(update={"name": by_law(found, moving, 2.0).name})
    assert without_compression(found).fingerprint() == without_compression(given_spec).fingerprint()
