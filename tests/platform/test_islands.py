"""Islands: FSDP2 inside, compressed shards between them; four workers beside DDP's own all-reduce.

Legend: P parameters, T iterations; owed = the mean of the islands' residuals.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cases import in_turn
from group import run_group
from mode_runs import Result, result, run, same
from plain import sgd, small
from recorder import saved_by, trained, trainer_of
from torch import Tensor, nn

from taugrad.compressors import NonFiniteGradient
from taugrad.platform.synchronization.islands import IslandGradients
from taugrad.platform.training.manifest import CheckpointError

EVERYTHING, SPARSE = "wgt(2e-38) | packed32", "strom(density(0.05)) | golomb_rice"
WORKERS, SIZE, BATCH, MIDDLE, ITERATIONS, RATE = 4, 2, 24, 7, 18, 0.05
PLAIN = {"optimizer": sgd(RATE)}
FIELDS = small(200, 301, 16, epochs=2, batch_size=BATCH, optimizer=sgd(RATE, 0.9, 1e-3), evaluation_block=50)
BASE: dict[str, Any] = FIELDS | {
    "model": {"kind": "custom", "factory": "test_islands:Net"},
    "tracking": {"flush_interval": 4, "layer_interval": 5},
    "checkpoint": {"interval": MIDDLE},
    "workers": {"count": WORKERS},
    "sync": {"mode": "gradients"},
}
IN_PARTS = {
    "training": BASE["training"] | {"accumulate": 3, "clip": {"norm": 0.3}, "optimizer": {"kind": "adamw"}}
}
UNEVEN = IN_PARTS | {
    "data": FIELDS["data"] | {"train_examples": 197},  # the last batch has 5: two for worker 0
    "model": {"kind": "mlp", "widths": [301, 13]},
}
SUMMED = {"training": BASE["training"] | {"loss_reduction": "sum", "optimizer": {"kind": "sgd", "lr": 0.002}}}
SUM_OF_ALL = {"compressor": {"kind": "none", "reduction": "sum"}}
DENSE = {
    "dense": BASE,
    "dense, in parts": BASE | IN_PARTS,
    "dense, uneven": BASE | UNEVEN,
    "dense, summed": BASE | SUMMED | SUM_OF_ALL,
}


def islands(line: str, size: int | str = SIZE, **sync: Any) -> dict[str, Any]:
    return BASE | {"compressor": line, "sync": {"mode": "gradients", "island": size, **sync}}


EQUAL = {
    "none": (islands("none"), "dense"),
    "everything": (islands(EVERYTHING), "dense"),
    "everything, in parts": (islands(EVERYTHING) | IN_PARTS, "dense, in parts"),
    "everything, uneven": (islands(EVERYTHING) | UNEVEN, "dense, uneven"),
    "everything, summed": (islands("wgt(2e-38, reduction='sum') | packed32") | SUMMED, "dense, summed"),
}
"""What sends everything, and what it equals."""
SPARSELY = {
    "strom": islands("strom(density(0.05), momentum=0.9) | golomb_rice")
    | {"training": BASE["training"] | PLAIN},
    "16 bits": islands("linear(8)", island_reduce="bf16")
    | {"training": BASE["training"] | {"precision": "bf16"}},
    "fp16": islands("wgt(0.01)") | {"training": BASE["training"] | {"precision": "fp16"}},
}
ALL = {name: spec for name, (spec, _) in EQUAL.items()} | SPARSELY
RESUMED = ["everything, in parts", *SPARSELY]
"""What has every kind of state."""
BEGUN = islands(SPARSE) | {
    "training": BASE["training"] | PLAIN,
    "model": {"kind": "mlp", "widths": [301, 13]},
}
"""From whose middle other numbers of workers go on."""


class Net(nn.Module):
    """Odd sizes, a large layer that is sharded alone, two that share weights, running means in a buffer."""

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(channels * height * width, 301), *(nn.Linear(301, 301) for _ in "ab")]
        )
        self.layers[2].weight = self.layers[1].weight
        self.last = nn.Linear(301, classes)
        self.register_buffer("mean", torch.zeros(301))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs.flatten(1)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        if self.training:
            self.mean.mul_(0.5).add_(hidden.detach().mean(0), alpha=0.5)
        return self.last(hidden - self.mean)


PARAMETERS = sum(parameter.numel() for parameter in Net(1, 16, 16, 10).parameters())


def work(rank: int, _workers: int, folder: Path) -> dict[str, Any]:
    """In each of four workers."""
    others = {name: spec for name, spec in (DENSE | ALL).items() if name not in RESUMED}
    runs = {name: result(*trained(spec)) for name, spec in others.items()}
    runs |= {name: run(ALL[name], folder / name) for name in RESUMED}
    begun = trainer_of(BEGUN, folder / "begun")
    begun.plan._most = MIDDLE + 1
    begun.fit()
    return {"runs": runs, "hosts": on_hosts(), "nan": not_finite(rank)}


def flat(tensors: Any) -> Tensor:
    """float64, one after the other."""
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def unsent(sync: IslandGradients) -> Tensor:
    """float64 [P], in the model's order."""
    ((_, kept),) = sync.state.residuals().items()
    names = [name for name, _ in sync.model.named_parameters()]
    whole = flat(kept["residuals"][name].full_tensor() for name in names)
    dist.all_reduce(whole, group=sync._peers)
    return whole / dist.get_world_size(sync._peers)


