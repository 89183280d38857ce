"""Makes speech to train on: sentences spoken by espeak-ng, as frames of 20 log mel energies with phonemes.

    python -m benchmarks.papers.speech_data --out DIR [--minutes 30] [--seed 0]

The folder is for `data: {kind: frames}`. Training, validation and test have different voices and words.
"""

import argparse
import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import count
from pathlib import Path

import numpy as np

from taugrad.platform.data.frames_folder import in_one_go, is_made, write_manifest, write_part

from .espeak import SpeechError, loaded, version_of
from .features import FEATURES, FRAME_MS
from .utterances import CLASSES, Frames, speak_block

SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
"""Shares of the minutes."""
_RECIPE = 1  # to be counted up when other frames come out of the same settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the folder, unless it has been made with these settings before; returns an exit code."""
    parser = argparse.ArgumentParser("python -m benchmarks.papers.speech_data", description=__doc__)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the folder to write")
    parser.add_argument("--minutes", type=float, default=30.0, help="minutes of speech, in all parts")
    parser.add_argument("--seed", type=int, default=0, help="decides the texts and voices")
    options = parser.parse_args(arguments)
    try:
        _make(options.out, options.minutes, options.seed)
    except (SpeechError, OSError) as error:
        print(f"--out {options.out}: {error}", file=sys.stderr)
        return 2
    return 0


def _make(folder: Path, minutes: float, seed: int) -> None:
    """Makes a folder of frames. Each part ends with the utterance that reaches its share of the minutes."""
    made = {"recipe": _RECIPE, "minutes": minutes, "seed": seed, "espeak": version_of(loaded())}
    if folder.is_dir() and any(folder.iterdir()):
        if not is_made(folder, made):
            raise SpeechError("is not empty, and is incomplete or has other settings")
        return
    with in_one_go(folder) as beside:
        for part, share in SHARES.items():
            utterances, ends = list[Frames](), [0]
            for utterance in _utterances(part, seed):
                utterances.append(utterance)
                ends.append(ends[-1] + len(utterance[1]))
                if ends[-1] >= minutes * share * 60_000 // FRAME_MS:
                    break
            features, labels = map(np.concatenate, zip(*utterances, strict=True))
            write_part(beside, part, features, labels, np.array(ends))
        write_manifest(beside, FEATURES, CLASSES, FRAME_MS, made)


def _utterances(part: str, seed: int) -> Iterator[Frames]:
    """A part's utterances in order, as many blocks of them at a time as there are CPUs.

    Each block is spoken by a new process: espeak-ng keeps something of what it said.
    """
    parallel = len(os.sched_getaffinity(0))
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(parallel, spawning, max_tasks_per_child=1) as processes:
        pending = deque(processes.submit(speak_block, part, seed, block) for block in range(parallel))
        try:
            for block in count():
                yield from pending.popleft().result()
                pending.append(processes.submit(speak_block, part, seed, block + parallel))
        except (ValueError, BrokenProcessPool) as error:
            raise SpeechError(f"espeak-ng: block {block} of {part}: {error}") from error
        finally:
            processes.shutdown(cancel_futures=True)


if __name__ == "__main__":
    sys.exit(main())
