"""Messages on a device: lengths come to the host, which makes headers and codebooks; bodies stay."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..array import Bytes
from ..cpu.golomb_rice import block_log2s
from ..returns import Returns, Steps, together
from ..wire import HuffmanCoded, Payload, RiceBody, Sections, Wire
from . import bitpack, copying, golomb_rice, huffman, payloads, positions, raw, wire_values, words
from .crc32 import Checksums
from .faults import Faults
from .memory import Device
from .runtime import Runtime


class DevicePayload(Payload):
    """See `Payload`; what the host writes goes there in one copy, when it is sealed."""

    def __init__(self, runtime: Runtime, checksums: Checksums, size: int) -> None:
        """So many bytes."""
        self._runtime, self._checksums = runtime, checksums
        self.array = runtime.zeros(size, np.uint8)
        self._pieces = payloads.Pieces()

    def put(self, data: Bytes | bytes, at: int) -> None:
        """See `Payload.put`."""
        self._pieces.add(np.frombuffer(data, np.uint8), at)

    def write_huffman(self, coded: HuffmanCoded, at: int) -> None:
        """See `Payload.write_huffman`."""
        assert isinstance(coded, huffman.HuffmanPlan)
        self.put(coded.codebook, at)
        huffman.write_streams(self._runtime, coded, self.array[at : at + coded.size])

    def seal(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        """See `Payload.seal`."""
        self._pieces.write_to(self._runtime, self.array)
        if starts:
            self._checksums.seal(self.array, list(starts), list(ends))


@dataclass(frozen=True)
class RiceSections:
    """See `Sections`."""

    runtime: Runtime
    plans: list[golomb_rice.RicePlan | None]
    """None where there are no words."""

    @property
    def sizes(self) -> list[int]:
        """See `Sections.sizes`."""
        return [0 if plan is None else plan.size for plan in self.plans]

    def write(self, which: Sequence[int], out: Any, begins: Sequence[int]) -> None:
        """See `Sections.write`."""
        for number, begin in zip(which, begins, strict=True):
            plan = self.plans[number]
            if plan is not None:
                golomb_rice.encode(self.runtime, plan, out[begin : begin + plan.size])


class CudaWire(Device, Wire):
    """See `Wire`."""

    @property
    @abstractmethod
    def checksums(self) -> Checksums:
        """Works out checksums there."""

    # Writing

    def payload(self, size: int) -> DevicePayload:
        """See `Wire.payload`."""
        return DevicePayload(self, self.checksums, size)

    def measure_golomb_rice(self, words: Sequence[Any], signed: bool, returns: Returns) -> Steps[Sections]:
        """See `Wire.measure_golomb_rice`."""
        measured = [
            golomb_rice.Measured(self, each, signed, block_log2s(int(each.size)), returns)
            if each.size
            else None
            for each in words
        ]
        if any(each is not None for each in measured):
            yield
        return RiceSections(self, [None if each is None else each.plan() for each in measured])

    def plan_huffman(
        self, symbols: Any, bits: int, below: int | None, returns: Returns
    ) -> Steps[HuffmanCoded | None]:
        """See `Wire.plan_huffman`."""
        counts = huffman.Counts(self, symbols, bits, returns)
        yield
        measured = huffman.Measured(self, symbols, bits, counts.values, returns)
        if below is not None and measured.least >= below:
            return None
        measured.start()
        yield
        plan = measured.plan()
        return plan if below is None or plan.size < below else None

    def pack(self, symbols: Any, bits: int, out: Any) -> None:
        """See `Wire.pack`; no pass makes a symbol that is too wide."""
        bitpack.pack(self, symbols, bits, out, Faults(self))

    copy_bytes = copying.copy_bytes
    write_bitmap = positions.write_bitmap
    write_indices = positions.write_indices
    write_raw = raw.write_raw

    # Reading

    def faults(self, returns: Returns) -> Faults:
        """See `Wire.faults`."""
        return Faults(self, returns, self.checksums)

    def aligned(self, body: Any, dtype: Any) -> Any:
        """See `Wire.aligned`."""
        values = self.empty(int(body.size) // np.dtype(dtype).itemsize, np.dtype(dtype))
        copying.copy_bytes(self, body, values.view(np.uint8))
        return values

    def read_golomb_rice(
        self, bodies: Sequence[RiceBody], signed: bool, behind: int, looks: Returns
    ) -> Steps[list[tuple[Any, int, Bytes]]]:
        """See `Wire.read_golomb_rice`."""
        return together(self._read_section(each, signed, behind, looks) for each in bodies)

    def _read_section(
        self, coded: RiceBody, signed: bool, behind: int, looks: Returns
    ) -> Steps[tuple[Any, int, Bytes]]:
        body, n, k, faults = coded
        if not k:
            return self.empty(0, np.uint32), 0, np.empty(0, np.uint8)
        assert isinstance(faults, Faults)
        section = golomb_rice.Section(self, body, n, k, signed, looks)
        slot = looks.take(behind, np.uint8)
        payloads.peek(self, body, section.end, slot.array)
        yield
        used = section.used
        return section.read(faults), used, slot.values[: max(int(body.size) - used, 0)]

    def read_huffman(self, body: Any, bits: int, k: int, faults: Any, looks: Returns) -> Steps[Any]:
        """See `Wire.read_huffman`."""
        slot = looks.take(huffman.head_bytes(int(body.size), bits, k), np.uint8)
        copying.copy_bytes(self, body[: slot.array.size], slot.array)
        yield
        return huffman.decode_behind(self, body, slot.values, bits, k, faults)

    find_messages = payloads.find_messages
    read_packed32 = positions.read_packed32
    read_bitmap = positions.read_bitmap
    read_indices = positions.read_indices
    read_raw = raw.read_raw
    unpack = bitpack.unpack
    join_signs = words.join_signs
    check_no_signs = words.check_no_signs
    check_wgt = wire_values.check_wgt
    check_levels = wire_values.check_levels
    check_floats = wire_values.check_floats
    check_halves = wire_values.check_halves
    check_linear_tables = wire_values.check_linear_tables
    check_quantile_tables = wire_values.check_quantile_tables
    check_fp8 = wire_values.check_fp8
