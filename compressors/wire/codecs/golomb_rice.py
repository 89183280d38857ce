"""golomb_rice: the gaps between positions, small ones in few bits (Strom, section 2.5).

Positions: see `ops/cpu/golomb_rice.py`, which describes the blocks and their parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...ops.array import Bytes
from ...ops.cpu.golomb_rice_sections import Sections
from ...ops.cpu.ops import CpuOps
from ...ops.cpu.wire import Payload, RiceBody
from ..forms import FORMS
from ..update import Update
from .base import Codec, Head, Measured, read_behind, words_of


@dataclass(frozen=True, eq=False)
class _Measured(Measured):
    """Sections that are measured and written together."""

    sections: Sections

    def write(self, which: Sequence[int], payload: Payload, begins: Sequence[int], ops: CpuOps) -> None:
        """See `Measured.write`."""
        self.sections.write(which, payload.array, begins)


class GolombRice(Codec):
    """About 1% more than the entropy of independent positions, and a sign where values carry none."""

    name = "golomb_rice"
    code = 3
    turn = 1

    def fits(self, update: Update) -> bool:
        """See `Codec.fits`."""
        return update.words is not None

    def measure(self, updates: Sequence[Update], ops: CpuOps) -> Measured:
        """See `Codec.measure`; one call measures all."""
        words = [words_of(update) for update in updates]
        sections = ops.measure_golomb_rice(words, FORMS[updates[0].form].sign_apart)
        return _Measured(self, updates, sections.sizes, sections)

    def read_all(self, bodies: Sequence[Bytes], heads: Sequence[Head], ops: CpuOps) -> list[Update]:
        """See `Codec.read_all`; one call reads all positions."""
        coded = [RiceBody(body, head.n, head.k) for body, head in zip(bodies, heads, strict=True)]
        found = ops.read_golomb_rice(coded, FORMS[heads[0].form].sign_apart)
        return [
            read_behind(words, body[used:], head, ops, keeps_signs=False)
            for (words, used), body, head in zip(found, bodies, heads, strict=True)
        ]
