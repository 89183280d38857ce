"""The journal of a search: a line for every event, written to disk before the search acts on it.

After a crash, only the last line can be incomplete; it is ignored.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from taugrad.compressors.fields import problem_line
from taugrad.platform.tasks.metric import ACCURACY

from .objective import TrialOutcome

FILE = "journal.jsonl"
Ending = Literal["full", "pruned", "failed"]


class JournalError(ValueError):
    """The journal is damaged, or belongs to another search."""


class WriteError(Exception):
    """A file of the search cannot be written, mostly because the disk is full."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises WriteError with the path where its context raises OSError."""
    try:
        yield
    except OSError as error:
        raise WriteError(f"cannot write {path}: {error.strerror}") from error


class _Event(BaseModel):
    # A loss may be infinite, or NaN.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class Began(_Event):
    """The search's first line."""

    event: Literal["search"] = "search"
    identity: str
    parent_run: str
    metric: str = ACCURACY.name
    """The metric that trials are judged by."""


class Started(_Event):
    """A trial started, or started again."""

    event: Literal["trial"] = "trial"
    number: int
    params: dict[str, Any]
    method: str
    """The compressor's line; empty if the spec is not valid."""
    epochs: int
    """Epochs of a full training, if they are counted."""
    goes_on: bool = False
    """An interrupted training continues from its checkpoint, and reports again what it had sent."""


class Trained(_Event):
    """One training is done."""

    event: Literal["training"] = "training"
    number: int
    fingerprint: str
    seed: int
    value: float
    """The metric's value."""
    wire_bytes: float
    run_id: str
    examples: int | None = None
    """Number of test examples of its evaluation."""

    @property
    def outcome(self) -> TrialOutcome:
        """The result."""
        return TrialOutcome(self.value, self.wire_bytes, self.examples, self.run_id)


class Reported(_Event):
    """The state of a trial."""

    event: Literal["report"] = "report"
    number: int
    evaluation: int
    """The first seed's latest, counted from 1; 0 once that seed is done."""
    share: float
    """The part of its training that was done then, up to 1."""
    value: float
    """The metric's value."""
    wire_bytes: float
    """Bytes that the training has sent."""
    spent_bytes: float
    """Bytes that the trial has sent since its last start, with those of a training that it continues."""
    seconds: float
    """The time of the search, summed over its starts."""


class Ended(_Event):
    """A trial ended."""

    event: Literal["end"] = "end"
    number: int
    ending: Ending
    reason: str = ""
    seconds: float


AnyEvent = Began | Started | Trained | Reported | Ended
_EVENT: TypeAdapter[AnyEvent] = TypeAdapter(Annotated[AnyEvent, Field(discriminator="event")])


class Trial:
    """A trial, as the journal records it."""

    def __init__(self, started: Started) -> None:
        """A trial that has just started."""
        self.number, self.params = started.number, dict(started.params)
        self.method, self.epochs = started.method, started.epochs
        self.trainings: list[Trained] = []
        self.course: dict[int, TrialOutcome] = {}
        """The first seed's outcomes by evaluation, counted from 1."""
        self.ending: Ending | None = None
        """None: it runs, or was interrupted."""
        self.reason = ""
        self.spent_bytes = 0.0
        self.share = 0.0
        """The part of the first seed's training that is done, up to 1."""
        self._spent_before = 0.0
        self._unfinished_bytes = 0.0
        """Bytes of the training that runs, or was interrupted."""

    @property
    def evaluation(self) -> int:
        """The first seed's latest evaluation."""
        return max(self.course, default=0)

    def begin_again(self, *, goes_on: bool) -> None:
        """Starts an interrupted or failed trial again; see `Started.goes_on`."""
        self._spent_before = self.spent_bytes - (self._unfinished_bytes if goes_on else 0.0)
        self._unfinished_bytes = 0.0
        if not goes_on and not self.trainings:  # the first seed's begins from the start
            self.course.clear()
            self.share = 0.0
        self.ending, self.reason = None, ""

    def report(self, event: Reported) -> None:
        """Records its state."""
        if event.evaluation:
            self.course[event.evaluation] = TrialOutcome(event.value, event.wire_bytes)
            self.share = event.share
        self._unfinished_bytes = event.wire_bytes
        # A checkpoint may be older than the last report: bytes that are sent again are not counted twice.
        self.spent_bytes = max(self.spent_bytes, self._spent_before + event.spent_bytes)

    def trained(self, event: Trained) -> None:
        """Records that a training has finished."""
        self._unfinished_bytes = 0.0
        if all(training.fingerprint != event.fingerprint for training in self.trainings):
            self.trainings.append(event)


