"""golomb_rice: the gaps between positions, small ones in few bits (Strom, section 2.5).

Positions: see `ops/cpu/golomb_rice.py`, which describes the blocks and their parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...ops.cpu import golomb_rice, golomb_rice_sections
from ...ops.cpu.golomb_rice_sections import Sections
from ..forms import FORMS
from ..update import Update
from .base import Bodies, Bytes, Head, PositionCodec
from .values import PlannedValues


@dataclass(frozen=True, eq=False)
class _Measured(Bodies):
    """Bodies whose sections of positions are written by one call."""

    sections: Sections

    def write(self, which: Sequence[int], payload: Bytes, begins: Sequence[int]) -> None:
        """See `Bodies.write`."""
        self.sections.write(which, payload, begins)
        for number, begin in zip(which, begins, strict=True):
            values = self.values[number]
            if values.size:  # behind the section, which may have spilled
                end = begin + self.sizes[number]
                values.write(payload[end - values.size : end])


class GolombRice(PositionCodec):
    """About 1% more than the entropy of independent positions, and a sign where values carry none."""

    name = "golomb_rice"
    code = 3

    def plan(self, updates: Sequence[Update], values: Sequence[PlannedValues]) -> Bodies:
        """See `Codec.plan`."""
        sections = _sections(updates)
        sizes = [size + each.size for size, each in zip(sections.sizes, values, strict=True)]
        return _Measured(self, updates, values, sizes, sections)

    def positions_size(self, update: Update) -> int:
        """What the blocks take, by their gaps."""
        return _sections([update]).sizes[0]

    def write_positions(self, update: Update, section: Bytes) -> None:
        """See `PositionCodec.write_positions`."""
        _sections([update]).write([0], section, [0])

    def read_positions(self, body: Bytes, head: Head) -> tuple[NDArray[np.uint32], int]:
        """See `PositionCodec.read_positions`."""
        used = golomb_rice.section_bytes(body, head.k)
        signed = FORMS[head.form].sign_apart
        return golomb_rice.decode(body[:used], head.n, head.k, signed), used

    def decode_all(self, bodies: Sequence[Bytes], heads: Sequence[Head]) -> list[Update]:
        """See `Codec.decode_all`; one call reads the positions of all."""
        table, begin, most = [], 0, 0
        for body, head in zip(bodies, heads, strict=True):
            if head.k > 8 * body.size:  # a word takes a bit at least: no room is made for more
                break
            table.append((begin, body.size, head.n, head.k, 0))
            begin, most = begin + body.size, most + head.k
        read = np.array(table, np.int64).reshape(-1, 5)
        joined = golomb_rice.read_only(bodies[0] if len(bodies) == 1 else np.concatenate(bodies))
        signed = FORMS[heads[0].form].sign_apart
        words = np.empty(most, np.uint32)
        good = golomb_rice_sections.read_sections(joined, read, int(signed), words)
        found, at = [], 0
        for body, head, used in zip(bodies[:good], heads[:good], read[:good, 4].tolist(), strict=True):
            found.append(self.with_values(words[at : at + head.k], body[used:], head))
            at += head.k
        # What is wrong with the first that is not valid, its own reader says.
        return found + [
            self.decode(body, head) for body, head in zip(bodies[good:], heads[good:], strict=True)
        ]


def _sections(updates: Sequence[Update]) -> Sections:
    """The sections of updates of one form."""
    words = []
    for update in updates:
        assert update.words is not None
        words.append(update.words)
    return golomb_rice_sections.measured(words, FORMS[updates[0].form].sign_apart)
