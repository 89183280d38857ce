"""Runs that go on with another number of workers: what was owed stays owed.

Legend: N former workers, M new ones; r a residual; owed = (1 / N) times the sum of all r.
"""

import json
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cases import in_turn
from forked import run_workers
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from resizing_process import saved_by
from sync_process import Recorder, result

from taugrad.compressors.exchange.pieces import cut
from taugrad.compressors.exchange.resizing import merged, share_of
from taugrad.platform.data import load
from taugrad.platform.data.batches import epoch_order
from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.spec.resizing import check_present, with_present, with_workers
from taugrad.platform.synchronization.in_rounds import InRounds
from taugrad.platform.synchronization.weights import LocalTraining
from taugrad.platform.training.checkpoint import Saved
from taugrad.platform.training.manifest import CheckpointError
from taugrad.platform.training.trainer import Trainer

N, MIDDLE, RATE = 3, 5, 0.05
BASE: dict[str, Any] = {
    "data": {"kind": "synthetic", "train_examples": 120, "test_examples": 20, "height": 8, "width": 8},
    "model": {"kind": "mlp", "widths": [13]},
    "training": {
        "epochs": 1,
        "batch_size": 12,
        "optimizer": {"kind": "sgd", "lr": RATE, "momentum": 0, "weight_decay": 0},
    },
    "checkpoint": {"interval": MIDDLE},
    "compressor": "strom(0.02) | golomb_rice",
}
SYNCS: dict[str, dict[str, Any]] = {
    "allgather": {"sync": {"mode": "allgather"}},
    "allgather, density": {"sync": {"mode": "allgather"}, "compressor": "wgt(density(0.1))"},
    "momentum": {"sync": {"mode": "allgather"}, "compressor": "topk(0.1, momentum=0.9)"},
    "ring": {"sync": {"mode": "ring"}},
    "sharded": {"sync": {"mode": "sharded", "back": "linear(4)"}},
    "parameter_server": {"sync": {"mode": "parameter_server"}},
    "weights": {"sync": {"mode": "weights", "every": 3}},
    "weights, unsent": {"sync": {"mode": "weights", "every": 3, "unsent": 0.5}},
    "whole weights": {"sync": {"mode": "weights", "every": 3, "exchange": "weights"}, "compressor": "none"},
}
every_sync = in_turn("name", SYNCS)


