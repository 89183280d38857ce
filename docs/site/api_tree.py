"""The package as mkdocstrings can read it, which leaves out folders without `__init__.py` (a hook of mkdocs).

`platform/` must have none, so a copy of the tree of links is made below build/, in which an empty one stands
beside links to its parts. Nothing is imported from there.
"""

import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / "build" / "api"
"""`plugins.mkdocstrings.handlers.python.paths` in mkdocs.yml."""


def on_startup(**_: Any) -> None:
    """Makes the tree anew, before mkdocstrings looks for it."""
    shutil.rmtree(TREE, ignore_errors=True)
    package = TREE / "taugrad"
    room = package / "platform"
    room.mkdir(parents=True)
    (room / "__init__.py").touch()
    _link(ROOT / "platform", room)
    _link(ROOT / "src" / "taugrad", package, without=("platform",))


def _link(source: Path, target: Path, without: tuple[str, ...] = ()) -> None:
    for each in source.iterdir():
        if each.name not in (*without, "__pycache__"):
            (target / each.name).symlink_to(each.resolve())
