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


def test_more_workers_than_cpus(refused):
    said = refused("workers: {count: 99}")
    assert "workers.count = 99 at 1 CPU each: this machine has" in said
    assert "--workers.count" in said


def test_a_data_folder_that_is_not_there(refused):
    said = refused("data: {kind: mnist, path: nowhere}")
    assert "data: " in said
    assert "nowhere" in said


def test_a_model_too_large_for_the_images(refused):
    assert "too small for" in refused("data: {kind: synthetic, height: 3, width: 3}\nmodel: {kind: nin}")


def test_a_factory_that_is_not_there(refused):
    said = refused("model: {kind: custom, factory: 'mine:net'}", "--allow-custom")
    assert "model.factory = mine:net: no module named 'mine' in this folder" in said


def test_a_factory_with_other_arguments(refused, tmp_path):
    (tmp_path / "own_net.py").write_text("def net(hidden): pass\n")
    spec = "data: {kind: digits}\nmodel: {kind: custom, factory: 'own_net:net'}"
    said = refused(spec, "--allow-custom")
    assert "model.factory = own_net:net: net(hidden) cannot be called with channels=1, height=8" in said
    assert said.count("\n") == 1


def test_a_pattern_that_fits_no_parameter(refused):
    said = refused(
        "data: {kind: digits}\nmodel: {kind: mlp}", "--compressor", "wgt(1, exempt=exempt(names=['norm*']))"
    )
    assert "compressor.exempt.names: 'norm*' matches no parameter of the model, which has" in said


def test_a_chain_whose_links_do_not_fit(refused):
    said = refused("compressor: wgt(1e-3) | huffman")
    assert "huffman encodes symbols, but wgt sends floats" in said


def test_a_wrong_value_on_the_command_line(refused):
    assert "training.epochs = -1" in refused("", "--training.epochs", "-1")


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
