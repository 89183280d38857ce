"""Private names of torch: all are where they were, and in no module but two."""

import ast
import inspect
from pathlib import Path
from pkgutil import resolve_name

import torch

from taugrad.compressors import fsdp_internals, torch_internals

MODULES = (torch_internals, fsdp_internals)
TRIED = {**torch_internals.TRIED, **fsdp_internals.TRIED}
COMPRESSORS = Path(torch_internals.__file__).parent
LEAVES = {name.rpartition(".")[2] for name in TRIED if "." in name.partition(":")[2]}
"""Private attributes of objects."""


def is_there(name: str) -> bool:
    """Whether a name leads to something; or its class's source sets such an attribute."""
    try:
        resolve_name(name)
    except AttributeError:
        owner, _, attribute = name.rpartition(".")
        return ":" in owner and f"self.{attribute}" in inspect.getsource(resolve_name(owner))
    return True


def test_every_private_name_of_torch_is_there() -> None:
    gone = {name: version for name, version in TRIED.items() if not is_there(name)}
    assert not gone, f"torch {torch.__version__} has other private names than those it was tried with: {gone}"


def test_a_name_that_is_gone_is_found() -> None:
    assert not is_there("torch.nn.parallel:DistributedDataParallel._has_no_such_name")
    assert not is_there("torch._C:_no_such_call")


def private_uses(source: str) -> set[str]:
    """Imports of private names from torch, uses of these, and private attributes that are listed."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            names = [*node.module.split("."), *(alias.name for alias in node.names)]  # type: ignore[union-attr]
            found |= {name for name in names if name.startswith("_")}
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr[:2] != "__":
            of_torch = isinstance(node.value, ast.Name) and node.value.id in ("torch", "dist")
            if (of_torch and not node.attr.startswith("_foreach_")) or node.attr in LEAVES:
                found.add(node.attr)
    return found


def test_no_other_module_has_private_names_of_torch() -> None:
    homes = {Path(str(module.__file__)).name for module in MODULES}
    uses = {
        path.relative_to(COMPRESSORS).as_posix(): names
        for path in sorted(COMPRESSORS.rglob("*.py"))
        if path.name not in homes and (names := private_uses(path.read_text(encoding="utf-8")))
    }
    assert uses == {"reduce_scatter.py": {"_fully_shard", "_fsdp_api"}}  # a base class, since torch 2.9
