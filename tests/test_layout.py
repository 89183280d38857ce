"""The rooms stay apart: who may import whom, and the links that make them importable."""

import ast
import inspect
import re
from importlib import import_module
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
"""By room, the rooms whose code it may use; the command line is nobody's."""
FORBIDDEN_PACKAGES = {"compressors": {"ray", "mlflow", "lightning", "accelerate", "transformers"}}
ADAPTERS = "taugrad.compressors.integrations"
"""May import them; it is imported by those who use them."""


def imported(source: str, package: str) -> set[str]:
    """Dotted names of what a module of a package imports anywhere: in functions, under TYPE_CHECKING, too."""
    results = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            results |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            results |= {f"{base}.{alias.name}" for alias in node.names}
    return results


def wrong(source: str, package: str) -> list[str]:
    """What of it its room must not use."""
    room = package.split(".")[1]

    def is_wrong(top: str, part: str = "", *_: str) -> bool:
        if top != "taugrad":
            return top in FORBIDDEN_PACKAGES.get(room, set()) and package != ADAPTERS
        return part in ("cli", "commands") or part in set(ROOMS) - MAY_IMPORT[room]

    return [name for name in imported(source, package) if is_wrong(*name.split("."))]


def modules() -> dict[str, tuple[str, str]]:
    """By dotted name, each module's source and package."""
    results = {}
    for path in (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))):
        parts = ["taugrad", *path.relative_to(ROOT).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        results[name] = path.read_text(encoding="utf-8"), ".".join(parts[:-1])
    return results


def test_a_public_method_has_a_docstring_or_inherits_one():
    lacking = []
    for name in modules():
        if not name.startswith(("taugrad.compressors", "taugrad.platform")) or name.startswith(ADAPTERS):
            continue
        for var in vars(import_module(name)).values():
            if inspect.isclass(var) and var.__module__ == name and var.__name__[0] != "_":
                public = [method for method in vars(var) if not method.startswith("_")]
                functions = {method: inspect.getattr_static(var, method) for method in public}
                lacking += [
                    f"{name}:{var.__name__}.{method}"
                    for method, function in functions.items()
                    if (inspect.isroutine(function) or isinstance(function, property))
                    and not inspect.getdoc(getattr(var, method))
                ]
    assert lacking == []


def test_a_room_imports_only_what_it_may():
    results = {name: wrong(*module) for name, module in modules().items()}
    assert {name: problems for name, problems in results.items() if problems} == {}


@pytest.mark.parametrize("name", ["__init__.py", "__main__.py"])
def test_only_main_knows_the_command_line(name):
    source = (ROOT / "src" / "taugrad" / name).read_text(encoding="utf-8")
    knows = any(name.startswith("taugrad.cli") for name in imported(source, "taugrad"))
    assert knows == (name == "__main__.py")


@pytest.mark.parametrize(
    ("package", "source", "allowed"),
    [
        ("compressors", "import ray", False),
        ("compressors", "def late():\n    import ray.tune", False),
        ("compressors.integrations", "import mlflow\nfrom ..hook import compress_gradients", True),
        ("compressors.integrations", "from taugrad.platform import spec", False),
        ("compressors", "from taugrad import platform", False),
        ("compressors", "from .. import platform", False),
        ("compressors.ops", "from ...platform.spec import Spec", False),
        ("platform", "from taugrad.search import space", False),
        ("platform", "from taugrad.cli import main", False),
        ("dashboards", "from taugrad.search.front import Front", False),
        ("search", "from taugrad.commands.train import run_train", False),
        ("compressors", "import platform, numpy, search_engine\nfrom taugrad import __version__", True),
        ("platform", "from taugrad.compressors import CompressionState\nimport ray, mlflow", True),
        ("search", "from taugrad.platform.spec import Spec\nfrom taugrad.compressors import hook", True),
    ],
)
def test_the_checker_tells_what_is_allowed(package, source, allowed):
    assert len(wrong(source, f"taugrad.{package}")) == (not allowed)


def circles(graph: dict[str, set[str]]) -> list[str]:
    """What is left when modules that import nothing that is left are taken away, again and again."""
    left = dict(graph)
    while gone := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in gone:
            del left[name]
    return sorted(left)


def test_no_imports_go_round_in_circles():
    known = modules()
    graph = {}
    for name, module in known.items():
        results = {name if name in known else name.rpartition(".")[0] for name in imported(*module)}
        graph[name] = (results & known.keys()) - {name}
    assert sum(map(len, graph.values())) > 1000
    assert circles(graph) == []
    one, other = list(graph)[:2]
    assert circles({one: {other}, other: {one}}) == sorted([one, other])


def test_folders_of_the_platform_do_not_import_in_circles():
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, module in known.items():
        if name.startswith("taugrad.platform."):
            folder = ".".join(name.split(".")[:3])
            within = [needed for needed in imported(*module) if needed.startswith("taugrad.platform.")]
            graph.setdefault(folder, set()).update(".".join(needed.split(".")[:3]) for needed in within)
    folders = {folder: needs & graph.keys() - {folder} for folder, needs in graph.items()}
    assert sum(map(len, folders.values())) > 20
    assert circles(folders) == []
    for part, other in (("driver", "worker"), ("worker", "driver")):
        inside = [module for name, module in known.items() if f".launching.{part}." in name]
        needs = {needed for module in inside for needed in imported(*module)}
        crossing = {needed for needed in needs if f"launching.{other}." in needed}
        assert crossing <= {"taugrad.platform.launching.worker.entry.train_worker"}, part


def test_adapters_are_imported_by_those_who_use_them():
    known = modules()
    assert any(name.startswith(f"{ADAPTERS}.") for name in known)
    for name, (source, package) in known.items():
        results = [name for name in imported(source, package) if name.startswith(ADAPTERS)]
        assert package == ADAPTERS or not results, name


def test_nothing_hides_the_standard_librarys_platform():
    assert not [path for path in ("platform/__init__.py", "platform.py") if (ROOT / path).exists()]


def test_no_page_holds_what_a_merge_left():
    # Not below the root: another test may be building the package there.
    pages = [
        *ROOT.glob("*.md"),
        *(page for name in (".github", "docs", "examples") for page in (ROOT / name).rglob("*.md")),
    ]
    assert len(pages) > 20
    left = re.compile(r"^(<{7}|={7}|>{7})", re.MULTILINE)
    assert [page for page in pages if left.search(page.read_text(encoding="utf-8"))] == []
