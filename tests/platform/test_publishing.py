"""Weights that a run publishes: what readers have is what the workers agreed on, and metrics say so."""

from pathlib import Path

import pytest
import recorder
import specs
import torch

from taugrad.compressors import PatchReader, PatchWriter
from taugrad.platform.training.publishing import Publisher


def test_readers_have_what_the_workers_agreed_on(alone: None, tmp_path: Path) -> None:
    publish = {"path": str(tmp_path / "weights"), "every": 7, "full_every": 3}
    trainer, kept = recorder.trained(specs.digits(publish=publish))
    weights = {name: torch.zeros_like(tensor) for name, tensor in trainer.model.state_dict().items()}
    reader = PatchReader(tmp_path / "weights")
    last = reader.update(weights)
    assert all(weights[name].equal(tensor) for name, tensor in trainer.model.state_dict().items())
    written = [(at, row) for at, row in kept.logged if "publish/number" in row]
    assert written[0][0] == 7
    assert written[-1][0] == trainer.done
    assert [row["publish/number"] for _, row in written] == list(range(last + 1 if last else 0))
    assert written[0][1]["publish/patch_bytes"] == 0 < written[0][1]["publish/snapshot_bytes"]
    assert all(row["publish/patch_bytes"] > 0 for _, row in written[1:])
    assert all(0 < row["publish/changed_share"] <= 1 for _, row in written)
    again, _ = recorder.trained(specs.digits(publish=publish | {"every": 1000}))  # the place is free again
    assert reader.update(weights) == (last or 0) + 1
    assert all(weights[name].equal(tensor) for name, tensor in again.model.state_dict().items())


@pytest.mark.parametrize(
    "mode",
    [
        {"mode": "async", "step_times": [1, 1, 3], "delay": [0, 2]},
        {"mode": "weights", "every": 4, "quorum": 0.6, "schedule": {"away": 0.4, "rounds": [2, 4]}},
    ],
    ids=["async", "quorum"],
)
def test_publishing_changes_no_weights_of_workers_that_do_not_wait(
    mode: dict[str, object], alone: None, tmp_path: Path
) -> None:
    training = specs.DIGITS["training"] | {"optimizer": {"kind": "sgd", "momentum": 0}}
    fields = {"workers": {"count": 3}, "compressor": "strom(0.01)", "training": training}
    fields |= {"sync": {"mode": "simulated", "of": mode}}
    plain, _ = recorder.trained(specs.digits(**fields))
    trainer, kept = recorder.trained(specs.digits(**fields, publish={"path": str(tmp_path), "every": 5}))
    weights = trainer.model.state_dict()
    assert all(weights[name].equal(tensor) for name, tensor in plain.model.state_dict().items())
    written = {at for at, row in kept.logged if "publish/number" in row}
    assert trainer.done in written <= {at for at, _ in kept.evaluations} | set(kept.checkpoints)
    reader = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    PatchReader(tmp_path).update(reader)
    assert all(weights[name].equal(tensor) for name, tensor in reader.items())


def test_a_place_that_is_taken_ends_the_run_and_one_that_fails_does_not(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = specs.digits(publish={"path": str(tmp_path), "every": 10})
    with PatchWriter(tmp_path), pytest.raises(FileExistsError, match="is written by process"):
        recorder.trained(spec)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PatchWriter, "write", fail)
    _, kept = recorder.trained(spec)
    assert not kept.values("publish/number")
    assert "were not published: [Errno 28] No space left on device" in caplog.text


def test_a_publication_that_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Object stores raise classes of their own, not OSError."""
    publishing, model = Publisher(str(tmp_path), 10, None), torch.nn.Linear(2, 2)
    write = PatchWriter.write
    monkeypatch.setattr(PatchWriter, "write", lambda *_: 1 / 0)
    publishing.publish(5, model)
    assert not list(publishing.collect(wait=True))
    monkeypatch.setattr(PatchWriter, "write", write)
    publishing.publish(5, model)
    ((iteration, _),) = publishing.collect(wait=True)
    assert iteration == 5
    publishing.close()
