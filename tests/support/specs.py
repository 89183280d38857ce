"""Specs of runs that are small enough for tests."""

from pathlib import Path
from typing import Any

import yaml

from taugrad.platform.spec import RunSpec

DIGITS: dict[str, Any] = {
    "data": {"kind": "digits"},
    "model": {"kind": "mlp", "widths": [64]},
    "training": {"epochs": 2, "batch_size": 64},
}


def digits(**fields: Any) -> RunSpec:
    """A run of simulated workers; fields come in the place of those of `DIGITS`."""
    return RunSpec.model_validate(DIGITS | {"sync": {"mode": "simulated"}} | fields)


def write_digits(folder: Path, name: str, **fields: Any) -> str:
    """The name of a file in a folder; as `digits`, but for real workers."""
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({"name": name} | DIGITS | fields))
    return f"{name}.yaml"
