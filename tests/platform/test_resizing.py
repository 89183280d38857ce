"""Runs that go on with another number of workers: what was owed stays owed.

Legend: N former workers, M new ones; r a residual; owed = (1 / N) times the sum of all r.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from cases import in_turn
from group import run_group
from hypothesis import given
from hypothesis import strategies as st
from mode_specs import HYBRID
from plain import sgd, small
from recorder import saved_by, trainer_of

from taugrad import cli
from taugrad.compressors.exchange.resizing import merged, share_of
from taugrad.platform.launching.driver import train as command
from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.spec.resizing import check_present, with_present, with_workers
from taugrad.platform.synchronization.hybrid.mode import HybridTraining
from taugrad.platform.synchronization.weights import LocalTraining
from taugrad.platform.training.checkpoint import SHARED, Saved, save, worker_file
from taugrad.platform.training.manifest import CheckpointError, Digest, Manifest
from taugrad.platform.training.trainer import Trainer

N, MIDDLE, RATE = 3, 5, 0.05
BASE = small(120, 20, 8, epochs=1, batch_size=12, optimizer=sgd(RATE)) | {
    "model": {"kind": "mlp", "widths": [13]},
    "checkpoint": {"interval": MIDDLE},
    "compressor": "strom(0.02) | golomb_rice",
}
ADAMW = {"optimizer": {"kind": "adamw", "lr": RATE}}
UNCOMPRESSED = ["b: none", "b, per worker", "a: adamw"]
HYBRIDS = [*UNCOMPRESSED, "b: topk, other way back", "c: strom, 16 bits", "b: momentum"]
SYNCS: dict[str, dict[str, Any]] = {
    "allgather": {"sync": {"mode": "gradients"}},
    "allgather, density": {"sync": {"mode": "gradients"}, "compressor": "wgt(density(0.1))"},
    "momentum": {"sync": {"mode": "gradients"}, "compressor": "topk(0.1, momentum=0.9)"},
    "ring": {"sync": {"mode": "gradients", "pattern": "ring"}},
    "sharded": {"sync": {"mode": "gradients", "pattern": "sharded", "downlink": "linear(4)"}},
    "parameter_server": {"sync": {"mode": "gradients", "pattern": "parameter_server"}},
    "weights": {"sync": {"mode": "weights", "every": 3}, "training": BASE["training"] | ADAMW},
    "weights, unsent": {"sync": {"mode": "weights", "every": 3, "unsent": "1/n"}},
    "weights, on their way": {"sync": {"mode": "weights", "every": 4, "delay_steps": 2}},
    "whole weights": {"sync": {"mode": "weights", "every": 3, "exchange": "weights"}, "compressor": "none"},
    **{f"hybrid, {name}": {"compressor": "none"} | HYBRID[name] for name in HYBRIDS},
}
IN_PROCESSES = [name for name in SYNCS if name not in (
    "allgather, density", "ring", "whole weights", "hybrid, b: none", "hybrid, b, per worker",
    "hybrid, c: strom, 16 bits",
)]  # fmt: skip
"""What real workers are tried with; the rest have the state of one of these."""
WHOLE, LATER = "hybrid, b: none", 4
"""Which run is made to its end; and so many iterations after its middle others go on."""
MERGING = {"on_resize": "merge"}


def middle(name: str) -> str:
    """The folder of the checkpoint in a run's middle."""
    return str((BASE | SYNCS[name])["checkpoint"]["interval"])


def simulated(name: str, workers: int, **more: Any) -> RunSpec:
    fields = BASE | SYNCS[name] | more
    sync, group = {"mode": "simulated", "of": fields["sync"]}, MERGING | {"count": workers}
    return RunSpec.model_validate(fields | {"sync": sync, "workers": group})


