"""golomb_rice: the gaps between positions, small ones in few bits (Strom, section 2.5).

Positions: see `kernels/golomb_rice.py`, which describes the blocks and their parameters.
"""

import numpy as np
from numpy.typing import NDArray

from ..forms import FORMS
from ..kernels import golomb_rice
from ..update import Update
from .base import Bytes, Head, PositionCodec


class GolombRice(PositionCodec):
    """About 1% more than the entropy of independent positions, and a sign where values carry none."""

    name = "golomb_rice"
    code = 3

    def positions_size(self, update: Update) -> int:
        """What the blocks take, by their gaps."""
        assert update.words is not None
        return golomb_rice.shortest(update.words, FORMS[update.form].sign_apart)[0]

    def write_positions(self, update: Update, section: Bytes) -> None:
        """See `PositionCodec.write_positions`."""
        words, signed = update.words, FORMS[update.form].sign_apart
        assert words is not None
        block_log2 = golomb_rice.block_log2_of(words, signed, section.size)
        golomb_rice.encode(words, signed, section, block_log2=block_log2)

    def read_positions(self, body: Bytes, head: Head) -> tuple[NDArray[np.uint32], int]:
        """See `PositionCodec.read_positions`."""
        used = golomb_rice.section_bytes(body, head.k)
        signed = FORMS[head.form].sign_apart
        return golomb_rice.decode(body[:used], head.n, head.k, signed), used
