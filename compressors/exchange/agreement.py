"""Checks before the first exchange that all workers have the same settings.

Workers with different methods, exchanges or models would wait for one another's collectives until the group's
timeout, or silently drift apart. So each worker describes its settings, as fields and values. Digests of the
descriptions are compared, through the process group's store. If they differ, the descriptions themselves are
exchanged, so that every worker raises the same error.
"""

import hashlib
import json
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from pydantic import BaseModel
from torch import Tensor

from ..errors import WorkersDisagree
from .addresses import all_gather_bytes

KIND = "kind"
"""The field that names the method; if it differs, so do most others."""
_MOST_FIELDS, _LONGEST_VALUE, _MOST_RANKS = 3, 100, 4
_MOST_BYTES = 1 << 26

Description = Mapping[str, str]
"""Values by field, in the order in which differences are reported."""


def flattened(config: BaseModel) -> dict[str, str]:
    """The fields of a configuration; those of its groups as `group.field`."""
    fields: dict[str, str] = {}

    def note(name: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, item in value.items():
                note(f"{name}.{key}" if name else str(key), item)
        else:
            fields[name] = value if isinstance(value, str) else json.dumps(value)

    note("", config.model_dump(mode="json"))
    return {KIND: fields[KIND]} | fields


def description(tensor: Tensor) -> str:
    """The dtype and shape, such as `float32 [3, 4]`."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def described(parameters: Mapping[str, Tensor]) -> dict[str, str]:
    """Names, dtypes and shapes, in order."""
    return {
        f"parameter {ordinal}": f"{name} {description(parameter)}"
        for ordinal, (name, parameter) in enumerate(parameters.items())
    }


def require_agreement(fields: Description, group: dist.ProcessGroup) -> None:
    """Compares this worker's settings with those of all in its group, who call this at the same point.

    Raises WorkersDisagree on every worker, with the same message; or PeerLost.
    """
    text = json.dumps(list(fields.items())).encode()
    if len(set(all_gather_bytes(hashlib.sha256(text).digest(), group))) > 1:
        told = all_gather_bytes(zlib.compress(text), group)  # a store takes some megabytes only
        raise WorkersDisagree(difference(dict(enumerate(map(_read, told)))))


def difference(descriptions: Mapping[int, Description]) -> str:
    """What differs between ranks, on one line: `rank 0: reduction = mean, rank 1: reduction = sum`."""
    by_rank = descriptions.values()
    fields = dict.fromkeys(field for description in by_rank for field in description)
    different = [field for field in fields if len({description.get(field) for description in by_rank}) > 1]
    shown = different[:1] if different[:1] == [KIND] else different[:_MOST_FIELDS]
    told = "; ".join(_sides(field, descriptions) for field in shown)
    rest = len(different) - len(shown)
    return f"{told}; and {rest} more" if rest and shown != [KIND] else told


def _sides(field: str, descriptions: Mapping[int, Description]) -> str:
    ranks: defaultdict[str | None, list[int]] = defaultdict(list)
    for rank, values in sorted(descriptions.items()):
        ranks[values.get(field)].append(rank)
    return ", ".join(f"{_ranks(who)}: {_side(field, value)}" for value, who in ranks.items())


def _side(field: str, value: str | None) -> str:
    if value is None:
        return f"no {field}"
    return f"{field} = {value if len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - 3] + '...'}"


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    listed = ", ".join(map(str, ranks[:_MOST_RANKS]))
    return f"ranks {listed}" + (f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else "")


def _read(told: bytes) -> Description:
    """A worker's description; if it cannot be read, a note that says so."""
    try:
        text = zlib.decompressobj().decompress(told, _MOST_BYTES)
        return {str(field): str(value) for field, value in json.loads(text)}
    except (zlib.error, ValueError, TypeError):
        return {"description": "cannot be read"}