@pytest.fixture(scope="module")
def begun(alone, tmp_path_factory):
    """Where each run of N workers wrote the checkpoint in its middle."""
    folder = tmp_path_factory.mktemp("begun")
    for name in SYNCS:
        whole = trainer_of(simulated(name, N), folder / name)
        whole.plan._most = None if name == WHOLE else int(middle(name)) + 1
        whole.fit()
        torch.save(whole.model.state_dict(), folder / name / "end.pt")
    return folder


def resized(name: str, workers: int, begun: Path) -> Trainer:
    """Workers of another number that go on from the middle."""
    saved = saved_by(begun / name / middle(name), 1)
    if workers == N:
        saved = Saved(saved.shared, saved.every[0])
    return trainer_of(simulated(name, workers), saved=saved)


def unsent(sync: Any, what: str = "residuals") -> torch.Tensor:
    """float64 [P], what workers have not sent of the mean yet, and what owners have not sent back.

    `what` is "velocities" for momentum of gradients. A second compression, of a mean on its way back, counts
    for all workers.
    """
    patterns = [
        worker.local.fragments[0].pattern if isinstance(worker, LocalTraining) else worker._pattern
        for worker in sync.by_rank
    ]
    total = {name: torch.zeros(size).double() for name, size in patterns[0].sizes.items()}
    for pattern in patterns:
        for name, kept in getattr(pattern.feedback, what).items():
            total[name] += kept.double() / len(patterns)
        sums = pattern.feedback.sums
        for name, kept in ({} if sums is None else getattr(sums, what)).items():
            part = sums.slices[name]
            total[name][part.start : part.stop] += kept.double()
    return torch.cat(list(total.values()))


tensors = st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=3)


@given(
    st.lists(st.dictionaries(st.sampled_from("ab"), tensors), min_size=1, max_size=6),
    st.lists(st.integers(1, 7), min_size=1, max_size=5),
    st.sampled_from(["mean", "sum"]),
)
def test_joins_and_leaves_lose_nothing_of_what_was_not_sent(residuals, counts, reduction):
    kept = [{name: torch.tensor(values) for name, values in residual.items()} for residual in residuals]

    def total(group: list[dict[str, torch.Tensor]], name: str) -> torch.Tensor:
        of_all = sum((state[name].double() for state in group if name in state), torch.zeros(3).double())
        return of_all / len(group) if reduction == "mean" else of_all

    before = {name: total(kept, name) for name in "ab"}
    scale = sum(torch.tensor(values).abs().max() for residual in residuals for values in residual.values())
    for workers in counts:
        share = share_of(len(kept), workers, reduction)
        kept = [merged(kept[rank::workers], share) for rank in range(workers)]
        assert len(kept) == workers
    for name in "ab":
        torch.testing.assert_close(total(kept, name), before[name], rtol=0, atol=1e-6 * float(scale))


@in_turn("name", SYNCS)
def test_resizing_keeps_residuals_and_agreed_state(name, begun):
    before = resized(name, N, begun)
    for workers in (1, 2, 4):
        check_same(name, before, resized(name, workers, begun), begun)


def check_same(name: str, before: Trainer, after: Trainer, begun: Path) -> None:
    """Whether others go on with what was owed and agreed."""
    assert after.done == int(middle(name))
    for key, value in before.model.state_dict().items():
        assert torch.equal(after.model.state_dict()[key], value)
    for what in ("residuals", "velocities"):
        torch.testing.assert_close(unsent(after.sync, what), unsent(before.sync, what), rtol=1e-5, atol=1e-7)
    hybrid = name.removeprefix("hybrid, ")
    assert unsent(before.sync).any() == (hybrid not in ["whole weights", *UNCOMPRESSED])
    assert unsent(before.sync, "velocities").any() == ("momentum" in name)
    assert after.sync.totals == before.sync.totals
    if isinstance(after.sync.by_rank[0], LocalTraining):
        moves = [_moved(trainer.sync) for trainer in (before, after)]
        assert moves[0].any()  # the middle is not an exchange
        for trainer in (before, after):
            in_flight = trainer.sync.by_rank[0].local.fragments[0].in_flight
            assert bool(in_flight) == ("on their way" in name)
        torch.testing.assert_close(moves[1], moves[0], rtol=1e-5, atol=1e-7)
    if isinstance(after.sync.by_rank[0], HybridTraining):
        kept = optimizers(before.sync)
        assert any(tensor.any() for tensor in kept) == (
            hybrid != "b: momentum"
        )  # the compressor has it there
        assert all(torch.equal(*pair) for pair in zip(kept, optimizers(after.sync), strict=True))
    if name == WHOLE:  # the same batches, the same steps
        after.fit()
        end = torch.load(begun / name / "end.pt", weights_only=True)
        for key, value in end.items():
            torch.testing.assert_close(after.model.state_dict()[key], value, rtol=1e-4, atol=2e-5, msg=key)