BASELINE = -1
"""The number of the run without compression."""


class Record:
    """The content of a journal."""

    def __init__(self) -> None:
        """Starts without events."""
        self.identity = self.parent_run = ""
        self.metric = ACCURACY.name
        self.trials: dict[int, Trial] = {}
        self.trainings: dict[str, Trained] = {}
        """By the spec's fingerprint, which depends on the seed."""
        self.seconds = 0.0

    @property
    def ended(self) -> list[Trial]:
        """Trials that ended, in the order of their numbers; without the baseline. For any thread."""
        trials = [trial for trial in list(self.trials.values()) if trial.ending and trial.number != BASELINE]
        return sorted(trials, key=lambda trial: trial.number)

    @property
    def interrupted(self) -> list[Trial]:
        """Trials that began and did not end."""
        return [trial for trial in self.trials.values() if not trial.ending and trial.number != BASELINE]

    @property
    def spent_bytes(self) -> float:
        """Bytes of all trials and the baseline."""
        return sum(trial.spent_bytes for trial in list(self.trials.values()))

    def reopen(self, seeds: int, *, failed: bool) -> None:
        """Treats full trials with fewer seeds as interrupted ones, and, if wanted, failed trials."""
        for trial in self.trials.values():
            lacks = trial.ending == "full" and len(trial.trainings) < seeds
            if lacks or (failed and trial.ending == "failed"):
                trial.ending = None

    def apply(self, event: AnyEvent) -> None:
        """Records an event."""
        match event:
            case Began():
                self.identity, self.parent_run = event.identity, event.parent_run
                self.metric = event.metric
            case Started():
                if event.number in self.trials:
                    self.trials[event.number].begin_again(goes_on=event.goes_on)
                else:
                    self.trials[event.number] = Trial(event)
            case Trained():
                self.trainings[event.fingerprint] = event
                self.trials[event.number].trained(event)
            case Reported():
                self.trials[event.number].report(event)
                self.seconds = event.seconds
            case Ended():
                trial = self.trials[event.number]
                trial.ending, trial.reason = event.ending, event.reason
                self.seconds = event.seconds


class SearchJournal:
    """A journal on the disk, and its record."""

    def __init__(self, path: Path) -> None:
        """Opens a journal; the file appears with the first event.

        Raises:
            JournalError: a line but the last is damaged.
        """
        self.path = path
        self.record = Record()
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        for event in _read(whole, path):
            self.record.apply(event)
        if len(whole) < len(lines):
            with path.open("r+b") as file:
                file.truncate(sum(map(len, whole)))

    def add(self, *events: AnyEvent) -> None:
        """Appends events; they are on the disk when this returns, and none of them is when it raises.

        Raises:
            WriteError: the disk did not take them.
        """
        lines = "".join(event.model_dump_json() + "\n" for event in events).encode()
        with writing(self.path), self.path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                while lines:
                    lines = lines[file.write(lines) :]
                os.fsync(file.fileno())
            except BaseException:
                file.truncate(size)  # else the next event would continue half a line
                raise
        for event in events:
            self.record.apply(event)


def _read(lines: Iterable[bytes], path: Path) -> Iterable[AnyEvent]:
    for number, line in enumerate(lines, start=1):
        try:
            yield _EVENT.validate_json(line)
        except ValidationError as error:
            raise JournalError(f"{path}, line {number}: {problem_line(error)}") from None
