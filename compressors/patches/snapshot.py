"""A snapshot: all weights in a safetensors file, which says in its metadata to which stream it belongs."""

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import torch

from ..errors import CorruptMessage
from .format import PATTERNS, VERSION, Summary, require_version, row_of
from .weights import BITS, Entry, digest_of, require_fit, rows_of

_SAFETENSORS = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0"},
    **{f"{kind}{bits}": f"{kind[0].upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}
"""Types that the format knows; others are written as bytes."""


def write_snapshot(entries: Mapping[str, Entry], number: int, after: Summary) -> Iterator[Any]:
    """Yields a safetensors file; shards, and dtypes that the format does not know, are tensors of bytes."""
    header, end = dict[str, Any](), 0
    for name, entry in entries.items():
        _, dtype, shape, _, size, _ = entry.row
        width, _, parts = PATTERNS[dtype]
        kind: dict[str, Any] = {"dtype": "U8", "shape": [size * width]}
        if dtype in _SAFETENSORS and size == prod(shape) * parts:
            kind = {"dtype": _SAFETENSORS[dtype], "shape": shape}
        header[name] = kind | {"data_offsets": [end, end + size * width]}
        end += size * width
    about = {"version": VERSION, "stream": f"{after.stream:016x}", "number": number}
    about |= {"digest": f"{after.digest:016x}", "rows": [entry.row for entry in entries.values()]}
    text = json.dumps({"__metadata__": {"format": "pt", "taugrad": json.dumps(about)}} | header).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for entry in entries.values():
        yield entry.bits.cpu().numpy().view(np.uint8).data


def write_index(entries: Mapping[str, Entry], file: str) -> bytes:
    """The index by which loaders of Hugging Face checkpoints find the tensors of a snapshot."""
    size = sum(entry.bits.nbytes for entry in entries.values())
    return json.dumps({"metadata": {"total_size": size}, "weight_map": dict.fromkeys(entries, file)}).encode()


_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, struct.error, RecursionError)


def _about(data: bytes) -> tuple[Any, Any, int]:
    """What a snapshot, untrusted, says of itself, of its tensors, and where these begin."""
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    about = json.loads(header["__metadata__"]["taugrad"])
    about["stream"], about["digest"] = require_version(about), int(about["digest"], 16)
    return about, header, 8 + size


def snapshot_summary(read: Callable[[int], bytes], size: int) -> Summary:
    """Reads what a snapshot, untrusted, says about itself; `read` reads its first bytes.

    Raises:
        CorruptMessage: its header is damaged.
    """
    try:
        (end,) = struct.unpack("<Q", read(8))
        about, *_ = _about(read(8 + min(end, size)))
        return Summary(about["stream"], about["digest"])
    except _DAMAGE as problem:
        raise CorruptMessage(f"no snapshot that taugrad wrote: {problem}") from None


def load_snapshot(files: list[bytes], number: int, entries: Mapping[str, Entry], threads: int) -> Summary:
    """Writes a snapshot's tensors to weights, once all is checked; returns what it says about them.

    Raises:
        CorruptMessage: a file is damaged, or not a writer's.
        PatchMismatch: it is of another model.
    """
    shards, digest, streams = list[Entry](), 0, set[int]()
    for data in files:
        try:
            about, header, begin = _about(data)
            if about["number"] != number:
                raise ValueError(f"it has number {about['number']}")
            digest += about["digest"]
            streams.add(about["stream"])
            for row in [row_of(*row) for row in about["rows"]]:
                (low, high), width = header[row.names[0]]["data_offsets"], PATTERNS[row.dtype].width
                array = np.frombuffer(data, np.uint8)[begin + low : begin + high].copy()
                if array.size != row.size * width or low < 0 or len(row.names) > 1:
                    raise ValueError(f"tensor {row.names[0]} is not where the file says")
                bits = torch.from_numpy(array.view(f"u{width}")).view(BITS[width])
                shards.append(Entry(row, bits, bits))
        except _DAMAGE as problem:
            raise CorruptMessage(f"no snapshot that taugrad wrote: {problem}") from None
    if len(streams) > 1:
        raise CorruptMessage("its files are of several streams")
    require_fit([shard.row for shard in shards], rows_of(entries))
    actual = sum(digest_of({shard.row.names[0]: shard}, threads) for shard in shards)
    if (actual - digest) % 2**64:
        raise CorruptMessage(f"the tensors do not have digest {digest % 2**64:016x}")
    for shard in shards:
        entry, first = entries[shard.row.names[0]], shard.row.first
        entry.bits[first : first + shard.row.size].copy_(shard.bits)
    for entry in entries.values():
        entry.write_back()
    return Summary(streams.pop(), digest % 2**64)
