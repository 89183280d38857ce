"""Utterances by number, each as frames: log mel energies, and the class of the phoneme that is spoken.

Classes are what espeak-ng's phonemes of all its English accents come to. Their names are espeak's,
Kirshenbaum's ASCII for the IPA: T as in thin, D as in this, 0 as in lot, 3 as in nurse.
"""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from .espeak import Speaker
from .features import frame_starts, log_mel, window_length
from .sentences import PARTS, Sentences

_ACCENTS = "en en-us en-gb-scotland en-gb-x-rp en-gb-x-gbclan en-gb-x-gbcwmd en-029 en-us-nyc"
_VARIANTS = {
    "train": (
        "m1 m3 m4 m6 m7 f1 f2 f4 Alex Andy Annie Denis Gene Jacky Lee Mario Michael adam anika belinda "
        "benjamin david ed edward grandma john linda max paul quincy rob steph"
    ),
    "validation": "m2 m8 f3 Alicia Mike caleb robert steph2",
    "test": "m5 f5 Andrea Gene2 Hugo boris travis steph3",
}
"""What makes a voice another person's; no two parts share one. Without whispering, singing and robots."""
_BLOCK = 64
"""Utterances, of three to four seconds."""
_WORDS_A_MINUTE = (120, 260)
_PITCH = (25, 80)
_PITCH_RANGE = (30, 80)
_NOISE_DB = (20.0, 40.0)
"""How far white noise lies below the speech: nobody speaks in a room without a sound."""

_SPELLINGS = (
    "_ _:",
    *("p", "b", "t t2 t# t[", "d", "k", "g", "tS", "dZ", "f", "v", "T", "D", "s", "z", "S", "Z", "h"),
    *("m", "n", "N", "l", "r r-", "w w#", "j ;", "i i:", "I I2 I#", "E", "a aa", "A A:", "V", "0"),
    *("O O: O2", "U", "u u:", "@ @2 a#", "3 3: VR IR", "@L", "eI", "aI aI2 aI3", "OI", "oU", "aU"),
    *("i@ i@3", "e@", "U@", "A@", "O@ o@", "aI@"),
)
"""The names of espeak-ng 1.51 for each class: accents have spellings of their own, and lengths."""
CLASSES: tuple[str, ...] = ("silence", *(spellings.split()[0] for spellings in _SPELLINGS[1:]))
"""Their order is part of the format."""
_NUMBERS = {spelling: number for number, spellings in enumerate(_SPELLINGS) for spelling in spellings.split()}
_MARKS = "0123456789#:;-[]^"
"""What an accent may add to a phoneme's name."""

Frames = tuple[NDArray[np.float32], NDArray[np.uint16]]
"""An utterance's features [frames, 20], and labels [frames], places in `CLASSES`."""


def speak_block(part: str, seed: int, block: int) -> list[Frames]:
    """Speaks a block of a part's utterances by its number, in a process that did not speak before.

    Returns:
        The same on every call in a new process of this machine.

    Raises:
        SpeechError: espeak-ng is missing or failed.
        ValueError: it uses a phoneme that is not known.
    """
    speaker, sentences, place = Speaker(), Sentences(part), list(PARTS).index(part)
    voices = [f"{accent}+{variant}" for accent in _ACCENTS.split() for variant in _VARIANTS[part].split()]
    return [
        _utterance(speaker, sentences, voices, np.random.default_rng([seed, place, number]))
        for number in range(block * _BLOCK, (block + 1) * _BLOCK)
    ]


def _utterance(speaker: Speaker, sentences: Sentences, voices: list[str], generator: Generator) -> Frames:
    speech = speaker.speak(
        sentences.sentence(generator),
        voices[int(generator.integers(len(voices)))],
        words_a_minute=int(generator.integers(*_WORDS_A_MINUTE, endpoint=True)),
        pitch=int(generator.integers(*_PITCH, endpoint=True)),
        pitch_range=int(generator.integers(*_PITCH_RANGE, endpoint=True)),
    )
    samples = speech.samples.astype(np.float64)
    noise = np.sqrt(np.mean(np.square(samples))) * 10 ** (-generator.uniform(*_NOISE_DB) / 20)
    features = log_mel(samples + noise * generator.standard_normal(len(samples)), speaker.rate)
    middles = frame_starts(len(samples), speaker.rate) + window_length(speaker.rate) // 2
    numbers = np.array([_number(phoneme) for phoneme in speech.phonemes], dtype=np.uint16)
    return features, labels_at(middles, speech.starts, numbers)


def _number(phoneme: str) -> int:
    for spelling in (phoneme, phoneme.rstrip(_MARKS)):
        if spelling in _NUMBERS:
            return _NUMBERS[spelling]
    raise ValueError(f"espeak-ng's phoneme {phoneme!r} has no class; the phonemes of version 1.51 are known")


def labels_at(
    middles: NDArray[np.int64], starts: NDArray[np.int64], numbers: NDArray[np.uint16]
) -> NDArray[np.uint16]:
    """The class of what is spoken at the middle of each frame.

    Args:
        middles: samples, int64 [frames].
        starts: where each phoneme begins, int64 [phonemes], ascending; each lasts until the next.
        numbers: their classes, uint16 [phonemes].

    Returns:
        uint16 [frames]; 0, silence, before the first phoneme.
    """
    return np.append(np.uint16(0), numbers)[np.searchsorted(starts, middles, side="right")]
