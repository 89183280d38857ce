"""Buckets, disks and databases: what is refused before anything starts, and what is kept where."""

import subprocess
import sys
from pathlib import Path

import pytest
from objects import BUCKET, Objects

from taugrad import cli
from taugrad.platform import doctor
from taugrad.platform.exit_codes import OK
from taugrad.platform.launching.run_folder import RAYS_LIST, RunFolder, fallback, keep_text, text_of
from taugrad.platform.launching.storage import above, below
from taugrad.platform.places import address_of
from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.tracking import names
from taugrad.platform.tracking.probe import probe
from taugrad.platform.tracking.record import UNDELIVERED, Record
from taugrad.platform.tracking.store import open_client, start_run
from taugrad.platform.training.manifest import Digest, Manifest, folder_name

RUN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def server():
    started = Objects()
    yield started
    started.stop()


@pytest.fixture
def objects(server, own_folder, monkeypatch):
    """The S3, with its keys in the environment of this process."""
    for name, value in (server.variables | {"HOME": str(own_folder / "home")}).items():
        monkeypatch.setenv(name, value)
    # On a busy machine the first answer takes longer than a user would wait for.
    monkeypatch.setattr("taugrad.platform.launching.storage._ANSWER_S", 60.0)
    return server


@pytest.fixture
def refused(objects, said):
    """What `train` says of a storage."""

    def train(storage: object) -> str:
        line = said(f"train spec.yaml --storage {storage}")
        assert line.startswith("taugrad: spec.yaml: storage = ")
        return line

    return train


def test_a_bucket_that_is_not_there(refused):
    said = refused("s3://not-there/runs")
    reason = "cannot be written (The specified bucket does not exist (NO_SUCH_BUCKET))"
    assert said.endswith(f"s3://not-there/runs {reason}; make it, or name another with --storage")


