"""golomb_rice: the gaps between positions, small ones in few bits (Strom, section 2.5).

Positions: see `kernels/golomb_rice.py`, which describes the blocks and their parameters. Short blocks follow
layers of different density more closely, long ones have less to say about themselves: the length that
makes the shortest section is taken.
"""

import numpy as np
from numpy.typing import NDArray

from ..forms import FORMS
from ..kernels import golomb_rice
from ..update import Update
from .base import Bytes, Head, PositionCodec

_LOG2S = (14, 12, 10, 8, 6)
_FEW = 2**18
_LOG2S_OF_MANY = (14, 12, 10)
"""Looking at every length would take as long as writing one; and many words are seldom of short layers."""


class GolombRice(PositionCodec):
    """About 1% more than the entropy of independent positions, and a sign where values carry none."""

    name = "golomb_rice"
    code = 3

    def positions_size(self, update: Update) -> int:
        """What the blocks take, by their gaps."""
        return self._shortest(update)[0]

    def write_positions(self, update: Update, section: Bytes) -> None:
        """See `PositionCodec.write_positions`."""
        assert update.words is not None
        _, block_log2 = self._shortest(update)
        golomb_rice.encode(update.words, FORMS[update.form].sign_apart, section, block_log2=block_log2)

    def _shortest(self, update: Update) -> tuple[int, int]:
        """Bytes of the section, and the logarithm of the block length that makes it; the longer of equals."""
        words, signed = update.words, FORMS[update.form].sign_apart
        assert words is not None
        log2s = _LOG2S if words.size <= _FEW else _LOG2S_OF_MANY
        sizes = [(golomb_rice.size(words, signed, block_log2=log2), -log2) for log2 in log2s]
        size, negative_log2 = min(sizes)
        return size, -negative_log2

    def read_positions(self, body: Bytes, head: Head) -> tuple[NDArray[np.uint32], int]:
        """See `PositionCodec.read_positions`."""
        used = golomb_rice.section_bytes(body, head.k)
        signed = FORMS[head.form].sign_apart
        return golomb_rice.decode(body[:used], head.n, head.k, signed), used
