"""The rooms stay apart: who may import whom, and the links that make them importable."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("compressors", "platform", "search", "dashboards")

MAY_IMPORT = {
    "compressors": {"compressors"},
    "platform": {"platform", "compressors"},
    "search": {"search", "platform", "compressors"},
    "dashboards": {"dashboards", "platform", "compressors"},
}
"""By room, the rooms whose code it may use."""

FORBIDDEN_PACKAGES = {"compressors": {"ray", "mlflow", "lightning", "accelerate", "transformers"}}
ADAPTERS = ("integrations",)
"""The folder of compressors/ that may import them; it is imported by those who use them."""


def violations(source: str, room: str, folders: tuple[str, ...] = ()) -> list[str]:
    """What a module imports against the rules.

    Args:
        source: the module's text.
        room: where it lies.
        folders: the folders inside the room that lead to it.

    Returns:
        One sentence for each import that is not allowed.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [problem for alias in node.names for problem in _check(alias.name, room, folders)]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "taugrad" else [module]
            found += [problem for name in names for problem in _check(name, room, folders)]
        elif isinstance(node, ast.ImportFrom) and node.level > len(folders) + 1:
            found.append(f"a relative import of {'.' * node.level}{node.module or ''} leaves {room}")
    return found


def _check(name: str, room: str, folders: tuple[str, ...]) -> list[str]:
    top, _, rest = name.partition(".")
    if top in FORBIDDEN_PACKAGES.get(room, set()) and folders[:1] != ADAPTERS:
        return [f"{room} imports {name}"]
    if top != "taugrad":
        return []
    part = rest.partition(".")[0]
    if part == "cli":
        return [f"{room} imports the command line"]
    if part in ROOMS and part not in MAY_IMPORT[room]:
        return [f"{room} imports {name}"]
    return []


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    problems = []
    for path in modules(room):
        folders = path.relative_to(ROOT / room).parent.parts
        found = violations(path.read_text(encoding="utf-8"), room, folders)
        problems += [f"{path.relative_to(ROOT)}: {problem}" for problem in found]
    assert problems == []


@pytest.mark.parametrize("name", ["__init__.py", "__main__.py"])
def test_only_main_knows_the_command_line(name: str) -> None:
    source = (ROOT / "src" / "taugrad" / name).read_text(encoding="utf-8")
    imports_cli = any("command line" in problem for problem in violations(source, "compressors"))
    assert imports_cli == (name == "__main__.py")


@pytest.mark.parametrize(
    ("room", "folders", "source"),
    [
        ("compressors", (), "import ray"),
        ("compressors", (), "def late():\n    import ray.tune"),
        ("compressors", (), "from transformers import Trainer"),
        ("compressors", (), "from taugrad import platform"),
        ("compressors", (), "from .. import platform"),
        ("compressors", ("ops",), "from ...platform.spec import Spec"),
        ("compressors", (), "if True:\n    from taugrad.dashboards import style"),
        ("platform", (), "from taugrad.search import space"),
        ("platform", ("data",), "from ...compressors import config"),
        ("platform", (), "from taugrad.cli import main"),
        ("search", (), "from taugrad import dashboards as views"),
        ("dashboards", (), "from taugrad.search.front import Front"),
        ("search", (), "from taugrad import cli"),
    ],
)
def test_the_checker_finds_what_is_not_allowed(room: str, folders: tuple[str, ...], source: str) -> None:
    assert len(violations(source, room, folders)) == 1


@pytest.mark.parametrize(
    ("room", "folders", "source"),
    [
        ("compressors", (), "from .kernels import sparse"),
        ("compressors", ADAPTERS, "import mlflow\nfrom ..hook import compress_gradients"),
        ("compressors", ("rules",), "from ..update import SparseUpdate\nfrom . import sparse"),
        ("compressors", (), "import platform, numpy, search_engine\nfrom taugrad import __version__"),
        ("platform", (), "from taugrad.compressors import CompressionState\nimport ray, mlflow"),
        ("platform", ("data",), "from ..spec import Spec"),
        (
            "search",
            (),
            "from taugrad.platform.spec import Spec\nfrom taugrad.compressors import CompressorConfig",
        ),
        ("dashboards", (), "from taugrad.platform import tracking"),
    ],
)
def test_the_checker_lets_pass_what_is_allowed(room: str, folders: tuple[str, ...], source: str) -> None:
    assert violations(source, room, folders) == []


def imported(path: Path) -> set[Path]:
    """The modules of our rooms that a module imports anywhere: in functions and under TYPE_CHECKING, too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level:
            base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
        elif (node.module or "").startswith("taugrad."):
            base = ROOT.joinpath(*str(node.module).split(".")[1:])
        else:
            continue
        for alias in node.names:
            places = (base / f"{alias.name}.py", base / alias.name / "__init__.py", base.with_suffix(".py"))
            found.update([place for place in (*places, base / "__init__.py") if place.exists()][:1])
    return found - {path}


def circles(graph: dict[Path, set[Path]]) -> list[Path]:
    """What is left when modules that import nothing that is left are taken away, again and again."""
    left = dict(graph)
    while gone := [path for path, needs in left.items() if not needs & left.keys()]:
        for path in gone:
            del left[path]
    return sorted(left)


def test_no_imports_go_round_in_circles() -> None:
    graph = {path: imported(path) for room in ROOMS for path in modules(room)}
    assert sum(map(len, graph.values())) > 1000
    assert circles(graph) == []
    one, other = list(graph)[:2]
    assert circles({one: {other}, other: {one}}) == sorted([one, other])


def test_adapters_are_imported_by_those_who_use_them() -> None:
    ours = [path for room in ROOMS for path in modules(room) if path.parent.name != ADAPTERS[0]]
    assert not [path for path in ours for each in imported(path) if each.parent.name == ADAPTERS[0]]


def test_nothing_hides_the_standard_librarys_platform() -> None:
    assert not [path for path in ("platform/__init__.py", "platform.py") if (ROOT / path).exists()]


@pytest.mark.parametrize("room", ROOMS)
def test_the_package_reaches_a_room_through_a_link(room: str) -> None:
    link = ROOT / "src" / "taugrad" / room
    assert link.is_symlink()
    assert link.resolve() == ROOT / room
    assert len(modules(room)) > 5


def test_no_page_holds_what_a_merge_left() -> None:
    pages = [path for path in ROOT.rglob("*.md") if not {".venv", "build", "node_modules"} & set(path.parts)]
    assert len(pages) > 20
    for page in pages:
        left = [line for line in page.read_text(encoding="utf-8").splitlines() if line[:7] in _MERGE]
        assert not left, f"{page}: {left}"


_MERGE = {"<" * 7, "=" * 7, ">" * 7}