@pytest.mark.parametrize("variable", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_keys(variable, refused, monkeypatch):
    monkeypatch.setenv(variable, "wrong-secret")
    said = refused(f"s3://{BUCKET}/runs")
    code = "INVALID_ACCESS_KEY_ID" if variable == "AWS_ACCESS_KEY_ID" else "SIGNATURE_DOES_NOT_MATCH"
    assert f"({code})); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in said
    assert "wrong-secret" not in said


def test_an_endpoint_where_nobody_is(refused, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr("taugrad.platform.launching.storage._ANSWER_S", 1.0)
    assert "(no answer within 1 s); see whether AWS_ENDPOINT_URL" in refused(f"s3://{BUCKET}/runs")


def test_keys_in_an_address_are_not_repeated(refused):
    said = refused(f"s3://key:secret@{BUCKET}/runs")
    assert f"storage = s3://{BUCKET}/runs: an address with keys in it" in said
    assert "secret@" not in said


@pytest.fixture
def mounted(tmp_path):
    """Mounts a small file system."""
    places: list[Path] = []

    def mount(options: str) -> Path:
        place = tmp_path / f"mount-{len(places)}"
        place.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=False).returncode:
            pytest.skip("no file system can be mounted here")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", "--lazy", place], check=True)


def test_a_full_disk_and_a_read_only_one(refused, mounted):
    full, read_only = mounted("size=64k"), mounted("ro")
    for folder, reason in ((full, "No space left on device"), (read_only, "Read-only file system")):
        said = refused(folder / "runs")
        assert f"{folder}/runs cannot be written ({folder}: {reason}); --storage DIR names another" in said
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize("place", ["spec.yaml/below", "/proc/1/nowhere", "file:///proc/nowhere"])
def test_a_place_that_cannot_be_written(place, refused):
    said = refused(place)
    assert ("cannot be written (" in said, "--storage DIR names another" in said) == (True, True)


def test_a_database_needs_its_driver(monkeypatch, objects):
    uri = "postgresql+psycopg://me:secret@127.0.0.1:1/runs"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(SpecError, match=r"cannot be used: connection failed: .*Connection refused") as away:
        probe(uri)
    (finding,) = doctor._mlflow()
    assert (finding.state, finding.remedy) == ("wrong", "start it, or correct MLFLOW_TRACKING_URI")
    monkeypatch.setitem(sys.modules, "psycopg", None)  # an import fails
    with pytest.raises(SpecError, match="needs psycopg, which is not installed") as driverless:
        probe(uri)
    (finding,) = doctor._mlflow()
    assert (finding.state, finding.remedy) == ("wrong", "pip install 'taugrad[postgres]'")
    assert "secret" not in f"{away.value} {driverless.value} {finding}"


def test_doctor_tries_the_bucket_that_is_asked_for(objects, monkeypatch):
    assert list(doctor._storage()) == []
    monkeypatch.setenv("TAUGRAD_STORAGE", f"s3://{BUCKET}/runs")
    (finding,) = doctor._storage()
    assert (finding.state, finding.what) == ("ok", "storage")
    assert objects.names("") == []  # what it tried with is removed
    monkeypatch.setenv("TAUGRAD_STORAGE", "s3://not-there/runs")
    (finding,) = doctor._storage()
    assert (finding.state, finding.remedy) == ("wrong", "make it, or name another with --storage")


def test_the_endpoint_may_be_in_the_address(objects, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    host = objects.url.removeprefix("http://")
    # As YAML and pathlib leave it.
    address = address_of(Path(f"s3://{BUCKET}/runs?endpoint_override={host}&scheme=http"))
    folder = RunFolder.at(address, RUN)
    assert folder.address == f"s3://{BUCKET}/runs/{RUN}?endpoint_override={host}&scheme=http"
    assert above(folder.address) == (address, RUN)
    assert folder.iterations() == []
    folder.set_aside(RAYS_LIST)  # there is none
    place = folder.keep_text("left.jsonl", "a\n")
    assert place == below(folder.address, "left.jsonl")
    assert objects.read(f"runs/{RUN}/left.jsonl") == b"a\n"
    assert objects.names("") == [f"runs/{RUN}/left.jsonl"]
    folder.set_aside("left.jsonl")
    assert folder.text("left.jsonl") == ""


def test_metrics_are_delivered_from_a_bucket(objects, tmp_path, new_store, capsys):
    new_store(tmp_path)
    client = open_client()
    run_id = start_run(client, RunSpec(experiment="away"))
    records = [Record.now(step=1, metrics={"comm/fraction": 0.5}), Record.now(ended="FINISHED", run=run_id)]
    text = "".join(record.to_line() for record in records)
    place = RunFolder.at(f"s3://{BUCKET}/runs", run_id).keep_text(UNDELIVERED, text)
    assert place == f"s3://{BUCKET}/runs/{run_id}/{UNDELIVERED}"
    assert cli.main(["deliver", place]) == OK
    assert capsys.readouterr().out == f"1 metrics delivered to run {run_id}, which is FINISHED\n"
    assert [point.value for point in client.get_metric_history(run_id, "comm/fraction")] == [0.5]
    missing = place.replace(UNDELIVERED, "nothing")
    assert cli.main(["deliver", missing]) == cli.WRONG_INPUT
    assert capsys.readouterr().err == f"taugrad: FILE {missing}: there is no such file\n"


def test_what_the_bucket_does_not_take_is_kept_here(objects, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    folder = RunFolder.at(f"s3://{BUCKET}/runs", RUN)
    spare = Path.home() / ".taugrad" / "not-stored" / RUN
    assert keep_text(folder, "left.jsonl", "a\n") == str(spare / "left.jsonl")
    assert text_of(folder, "left.jsonl") == "a\n"
    (spare.parent.parent).rename(Path.home() / "elsewhere")
    (Path.home() / ".taugrad").write_text("no folder")
    with pytest.raises(OSError, match=r"/runs/.*ACCESS_DENIED\); .*not-stored"):
        keep_text(folder, "left.jsonl", "a\n")


def test_a_checkpoint_that_is_kept_here_is_delivered(tmp_path, new_store, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    new_store(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    client, storage = open_client(), str(tmp_path / "runs")
    run_id = start_run(client, RunSpec(experiment="away"))
    folder, spare = RunFolder.at(storage, run_id), fallback(run_id)
    client.set_tag(run_id, names.TAG_CHECKPOINTS, folder.address)
    files = [tmp_path / name for name in ("shared.pt", "worker_00000.pt")]
    for file in files:
        file.write_bytes(file.name.encode())
    digests = {file.name: Digest.of(file) for file in files}
    for iteration in (3, 7):
        for file in files:
            spare.put(iteration, file)
        spare.seal(Manifest(run_id, iteration, digests))
        spare.keep(iteration, 1)
    assert spare.iterations() == [7]  # those before made room
    kept = below(spare.address, folder_name(7))
    for _ in range(2):  # again changes nothing
        assert cli.main(["deliver", kept]) == OK
        said = f"the checkpoint after iteration 7 is in {folder.address}, where --resume finds it\n"
        assert capsys.readouterr().out == said
        assert folder.check().iteration == 7
    Path(kept, "shared.pt").unlink()
    assert cli.main(["deliver", kept]) == OK  # it is on another machine, and was delivered from there
    capsys.readouterr()
    Path(kept, "worker_00000.pt").write_bytes(b"something else")
    assert cli.main(["deliver", kept]) == cli.WRONG_INPUT
    assert "worker_00000.pt is damaged: 14 bytes, 15 were written" in capsys.readouterr().err
    spare.keep(8, 0)  # a later one is stored
    assert spare.iterations() == []
