"""`taugrad plan` from its arguments to its files; a calibration made, kept and renewed; a link measured."""

import re
import threading
from pathlib import Path

import pytest
from calibrations import calibration, work
from specs import DIGITS, write_digits

from taugrad import cli
from taugrad.compressors.methods import read_config
from taugrad.platform.spec import RunSpec
from taugrad.search.plan import calibration as kept
from taugrad.search.plan import probing
from taugrad.search.plan.calibrated import HALF
from taugrad.search.plan.probing import answer, measure, slowest

PARAMETERS = 64 * 64 + 64 + 64 * 10 + 10
SPARSE = "topk(density=0.01) | packed32"


def given(folder: Path) -> str:
    """A calibration of a model with a megabyte of gradients."""
    methods = {
        "none": work(1e6, all_reduces=1),
        HALF: work(5e5, all_reduces=1, half=True),
        "wgt(tau=0.001)": work(1e4, 0.001),
        str(read_config(SPARSE)): work(2e4, 0.001),
    }
    result = calibration(methods, 250_000, 0.04, batch=32, compute_s=0.05, optimizer_s=0.01)
    path = folder / "calibration.json"
    path.write_text(result.model_dump_json())
    return str(path)


def test_the_command_prints_and_writes_what_it_predicts(tmp_path, capsys):
    spec = str(tmp_path / write_digits(tmp_path, "digits", compressor="wgt(0.001)"))
    code = cli.main(
        [
            *("plan", spec, "--link", "10mbit,5ms", "--link", "100gbit"),
            *("--workers", "16,4", "--candidates", SPARSE, "--calibration", given(tmp_path)),
            *("-o", str(tmp_path / "out")),
        ]
    )
    assert code == 0
    printed = capsys.readouterr().out
    # 4 workers: 3 messages of 10,008 bytes at 10 Mbit/s less headers, 5 ms, the model and compressing
    by_hand = 0.05 + 0.001 + 3 * 10_008 * 8 / 9.5e6 + 0.005
    match = re.search(r"At 10mbit,5ms, 4 workers: wgt\(tau=0\.001\), ([\d.]+) s a step \(", printed)
    assert float(match[1]) == pytest.approx(by_hand, rel=0.01)
    assert "At 100gbit,0ms, 16 workers compression does not pay: " in printed
    assert "not what it learns" in printed
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"plan.md", "plan.csv"}
    lines = (tmp_path / "out" / "plan.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 2 * 4
    written = (tmp_path / "out" / "plan.md").read_text()
    for said in (printed, written):
        assert (
            " ".join(said.split()).count("Mbit/s of each worker's link for this share of the time computing")
            == 4
        )
    assert written.count("## ") == 4 + 4
    # 99% of the time leave half a millisecond of the 50, and the delay alone is 5.
    assert "| wgt(tau=0.001) |" in written.split("4 workers, delay 5 ms")[1]
    assert "| never |" in written.split("4 workers, delay 5 ms")[1]


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("taugrad.search.plan.run_plan.calibrated", lambda *_, **__: pytest.fail("measured"))
    spec = write_digits(tmp_path, "digits", compressor="wgt(0.001)")
    folder = tmp_path / spec / "out"
    assert cli.main(["plan", str(tmp_path / spec), "--link", "1gbit", "-o", str(folder)]) == 2
    assert f"-o {folder}: " in " ".join(capsys.readouterr().err.split())


def test_a_model_is_measured_once_and_again_on_request(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = RunSpec.model_validate(DIGITS | {"compressor": "wgt(0.001)"})
    line, peer = str(read_config(SPARSE)), str(read_config("powersgd(rank=1)"))
    first = kept.calibrate(spec, ["none", line, peer], seconds=0.2)
    assert first.parameters == PARAMETERS
    assert first.batch == 32
    assert min(first.optimizer_s, first.compute_s, first.backward_end_s, first.buckets[-1].ready_s) > 0
    assert first.methods["none"].nbytes == 4 * PARAMETERS
    assert first.methods[HALF].nbytes == 2 * PARAMETERS
    assert first.methods[line].kept_bytes == 4 * PARAMETERS
    # 8 bytes for each element sent, at least one of each parameter, and headers
    sent = sum(max(1, round(size / 100)) for size in (64 * 64, 64, 64 * 10, 10))
    assert 8 * sent <= first.methods[line].nbytes <= 8 * sent + 4 * 60 + 32
    assert first.message_s > 0
    assert first.methods[peer].all_reduces == 3
    assert 0 < first.methods[peer].nbytes < first.methods["none"].nbytes / 4

    measured = []

    def measure_more(request):
        measured.append([*request.methods])
        methods = dict.fromkeys(request.methods, first.methods[line])
        return first.model_copy(update={"compute_s": 9.0, "methods": methods})

    monkeypatch.setattr(kept, "_measure", measure_more)
    assert kept.calibrate(spec, [line, "none"]) == first
    assert not measured
    more = kept.calibrate(spec, [line, "bgt(tau=0.1)"])  # only what is new is measured
    assert measured == [["bgt(tau=0.1)"]]
    assert (more.compute_s, set(more.methods)) == (first.compute_s, {*first.methods, "bgt(tau=0.1)"})
    renewed = kept.calibrate(spec, [line], renew=True)
    assert measured[1:] == [[line]]
    assert kept.calibrate(spec, [line]) == renewed
    assert renewed.compute_s == 9.0
    usual = kept.file_of(spec)
    with monkeypatch.context() as patch:
        patch.setattr(kept, "__version__", "9")
        assert kept.file_of(spec) != usual
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kept.calibrate(spec, [line]).compute_s == 9.0


def test_a_link_is_measured_between_two_ends(monkeypatch):
    ports: list[int] = []
    listening = threading.Event()

    def ready(port):
        ports.append(port)
        listening.set()

    served = []

    def serve(connection, really=probing._serve):
        served.append(connection)
        if len(served) == 1:
            raise OSError(113, "No route to host")
        really(connection)

    monkeypatch.setattr(probing, "_serve", serve)
    other = threading.Thread(target=answer, args=(0, ready), kwargs={"once": True}, daemon=True)
    other.start()
    assert listening.wait(10)
    with pytest.raises(probing.ProbeError):
        measure("127.0.0.1", ports[0])
    result = measure("127.0.0.1", ports[0])
    other.join(10)
    assert not other.is_alive()
    assert result.rate > 1e7
    assert 0 < result.delay < 1
    assert result.headers == 0
    far = result.model_copy(update={"delay": 1.0})
    assert slowest([result, far]) == far
