"""What pages name in backticks exists: paths, classes, functions, metrics, options, fields of a spec.

A name that is none of ours must be used somewhere in our code, or be listed below.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import get_args

import cli_page
import fences
from cases import in_turn

from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.fields import spec_fields
from taugrad.platform.tracking import names
from taugrad.search.config import search_fields

ROOT = fences.ROOT
FOLDERS = (
    *("compressors", "platform", "search", "dashboards", "src"),
    *("benchmarks", "tests", "docs", "examples"),
)
PRODUCED = {"runs.md", "choice.md", "spec.yaml", "front/1.yaml", "mine.py", "queue.py", "iteration_00000120"}
"""Files that commands write, or that a reader has."""
OF_LIBRARIES = {
    *("save_state", "load_state", "free_memory", "find_executable_batch_size", "comm_hook", "LocalSGD"),
    *("DistributedDataParallelKwargs", "ddp_comm_hook", "hyperparameter_search", "ReadWriteMany"),
    *("ConfigMap", "AsyncLLM", "register_post_accumulate_grad_hook", "set_gradient_divide_factor"),
    *("shard_placement_fn", "ImportString", "MixedPrecisionPolicy", "FullyShardedDataParallel"),
    *("float8_e8m0fnu", "prepare_model", "pretrained_cfg", "RawModule"),
}
"""Names of other libraries that no code here uses."""
OPTIONS_OF_OTHERS = {
    *("--cpu", "--index-url", "--backend-store-uri", "--serve-artifacts", "--node-ip-address"),
    "--runtime-env-json",
}
"""Of other programs."""

_FENCE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")


@cache
def files() -> list[str]:
    """All files and folders of the repository, from its top."""
    within = [path for folder in (*FOLDERS, "experiments") for path in (ROOT / folder).rglob("*")]
    return [path.relative_to(ROOT).as_posix() for path in [*ROOT.iterdir(), *within]]


@cache
def identifiers() -> set[str]:
    """What our code defines or uses, and the words in its strings of one word."""
    used = set(OF_LIBRARIES)
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    for path in (path for path in paths if path.name != Path(__file__).name):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    used.add(name)
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                    used.add(name)
                case ast.keyword(arg=str(name)) | ast.Constant(value=str(name)):
                    used.add(name)
                case ast.alias(name=name):
                    used.update(name.split("."))
    return used


def named(page: str) -> Iterator[tuple[str, str]]:
    """The code within a page's text, with its place."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
    for code in _CODE.finditer(text):
        yield f"{page}:{text.count(chr(10), 0, code.start()) + 1}", " ".join(code[1].split())


def path_exists(text: str) -> bool:
    pattern = re.compile(r"(?:.*/)?" + re.escape(text.rstrip("/")).replace(r"\*", "[^/]*"))
    return text in PRODUCED or any(pattern.fullmatch(file) for file in files())


def identifier_exists(text: str) -> bool:
    name = re.match(r"[\w.]+", text)
    return name is not None and (name[0] in PRODUCED or identifiers() >= set(name[0].split(".")))


def metric_exists(text: str) -> bool:
    """Whether a metric is there; `<name>`, NAME and `*` stand for any."""
    pattern = re.compile(re.sub(r"<\w+>|[A-Z]{2,}|\*", ".+", text))
    layers = [f"layer/any/{quantity}" for quantity in get_args(names.LayerQuantity)]
    constants = [value for value in vars(names).values() if isinstance(value, str)]
    return any(pattern.fullmatch(metric) for metric in [*constants, *layers])


def option_exists(text: str) -> bool:
    """Whether commands have an option, or the scripts of the repository."""
    options = re.findall(r"(?<!\S)--[a-z][\w.-]*", text)
    known = {*re.findall(r"--[a-z][\w.-]*", cli_page.page()), "--search.FIELD"}
    return known | {f"--{field}" for field in fields()} | OPTIONS_OF_OTHERS | identifiers() >= set(options)


def field_exists(text: str) -> bool:
    name = re.split(r":| =|[^\w.]", text)[0]
    return any(field == name or field.startswith(f"{name}.") for field in fields())


@cache
def fields() -> list[str]:
    return [field.name for field in [*spec_fields(), *search_fields()]]


def module_exists(text: str) -> bool:
    """Whether a dotted name is a module, what one has, or a tag."""
    if text in identifiers():
        return True
    try:
        return resolve_name(text) is not None
    except (ImportError, AttributeError):
        return False


_SECTIONS = "|".join(["search", *RunSpec.model_fields])
KINDS: dict[str, tuple[str, Callable[[str], bool]]] = {
    "path": (
        r"[\w./*-]+\.(?:py|md|yaml|toml|cu|cuh|txt)|(?:[\w.-]+/)+"
        r"|(?:compressors|platform|search|dashboards|benchmarks|tests|docs|examples|experiments|src)/[\w/.*-]+",
        path_exists,
    ),
    "module": (r"taugrad(?:\.\w+)+", module_exists),
    "identifier": (r"[A-Z]\w*[a-z]\w*(?:\.\w+)*(?:\(.*\))?|[a-z_]\w*\(.*\)|[a-z]\w*_\w+", identifier_exists),
    "metric": (r"(?:comm|time|layer|eval|epoch|total|net|train|round)/[\w<>*/]+", metric_exists),
    "option": (r"(?:taugrad \w+ .*)?--[a-z].*", option_exists),
    "field": (rf"(?:{_SECTIONS})(?:\.[a-z]\w*)+(?:(?::| =) .*)?", field_exists),
}
"""By kind, what in a page is of it (the first kind that fits counts), and whether it exists."""


@in_turn("page", fences.pages())
def test_what_a_page_names_exists(page: str) -> None:
    missing = []
    for where, text in named(page):
        for kind, (pattern, exists) in KINDS.items():
            if re.fullmatch(pattern, text):
                missing += [] if exists(text) else [f"{where}: {kind} {text}"]
                break
    assert not missing, "\n".join(missing)


def test_names_of_every_kind_are_looked_for() -> None:
    texts = [text for page in fences.pages() for _, text in named(page)]
    for kind, (pattern, _) in KINDS.items():
        assert sum(bool(re.fullmatch(pattern, text)) for text in texts) > 5, kind
    wrong = {
        "path": "compressors/nowhere.py",
        "module": "taugrad.compressors.nothing",
        "identifier": "AllGather._no_such_method",
        "metric": "comm/nothing",
        "option": "taugrad train SPEC --no-such-option",
        "field": "sync.nothing",
    }
    assert not [kind for kind, text in wrong.items() if KINDS[kind][1](text)]
