"""Every page's commands can be read, its specs are valid, its Python compiles and imports what there is.

What stands for something of the reader's own, such as SPEC.yaml or HOST, is not looked for. Commands with
`--help` are run; those that train are run by tests/integration/test_tutorial.py and `make docs-long`.
"""

import ast
import glob
import importlib.util
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import fences
import pytest
import yaml
from cases import run_all
from fences import Block

from taugrad import cli
from taugrad.commands.train import worker_changes
from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.spec.reading import read_spec
from taugrad.search.reading import read_search

PAGES = fences.pages()
_ASSIGNED = re.compile(r"[A-Z_]+=.*")
_STANDS_FOR = re.compile(r"[A-Z][A-Z_]+(\.\w+)?")
"""SPEC, SPEC.yaml, RUN, EXPERIMENT: of the reader's own."""
OF_THE_EXAMPLE = "rotating"
"""In the commands that need examples/own_methods.py; tests/compressors/test_extending.py imports it."""
AROUND = (
    [],
    ["--workers.count", "4"],
    ["--workers.count", "80", "--model.kind", "mlp"],
    ["--workers.count", "4", "--training.optimizer.momentum", "0"],
)
"""What a part of a spec may need beside it: of these, one must make it whole."""


@pytest.fixture(autouse=True)
def at_the_top(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("RAY_", "MLFLOW_", "TAUGRAD_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(fences.ROOT)
    monkeypatch.setenv("TAUGRAD_ALLOW_CUSTOM", "1")


def blocks(*languages: str) -> Iterator[Block]:
    return (block for page in PAGES for block in fences.blocks(page) if block.language in languages)


def documents(text: str) -> Iterator[str]:
    """A block of YAML; where a field comes again, with that in the place of what it was before."""
    fields: dict[str, list[str]] = {}
    last = ""
    for line in text.splitlines():
        field = re.match(r"(\w+):", line)
        if field:
            last = field[1]
            if last in fields:
                yield _joined(fields)
            fields[last] = []
        if last:
            fields[last].append(line)
    yield _joined(fields)


def _joined(fields: dict[str, list[str]]) -> str:
    return "\n".join(line for lines in fields.values() for line in lines)


def ranges_in(tree: object) -> bool:
    """Whether a spec has a range, and so is a search's."""
    if isinstance(tree, dict):
        return bool(tree.keys() & {"log", "uniform", "int", "choice"}) or any(map(ranges_in, tree.values()))
    return isinstance(tree, str) and "{'log'" in tree


def read(text: str, folder: Path) -> None:
    tree = yaml.safe_load(text)
    assert isinstance(tree, dict), text
    assert tree.keys() <= {*RunSpec.model_fields, "search"}, f"no fields of a spec: {[*tree]}"
    path = folder / "snippet.yaml"
    path.write_text(text)
    if ranges_in(tree):
        read_search(path, [])
        return
    for around in AROUND:
        try:
            assert read_spec(path, around)
            break
        except SpecError as error:
            problem = error
    else:
        raise problem


def test_specs_are_valid(tmp_path, subtests):
    results = [(block, text) for block in blocks("yaml") for text in documents(block.text)]
    assert len(results) > 30
    calls = (
        (f"{block.where}: {text[:60]}", lambda text=text: read(text, tmp_path)) for block, text in results
    )
    run_all(calls, subtests)


def commands() -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """Every `taugrad` of a page: where, the variables before it, and its arguments as a shell gives them."""
    for block in blocks("", "bash"):
        for line in block.commands:
            if "taugrad" not in line or line.startswith("taugrad:"):  # the latter is what one says
                continue
            words = shlex.split(re.split(r"\s{2,}", line)[0], comments=True)  # the rest is said of it
            variables = {}
            while words and _ASSIGNED.fullmatch(words[0]):
                name, _, variables[name] = words.pop(0).partition("=")
            if "--" in words and words[:3] == ["ray", "job", "submit"]:
                words = words[words.index("--") + 1 :]
            if words[:1] == ["taugrad"] and words[1:2]:
                arguments = [path for word in words[1:] for path in sorted(glob.glob(word)) or [word]]
                yield block.where, variables, arguments


def check(variables: dict[str, str], arguments: list[str], files: set[str]) -> None:
    if "--help" in arguments:
        with pytest.raises(SystemExit, match="0"):
            cli.main(arguments)
        return
    if (
        "..." in arguments
        or "[EXPERIMENT" in arguments
        or any(OF_THE_EXAMPLE in argument for argument in arguments)
    ):
        return
    options, overrides = cli.build_parser().parse_known_args(arguments)
    assert not overrides or options.takes_fields, arguments
    if getattr(options, "resume", None):
        assert worker_changes(overrides, [str(spec) for spec in options.specs]) is not None
        return
    with mock.patch.dict(os.environ, variables):
        for path in [*getattr(options, "specs", []), *filter(None, [getattr(options, "spec", None)])]:
            if path.name in {*files, "train", "search", "auto"} or _STANDS_FOR.fullmatch(path.name):
                continue
            search = "search" in arguments[:2]
            assert read_search(path, overrides) if search else read_spec(path, overrides)


def test_commands_can_be_read(capsys, subtests):
    files = {block.file for block in blocks("yaml") if block.file} | {"theirs.yaml", "train.py"}
    result = list(commands())
    every = {"train", "search", "auto", "plan", "submit", "dashboard", "report", "doctor"}
    assert {arguments[0] for _, _, arguments in result} >= {*every, "deliver"}
    calls = (
        (f"{where}: {' '.join(arguments)[:80]}", lambda v=variables, a=arguments: check(v, a, files))
        for where, variables, arguments in result
    )
    run_all(calls, subtests)


def imported(source: str) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, "a relative import on a page"
            yield node.module, [alias.name for alias in node.names]


def check_imports(source: str) -> None:
    for module, names in imported(source):
        assert importlib.util.find_spec(module), module
        there = importlib.import_module(module) if module.startswith("taugrad") else None
        missing = [name for name in names if there is not None and not hasattr(there, name)]
        assert not missing, f"{module} has no {', '.join(missing)}"


def test_python_compiles_and_imports_what_there_is(subtests):
    result = list(blocks("python"))
    assert len(result) > 10
    run_all(((block.where, lambda text=block.text: check_imports(text)) for block in result), subtests)


def test_paths_of_the_repository_are_there():
    """Of what bash runs: scripts and folders that begin as one of ours does."""
    missing = []
    for block in blocks("", "bash"):
        for line in block.commands:
            for word in re.findall(r"(?:benchmarks|examples|experiments|docs)/[\w./*-]+", line):
                if not glob.glob(word.rstrip(".")):
                    missing.append(f"{block.where}: {word}")
    assert not missing
