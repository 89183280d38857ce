"""What workers that disagree are told; that they find out is in ddp_training.py."""

import torch
from cases import in_turn

from taugrad.compressors.exchange.agreement import described, difference, flattened
from taugrad.compressors.method import read_config

ALIKE = {"kind": "wgt", "tau": "0.1", "reduction": "mean"}
SUM = ALIKE | {"reduction": "sum"}


@in_turn(
    ("descriptions", "told"),
    [
        ([ALIKE, SUM], "rank 0: reduction = mean, rank 1: reduction = sum"),
        ([ALIKE, SUM, ALIKE], "ranks 0, 2: reduction = mean, rank 1: reduction = sum"),
        ([SUM, *[ALIKE] * 7], "rank 0: reduction = sum, ranks 1, 2, 3, 4 and 3 more: reduction = mean"),
        ([ALIKE, {"kind": "wgt", "tau": "0.1"}], "rank 0: reduction = mean, rank 1: no reduction"),
        ([ALIKE, {"kind": "none"}], "rank 0: kind = wgt, rank 1: kind = none"),
        (
            [{"tau": "1", "a": "1", "b": "1", "c": "1"}, {"tau": "2", "a": "2", "b": "2", "c": "2"}],
            "rank 0: tau = 1, rank 1: tau = 2; rank 0: a = 1, rank 1: a = 2; "
            "rank 0: b = 1, rank 1: b = 2; and 1 more",
        ),
        ([{"names": "x" * 200}, {"names": "y"}], f"rank 0: names = {'x' * 97}..., rank 1: names = y"),
    ],
)
def test_a_difference_names_the_field_and_each_side_s_value(descriptions, told):
    assert difference(descriptions) == told


def test_every_field_of_a_method_is_described_and_its_kind_comes_first():
    one = flattened(read_config("wgt(density(0.01, every=10), clip=clip(2)) | quantile(4) | golomb_rice"))
    assert next(iter(one)) == "kind"
    assert [one[field] for field in ("kind", "tau.kind", "tau.target")] == ["wgt", "density", "0.01"]
    assert (one["quantize.kind"], one["codec"], one["reduction"]) == ("quantile", "golomb_rice", "mean")
    other = flattened(read_config("wgt(density(0.01, every=10), clip=clip(3)) | quantile(4) | golomb_rice"))
    assert {field for field in one if one[field] != other[field]} == {"clip.every"}


def test_parameters_are_described_in_their_order():
    model = torch.nn.Linear(3, 2).to(torch.float64)
    assert described(dict(model.named_parameters())) == {
        "parameter 0": "weight float64 [2, 3]",
        "parameter 1": "bias float64 [2]",
    }
