"""Hybrid parallelism as a mode: real workers and simulated ones, their ledgers, checkpoints and refusals.

Legend: K = 3 workers, n examples of a batch; of a model P parameters of convolutions, F features, H hidden
neurons, C classes.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cases import in_turn
from mode_specs import (
    BATCH,
    EPOCHS,
    EXAMPLES,
    HYBRID,
    ITERATIONS,
    MIDDLE,
    RATE,
    WORKERS,
    Result,
    hybrid,
    same,
    simulating,
    train,
)
from sync_process import Recorder, result

from taugrad import cli
from taugrad.compressors.exchange.pieces import cut
from taugrad.platform import preflight
from taugrad.platform.data import load
from taugrad.platform.launching import command
from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.spec.resizing import with_workers
from taugrad.platform.synchronization.hybrid.mode import HybridTraining
from taugrad.platform.synchronization.ledger import Iteration
from taugrad.platform.training.checkpoint import SHARED, Saved, save_shared, save_worker, unpack, worker_file
from taugrad.platform.training.manifest import CheckpointError, Digest, Manifest
from taugrad.platform.training.trainer import Trainer

K = WORKERS
GATHERED = (7, 9, 14, 18)
"""Iterations after which the model is evaluated or saved."""
P, F, H, C = 20 * 25 + 20 + 50 * 20 * 25 + 50, 50, 500, 10  # LeNet for 16 x 16
FULLY_CONNECTED = F * H + H + H * C + C
RESIZED = [
    "b: none",
    "b, per worker",
    "a: adamw",
    "b: topk, other way back",
    "c: strom, 16 bits",
    "b: momentum",
]
UNCOMPRESSED = RESIZED[:3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hybrid")


@pytest.fixture(scope="module")
def real(folder):
    return train({name: HYBRID[name] for name in RESIZED}, K, folder / "real")


@pytest.fixture(scope="module")
def simulated(folder):
    (found,) = train({name: simulating(HYBRID[name]) for name in RESIZED}, 1, folder / "simulated")
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """This process as a group of its own, for trainers."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("alone") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(spec: dict[str, Any], folder: Path, saved: Saved | None = None) -> tuple[Trainer, Result]:
    read = RunSpec.model_validate(spec)
    recorder = Recorder(folder)
    trainer = Trainer(read, load(read.data), torch.device("cpu"), recorder)
    if saved is not None:
        trainer.resume(saved)
    trainer.fit()
    return trainer, result(trainer, recorder)


