"""The warning of an adaptive optimizer with a threshold on gradients: once, before workers start."""

import pytest
import yaml

from taugrad import cli
from taugrad.platform.launching import command as training
from taugrad.search import command as searching
from taugrad.search.auto_link import command as linking
from taugrad.search.plan import command as planning

SPEC = {
    "data": {"kind": "digits"},
    "model": {"kind": "mlp", "widths": [8]},
    "training": {"epochs": 1, "optimizer": {"kind": "adamw", "lr": 0.01}},
    "compressor": "wgt(0.01)",
    "workers": {"count": 4, "cpus": 0.25},
}
SET = (
    "    sync: {mode: weights, every: 4, unsent: 0.25}\n"
    '    compressor: "strom(density(0.1, every=1)) | golomb_rice"\n'
    "    training: {optimizer: {kind: adamw, lr: 0.02}}\n"
)


class Begun(Exception):
    """Workers, measurements or trials would start now."""


def stop(*_, **__):
    raise Begun


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for module in (training, searching, linking):
        monkeypatch.setattr(module, "check", lambda *_, **__: None)
    for module in (training, searching):
        monkeypatch.setattr(module, "probe", lambda *_, **__: None)
    cli._warn.cache_clear()
    monkeypatch.setattr(training, "_started", stop)
    monkeypatch.setattr(searching, "_check", lambda *_: None)
    monkeypatch.setattr(searching, "_alone", stop)
    monkeypatch.setattr(linking, "_find", stop)
    monkeypatch.setattr(planning, "calibrated", stop)
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(SPEC))
    return str(path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "FILE"],
        ["train", "FILE", "FILE"],
        ["plan", "FILE", "--link", "100mbit", "--workers", "2,4"],
        ["auto", "FILE", "--link", "100mbit", "--target", "loss=1", "--plan-only"],
        ["search", "FILE"],
    ],
    ids=lambda arguments: f"{arguments[0]} {len(arguments)}",
)
def test_every_command_warns_once_and_says_what_to_set(arguments, file, tmp_path, capsys):
    if arguments[0] == "search":
        space = SPEC | {"compressor": {"kind": {"choice": ["wgt", "bgt"]}, "tau": {"log": [1e-4, 1e-1]}}}
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(space))
    for kind, said in (("adamw", 1), ("sgd", 0)):
        line = [file if each == "FILE" else each for each in arguments]
        with pytest.raises(Begun):
            cli.main([*line, "--training.optimizer.kind", kind])
        printed = capsys.readouterr().out
        assert printed.count("warning: ") == said
        assert (SET in printed) == bool(said)


def test_trainings_of_one_command_warn_once(file, capsys):
    """`taugrad auto` trains several."""
    for _ in range(3):
        with pytest.raises(Begun):
            cli.main(["train", file])
    assert capsys.readouterr().out.count("warning: ") == 1
