"""What `taugrad doctor` says of machines that are not as they should be."""

from importlib import metadata

import pytest
import torch

from taugrad import cli
from taugrad.platform import doctor
from taugrad.platform.exit_codes import FAILED, OK


@pytest.fixture
def findings(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return lambda: {finding.what: finding for finding in doctor.examine()}


def versions(monkeypatch, installed):
    real = metadata.version

    def version(name):
        if name.startswith("cupy") and name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed.get(name) or real(name)

    monkeypatch.setattr(metadata, "version", version)


def test_this_machine_can_train(findings, capsys):
    result = findings()
    for what in ("Python", "CPUs", "torch", "exchange", "Ray", "MLflow"):
        assert result[what].state == "ok", result[what]
    assert torch.__version__ in result["torch"].detail
    assert "gloo" in result["exchange"].detail
    assert all(finding.remedy for finding in result.values() if finding.state == "wrong")


def test_a_cluster_that_does_not_answer_is_wrong(findings, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    found = findings()["Ray"]
    assert (found.state, found.remedy) == ("wrong", "start the cluster, or correct RAY_ADDRESS")
    assert "RAY_ADDRESS = 127.0.0.1:1: no cluster answers there" in found.detail


def test_a_check_that_fails_is_a_finding(findings, monkeypatch):
    """Only what is a package can be installed again."""

    def fail(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(doctor.sys, "version_info", ())
    monkeypatch.setattr(torch.cuda, "is_available", fail)
    monkeypatch.setattr(torch.distributed, "is_gloo_available", fail)
    result = findings()
    assert (result["torch"].state, result["torch"].remedy) == ("wrong", "reinstall torch")
    assert (result["gpu"].state, result["gpu"].remedy) == ("wrong", "")
    assert "broken" in result["gpu"].detail
    assert result["MLflow"].state == "ok"


@pytest.mark.parametrize(("state", "code"), [("ok", OK), ("wrong", FAILED)])
def test_every_finding_is_printed_and_the_exit_code_tells_of_what_is_wrong(state, code, monkeypatch, capsys):
    findings = [doctor.Finding("this", "ok", "is here"), doctor.Finding("that", state, "is not", "mend it")]
    monkeypatch.setattr(doctor, "examine", lambda: iter(findings))
    assert cli.main(["doctor"]) == code
    printed = capsys.readouterr().out
    assert "is here" in printed
    assert "mend it" in printed
    assert ("nothing to fix" in printed) == (state == "ok")


@pytest.mark.parametrize(
    ("what", "driver", "cuda", "available", "installed", "state", "says"),
    [
        ("GPU", None, None, False, {}, "absent", "no NVIDIA driver"),
        ("GPU", "580.1", None, False, {}, "wrong", "built for CPUs only"),
        ("GPU", "580.1", "13.0", False, {}, "wrong", "finds no device"),
        ("GPU", "580.1", "13.0", True, {}, "ok", "H200"),
        ("CuPy", None, None, False, {}, "absent", ""),
        ("CuPy", None, "13.0", True, {}, "wrong", "taugrad[cuda13]"),
        ("CuPy", None, "12.8", True, {"cupy-cuda12x": "13.6"}, "ok", ""),
        ("CuPy", None, "13.0", True, {"cupy-cuda12x": "13.6"}, "wrong", "taugrad[cuda13]"),
        ("CuPy", None, "13.0", True, {"cupy-cuda12x": "1", "cupy-cuda13x": "1"}, "wrong", "uninstall"),
    ],
)
def test_driver_torch_and_cupy_must_fit(
    findings, monkeypatch, what, driver, cuda, available, installed, state, says
):
    versions(monkeypatch, installed)
    monkeypatch.setattr(doctor, "_driver", lambda: driver)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    for name, value in (("is_available", available), ("device_count", 1), ("get_device_name", "NVIDIA H200")):
        monkeypatch.setattr(torch.cuda, name, lambda *_, given=value: given)
    result = findings()[what]
    assert result.state == state
    assert says in (result.detail if what == "GPU" else result.remedy)
