"""Bytes of a peer or a file never become code: no module reads pickles, or runs text."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("compressors", "platform", "search", "dashboards", "src/taugrad", "examples", "benchmarks")

PICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "jsonpickle", "joblib", "marshal", "shelve"}
"""Modules whose formats hold code, or call it while they are read."""
RUNNERS = {"eval", "exec", "compile", "__import__"}
UNSAFE_NAMES = {"read_pickle", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all", "run_path"}
"""Of functions that do the same in other packages."""
UNSAFE_LOADERS = {"Loader", "FullLoader", "UnsafeLoader", "CLoader", "CFullLoader", "CUnsafeLoader"}
MAY_IMPORT_BY_NAME = {
    "compressors/method/registry.py": "names of ours, and entry points of installed packages",
    "compressors/lazy.py": "names of ours",
    "compressors/ops/devices.py": "names of ours",
    "platform/data/errors.py": "names of ours",
    "platform/data/loading.py": "names of ours",
    "platform/user_code.py": "what a spec or a search names, once that is allowed",
}
"""Where modules are imported by a name that is no constant of the module."""


def problems(source: str, file: str) -> list[str]:
    """What a module does that could run code from bytes.

    Args:
        source: its text.
        file: its path from the repository's root.

    Returns:
        One sentence for each place.
    """
    tree = ast.parse(source)
    safe = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(_last(base) == "SafeLoader" for base in node.bases)
    }
    return [
        f"line {getattr(node, 'lineno', 0)}: {said}"
        for node in ast.walk(tree)
        for said in (*_imports(node), *_mentions(node), *_calls(node, safe, file))
    ]


def _imports(node: ast.AST) -> Iterator[str]:
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    for name in names:
        if PICKLERS & set(name.split(".")):
            yield f"imports {name}"
        elif "_object" in name.rpartition(".")[2] and name.startswith("torch.distributed"):
            yield f"imports {name}, which pickles"


def _mentions(node: ast.AST) -> Iterator[str]:
    """Names that are wrong even where they are not called."""
    name = _last(node)
    if name in UNSAFE_NAMES | (UNSAFE_LOADERS - {"Loader"}):
        yield f"mentions {name}"
    if isinstance(node, ast.Attribute):
        if name in UNSAFE_LOADERS and _last(node.value) == "yaml":
            yield f"mentions yaml.{name}"
        if name.endswith(("_object", "_object_list")) and _last(node.value) in ("dist", "distributed"):
            yield f"{name} pickles what workers send"
        if name == "load" and ast.unparse(node.value) in ("torch.jit", "torch.hub", "torch.package"):
            yield f"{ast.unparse(node)} runs what it loads"


def _calls(node: ast.AST, safe: set[str], file: str) -> Iterator[str]:
    if not isinstance(node, ast.Call):
        return
    name, called = _last(node.func), ast.unparse(node.func)
    given = {each.arg: each.value for each in node.keywords}
    if isinstance(node.func, ast.Name) and name in RUNNERS:
        yield f"calls {name}"
    if called == "torch.load" and not _is(given.get("weights_only"), True):
        yield "calls torch.load without weights_only=True"
    if "allow_pickle" in given and not _is(given["allow_pickle"], False):
        yield "calls with allow_pickle that is not False"
    if called in ("np.load", "numpy.load", "np.memmap.load") and not _is(given.get("allow_pickle"), False):
        yield "calls np.load without allow_pickle=False"
    if called in ("yaml.load", "yaml.load_all"):
        loader = given.get("Loader", node.args[1] if len(node.args) > 1 else None)
        if loader is None or _last(loader) not in safe | {"SafeLoader", "CSafeLoader"}:
            yield "calls yaml.load without a safe loader"
    constant = bool(node.args) and isinstance(node.args[0], ast.Constant)
    if name == "import_module" and not constant and file not in MAY_IMPORT_BY_NAME:
        yield "imports a module by a name that it was given"


def _last(node: ast.AST) -> str:
    """The name itself, without what stands before a point."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def files() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).glob("*.py")]
    for folder in FOLDERS:
        if folder != "src/taugrad":  # its folders are links to the rooms
            found += (path for path in (ROOT / folder).rglob("*.py") if path.parent != ROOT / folder)
    return sorted(found)


def test_no_module_reads_pickles_or_runs_text():
    found = files()
    assert len(found) > 300
    told = [
        f"{path.relative_to(ROOT)}: {said}"
        for path in found
        for said in problems(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    ]
    assert not told, "\n".join(told)


def test_the_exceptions_are_still_needed():
    """An exception that is not needed any more would hide the next place that does it."""
    for file in MAY_IMPORT_BY_NAME:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert problems(source, "elsewhere.py"), file


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "import cloudpickle as c",
        "from pickle import loads",
        "from ray import cloudpickle",
        "import ray.cloudpickle",
        "import marshal",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "torch.load(f, weights_only=flag)",
        "torch.jit.load(f)",
        "torch.hub.load(repository, name)",
        "dist.all_gather_object(found, mine)",
        "dist.broadcast_object_list(found)",
        "torch.distributed.recv_object_list(found)",
        "from torch.distributed import gather_object",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.load(text, yaml.UnsafeLoader)",
        "yaml.unsafe_load(text)",
        "yaml.full_load(text)",
        "eval(text)",
        "exec(text)",
        "__import__(name)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.lib.format.open_memmap(path, allow_pickle=flag)",
        "pd.read_pickle(path)",
        "import_module(name)",
        "importlib.import_module(f'{a}.{b}')",
        "runpy.run_path(path)",
    ],
)
def test_each_way_is_noticed(line):
    assert problems(line, "platform/new.py")


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(f, weights_only=True)",
        "model.eval()",
        "re.compile(text)",
        "torch.compile(model)",
        "yaml.safe_load(text)",
        "yaml.load(text, yaml.SafeLoader)",
        "class Own(yaml.SafeLoader): pass\nyaml.load(text, Own)",
        "np.load(path, allow_pickle=False)",
        "import_module('ray')",
        "dist.all_gather(found, mine)",
    ],
)
def test_what_is_safe_passes(line):
    assert problems(line, "platform/new.py") == []
