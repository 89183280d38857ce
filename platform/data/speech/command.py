"""`taugrad data speech`: speaks a number of minutes, several blocks at a time, and says how far it is."""

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ...exit_codes import OK
from ...spec import COMMAND_LINE, SpecError
from ...terminal import say
from ..frames_folder import in_one_go, is_made, write_manifest, write_part
from .espeak import SpeechError, loaded, version_of
from .features import FEATURES, FRAME_MS
from .utterances import CLASSES, Frames, speak_block

SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
"""Of the minutes."""
MOST_MINUTES = 6000.0
"""A hundred hours: a part's features lie in memory until they are written."""
_A_MINUTE = 60_000 // FRAME_MS
_RECIPE = 1
"""To be counted up when other frames come out of the same settings."""


def run_speech(minutes: float, folder: Path, seed: int) -> int:
    """Makes a folder of spoken frames, unless it is there already.

    Args:
        minutes: of speech, in all parts together.
        folder: where to; must not be there, be empty, or hold what the same settings made.
        seed: what texts, voices, speeds and pitches follow from.

    Returns:
        0.

    Raises:
        SpecError: the minutes or the seed are out of range, the folder holds something else or cannot be
            written, or espeak-ng is missing or failed.
    """
    try:
        _run(minutes, folder, seed, Console())
    except SpeechError as error:
        raise SpecError(COMMAND_LINE, [str(error)]) from error
    except OSError as error:
        raise SpecError(COMMAND_LINE, [f"--out {folder}: {error.strerror or error}"]) from error
    return OK


def _run(minutes: float, folder: Path, seed: int, console: Console) -> None:
    if not 0 < minutes <= MOST_MINUTES:
        raise SpeechError(f"--minutes {minutes:g}: give more than 0, up to {MOST_MINUTES:g}")
    if seed < 0:
        raise SpeechError(f"--seed {seed}: give 0 or more")
    made = {
        "by": "taugrad data speech",
        "recipe": _RECIPE,
        "minutes": minutes,
        "seed": seed,
        "espeak": version_of(loaded()),
    }
    if folder.exists() and not folder.is_dir():
        raise SpeechError(f"--out {folder}: is a file; give a folder")
    if folder.is_dir() and any(folder.iterdir()):
        if not is_made(folder, made):
            raise SpeechError(
                f"--out {folder}: is not empty, and is incomplete or has other settings; give another folder"
            )
        say(console, f"{folder}: exists already, with these settings")
        return
    start = time.monotonic()
    text = TextColumn("{task.completed:.1f} of {task.total:g} min")
    columns = (TextColumn("speaking"), BarColumn(), text, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=minutes)
        _make(folder, minutes, seed, made, lambda done: progress.update(bar, completed=done))
    seconds = time.monotonic() - start
    say(console, f"{folder}: {minutes:g} minutes in {seconds:.0f} s; data: {{kind: frames, path: {folder}}}")


def _make(
    folder: Path, minutes: float, seed: int, made: dict[str, Any], spoken: Callable[[float], None]
) -> None:
    """Makes a folder of frames. Each part ends with the utterance that reaches its share of the minutes."""
    done = 0.0
    with in_one_go(folder) as beside:
        for part, share in SHARES.items():
            wanted = max(1, round(minutes * share * _A_MINUTE))
            utterances: list[Frames] = []
            ends = [0]
            for utterance in _utterances(part, seed):
                utterances.append(utterance)
                ends.append(ends[-1] + len(utterance[1]))
                spoken(done + min(ends[-1], wanted) / _A_MINUTE)
                if ends[-1] >= wanted:
                    break
            done += wanted / _A_MINUTE
            features, labels = map(np.concatenate, zip(*utterances, strict=True))
            write_part(beside, part, features, labels, np.array(ends))
        write_manifest(beside, FEATURES, CLASSES, FRAME_MS, made)


def _utterances(part: str, seed: int) -> Iterator[Frames]:
    """A part's utterances in order, as many blocks of them at a time as there are CPUs.

    Each block is spoken by a new process: espeak-ng keeps something of what it said.
    """
    at_once = len(os.sched_getaffinity(0))
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(at_once, spawning, max_tasks_per_child=1) as processes:
        ahead = deque(processes.submit(speak_block, part, seed, block) for block in range(at_once))
        try:
            for block in count():
                yield from ahead.popleft().result()
                ahead.append(processes.submit(speak_block, part, seed, block + at_once))
        except (SpeechError, ValueError, BrokenProcessPool) as error:
            raise SpeechError(f"espeak-ng: block {block} of {part}: {error}") from error
        finally:
            processes.shutdown(cancel_futures=True)
