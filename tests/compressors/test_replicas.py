"""Replicas of FSDP2 models, beside native HSDP: what four workers of replica_scenarios.py found."""

import json
from pathlib import Path
from typing import Any

import forked
import pytest
from cases import in_turn

Found = list[dict[str, Any]]
SCRIPT = Path(__file__).with_name("replica_scenarios.py")
REFUSALS = {
    "without": "ValueError: there is no process group: call torch.distributed.init_process_group",
    "DDP": "TypeError: model is of DistributedDataParallel: it must have parameters under torch.",
    "HSDP": "ValueError: the model's mesh has a dimension for replicas, over which FSDP2 itself reduces",
    "alone": "ValueError: a group of one: this worker's shard has no replica to exchange with",
    "island": "ValueError: the group holds rank 1 of this worker's own island: it must be the mesh's other",
    "no group": "TypeError: group is of NoneType: it must be a process group that this worker is in",
    "powersgd": "ValueError: powersgd with FSDP2: torch's hook keeps its memory by DDP's buckets",
    "twice": "RuntimeError: the model has an all-reduce hook already: call compress_replicas once",
    "pattern": "ValueError: exempt.names: 'x*' matches no parameter of the model, which has ",
    "methods": "WorkersDisagree: the workers do not agree: rank 0: tau",
    "weights": "WorkersDisagree: the workers do not agree: rank 0: weights of 0.0.weight = ",
    "unused": "CompressionError: a gradient of ",
    "nan": "NonFiniteGradient: the gradient of '",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """By rank."""
    folder = tmp_path_factory.mktemp("replicas")
    forked.run_workers(SCRIPT, lambda rank: (rank, folder), 4)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]


def test_a_method_that_sends_everything_trains_as_hsdp(found: Found) -> None:
    cells = found[0]["beside_hsdp"]
    assert len(cells) == 15
    for name, cell in cells.items():
        assert cell["moved"] > 0.03, name
        for rank, worker in enumerate(found):
            assert worker["beside_hsdp"][name]["off"] < 1e-6, name
            assert worker["beside_hsdp"][name]["losses off"] < 1e-6, name
            assert (
                worker["beside_hsdp"][name]["weights"] == found[rank % 2]["beside_hsdp"][name]["weights"]
            ), name


def test_islands_take_local_steps_as_whole_models_would(found: Found) -> None:
    parameters = 2 * (13 * 13 + 3 * 13) + 3 * 13 + 3
    cells = [each["in_local_steps"] for each in found]
    for cell in cells:
        assert cell["off"] < 1e-5
        assert cell["apart"] > 0.01  # the last step was alone
    assert cells[0]["elements"] + cells[1]["elements"] == 2 * 2 * parameters  # two exchanges of two islands


def test_ledgers_count_elements_without_padding_and_steps_of_the_optimizer(found: Found) -> None:
    parameters = 2 * (13 * 13 + 3 * 13) + 3 * 13 + 3
    for method in ("wgt(2e-38) | packed32", "none"):
        for cell, exchanges in (("plain", 3), ("several exchanges", 6)):
            counted = [each["beside_hsdp"][f"{cell}: {method}"] for each in found]
            assert {each["steps"] for each in counted} == {3}
            # Replicas count for both of them: a shard's two workers, the same.
            assert counted[0]["elements"] + counted[1]["elements"] == 2 * exchanges * parameters
            assert counted[0]["elements"] == counted[2]["elements"] > counted[1]["elements"]


def test_what_was_sent_and_what_is_kept_are_the_gradients(found: Found) -> None:
    for worker in found:
        sums = worker["conserved"]
        assert sums["parameters"] == 10
        assert sums["missing"] < 1e-6
        assert sums["kept"] > 0.01
        # By the size of the parameter, not of the shard.
        assert sums["exempt"] == [
            "0.0.bias",
            "0.1.bias",
            "0.1.weight",
            "1.0.bias",
            "1.1.bias",
            "1.1.weight",
            "2.bias",
        ]
        assert 0 < sums["fraction"] < 0.3


def test_a_run_that_goes_on_ends_the_same(found: Found) -> None:
    for rank, worker in enumerate(found):
        assert worker["going_on"]["same"]
        assert worker["going_on"]["totals"]
        shards = [f"replica {rank // 2} of 2, shard {each} of 2" for each in (1 - rank % 2, rank % 2)]
        assert worker["going_on"]["another"].startswith(
            f"ValueError: the state of {shards[0]}, this is {shards[1]}: for another number of shards"
        )


def test_another_number_of_shards_loads_residuals(found: Found) -> None:
    for rank in (0, 2):
        assert found[rank]["resharded"]["off"] == 0
        assert found[rank]["resharded"]["kept"] > 0.01
        assert found[rank]["resharded"]["parameters"] == 10
    assert found[0]["resharded"] != found[2]["resharded"]  # each replica its own


def test_a_step_that_one_shard_leaves_out_is_left_out_by_all(found: Found) -> None:
    for worker in found:
        assert worker["skipping"] == {"skipped": [False, True, False], "total": 1}


@in_turn("name", REFUSALS)
def test_what_cannot_work_is_refused(name: str, found: Found) -> None:
    assert found[0]["refused"][name].startswith(REFUSALS[name])
    assert "\n" not in found[0]["refused"][name]


def test_a_lost_peer_is_named(found: Found) -> None:
    assert found[1]["lost"].startswith("PeerLost: worker 1 is gone: ")