def optimizers(sync: Any) -> list[torch.Tensor]:
    """What the optimizers of the fully connected layers keep of each parameter, put together."""
    states = [mode.worker.optimizer.state_dict()["state"] for mode in sync.by_rank]
    return [
        torch.cat([state[i][key] for state in states]) if value.dim() else value
        for i, kept in states[0].items()
        for key, value in kept.items()
    ]


def _moved(sync: Any) -> torch.Tensor:
    """float64 [P], the mean over workers of the way to their present weights that they have not handed in."""
    ways = []
    for worker in sync.by_rank:
        (fragment,) = worker.local.fragments
        starts = fragment.part.at_sending or fragment.base_weights()
        expected = zip(starts, worker._replica.parameters, strict=True)
        ways.append(torch.cat([start.double() - p.detach().reshape(-1).double() for start, p in expected]))
    return torch.stack(ways).mean(0)


@in_turn("name", ["weights", "hybrid, a: adamw"])
def test_each_worker_counts_its_own_steps(name, begun):
    four, steps = resized(name, 4, begun), int(middle(name)) + 1
    four.plan._most = steps
    four.fit()
    alike = [mode.worker if isinstance(mode, HybridTraining) else mode._replica for mode in four.sync.by_rank]
    kept = [replica.optimizer.state_dict()["state"] for replica in alike]
    assert [int(tensor["step"]) for state in kept for tensor in state.values()] == [steps] * 4 * len(kept[0])


