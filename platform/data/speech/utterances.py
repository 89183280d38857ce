"""Utterances by number, in blocks: each has a new process, as espeak-ng keeps something of what it said."""

from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from .espeak import Speaker
from .features import FEATURES, frame_starts, log_mel, window_length
from .phonemes import class_numbers
from .sentences import PartName, Sentences

ACCENTS = "en en-us en-gb-scotland en-gb-x-rp en-gb-x-gbclan en-gb-x-gbcwmd en-029 en-us-nyc"
VARIANTS: dict[PartName, str] = {
    "train": (
        "m1 m3 m4 m6 m7 f1 f2 f4 Alex Andy Annie Denis Gene Jacky Lee Mario Michael adam anika belinda "
        "benjamin david ed edward grandma john linda max paul quincy rob steph"
    ),
    "validation": "m2 m8 f3 Alicia Mike caleb robert steph2",
    "test": "m5 f5 Andrea Gene2 Hugo boris travis steph3",
}
"""What makes a voice another person's. Whispering, singing and robots' voices are left out."""


def voices(part: PartName) -> list[str]:
    """The names of a part's voices; no two parts share one."""
    return [f"{accent}+{variant}" for accent in ACCENTS.split() for variant in VARIANTS[part].split()]


PARTS: tuple[PartName, ...] = get_args(PartName)
BLOCK = 64
"""Utterances, of three to four seconds."""
_WORDS_A_MINUTE = (120, 260)
_PITCH = (25, 80)
_PITCH_RANGE = (30, 80)
_NOISE_DB = (20.0, 40.0)
"""How far white noise lies below the speech: nobody speaks in a room without a sound."""


@dataclass(frozen=True)
class Frames:
    """Frames of utterances, one after the other.

    Attributes:
        features: float32 [frames, 20].
        labels: uint16 [frames], places in `phonemes.CLASSES`.
        lengths: int64 [utterances], their frames.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.uint16]
    lengths: NDArray[np.int64]


def speak_block(part: PartName, seed: int, block: int) -> Frames:
    """Speaks a block of utterances, in a process that did not speak before.

    Args:
        part: of the data.
        seed: what sentences, voices, speeds and pitches follow from.
        block: its number, from 0.

    Returns:
        The same on every call in a new process of this machine.

    Raises:
        SpeechError: espeak-ng is missing or failed.
        ValueError: it uses a phoneme that is not known.
    """
    speaker, sentences, names = Speaker(), Sentences(part), voices(part)
    spoken = []
    for number in range(block * BLOCK, (block + 1) * BLOCK):
        generator = np.random.default_rng([seed, PARTS.index(part), number])
        spoken.append(_utterance(speaker, sentences, names, generator))
    return Frames(
        np.concatenate([features for features, _ in spoken]).reshape(-1, FEATURES),
        np.concatenate([labels for _, labels in spoken]),
        np.array([len(labels) for _, labels in spoken], dtype=np.int64),
    )


def _utterance(
    speaker: Speaker, sentences: Sentences, names: list[str], generator: Generator
) -> tuple[NDArray[np.float32], NDArray[np.uint16]]:
    speech = speaker.speak(
        sentences.sentence(generator),
        names[int(generator.integers(len(names)))],
        words_a_minute=int(generator.integers(*_WORDS_A_MINUTE, endpoint=True)),
        pitch=int(generator.integers(*_PITCH, endpoint=True)),
        pitch_range=int(generator.integers(*_PITCH_RANGE, endpoint=True)),
    )
    samples = speech.samples.astype(np.float64)
    loudness = np.sqrt(np.mean(np.square(samples))) if len(samples) else 0.0
    noise = loudness * 10 ** (-generator.uniform(*_NOISE_DB) / 20)
    features = log_mel(samples + noise * generator.standard_normal(len(samples)), speaker.rate)
    middles = frame_starts(len(samples), speaker.rate) + window_length(speaker.rate) // 2
    return features, labels_at(middles, speech.starts, class_numbers(speech.phonemes))


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
    labels: NDArray[np.uint16] = np.concatenate([np.zeros(1, np.uint16), numbers])[
        np.searchsorted(starts, middles, side="right")
    ]
    return labels
