"""Speaks a number of minutes, several blocks at a time."""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from ..frames_folder import in_one_go, write_manifest, write_part
from .espeak import SpeechError
from .features import FEATURES, FRAME_MS
from .phonemes import CLASSES
from .sentences import PartName
from .utterances import PARTS, Frames, speak_block

SHARES: dict[PartName, float] = {"train": 0.8, "validation": 0.1, "test": 0.1}
"""Of the minutes."""
_A_MINUTE = 60_000 // FRAME_MS
_RECIPE = 1
"""To be counted up when other frames come out of the same settings."""


def settings(minutes: float, seed: int, espeak: str) -> dict[str, Any]:
    """All that frames follow from, as it is written beside them."""
    return {
        "by": "taugrad data speech",
        "recipe": _RECIPE,
        "minutes": minutes,
        "seed": seed,
        "espeak": espeak,
    }


def make(folder: Path, minutes: float, seed: int, espeak: str, spoken: Callable[[float], None]) -> None:
    """Makes a folder of frames.

    Args:
        folder: is not there, or is empty; appears when it is whole.
        minutes: of speech, all parts together; each part ends with the utterance that reaches its share.
        seed: what it follows from.
        espeak: the library's version.
        spoken: is told how many minutes are done, now and then.

    Raises:
        SpeechError: espeak-ng failed.
        OSError: the folder cannot be written.
    """
    done = 0.0
    with in_one_go(folder) as beside:
        for part in PARTS:
            wanted = max(1, round(minutes * SHARES[part] * _A_MINUTE))
            blocks: list[Frames] = []
            frames = 0
            for block in _blocks(part, seed):
                blocks.append(block)
                frames += len(block.labels)
                spoken(done + min(frames, wanted) / _A_MINUTE)
                if frames >= wanted:
                    break
            done += wanted / _A_MINUTE
            spoken_frames = _first(blocks, wanted)
            write_part(beside, part, spoken_frames.features, spoken_frames.labels, spoken_frames.lengths)
        write_manifest(beside, FEATURES, CLASSES, FRAME_MS, settings(minutes, seed, espeak))


def _blocks(part: PartName, seed: int) -> Iterator[Frames]:
    """A part's blocks in order, as many at a time as there are CPUs.

    Each is spoken by a new process: espeak-ng keeps something of what it said.
    """
    at_once = len(os.sched_getaffinity(0))
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(at_once, spawning, max_tasks_per_child=1) as processes:
        ahead = deque(processes.submit(speak_block, part, seed, block) for block in range(at_once))
        try:
            for block in count():
                yield ahead.popleft().result()
                ahead.append(processes.submit(speak_block, part, seed, block + at_once))
        except (SpeechError, ValueError, BrokenProcessPool) as error:
            raise SpeechError(f"espeak-ng: block {block} of {part}: {error}") from error
        finally:
            processes.shutdown(cancel_futures=True)


def _first(blocks: list[Frames], wanted: int) -> Frames:
    """The first utterances, up to the one that reaches a number of frames."""
    lengths = np.concatenate([block.lengths for block in blocks])
    utterances = int(np.searchsorted(np.cumsum(lengths), wanted)) + 1
    frames = int(lengths[:utterances].sum())
    return Frames(
        np.concatenate([block.features for block in blocks])[:frames],
        np.concatenate([block.labels for block in blocks])[:frames],
        lengths[:utterances],
    )