def simulated(name: str, workers: int, **more: Any) -> RunSpec:
    fields = BASE | SYNCS[name] | more
    group = {"count": workers, "on_resize": "merge"}
    return RunSpec.model_validate(
        fields | {"sync": {"mode": "simulated", "of": fields["sync"]}, "workers": group}
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """This process as a group of its own, with one thread as the real workers have."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    store = dist.FileStore(str(tmp_path_factory.mktemp("alone") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def begun(alone, tmp_path_factory):
    """Where each run of N workers wrote the checkpoint in its middle."""
    folder = tmp_path_factory.mktemp("begun")
    for name in SYNCS:
        trainer(simulated(name, N), folder / name).fit()
    return folder


def trainer(spec: RunSpec, folder: Path, saved: Saved | None = None) -> Trainer:
    made = Trainer(spec, load(spec.data), torch.device("cpu"), Recorder(folder))
    if saved is not None:
        made.resume(saved)
    return made


def resized(name: str, workers: int, begun: Path, folder: Path, **more: Any) -> Trainer:
    """Workers of another number that go on from the middle."""
    saved = saved_by(begun / name / str(MIDDLE), 1)
    if workers == N:
        saved = Saved(saved.shared, saved.every[0])
    return trainer(simulated(name, workers, **more), folder, saved)


def owed(sync: InRounds, what: str = "residuals") -> torch.Tensor:
    """float64 [P], what workers have not sent of the mean yet, and what owners have not sent back."""
    setting, workers = sync._patterns[0].setting, len(sync._patterns)
    sizes, total = setting.sizes, [torch.zeros(size).double() for size in setting.sizes]
    for rank, pattern in enumerate(sync._patterns):
        compressors = pattern.compressors()
        ranges = getattr(pattern, "ranges", [])
        shards = cut(sizes, {"AllGather": 1, "Ring": workers}.get(type(pattern).__name__, len(ranges)))
        backs = shards[rank : rank + 1] if ranges else []
        assert len(compressors) == len(shards) + len(backs)
        for place, (compressor, shard) in enumerate(zip(compressors, [*shards, *backs], strict=True)):
            for piece in shard.pieces:
                kept = getattr(compressor.feedback, what).get(setting.names[piece.ordinal])
                if kept is not None:
                    part = 1 if place >= len(shards) else workers
                    total[piece.ordinal][piece.start : piece.stop] += kept.double() / part
    return torch.cat(total)


tensors = st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=3)


@settings(deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from("ab"), tensors), min_size=1, max_size=6),
    st.lists(st.integers(1, 7), min_size=1, max_size=5),
    st.sampled_from(["mean", "sum"]),
)
def test_joins_and_leaves_lose_nothing_of_what_was_not_sent(residuals, counts, reduction):
    kept = [{name: torch.tensor(values) for name, values in each.items()} for each in residuals]

    def total(group: list[dict[str, torch.Tensor]], name: str) -> torch.Tensor:
        of_all = sum((each[name].double() for each in group if name in each), torch.zeros(3).double())
        return of_all / len(group) if reduction == "mean" else of_all

    before = {name: total(kept, name) for name in "ab"}
    scale = sum(torch.tensor(values).abs().max() for each in residuals for values in each.values())
    for workers in counts:
        kept = merged(kept, workers, share_of(len(kept), workers, reduction))
        assert len(kept) == workers
    for name in "ab":
        torch.testing.assert_close(total(kept, name), before[name], rtol=0, atol=1e-6 * float(scale))


@in_turn("workers", [1, 2, 4])
@every_sync
def test_what_is_owed_and_agreed_stays_what_it_was(name, workers, begun, tmp_path):
    before, after = resized(name, N, begun, tmp_path / "3"), resized(name, workers, begun, tmp_path / "n")
    assert after.done == MIDDLE
    assert isinstance(before.sync, InRounds)
    assert isinstance(after.sync, InRounds)
    for key, value in before.model.state_dict().items():
        assert torch.equal(after.model.state_dict()[key], value)
    for what in ("residuals", "velocities"):
        torch.testing.assert_close(owed(after.sync, what), owed(before.sync, what), rtol=1e-5, atol=1e-7)
    assert owed(before.sync).any() == (name != "whole weights")
    assert owed(before.sync, "velocities").any() == (name == "momentum")
    assert after.sync.totals == before.sync.totals
    if isinstance(after.sync, LocalTraining):
        assert isinstance(before.sync, LocalTraining)
        moves = [_moved(each.sync) for each in (before, after)]
        assert moves[0].any()  # the middle is not an exchange
        torch.testing.assert_close(moves[1], moves[0], rtol=1e-5, atol=1e-7)


def _moved(sync: Any) -> torch.Tensor:
    """float64 [P], the mean over workers of the way from where they went on to their present weights."""
    (fragment,) = sync.local.fragments
    ways = [
        torch.cat(
            [
                start.double() - own.detach().reshape(-1).double()
                for start, own in zip(sync.local.starts(fragment, local), each.parameters, strict=True)
            ]
        )
        for local, each in enumerate(sync._replicas)
    ]
    return torch.stack(ways).mean(0)


@in_turn("name", ["allgather", "ring", "sharded", "parameter_server"])
def test_the_next_step_is_that_of_one_process_but_for_what_is_owed(name, begun, tmp_path):
    """Weights before - rate * (owed before + mean gradient - owed after) = weights after."""
    four = resized(name, 4, begun, tmp_path)
    assert isinstance(four.sync, InRounds)
    owed_before, before = owed(four.sync), _flat(four.model.parameters())
    batch = BASE["training"]["batch_size"]
    picked = epoch_order(len(four.data.train), 0, 0)[batch * MIDDLE : batch * (MIDDLE + 1)]
    alone_ = deepcopy(four.model)
    inputs, labels = four.data.train.batch(picked, None)
    torch.nn.functional.cross_entropy(alone_(inputs), labels).backward()
    gradient = _flat(each.grad for each in alone_.parameters())
    four.plan._most = MIDDLE + 1
    four.fit()
    assert four.done == MIDDLE + 1
    expected = before - RATE * (owed_before + gradient - owed(four.sync))
    torch.testing.assert_close(_flat(four.model.parameters()), expected, rtol=0, atol=2e-6)


def _flat(tensors: Iterable[Any]) -> torch.Tensor:
    """float64 [P], in the order of patterns."""
    return torch.cat([each.detach().reshape(-1).double() for each in reversed(list(tensors))])


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The same by processes: N write the checkpoint, and two go on."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "specs.json").write_text(json.dumps({name: BASE | each for name, each in SYNCS.items()}))
    script = Path(__file__).with_name("resizing_process.py")
    for workers, former in ((N, 0), (2, N)):
        run_workers(script, lambda rank, w=workers, f=former: (rank, w, folder, f), workers)
    return [torch.load(folder / f"result_{rank}_{N}.pt", weights_only=True) for rank in range(2)]


@every_sync
def test_real_workers_go_on_as_simulated_ones_do(name, real, begun, tmp_path):
    two = resized(name, 2, begun, tmp_path)
    two.fit()
    expected = result(two, Recorder(tmp_path))["weights"]
    for worker in real:
        for key, value in expected.items():
            assert torch.equal(worker[name]["weights"][key], value), key
    assert real[0][name]["totals"]["sent"] == two.sync.totals.sent


def test_nobody_takes_over_other_workers_state_unasked(begun, tmp_path):
    saved, spec = saved_by(begun / "ring" / str(MIDDLE), 1), simulated("ring", 2)
    unasked = spec.model_copy(update={"workers": spec.workers.model_copy(update={"on_resize": "refuse"})})
    with pytest.raises(CheckpointError, match=r"of 3 workers, this run has 2: workers\.on_resize = refuse"):
        trainer(unasked, tmp_path, saved)


@in_turn(
    "fields, said",
    [
        ({}, "workers.on_resize = refuse: each worker's residual belongs to its part of the data"),
        (
            {
                "workers": {"on_resize": "merge"},
                "sync": {"mode": "async"},
                "training": {"optimizer": {"kind": "sgd", "momentum": 0}},
            },
            "sync.mode = async",
        ),
        ({"workers": {"on_resize": "merge"}, "compressor": "powersgd(2)"}, "compressor.kind = powersgd"),
        (
            {
                "workers": {"on_resize": "merge"},
                "compressor": "topk(0.1)",
                "sync": {"mode": "allgather", "adapt": {}},
            },
            "sync.adapt",
        ),
    ],
)
def test_who_cannot_go_on_with_others_says_so(fields, said):
    spec = RunSpec.model_validate(fields)
    with pytest.raises(SpecError) as refused:
        with_workers(spec, "--resume RUN --workers.count 5", {"count": "5"})
    assert str(refused.value).startswith("command line: --resume RUN --workers.count 5: ")
    assert said in str(refused.value)
    assert with_workers(spec, "", {"count": "2"}).workers.count == 2  # as many as it has


def test_a_field_of_a_resumed_run_is_checked_as_any_other():
    spec = RunSpec()
    with pytest.raises(SpecError, match=r"workers\.on_resize = both: input should be 'refuse' or 'merge'"):
        with_workers(spec, "--resume RUN", {"count": "5", "on_resize": "both"})
    for wrong in ("0", "two"):
        with pytest.raises(SpecError, match=f"workers.count = {wrong}: "):
            with_workers(spec, "--resume RUN", {"count": wrong})
    merging = with_workers(spec, "--resume RUN", {"count": "5", "on_resize": "merge"})
    assert (merging.workers.count, merging.training.batch_size) == (5, spec.training.batch_size)
    assert merging.model_copy(update={"workers": spec.workers}).fingerprint() == spec.fingerprint()


ELASTIC = {"count": 4, "min_count": 2, "max_restarts": 1, "on_resize": "merge"}


@in_turn(
    "fields, said",
    [
        ({"workers": ELASTIC | {"min_count": 5}}, "workers.min_count = 5: must be at most workers.count = 4"),
        ({"workers": ELASTIC | {"max_restarts": 0}}, "use max_restarts: 1 or more"),
        ({"workers": ELASTIC | {"on_resize": "refuse"}}, "workers.on_resize = refuse: "),
        ({"workers": ELASTIC, "sync": {"mode": "simulated"}}, "sync.mode = simulated: one process has all"),
        ({"workers": ELASTIC, "compressor": "powersgd(rank=1)"}, "compressor.kind = powersgd: "),
    ],
)
def test_what_cannot_be_elastic_is_refused(fields, said):
    with pytest.raises(ValidationError) as refused:
        RunSpec.model_validate(fields)
    assert "workers.min_count = " in str(refused.value)
    assert said in str(refused.value)


def test_a_run_with_fewer_workers_than_wanted_keeps_its_batches():
    spec = RunSpec.model_validate({"workers": ELASTIC, "training": {"batch_per_worker": 8}})
    fewer = with_present(spec, 3)
    assert (fewer.workers.count, fewer.training.batch_size) == (3, 32)
    assert with_present(spec, 4) == spec
    named = {"mode": "allgather", "exchange": "hierarchical", "sites": [[0, 1], [2, 3]]}
    pinned = RunSpec.model_validate({"workers": ELASTIC, "sync": named})
    with pytest.raises(SpecError, match=r"run\.yaml: workers\.min_count = 2: with 2 of 4 workers: sync"):
        check_present(pinned, "run.yaml")
    check_present(spec, "run.yaml")
