"""golomb_rice: the gaps between positions, small ones in few bits (Strom, section 2.5).

Positions: see `ops/cpu/golomb_rice.py`, which describes the blocks and their parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...ops.interface import Ops
from ...ops.returns import Returns, Steps, together
from ...ops.wire import Payload, RiceBody, Sections
from ..forms import FORMS
from ..update import Update
from .base import Body, Codec, Head, Measured, Reading, read_behind, words_of
from .values import QUANTIZER_HEAD


@dataclass(frozen=True, eq=False)
class _Measured(Measured):
    """Sections that are measured and written together."""

    sections: Sections

    def write(self, which: Sequence[int], payload: Payload, begins: Sequence[int], ops: Ops) -> None:
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

    def measure(self, updates: Sequence[Update], ops: Ops, returns: Returns) -> Steps[Measured]:
        """See `Codec.measure`."""
        signed = FORMS[updates[0].form].sign_apart
        words = [words_of(update) for update in updates]
        sections = yield from ops.measure_golomb_rice(words, signed, returns)
        return _Measured(self, updates, sections.sizes, sections)

    def read_all(
        self, bodies: Sequence[Body], heads: Sequence[Head], readings: Sequence[Reading]
    ) -> Steps[list[Update]]:
        """See `Codec.read_all`."""
        coded = [
            RiceBody(body.array, head.n, head.k, reading.faults)
            for body, head, reading in zip(bodies, heads, readings, strict=True)
        ]
        signed, looks = FORMS[heads[0].form].sign_apart, readings[0].looks
        found = yield from readings[0].ops.read_golomb_rice(coded, signed, QUANTIZER_HEAD, looks)
        behind = [
            Body(body.array[used:], start) for (_, used, start), body in zip(found, bodies, strict=True)
        ]
        given = zip(found, behind, heads, readings, strict=True)
        return (
            yield from together(
                read_behind(words, body, head, reading, keeps_signs=False)
                for (words, _, _), body, head, reading in given
            )
        )
