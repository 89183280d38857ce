"""What holds for every kind of data."""

from importlib import import_module
from typing import get_args

import pytest
from image_files import write_tree

from taugrad.platform.data import DataError, load
from taugrad.platform.data.config import DataConfig, ImageFolder, Text
from taugrad.platform.data.loading import _READERS
from taugrad.platform.data.placing import FOLDER


def test_every_kind_has_a_reader():
    union, _ = get_args(DataConfig)
    assert set(_READERS) == {kind.model_fields["kind"].default for kind in get_args(union)}
    for address in _READERS.values():
        module, _, name = address.partition(":")
        assert callable(getattr(import_module(f"taugrad.platform.data.{module}"), name))


def test_relative_paths_refer_to_the_folder_of_the_command(tmp_path, monkeypatch):
    write_tree(tmp_path / "images", {"a": 3, "b": 3})
    (tmp_path / "input.txt").write_bytes(b"some text\n" * 99)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir("/")
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert len(load(ImageFolder(path="images", size=12)).train) == 4
    for path in ("input.txt", ("*.txt",), str(tmp_path / "input.txt")):
        assert len(load(Text(path=path)).train) > 5
    monkeypatch.delenv(FOLDER)
    with pytest.raises(DataError, match="is not a folder"):
        load(ImageFolder(path="images"))