def test_gathering_the_whole_model_is_in_no_ledger(real):
    """For an evaluation or a checkpoint."""
    for rank, worker in enumerate(real):
        found = worker["b: none"]
        assert found["sent"]["messages"] > int(found["link_messages"][rank].sum())
        rows = [size * (rank + 1) // K - size * rank // K for size in (H, C)]
        share = 4 * (rows[0] * (F + 1) + rows[1] * (H + 1))
        gathered = len(GATHERED) * (K - 1) * share
        assert found["sent"]["bytes"] == int(found["links"]["bytes"][rank].sum()) + gathered


BATCHES = EPOCHS * ([BATCH] * (EXAMPLES // BATCH) + [EXAMPLES % BATCH])
"""Examples of each iteration."""


@in_turn("value_bytes", [4, 2])
@in_turn("scheme", ["a", "b", "c"])
def test_bytes_and_messages_are_those_of_the_formulas(scheme, value_bytes, alone, tmp_path):
    """docs/synchronization.md has them."""
    activations = {4: "fp32", 2: "bf16"}[value_bytes]
    trainer, found = trained(simulating(hybrid(scheme=scheme, activations=activations)), tmp_path)
    assert isinstance(trainer.sync, HybridTraining)
    values = value_bytes * (2 * F + 2 * H + C)
    received = sum((K - 1) * (n * (values + 8) + 8 * K) for n in BATCHES)
    turns = {"a": 1, "b": K, "c": K}[scheme]
    features = {"a": K * (K - 1), "b": K * (K - 1), "c": K * K * (K - 1)}[scheme]
    layers = 2
    messages = 2 * K * (K - 1) + 2 * features + turns * (2 * layers - 1) * K * (K - 1)
    assert trainer.sync.activations.received_bytes == received
    assert trainer.sync.activations.messages == ITERATIONS * messages
    convolutions = ITERATIONS * 2 * K * (K - 1)
    told = ITERATIONS * K * (K - 1) * 2 * 48
    assert found["totals"]["messages"] == ITERATIONS * messages + convolutions
    expected = received + told + ITERATIONS * 2 * (K - 1) * 4 * P + 28 * convolutions
    assert found["totals"]["received_bytes"] == expected
    assert found["totals"]["elements"] == ITERATIONS * K * (P + FULLY_CONNECTED)
    assert found["totals"]["sent"] == ITERATIONS * K * P
    # What goes to all is handed over once: features, neurons' outputs, targets, counts.
    all_to_all = sum(n * (value_bytes * (F + H + C) + 8) + 8 * K for n in BATCHES)
    to_one = sum((K - 1) * n * value_bytes * (F + H) for n in BATCHES)
    assert trainer.sync.activations.wire_bytes == all_to_all + to_one
    # Value bits: activations without targets and counts, gradients on their way out and sums on theirs back.
    values_sent = sum(n * value_bytes * (F + H + C) for n in BATCHES) + to_one
    assert found["totals"]["paper_bits"] == 8 * values_sent + ITERATIONS * 32 * (K * P + P)


@in_turn("workers", [1, 2, 4])
@in_turn("scheme", ["a", "b", "c"])
def test_without_compression_any_number_of_workers_trains_as_one_process_does(
    scheme, workers, alone, tmp_path
):
    one = hybrid() | {"workers": {"count": 1}, "sync": {"mode": "simulated"}}
    _, expected = trained(one, tmp_path / "one")
    _, found = trained(simulating(hybrid(scheme=scheme), workers), tmp_path / "many")
    for key, value in expected["weights"].items():
        torch.testing.assert_close(found["weights"][key], value, rtol=1e-4, atol=2e-5, msg=key)
    (_, loss), (_, other) = expected["evaluations"][-1], found["evaluations"][-1]
    assert loss == pytest.approx(other, rel=1e-4)


def test_sixteen_bits_differ_from_thirty_two_by_rounding(alone, tmp_path):
    """With 8 bits of mantissa a step differs by one or two percent of itself."""
    one = {"iterations": 1, "optimizer": {"kind": "sgd", "lr": 1.0, "momentum": 0, "weight_decay": 0}}
    moved = {}
    for activations in ("fp32", "bf16"):
        read = RunSpec.model_validate(simulating(hybrid(fields=one, scheme="c", activations=activations)))
        trainer = Trainer(read, load(read.data), torch.device("cpu"), Recorder(tmp_path))
        start = {key: each.clone() for key, each in trainer.model.state_dict().items()}
        trainer.fit()
        moved[activations] = {key: each - start[key] for key, each in trainer.model.state_dict().items()}
    for key, step in moved["fp32"].items():
        assert 0 < (moved["bf16"][key] - step).norm() < 0.05 * step.norm(), key


def test_rates_of_both_parts_follow_their_own_batches(alone, tmp_path):
    """Linear rule: K steps of B examples at the rate for B, one of K B at K times that (section 5)."""
    rules = {"scaling": {"kind": "linear", "reference": BATCH // K}}
    trainer, _ = trained(simulating(hybrid(fields=rules, fc_batch="per_worker")), tmp_path)
    sync = trainer.sync
    assert isinstance(sync, HybridTraining)
    rates = [worker.optimizer.param_groups[0]["lr"] for worker in sync.workers_here]
    assert rates == [pytest.approx(RATE)] * K
    assert sync._replica.optimizer.param_groups[0]["lr"] == pytest.approx(K * RATE)
    decay = sync._replica.optimizer.param_groups[0]["weight_decay"]
    assert 1 - K * RATE * decay == pytest.approx((1 - RATE * 1e-3) ** K, rel=1e-12)
    assert sync.workers_here[0].optimizer.param_groups[0]["weight_decay"] == pytest.approx(1e-3)


def saved_of(folder: Path, number: int, processes: int) -> Saved:
    """What processes wrote, for another number of workers."""
    there = folder / f"run_{number}" / str(MIDDLE)
    every = tuple(unpack((there / worker_file(rank)).read_bytes()) for rank in range(processes))
    return Saved(unpack((there / SHARED).read_bytes()), {}, every)


def owed(sync: HybridTraining, what: str = "residuals") -> torch.Tensor:
    """float64 [P], what is not sent yet of the mean: of workers' own, and of what owners send back.

    With `what` "velocities" the mean of the workers' momentum of gradients.
    """
    sizes, names = sync._patterns[0].setting.sizes, sync._patterns[0].setting.names
    total = [torch.zeros(size).double() for size in sizes]
    workers = len(sync._patterns)
    for rank, pattern in enumerate(sync._patterns):
        for number, compressor in enumerate(pattern.compressors()):
            back = number == workers
            for piece in cut(sizes, workers)[rank if back else number].pieces:
                kept = getattr(compressor.feedback, what).get(names[piece.ordinal])
                if kept is not None:
                    total[piece.ordinal][piece.start : piece.stop] += kept.double() / (1 if back else workers)
    return torch.cat(total)


def optimizers(sync: HybridTraining) -> list[torch.Tensor]:
    """What the optimizers of the fully connected layers keep of each parameter, put together."""
    states = [worker.optimizer.state_dict()["state"] for worker in sync.workers_here]
    return [
        torch.cat([each[i][key] for each in states]) if value.dim() else value
        for i, kept in states[0].items()
        for key, value in kept.items()
    ]


@in_turn("workers", [1, 2, 4])
@in_turn("name", RESIZED)
def test_a_checkpoint_reloads_with_another_number_of_workers(
    name, workers, real, simulated, alone, folder, tmp_path
):
    """Of three processes, in each case: weights, momentum and what is owed stay what they were."""
    place = RESIZED.index(name)
    saved = saved_of(folder / "real", place, K)

    def loaded(count: int, what: Saved) -> Trainer:
        read = RunSpec.model_validate(simulating(HYBRID[name], count))
        trainer = Trainer(read, load(read.data), torch.device("cpu"), Recorder(tmp_path))
        trainer.resume(what)
        return trainer

    there = saved_of(folder / "simulated", place, 1)
    three = loaded(K, Saved(there.shared, there.every[0]))
    other = loaded(workers, saved)
    assert other.done == MIDDLE
    for key, value in three.model.state_dict().items():
        assert torch.equal(other.model.state_dict()[key], value)
    before, after = three.sync, other.sync
    assert isinstance(before, HybridTraining)
    assert isinstance(after, HybridTraining)
    kept = optimizers(before)
    assert any(each.any() for each in kept) == (name != "b: momentum")  # the compressor has it there
    for one, two in zip(kept, optimizers(after), strict=True):
        assert torch.equal(one, two)
    for what in ("residuals", "velocities"):
        torch.testing.assert_close(owed(after, what), owed(before, what), rtol=1e-5, atol=1e-7)
    assert (name == "b: momentum") == bool(owed(before, "velocities").any())
    assert (name in UNCOMPRESSED) == (not owed(before).any())
    assert after.totals == before.totals
    other.fit()
    if name == "b: none":  # the same batches, the same steps
        for key, value in real[0][name]["weights"].items():
            torch.testing.assert_close(other.model.state_dict()[key], value, rtol=1e-4, atol=2e-5, msg=key)
    else:
        assert all(torch.isfinite(each).all() for each in other.model.state_dict().values())


def saved_of_folder(folder: Path) -> Saved:
    there = folder / str(MIDDLE)
    return Saved(unpack((there / SHARED).read_bytes()), {}, (unpack((there / worker_file(0)).read_bytes()),))


def test_workers_without_neurons_leave_checkpoints_that_others_reload(alone, tmp_path):
    """12 workers, 10 classes: two have none of the last layer's neurons."""
    one = hybrid() | {"workers": {"count": 1}, "sync": {"mode": "simulated"}}
    _, expected = trained(one, tmp_path / "one")
    _, found = trained(simulating(hybrid(scheme="c"), 12), tmp_path / "many")
    saved = saved_of_folder(tmp_path / "many")
    _, fewer = trained(simulating(hybrid(scheme="c"), 2), tmp_path / "fewer", saved)
    for key, value in expected["weights"].items():
        for other in (found, fewer):
            torch.testing.assert_close(other["weights"][key], value, rtol=1e-4, atol=2e-5, msg=key)


def test_a_checkpoint_without_all_workers_is_refused(real, alone, folder, tmp_path):
    saved = saved_of(folder / "real", 0, K)
    for every in (saved.every[:2], ()):
        read = RunSpec.model_validate(simulating(HYBRID["b: none"], 2))
        trainer = Trainer(read, load(read.data), torch.device("cpu"), Recorder(tmp_path))
        with pytest.raises(CheckpointError, match="of 3 workers, this run has 2: the states of ranks"):
            trainer.resume(Saved(saved.shared, {}, every))


def test_every_workers_file_is_read_where_their_number_is_another(tmp_path):
    save_shared(tmp_path, {"workers": 2})
    for rank in range(2):
        save_worker(tmp_path, rank, {"rank": rank})
    files = {path.name: Digest.of(path) for path in tmp_path.iterdir()}
    manifest = Manifest("run", 1, files)

    def read(name: str) -> bytes:
        return (tmp_path / name).read_bytes()

    for workers in (None, 2):
        assert Saved.load(read, manifest, 1, workers) == Saved({"workers": 2}, {"rank": 1})
    assert Saved.load(read, manifest, 2, 3) == Saved({"workers": 2}, {}, ({"rank": 0}, {"rank": 1}))


@pytest.mark.parametrize("scheme", ["a", "b"])
def test_a_gradient_that_is_not_finite_leaves_the_step_out_or_ends_the_run(scheme, alone, tmp_path):
    """Of the fully connected part alone: the convolutions' gradients are finite."""
    for action in ("skip", "refuse"):
        read = RunSpec.model_validate(simulating(hybrid(f"wgt(0.01, nonfinite='{action}')", scheme=scheme)))
        trainer = Trainer(read, load(read.data), torch.device("cpu"), Recorder(tmp_path))
        sync = trainer.sync
        assert isinstance(sync, HybridTraining)
        last = sync.workers_here[1].layers[-1]
        with torch.no_grad():
            last.weight.register_hook(lambda gradient: gradient * float("inf"))
        if action == "refuse":
            with pytest.raises(Exception, match=r"fc2\.weight"):
                trainer.fit()
            continue
        before = {name: each.clone() for name, each in trainer.model.state_dict().items()}
        trainer.fit()
        assert trainer.sync.totals.skipped_steps == ITERATIONS
        assert same({"weights": before}, {"weights": trainer.model.state_dict()})


def test_between_evaluations_nobody_has_the_whole_fully_connected_part(alone, tmp_path):
    sizes: list[int] = []

    read = RunSpec.model_validate(simulating(HYBRID["b: none"]))
    trainer = Trainer(read, load(read.data), torch.device("cpu"), Recorder(tmp_path))
    iterate = trainer.sync.iterate

    def looking(*arguments: Any) -> Iteration:
        iteration = iterate(*arguments)
        sizes.append(trainer.model.get_submodule("fc1").weight.numel())
        return iteration

    trainer.sync.iterate = looking  # type: ignore[method-assign]
    trainer.fit()
    assert sizes == [0] * ITERATIONS
    assert trainer.model.get_submodule("fc1").weight.shape == (H, F)


REFUSED = [
    ({"fc_batch": "per_worker", "scheme": "a"}, {}, "fc_batch = per_worker with sync.scheme = a"),
    ({}, {"optimizer": {"kind": "lars"}}, "training.optimizer.kind = lars with sync.mode = hybrid"),
    ({}, {"optimizer": {"kind": "lamb"}}, "training.optimizer.kind = lamb"),
    ({}, {"clip": {"norm": 1}}, "training.clip.norm = 1 with sync.mode = hybrid: no worker has the whole"),
    ({}, {"precision": "fp16"}, "training.precision = fp16 with sync.mode = hybrid"),
    ({}, {"accumulate": 2}, "training.accumulate = 2"),
    ({}, {"compile": True}, "training.compile = true"),
    ({}, {"find_unused_parameters": True}, "training.find_unused_parameters = true"),
    ({"back": "powersgd"}, {}, "sync.back.kind = powersgd"),
    ({"scheme": "d"}, {}, "'a', 'b' or 'c'"),
]


@in_turn("sync, training, problem", REFUSED)
def test_what_cannot_be_is_refused_when_the_spec_is_read(sync, training, problem):
    with pytest.raises(ValueError, match=problem):
        RunSpec.model_validate(hybrid(fields=training, **sync))
    with pytest.raises(ValueError, match=problem.replace("sync.", "sync.of.").replace("'a'", "'a'")):
        RunSpec.model_validate(simulating(hybrid(fields=training, **sync)))


def test_a_skipped_step_cannot_be_taken_back_where_layers_have_moved():
    with pytest.raises(ValueError, match=r"nonfinite = skip with sync\.fc_batch = per_worker"):
        RunSpec.model_validate(hybrid("wgt(1, nonfinite='skip')", fc_batch="per_worker"))


@in_turn("model", [{"kind": "mlp"}, {"kind": "sigmoid_stack"}])
def test_a_model_without_two_parts_is_refused_before_a_worker_starts(model):
    read = RunSpec.model_validate(simulating(hybrid(model=model)))
    with pytest.raises(SpecError, match=f"sync.mode = hybrid with model.kind = {model['kind']}: "):
        preflight.check(read, "spec.yaml", local=True)


def test_a_hybrid_run_goes_on_with_other_workers_unasked():
    read = RunSpec.model_validate(hybrid(fields={"batch_per_worker": 8}))
    assert read.training.batch_size == 8 * K
    other = with_workers(read, "", {"count": "2"})
    assert (other.workers.count, other.training.batch_size) == (2, 8 * K)
    again = RunSpec.model_validate_json(other.model_dump_json())  # as workers read it
    assert again == other


@in_turn(
    "words, asked",
    [
        (["--workers.count", "3"], {"count": "3"}),
        (["--workers.count=4"], {"count": "4"}),
        (["--workers.count", "3", "--workers.cpus", "0.5"], {"count": "3", "cpus": "0.5"}),
        (["--workers.on_resize=merge", "--workers.count", "3"], {"count": "3", "on_resize": "merge"}),
        (["--workers.on_resize"], None),
        (["--workers.count"], None),
        (["--workers.device", "cuda"], None),
        (["--workers.count", "2", "spec.yaml"], None),
        (["--training.epochs", "3"], None),
        (["spec.yaml"], None),
        ([], {}),
    ],
)
def test_resume_takes_a_number_of_workers_and_nothing_else(words, asked, monkeypatch, capsys):
    taken = []
    monkeypatch.setattr(command, "resume", lambda run, _, workers: taken.append((run, workers)) or 0)
    ended = cli.main(["train", "--resume", "RUN", *words])
    if asked is None:
        assert (ended, taken) == (cli.WRONG_INPUT, [])
        assert "--resume uses the run's own spec" in capsys.readouterr().err
    else:
        assert (ended, taken) == (0, [("RUN", asked)])