def on_hosts() -> dict[str, Any]:
    """Islands by host: as `with_sites` says it, whatever their ranks; and all on one machine."""
    crossed, _ = trained(islands(EVERYTHING, size="host", sites=[[0, 2], [1, 3]]))
    try:
        trainer_of(islands(EVERYTHING, size="host"))
    except ValueError as problem:
        return {
            "weights": dict(crossed.model.state_dict()),
            "units": len(crossed.sync.state._units),
            "refused": str(problem),
        }
    raise AssertionError("one host cannot be two islands")


def not_finite(rank: int) -> dict[str, str]:
    """What every worker says when one has a gradient that is not finite; and when it is left out."""
    results = {}
    for line in ("none", SPARSE, "wgt(0.01, nonfinite='skip')"):
        trainer = trainer_of(islands(line))
        trainer.plan._most = 3
        iterate = trainer.sync.iterate

        def poisoned(batches: Any, context: Any, iterate: Any = iterate) -> Any:
            if rank == 3 and context.position.iteration == 1:
                batches[0].inputs[0, 0, 0, 0] = torch.nan
            return iterate(batches, context)

        trainer.sync.iterate = poisoned  # type: ignore[method-assign]
        try:
            trainer.fit()
            results[line] = f"skipped {trainer.sync.totals.skipped_steps}"
        except NonFiniteGradient as problem:
            results[line] = str(problem)
    return results


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("islands")


@pytest.fixture(scope="module")
def workers(folder: Path) -> list[dict[str, Any]]:
    """By rank."""
    return run_group("test_islands", "work", WORKERS, folder)


@in_turn("name", ALL)
def test_all_islands_have_one_model_and_one_ledger(name: str, workers: list[dict[str, Any]]) -> None:
    first, *others = (result["runs"][name] for result in workers)
    for other in others:
        assert same(first, other)
        assert all(first[what] == other[what] for what in ("totals", "evaluations"))


@in_turn("name", RESUMED)
def test_a_run_that_goes_on_from_its_middle_ends_the_same(name: str, workers: list[dict[str, Any]]) -> None:
    for worker in workers:
        whole: Result = worker["runs"][name]
        assert same(whole, whole["resumed"])
        assert all(whole[what] == whole["resumed"][what] for what in ("totals", "metrics"))
        assert whole["resumed"]["logged"] == [entry for entry in whole["logged"] if entry[0] > MIDDLE]


