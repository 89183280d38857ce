"""The batch size of each epoch, the position of an iteration in the run, and what is due after it."""

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ..spec.training import AdaBatch, Stages, TrainingConfig
from .batches import iterations_per_epoch

_ROUNDING = 1e-12
"""Far above the rounding of a quotient, far below what one test example more or less changes."""


def adabatch_size(growth: AdaBatch, start: int, untrained: float, present: float) -> int:
    """The batch of an epoch after Rae, section 2.5.1: B = min(most, start * epsilon).

    With q = untrained / present, in the paper E_0 / E_e, epsilon is max(1, 2^(floor(q) - 1)). The paper's
    text says otherwise: the batch is doubled once the error is half of the first one, and again once it is a
    quarter, which is 2^floor(log2(q)). Both agree below q = 3; `growth.form` chooses.

    Settled where the paper leaves room: E_e is measured at the start of epoch e, so the first epoch has the
    batch `start`. epsilon is computed again each time: the batch shrinks when the error rises again, never
    below `start`. Without an error left the batch is `most`; where q is no number, it is `start`.

    Args:
        growth: The rule and the largest batch.
        start: The first batch, 1..growth.most.
        untrained: Test error or loss of the untrained model, not negative.
        present: The same of the model at the start of the epoch.

    Returns:
        Examples of a whole batch, start..growth.most.
    """
    if present == 0:
        return growth.most if untrained > 0 else start
    quotient = untrained / present
    if math.isnan(quotient):
        return start
    quotient = min(quotient * (1 + _ROUNDING), 2.0 * growth.most)
    doublings = math.floor(quotient) - 1 if growth.form == "formula" else math.frexp(quotient)[1] - 1
    enough = growth.most.bit_length()
    return min(growth.most, start << min(max(0, doublings), enough))


@dataclass(frozen=True)
class Position:
    """One iteration of a run, which is about to be done."""

    epoch: int
    """Counted from 0."""
    iteration: int
    """Counted from 0 within the epoch."""
    iterations: int
    """How many the epoch has."""
    done: int
    """Iterations of the run before it."""
    batch_size: int
    """Examples of a whole batch at this time."""
    total: int = 0
    """Iterations of the whole run, as far as they are decided."""
    begins: int | None = None
    """Examples of the epoch before this batch; None where all its batches are alike."""
    workers: int | None = None
    """How many share the batch, the first ones; None: all."""

    @property
    def start(self) -> int:
        """Examples of the epoch before this batch."""
        return self.iteration * self.batch_size if self.begins is None else self.begins

    @property
    def ends_epoch(self) -> bool:
        """Whether it is its epoch's last one."""
        return self.iteration + 1 == self.iterations


@dataclass(frozen=True)
class _Stretch:
    """Batches of an epoch that are alike, one after the other."""

    start: int
    """Examples of the epoch before it."""
    iterations: int
    batch_size: int
    workers: int | None


def _stretches(growth: Stages | None, size: int, examples: int, epoch: int) -> list[_Stretch]:
    """What an epoch consists of; `size` is the batch where no stage has another one."""
    stretches: list[_Stretch] = []
    start = 0
    for stage in growth.stages if growth else ():
        ends = math.ceil(examples * (stage.until - epoch) * (1 - _ROUNDING))
        if start < min(ends, examples):
            count = iterations_per_epoch(min(ends, examples) - start, stage.batch_size)
            stretches.append(_Stretch(start, count, stage.batch_size, stage.workers))
            start += count * stage.batch_size
    if start < examples:
        stretches.append(_Stretch(start, iterations_per_epoch(examples - start, size), size, None))
    return stretches


