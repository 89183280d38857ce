"""The positions of many updates: which codec writes each, and all that one codec writes in one call."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...ops.array import host
from ...ops.cpu import byte_rows, golomb_rice_sections
from ...ops.cpu.ops import CpuOps
from ...ops.cpu.wire import Payload
from ...ops.offsets import Numbers
from ..codecs.base import ByCounts, Codec, OneByOne
from ..codecs.chunked import Chunked
from ..codecs.golomb_rice import GolombRice
from ..codecs.packed32 import Packed32
from ..codecs.registry import OURS
from ..forms import FORMS
from .updates import UpdateColumns
from .words import Words


@dataclass(frozen=True, eq=False)
class PlannedPositions:
    """Positions that are ready to be written; arrays have an element for each update."""

    updates: UpdateColumns
    words: Words
    codecs: list[Codec]
    chosen: Numbers
    """Which of the codecs writes each."""
    sizes: Numbers
    """Bytes of what the codec writes itself."""
    sections: golomb_rice_sections.Sections | None

    @property
    def codes(self) -> NDArray[np.uint8]:
        """The codecs' codes."""
        return np.array([codec.code for codec in self.codecs], np.uint8)[self.chosen]

    @property
    def with_values(self) -> NDArray[np.bool_]:
        """Whether values follow."""
        return np.array([codec.with_values for codec in self.codecs])[self.chosen]

    def write(self, payload: Payload, begins: Numbers, ops: CpuOps) -> None:
        """Writes them; a few bytes behind one may be overwritten.

        Args:
            payload: zeros where bodies are to stand.
            begins: where each body begins.
            ops: the CPU's.
        """
        out = host(payload.array)
        for number, codec in enumerate(self.codecs):
            which = np.flatnonzero(self.chosen == number)
            if not which.size:
                continue
            if isinstance(codec, GolombRice):
                assert self.sections is not None
                self.sections.write(which.tolist(), out, begins[which].tolist())
            elif isinstance(codec, Packed32):
                words = host(self.words.array).view(np.uint8)
                firsts = 4 * (self.words.ends - self.words.counts)[which]
                byte_rows.copy_rows(words, firsts, 4 * self.words.counts[which], out, begins[which])
            else:
                assert isinstance(codec, OneByOne)
                for i in which.tolist():
                    codec.write(self.updates[i], payload, int(begins[i]), int(self.sizes[i]), ops)


def plan_positions(updates: UpdateColumns, codec: str, value_bytes: Numbers) -> PlannedPositions | None:
    """Chooses for each update what makes its body the shortest; None if they are to be taken one by one.

    Args:
        updates: some of whose elements are sent.
        codec: a codec's name, or `auto`.
        value_bytes: int64 [m], bytes of the values that follow.

    Raises:
        ValueError: positions do not ascend.
    """
    words, m, sections = updates.words, len(updates), None
    assert words is not None
    codecs: list[Codec] = []
    sizes: list[Numbers] = []
    for each in OURS:  # of several equally short ones, the first is taken
        if codec not in ("auto", each.name):
            continue
        if isinstance(each, GolombRice):
            sections = golomb_rice_sections.measured_together(
                host(words.array)[: int(words.ends[-1])], words.counts, FORMS[updates.form].sign_apart
            )
            codecs.append(each)
            sizes.append(sections.plans[:, golomb_rice_sections.SIZE])
        elif isinstance(each, ByCounts) and each.fits_form(updates.form, updates.chunks):
            own = each.bytes_of(updates.form, updates.n, words.counts, updates.chunks)
            codecs.append(each)
            sizes.append(np.where(_fit(each, updates), own, _NEVER))
    if not codecs:
        return None
    if len(codecs) == 1:
        chosen = np.zeros(m, np.int64)
    else:
        bodies = [own + each.with_values * value_bytes for each, own in zip(codecs, sizes, strict=True)]
        chosen = np.argmin(bodies, axis=0)
    own_sizes = np.array(sizes)[chosen, np.arange(m)]
    if own_sizes.max() >= _NEVER:
        return None
    return PlannedPositions(updates, words, codecs, chosen, own_sizes, sections)


_NEVER = np.int64(1) << 60
"""Bytes of what a codec cannot write."""


def _fit(codec: ByCounts, updates: UpdateColumns) -> "NDArray[np.bool_] | bool":
    """Which updates have as many elements as the codec needs."""
    if not isinstance(codec, Chunked):
        return True
    assert updates.chunks is not None
    fit: NDArray[np.bool_] = updates.counts == updates.chunks.count(updates.n)
    return fit
