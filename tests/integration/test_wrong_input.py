"""What cannot run is refused before Ray starts, with exit code 2 and one clear message."""

import sys
from pathlib import Path

import pytest


@pytest.fixture
def refused(wrong_input, tmp_path):
    """What `taugrad train` says of a spec that it refuses."""

    def refuse(text: str, *overrides: str) -> str:
        (tmp_path / "spec.yaml").write_text(text)
        return wrong_input("train", "spec.yaml", *overrides)

    return refuse


IMAGES = "data: {kind: synthetic, height: 3, width: 3}\nmodel: {kind: nin}"
NORM = ("--compressor", "wgt(1, exempt=exempt(names=['norm*']))")


@pytest.mark.parametrize(
    ("text", "overrides", "said"),
    [
        ("workers: {count: 99}", (), "workers.count = 99 at 1 CPU each: this machine has"),
        ("data: {kind: mnist, path: nowhere}", (), "nowhere"),
        (IMAGES, (), "too small for"),
        ("model: {kind: custom, factory: 'mine:net'}", ("--allow-custom",), "model.factory = mine:net: no"),
        (
            "data: {kind: digits}\nmodel: {kind: custom, factory: 'own_net:net'}",
            ("--allow-custom",),
            "model.factory = own_net:net: net(hidden) cannot be called with channels=1, height=8",
        ),
        ("data: {kind: digits}\nmodel: {kind: mlp}", NORM, "compressor.exempt.names: 'norm*' matches no"),
        ("compressor: wgt(1e-3) | huffman", (), "huffman encodes symbols, but wgt sends floats"),
        ("", ("--training.epochs", "-1"), "training.epochs = -1"),
    ],
)
def test_what_cannot_run_is_said_in_one_line(refused, tmp_path, text, overrides, said):
    (tmp_path / "own_net.py").write_text("def net(hidden): pass\n")
    told = refused(text, *overrides)
    assert said in told
    assert told.count("\n") == 1


def test_what_cannot_be_resumed_is_refused(wrong_input):
    (line,) = wrong_input(
        "train", "--resume", "0" * 32
    ).splitlines()  # where there is no store there is no run
    assert line.startswith("taugrad: tracking store: there is no ")
    assert "mlflow.db, the default" in line


def test_a_store_that_does_not_answer(taugrad, tmp_path):
    (tmp_path / "spec.yaml").write_text("data: {kind: digits}\nmodel: {kind: mlp}")
    quick = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    answer = taugrad("train", "spec.yaml", **quick)
    assert answer.returncode == 2
    assert "MLFLOW_TRACKING_URI: http://127.0.0.1:9 cannot be used" in answer.stderr


def test_no_spec_at_all(taugrad):
    answer = taugrad("train")
    assert answer.returncode == 2
    assert "experiments/quickstart" in answer.stderr
    assert "Traceback" not in answer.stderr
    answer = taugrad("fly")
    assert answer.returncode == 2


def test_the_command_is_installed_beside_python():
    assert Path(sys.executable).with_name("taugrad").exists()