class BatchPlan:
    """The batch sizes of a run's epochs, decided one epoch at a time.

    Every worker has one. Its decisions follow from the settings and from what `measured` is told, which must
    be the same numbers on every worker; they are part of a checkpoint.
    """

    def __init__(self, training: TrainingConfig, examples: int) -> None:
        """Plans a run of so many training examples, at least 1."""
        self.examples = examples
        self._growth, self._start = training.batch_growth, training.batch_size
        self._most, self._evaluate_every = training.iterations, training.evaluate_every
        self._untrained: float | None = None
        self._grows = isinstance(self._growth, AdaBatch)
        self.epochs = training.epochs
        if self._most is not None:  # more than enough where batches grow
            self.epochs = -(-self._most // iterations_per_epoch(examples, training.largest_batch))
        self._set_sizes([self._start] * (1 if self._grows else self.epochs))

    @property
    def needs_untrained(self) -> bool:
        """Whether `measured` must be told of the untrained model before the first iteration."""
        return self._grows and self._untrained is None

    @property
    def iterations(self) -> int:
        """The whole run's iterations; epochs that are not decided yet count with the latest batch size."""
        if self._most is not None:
            return self._most
        undecided = self.epochs - len(self._sizes)
        return self._ends[-1] + undecided * iterations_per_epoch(self.examples, self._sizes[-1])

    def measured(self, done: int, error: float, loss: float) -> None:
        """Takes an evaluation: of the untrained model, or of the present one, after `done` iterations.

        At the end of an epoch it decides the next one's batch, where batches depend on it; other evaluations
        decide nothing. `error` is the share of the test examples that are classified wrongly, `loss` their
        mean loss, not negative. Raises ValueError: the untrained model's evaluation is missing.
        """
        if not isinstance(self._growth, AdaBatch):
            return
        measure = float(error if self._growth.measure == "error" else loss)
        if done == 0:
            self._untrained = measure
        elif self._untrained is None:
            raise ValueError(f"after {done} iterations: the untrained model was not evaluated")
        elif done == self._ends[-1] and len(self._sizes) < self.epochs:
            size = adabatch_size(self._growth, self._start, self._untrained, measure)
            self._set_sizes([*self._sizes, size])

    def position(self, done: int) -> Position:
        """Where the run stands after so many iterations.

        Raises ValueError: `done` is negative, or the next iteration's epoch is not decided or not in the run.
        """
        epoch = bisect_right(self._ends, done)
        if done < 0 or epoch == len(self._sizes):
            raise ValueError(f"after {done} iterations: the plan has {self._ends[-1]} so far")
        start = self._ends[epoch - 1] if epoch else 0
        length = self._ends[epoch] - start
        behind = 0
        for stretch in self._epochs[epoch]:
            into = done - start - behind
            if into < stretch.iterations:
                break
            behind += stretch.iterations
        size = stretch.batch_size
        begins = None if len(self._epochs[epoch]) == 1 else stretch.start + into * size
        return Position(epoch, done - start, length, done, size, self.iterations, begins, stretch.workers)

    def rest_of_epoch(self, done: int) -> Iterator[Position]:
        """The epoch's iterations after `done`, as far as the run goes; raises as `position` does."""
        here = self.position(done)
        end = min(done + here.iterations - here.iteration, self.iterations)
        return (self.position(iteration) for iteration in range(done, end))

    def is_evaluation_due(self, done: int) -> bool:
        """Whether the model is to be evaluated after so many iterations, at least 1."""
        ends_epoch = self._grows and self.position(done - 1).ends_epoch
        return done == self.iterations or ends_epoch or self._is_regular(done)

    def evaluations(self, done: int) -> int:
        """How many evaluations are due in the first `done` iterations; of a run without growing batches."""
        every = self._evaluate_every
        due = bisect_right(self._ends, done) if every is None else done // every
        last = self._most is not None or self._evaluate_every is not None
        return due + (last and done == self.iterations and not self._is_regular(done))

    def _is_regular(self, done: int) -> bool:
        return done in self._ends if self._evaluate_every is None else done % self._evaluate_every == 0

    def epochs_done(self, done: int) -> float:
        """Epochs in so many iterations, with the part of the one that has begun.

        Raises ValueError: `done` is negative or beyond what is decided.
        """
        if done == self._ends[-1]:
            return float(len(self._sizes))
        position = self.position(done)
        return position.epoch + position.iteration / position.iterations

    def ends_part(self, done: int, parts: int) -> bool:
        """Whether the last of `done` iterations completed another of `parts` equal parts of the run's epochs.

        It does not depend on epochs to come, so a run that goes on from a checkpoint finds the same. Raises
        as `position` does.
        """
        last = self.position(done - 1)
        if self._most is not None:
            before, whole = done - 1, self._most
        else:
            before = last.epoch * last.iterations + last.iteration
            whole = self.epochs * last.iterations
        return (before + 1) * parts // whole > before * parts // whole

    def state_dict(self) -> dict[str, Any]:
        """What was measured and decided, as numbers for a checkpoint."""
        return {"examples": self.examples, "untrained": self._untrained, "sizes": list(self._sizes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` of the same run's plan said.

        Raises KeyError: an entry is missing; ValueError: it is of a run with other data, epochs or batches.
        """
        sizes, untrained = state["sizes"], state["untrained"]
        if state["examples"] != self.examples:
            raise ValueError(f"it is of {state['examples']} training examples, this run has {self.examples}")
        if not self._grows and sizes != self._sizes:
            raise ValueError(f"its batch sizes, {sizes}, are not those of this run")
        self._untrained = untrained
        self._set_sizes(sizes)

    def _set_sizes(self, sizes: list[int]) -> None:
        stages = self._growth if isinstance(self._growth, Stages) else None
        self._sizes = list(sizes)
        self._epochs = [_stretches(stages, size, self.examples, n) for n, size in enumerate(sizes)]
        self._ends = list(accumulate(sum(stretch.iterations for stretch in epoch) for epoch in self._epochs))