def work(_rank: int, workers: int, folder: Path, former: str) -> dict[str, dict[str, Any]]:
    """In each worker: runs that write the checkpoint in their middle, or go on from so many processes'."""
    results = {}
    for name in IN_PROCESSES:
        spec = BASE | SYNCS[name] | {"workers": MERGING | {"count": workers}}
        saved = saved_by(folder / name / middle(name), int(former)) if int(former) else None
        run = trainer_of(spec, None if saved else folder / name, saved)
        run.plan._most = int(middle(name)) + (LATER if saved else 1)
        run.fit()
        weights = {key: tensor.clone() for key, tensor in run.model.state_dict().items()}
        results[name] = {"weights": weights, "sent": run.sync.totals.sent}
    return results


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Where N processes wrote checkpoints."""
    folder = tmp_path_factory.mktemp("real")
    run_group("test_resizing", "work", N, folder, 0)
    return folder


@pytest.fixture(scope="module")
def real(written):
    """What two processes come to that go on from these."""
    return run_group("test_resizing", "work", 2, written, N)


@in_turn("name", IN_PROCESSES)
def test_real_workers_go_on_as_simulated_ones_do(name, real, begun):
    two = resized(name, 2, begun)
    two.plan._most = int(middle(name)) + LATER
    two.fit()
    for worker in real:
        for key, value in two.model.state_dict().items():
            assert torch.equal(worker[name]["weights"][key], value), key
            assert torch.isfinite(value).all()
    assert real[0][name]["sent"] == two.sync.totals.sent


def test_state_of_other_workers_is_refused_by_default(begun):
    saved, spec = saved_by(begun / "ring" / str(MIDDLE), 1), simulated("ring", 2)
    unasked = spec.model_copy(update={"workers": spec.workers.model_copy(update={"on_resize": "refuse"})})
    with pytest.raises(CheckpointError, match=r"of 3 workers, this run has 2: workers\.on_resize = refuse"):
        trainer_of(unasked, saved=saved)


def test_a_checkpoint_without_all_workers_is_refused(written, alone):
    name = "hybrid, a: adamw"
    saved = saved_by(written / name / middle(name), N)
    for every in (saved.every[:2], ()):
        with pytest.raises(CheckpointError, match="of 3 workers, this run has 2: the states of ranks"):
            trainer_of(simulated(name, 2), saved=Saved(saved.shared, {}, every))


@in_turn(
    "fields, said",
    [
        ({}, "workers.on_resize = refuse: each worker's residual belongs to its part of the data"),
        (
            {"workers": MERGING, "sync": {"mode": "async"}, "training": {"optimizer": sgd(0.1)}},
            "sync.mode = async",
        ),
        ({"workers": MERGING, "compressor": "powersgd(2)"}, "compressor.kind = powersgd"),
    ],
)
def test_runs_that_cannot_be_resized_say_so(fields, said):
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


def test_a_run_with_fewer_workers_than_wanted_keeps_its_batches():
    spec = RunSpec.model_validate({"workers": ELASTIC, "training": {"batch_per_worker": 8}})
    fewer = with_present(spec, 3)
    assert (fewer.workers.count, fewer.training.batch_size) == (3, 32)
    assert with_present(spec, 4) == spec
    named = {"mode": "gradients", "pattern": "hierarchical", "sites": [[0, 1], [2, 3]]}
    pinned = RunSpec.model_validate({"workers": ELASTIC, "sync": named})
    with pytest.raises(SpecError, match=r"run\.yaml: workers\.min_count = 2: with 2 of 4 workers: sync"):
        check_present(pinned, "run.yaml")
    check_present(spec, "run.yaml")


def test_every_workers_file_is_read_where_their_number_is_another(tmp_path):
    save({"workers": 2}, tmp_path / SHARED)
    for rank in range(2):
        save({"rank": rank}, tmp_path / worker_file(rank))
    files = {path.name: Digest.of(path) for path in tmp_path.iterdir()}
    manifest = Manifest("run", 1, files)

    def read(name: str) -> bytes:
        return (tmp_path / name).read_bytes()

    assert Saved.load(read, manifest, 1, 2) == Saved({"workers": 2}, {"rank": 1})
    assert Saved.load(read, manifest, 2, 3) == Saved({"workers": 2}, {}, ({"rank": 0}, {"rank": 1}))


def test_a_hybrid_run_goes_on_with_other_workers_unasked():
    read = RunSpec.model_validate(HYBRID["b: none"] | {"training": {"batch_per_worker": 8}})
    assert read.training.batch_size == 8 * 3
    other = with_workers(read, "", {"count": "2"})
    assert (other.workers.count, other.training.batch_size) == (2, 8 * 3)
    again = RunSpec.model_validate_json(other.model_dump_json())  # as workers read it
    assert again == other


@in_turn(
    "words, asked",
    [
        (["--workers.count", "3"], {"count": "3"}),
        (["--workers.count=4"], {"count": "4"}),
        (["--workers.count", "3", "--workers.cpus", "0.5"], {"count": "3", "cpus": "0.5"}),
        (["--workers.on_resize=merge", "--workers.count", "3"], {"count": "3", "on_resize": "merge"}),
        ([], {}),
    ],
)
def test_resume_takes_fields_of_workers(words, asked, monkeypatch):
    """refusals.yaml has what it does not take."""
    taken = []
    monkeypatch.setattr(command, "resume", lambda run, _, workers: taken.append((run, workers)) or 0)
    assert cli.main(["train", "--resume", "RUN", *words]) == 0
    assert taken == [("RUN", asked)]
