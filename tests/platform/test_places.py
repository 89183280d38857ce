"""No worker sees a relative path: all that a spec and the environment can name are absolute by then."""

import os
from pathlib import Path, PurePath

import pytest

from taugrad.platform.places import absolute_variables, address_of, home, placed
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.fields import all_fields, alternatives, held

NAMES = {"path", "file", "folder", "storage", "tokenizer", "directory"}


def fields():
    """The dotted name and kind of each field that holds a path."""
    for field in all_fields():
        info = field.info
        forms = [form for annotation in alternatives(info.annotation) for form in held_paths(annotation)]
        if forms or "output" in info.metadata:
            yield field.name, field.kind


def held_paths(annotation):
    inner = getattr(annotation, "__args__", (annotation,))
    return [kind for kind in inner if isinstance(kind, type) and issubclass(kind, PurePath)]


FIELDS = sorted(set(fields()))


def test_a_field_that_is_named_like_a_path_is_one():
    named = {(field.name, field.kind) for field in all_fields() if field.name.rpartition(".")[2] in NAMES}
    assert named == set(FIELDS)
    assert {name for name, _ in FIELDS} == {"data.path", "data.tokenizer", "publish.path", "storage"}
    paths = [field for field in all_fields() if field.name in dict(FIELDS)]
    assert all(held([field.info.annotation]) >= {str} for field in paths)


@pytest.mark.parametrize(("name", "kind"), FIELDS)
def test_workers_get_absolute_paths(name, kind, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    group, _, last = name.rpartition(".")
    section = {"path": "below", last: "some/thing"} | ({"kind": kind} if kind else {})
    spec = RunSpec.model_validate({group: section} if group else {name: "some/thing"})
    there = placed(spec, tmp_path)
    part = getattr(there, group) if group else there
    assert getattr(part, last) == type(getattr(part, last))(tmp_path / "some" / "thing")
    assert there == placed(there, Path("/elsewhere"))
    at_home = RunSpec.model_validate({group: section | {last: "~/x"}} if group else {name: "~/x"})
    assert str(getattr(getattr(placed(at_home), group) if group else placed(at_home), last)).startswith(
        str(Path.home())
    )


def test_several_paths_and_buckets_and_nothing(tmp_path):
    text = {"kind": "text", "path": ["a.txt", "/b/*.txt"]}
    publish = {"path": "s3://bucket/weights?region=x"}
    spec = RunSpec.model_validate({"data": text, "publish": publish, "storage": "s3://bucket/runs"})
    there = placed(spec, tmp_path)
    assert there.data.path == (tmp_path / "a.txt", Path("/b/*.txt"))
    assert there.publish.path == "s3://bucket/weights?region=x"
    assert address_of(there.storage) == "s3://bucket/runs"
    assert placed(RunSpec(), tmp_path).publish.path == ""
    assert placed(RunSpec(), tmp_path).data == RunSpec().data


def test_what_a_job_writes_is_not_in_the_folder_that_ray_deletes(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    folder = tmp_path / "runtime_resources" / "working_dir_files" / "package"
    spec = RunSpec.model_validate({"data": {"kind": "cifar10", "path": "data"}, "publish": {"path": "w"}})
    there = placed(spec, folder)
    assert there.data.path == folder / "data"
    assert Path(there.publish.path) == tmp_path / "me" / ".taugrad" / "w"
    assert there.storage.parent == home(folder) == tmp_path / "me" / ".taugrad"


def test_the_environments_paths_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {
        "TAUGRAD_KEY_FILE": "key",
        "XDG_CACHE_HOME": "~/c",
        "SSL_CERT_FILE": "/ca",
        "PYTHONPATH": "src::/x",
    }
    changes = absolute_variables(given)
    assert changes == {
        "TAUGRAD_KEY_FILE": str(tmp_path / "key"),
        "XDG_CACHE_HOME": str(Path.home() / "c"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(tmp_path / "src"), "/x"]),
    }
    assert absolute_variables(given | changes) == {"PYTHONPATH": changes["PYTHONPATH"]}
    assert absolute_variables({}) == {"PYTHONPATH": str(tmp_path)}
