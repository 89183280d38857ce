"""What a spec is expected to take on the wire, against simulated trainings."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from taugrad.platform.data import load
from taugrad.platform.spec import RunSpec
from taugrad.platform.training.trainer import Trainer
from taugrad.search.costs import cost_of

DENSITY = 0.01
NOBODY = SimpleNamespace(
    log=lambda *_: None,
    progress=lambda *_, **__: None,
    evaluated=lambda *_: None,
    checkpoint=lambda *_: None,
    undelivered=list,
)
"""A listener that keeps nothing."""


@pytest.fixture(scope="module")
def trained():
    """Trains a spec with simulated workers; its ledger."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    data = {}

    def train(spec: RunSpec):
        dataset = data.setdefault("digits", load(spec.data))
        trainer = Trainer(spec, dataset, torch.device("cpu"), NOBODY)
        trainer.fit()
        return trainer.sync.totals

    yield train
    dist.destroy_process_group()


def spec(exchange: str, workers: int) -> RunSpec:
    return RunSpec.model_validate(
        {
            "data": {"kind": "digits"},
            "model": {"kind": "mlp", "widths": [64]},
            "training": {"epochs": 2, "batch_size": 64},
            "compressor": f"strom(allocate({DENSITY}, every=200)) | golomb_rice",
            "workers": {"count": workers},
            "sync": {"mode": "simulated", "of": {"mode": "allgather", "exchange": exchange}},
        }
    )


def test_padding_is_counted_where_the_exchange_pads(trained):
    """Of one worker the longest message is its own, so that the two forms differ by what fills up to 8."""
    padded, exact = (spec(form, workers=1) for form in ("padded", "exact"))
    expected = cost_of(padded).wire_bytes(DENSITY) - cost_of(exact).wire_bytes(DENSITY)
    measured = trained(padded).wire_bytes - trained(exact).wire_bytes
    assert expected == pytest.approx(measured, rel=0.2)
    assert measured > 0


@pytest.mark.parametrize(("exchange", "workers"), [("exact", 2), ("exact", 4), ("padded", 2), ("padded", 4)])
def test_a_training_takes_somewhat_less_than_is_expected(trained, exchange, workers):
    one = spec(exchange, workers)
    cost, totals = cost_of(one), trained(one)
    assert totals.steps * workers == cost.sendings
    expected = cost.wire_bytes(DENSITY)
    assert 0.75 * expected < totals.wire_bytes < expected
