"""Bytes of a peer or a file never become code: no module reads pickles, or runs text."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("compressors", "platform", "search", "dashboards", "src/taugrad", "examples", "benchmarks")

IMPORTS = (
    r".*\b(pickle|_pickle|cloudpickle|dill|jsonpickle|joblib|marshal|shelve)\b",  # their formats hold code
    r"from torch\.distributed\S* import .*_object",  # which pickle what workers send
)
CALLS = (
    r"(eval|exec|compile|__import__)\(",
    r"torch\.load\((?!.*\bweights_only=True\b)",
    r"(np|numpy)(\.memmap)?\.load\((?!.*\ballow_pickle=False\b)",
    r".*\ballow_pickle=(?!False\b)",
)
MENTIONS = (  # wrong even where they are not called
    r"(.*\.)?(read_pickle|unsafe_load|unsafe_load_all|full_load|full_load_all|run_path)$",
    r"(.*\.)?(FullLoader|UnsafeLoader|CLoader|CFullLoader|CUnsafeLoader)$|yaml\.Loader$",
    r"(.*\.)?(dist|distributed)\.\w+_object(_list)?$",
    r"torch\.(jit|hub|package)\.load$",
)
MAY_IMPORT_BY_NAME = {
    "compressors/lazy.py": "names of ours",
    "platform/data/errors.py": "names of ours",
    "platform/data/loading.py": "names of ours",
    "platform/spec/run.py": "modules that a spec names, once that is allowed",
    "platform/user_code.py": "what a spec or a search names, once that is allowed",
}
"""Where modules are imported by a name that is no constant of the module."""


def problems(source: str, file: str) -> list[str]:
    """What a module does that could run code from bytes, a line each.

    Args:
        source: its text.
        file: its path from the repository's root.
    """
    tree = ast.parse(source)
    loaders = {"SafeLoader", "CSafeLoader"} | {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("SafeLoader" in ast.unparse(base) for base in node.bases)
    }
    calls = [*CALLS, rf"yaml\.load(_all)?\((?!.*\b({'|'.join(loaders)})\))"]
    if file not in MAY_IMPORT_BY_NAME:
        calls.append(r"(.*\.)?import_module\((?!['\"])")  # a name that it was given
    patterns = {
        **dict.fromkeys((ast.Import, ast.ImportFrom), IMPORTS),
        **dict.fromkeys((ast.Name, ast.Attribute), MENTIONS),
        ast.Call: calls,
    }
    return [
        f"line {node.lineno}: {text}"
        for node in ast.walk(tree)
        if type(node) in patterns and not getattr(node, "level", 0)
        for text in [ast.unparse(node)]
        if any(re.match(pattern, text, re.DOTALL) for pattern in patterns[type(node)])
    ]


def files() -> list[Path]:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).glob("*.py")]
    for folder in FOLDERS:
        if folder != "src/taugrad":  # its folders are links to the rooms
            paths += (path for path in (ROOT / folder).rglob("*.py") if path.parent != ROOT / folder)
    return sorted(paths)


def test_no_module_reads_pickles_or_runs_text():
    result = files()
    assert len(result) > 300
    told = [
        f"{path.relative_to(ROOT)}: {said}"
        for path in result
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
