"""The classes of frames: what espeak-ng's phonemes of all its English accents come to.

Names are espeak's, Kirshenbaum's ASCII for the IPA: T as in thin, D as in this, 0 as in lot, 3 as in nurse.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_SPELLINGS = (
    "_ _:",
    *("p", "b", "t t2 t# t[", "d", "k", "g", "tS", "dZ", "f", "v", "T", "D", "s", "z", "S", "Z", "h"),
    *("m", "n", "N", "l", "r r-", "w w#", "j ;", "i i:", "I I2 I#", "E", "a aa", "A A:", "V", "0"),
    *("O O: O2", "U", "u u:", "@ @2 a#", "3 3: VR IR", "@L", "eI", "aI aI2 aI3", "OI", "oU", "aU"),
    *("i@ i@3", "e@", "U@", "A@", "O@ o@", "aI@"),
)
"""The names of espeak-ng 1.51 for each class: accents have spellings of their own, and lengths."""

CLASSES: tuple[str, ...] = ("silence", *(own.split()[0] for own in _SPELLINGS[1:]))
"""Their order is part of the format."""
_NUMBERS = {spelling: number for number, own in enumerate(_SPELLINGS) for spelling in own.split()}
_MARKS = "0123456789#:;-[]^"
"""What an accent may add to a phoneme's name."""


def class_numbers(phonemes: Iterable[str]) -> NDArray[np.uint16]:
    """The classes of phonemes, as places in `CLASSES`.

    Args:
        phonemes: espeak's names.

    Raises:
        ValueError: one of them is not known, with or without the marks of an accent.
    """
    return np.array([_number(phoneme) for phoneme in phonemes], dtype=np.uint16)


def _number(phoneme: str) -> int:
    for spelling in (phoneme, phoneme.rstrip(_MARKS)):
        if spelling in _NUMBERS:
            return _NUMBERS[spelling]
    raise ValueError(f"espeak-ng's phoneme {phoneme!r} has no class; the phonemes of version 1.51 are known")
