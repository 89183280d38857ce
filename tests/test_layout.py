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

FORBIDDEN_PACKAGES = {"compressors": {"ray", "mlflow"}}


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
            found += [problem for alias in node.names for problem in _check(alias.name, room)]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "taugrad" else [module]
            found += [problem for name in names for problem in _check(name, room)]
        elif isinstance(node, ast.ImportFrom) and node.level > len(folders) + 1:
            found.append(f"a relative import of {'.' * node.level}{node.module or ''} leaves {room}")
    return found


def _check(name: str, room: str) -> list[str]:
    top, _, rest = name.partition(".")
    if top in FORBIDDEN_PACKAGES.get(room, set()):
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


def test_there_are_modules_to_check() -> None:
    assert len(modules("compressors")) > 15
    assert len(modules("platform")) > 5


@pytest.mark.parametrize("name", ["__init__.py", "__main__.py"])
def test_only_main_knows_the_command_line(name: str) -> None:
    source = (ROOT / "src" / "taugrad" / name).read_text(encoding="utf-8")
    imports_cli = any("command line" in problem for problem in violations(source, "compressors"))
    assert imports_cli == (name == "__main__.py")


@pytest.mark.parametrize(
    ("room", "folders", "source"),
    [
        ("compressors", (), "import ray"),
        ("compressors", (), "import mlflow.tracking"),
        ("compressors", (), "from ray.train import report"),
        ("compressors", (), "def late():\n    import ray.tune"),
        ("compressors", (), "import numpy, ray"),
        ("compressors", (), "from taugrad.platform import spec"),
        ("compressors", (), "from taugrad import platform"),
        ("compressors", (), "import taugrad.search.space"),
        ("compressors", (), "from .. import platform"),
        ("compressors", ("ops",), "from ...platform.spec import Spec"),
        ("compressors", (), "if True:\n    from taugrad.dashboards import style"),
        ("platform", (), "from taugrad.search import space"),
        ("platform", ("data",), "import taugrad.dashboards"),
        ("platform", ("data",), "from ...compressors import config"),
        ("platform", (), "from taugrad.cli import main"),
        ("search", (), "from taugrad.dashboards import figures"),
        ("search", (), "from taugrad import dashboards as views"),
        ("dashboards", (), "from taugrad.search.front import Front"),
        ("dashboards", (), "import taugrad.cli"),
        ("search", (), "from taugrad import cli"),
    ],
)
def test_the_checker_finds_what_is_not_allowed(room: str, folders: tuple[str, ...], source: str) -> None:
    assert len(violations(source, room, folders)) == 1


@pytest.mark.parametrize(
    ("room", "folders", "source"),
    [
        ("compressors", (), "from .kernels import sparse"),
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


def shadows_platform(root: Path) -> list[str]:
    """What would hide the standard library's `platform` from a sys.path that begins with this root."""
    candidates = (root / "platform" / "__init__.py", root / "platform.py")
    return [str(path.relative_to(root)) for path in candidates if path.exists()]


def test_nothing_hides_the_standard_librarys_platform() -> None:
    assert shadows_platform(ROOT) == []


def test_a_module_that_hides_platform_is_found(tmp_path: Path) -> None:
    (tmp_path / "platform").mkdir()
    assert shadows_platform(tmp_path) == []
    (tmp_path / "platform" / "__init__.py").touch()
    (tmp_path / "platform.py").touch()
    assert shadows_platform(tmp_path) == ["platform/__init__.py", "platform.py"]


def wrong_links(root: Path) -> list[str]:
    """Rooms that the package does not reach through a link of its own."""
    links = {room: root / "src" / "taugrad" / room for room in ROOMS}
    return [
        room
        for room, link in links.items()
        if not (link.is_symlink() and link.is_dir() and link.resolve() == (root / room).resolve())
    ]


def test_the_package_reaches_all_rooms_through_links() -> None:
    assert wrong_links(ROOT) == []


def test_a_missing_or_wrong_link_is_found(tmp_path: Path) -> None:
    package = tmp_path / "src" / "taugrad"
    package.mkdir(parents=True)
    for room in ROOMS:
        (tmp_path / room).mkdir()
    (package / "compressors").symlink_to("../../compressors")
    (package / "platform").symlink_to("../../nowhere")
    (package / "search").symlink_to("../../dashboards")
    (package / "dashboards").mkdir()
    assert wrong_links(tmp_path) == ["platform", "search", "dashboards"]


def test_no_page_holds_what_a_merge_left() -> None:
    pages = [path for path in ROOT.rglob("*.md") if not {".venv", "build", "node_modules"} & set(path.parts)]
    assert len(pages) > 20
    for page in pages:
        left = [line for line in page.read_text(encoding="utf-8").splitlines() if line[:7] in _MERGE]
        assert not left, f"{page}: {left}"


_MERGE = {"<" * 7, "=" * 7, ">" * 7}