@in_turn("name", EQUAL)
def test_what_sends_everything_trains_as_ddp_does(name: str, workers: list[dict[str, Any]]) -> None:
    runs = workers[0]["runs"]
    mine, ddp = runs[name], runs[EQUAL[name][1]]
    for key, value in ddp["weights"].items():
        torch.testing.assert_close(mine["weights"][key], value, rtol=1e-3, atol=2e-5, msg=key)
    losses = [[row["train/loss"] for _, row in one["logged"] if "train/loss" in row] for one in (mine, ddp)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < 0.9 * losses[0][0]


def test_bytes_between_islands_grow_with_islands_and_not_with_workers(workers: list[dict[str, Any]]) -> None:
    totals = workers[0]["runs"]["everything"]["totals"]
    two = WORKERS // SIZE
    assert totals["elements"] == two * PARAMETERS * ITERATIONS
    assert totals["sent"] == pytest.approx(totals["elements"], rel=0.01)  # but for zeros
    assert totals["paper_bits"] == 32 * totals["sent"]
    assert totals["wire_bytes"] == pytest.approx(8 * totals["elements"], rel=0.01)  # positions and values
    assert totals["received_bytes"] == (two - 1) * totals["wire_bytes"]
    assert workers[0]["runs"]["none"]["totals"]["wire_bytes"] == 4 * totals["elements"]
    assert workers[0]["runs"]["strom"]["totals"]["sent"] < 0.1 * totals["elements"]
    logged = [row for _, row in workers[0]["runs"]["strom"]["logged"] if "comm/residual_rms" in row]
    assert len(logged) == ITERATIONS
    assert all(row["comm/residual_rms"] > 0 for row in logged)
    assert logged[0]["comm/fraction"] == pytest.approx(0.05, rel=0.3)
    assert "layer/last.weight/grad_rms" in logged[0]


def test_hosts_are_islands_if_they_have_equally_many_workers(workers: list[dict[str, Any]]) -> None:
    for worker in workers:
        for key, value in workers[0]["runs"]["dense"]["weights"].items():
            torch.testing.assert_close(worker["hosts"]["weights"][key], value, rtol=1e-3, atol=2e-5, msg=key)
        assert worker["hosts"]["units"] == 2  # the large layers, which share their weights, and the rest
        assert worker["hosts"]["refused"].startswith(
            "sync.island = host: islands have 4 of 4 workers; there must"
        )


def test_a_gradient_that_is_not_finite_is_named_on_every_worker_or_left_out(
    workers: list[dict[str, Any]],
) -> None:
    for worker in workers:
        assert worker["nan"] == workers[0]["nan"]
    said = workers[0]["nan"]
    assert said.pop("wgt(0.01, nonfinite='skip')") == "skipped 1"
    assert all("holds NaN or Inf" in text for text in said.values())
    # The workers of its island have the shards of its sum.
    assert "on worker 2; " in said[SPARSE] or "on worker 3; " in said[SPARSE]


def another_number(_rank: int, workers: int, folder: Path) -> list[dict[str, Any]]:
    """In each of six workers that go on from the middle of four workers' run: in islands of two, of three."""
    return [going_on(folder, workers, size) for size in (SIZE, 3)]


def going_on(folder: Path, workers: int, size: int) -> dict[str, Any]:
    sync, group = BEGUN["sync"] | {"island": size}, {"count": workers, "on_resize": "merge"}
    spec = BEGUN | {"sync": sync, "workers": group}
    saved = saved_by(folder.parent / "begun" / str(MIDDLE), WORKERS)
    states = [state for row in saved.every for state in row["workers"]["exchange"].values()]
    former = sum(float(kept.double().sum()) for state in states for kept in state["residuals"].values())
    try:
        trainer = trainer_of(spec, saved=saved)
    except CheckpointError as problem:
        return {"said": str(problem)}
    assert isinstance(trainer.sync, IslandGradients)
    mine = unsent(trainer.sync)
    steps = trainer.sync.totals.steps
    trainer.fit()
    return {
        "owed": float(mine.sum()),
        "former": former / 2,  # the mean of two islands
        "steps": (steps, trainer.sync.totals.steps),
        "weights": dict(trainer.model.state_dict()),
    }


def test_residuals_are_resharded_to_another_number_of_islands(
    workers: list[dict[str, Any]], folder: Path
) -> None:
    assert workers
    pairs, threes = zip(*run_group("test_islands", "another_number", 6, folder / "six"), strict=True)
    first, *others = pairs
    assert first["owed"] == pytest.approx(first["former"], rel=1e-5)
    assert first["steps"] == (MIDDLE, ITERATIONS)
    for other in others:
        assert same(first, other)
    assert all("its islands had another size than 3 workers" in row["said"] for row in threes)
