"""What is looked at before anything starts: the cluster that RAY_ADDRESS names."""

import socket
from pathlib import Path

import pytest

from taugrad import cli
from taugrad.platform.preflight import check
from taugrad.platform.reading import SpecError
from taugrad.platform.spec import RunSpec

SPEC = {"data": {"kind": "digits"}, "model": {"kind": "mlp", "widths": [8]}}


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_a_cluster_must_answer(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RunSpec.model_validate(SPEC)
    with socket.create_server(("127.0.0.1", 0)) as server:
        named = address.format(server.getsockname()[1])
        monkeypatch.setenv("RAY_ADDRESS", named)
        check(spec, "spec.yaml", local=False)
    with pytest.raises(SpecError, match="no cluster answers there") as refused:
        check(spec, "spec.yaml", local=False)
    assert (refused.value.source, named in str(refused.value)) == ("RAY_ADDRESS", True)
    check(spec, "spec.yaml", local=True)  # which needs none


@pytest.mark.parametrize("address", ["127.0.0.1:99999999", "[::1]:1", "nowhere.invalid:6379", "a..b:6379"])
def test_an_address_that_cannot_be_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(SpecError, match="no cluster answers there"):
        check(RunSpec.model_validate(SPEC), "spec.yaml", local=False)


def test_what_ray_finds_by_itself_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    check(RunSpec.model_validate(SPEC), "spec.yaml", local=False)


@pytest.mark.parametrize("command", ["train", "search", "auto"])
def test_every_command_says_so_before_it_starts(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tau = "{log: [1e-3, 1e-1]}" if command == "search" else "0.1"
    text = (
        f"data: {{kind: digits}}\nmodel: {{kind: mlp, widths: [8]}}\ncompressor: {{kind: wgt, tau: {tau}}}\n"
    )
    (tmp_path / "spec.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert cli.main([command, "spec.yaml"]) == cli.WRONG_INPUT
    assert "127.0.0.1:1: no cluster answers there" in capsys.readouterr().err
