"""Follows the link: measures each step, shares the measurements from time to time, and decides."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from taugrad.compressors import Step
from taugrad.compressors.errors import reaching
from taugrad.compressors.exchange.addresses import transport_of
from taugrad.compressors.method import Method
from taugrad.compressors.method.sparse import ThresholdedMethod, WholeValues

from ...tracking import names
from ..config import Adapt
from .choice import Adaptation, Chooser, LinkEstimate, Window

log = logging.getLogger("taugrad")

_SHORTEST_S = 1e-9
"""A clock's tick: nothing takes less."""


class Measured(NamedTuple):
    """What one worker measured of a step."""

    seconds: float
    """Of the step, without its waiting."""
    wait_s: float
    """Of waiting for the network, and so for the other workers."""
    exchange_s: float
    """While any message was under way."""
    nbytes: float
    """That arrived here; 0 where nothing was exchanged."""


Measure = Callable[[Step, float], Measured]
"""From a step's ledger and its seconds."""
Rows = list[list[float]]
"""By rank, what is `typical` of what each worker measured."""


class Adapter:
    """One worker's.

    All workers decide in the same step, from the same numbers and with the same arithmetic, so they make the
    same decision. The numbers are exchanged during the next step, so that no step waits for them. Like the
    averages of logged metrics, they are not in the ledgers.

    Attributes:
        choice: what is in force.
        measure: tells what a step was like; tests put one of their own here.
    """

    def __init__(
        self,
        chooser: Chooser,
        local_steps: int,
        device: torch.device,
        aim_at: Callable[[float], float],
    ) -> None:
        """Begins with what the spec says, and `local_steps` steps from one exchange to the next.

        `device` is where the process group's transport takes tensors from. `aim_at` has the worker send
        another share of elements, and returns the share that it really is.
        """
        self.choice = Adaptation(chooser.usual, local_steps)
        self._chooser, self._device, self._aim_at = chooser, device, aim_at
        self._workers = dist.get_world_size()
        self.measure: Measure = self._by_the_clock
        self._link = LinkEstimate()
        self._steps = 0
        """Since the workers told one another last."""
        self._compute_s: list[float] = []
        """Of the steps since the last exchange."""
        self._seen: list[Measured] = []
        """Of the exchanges since the workers told one another last; seconds are means of a step."""
        self._told: tuple[dist.Work, list[Tensor]] | None = None
        """On its way."""
        self._heard: Rows | None = None
        """What all told, for the next step."""
        self._held: object = None  # freed by gloo's thread, tensors would want Python's lock at a bad moment

    def finish_step(self, step: Step, seconds: float, *, last: bool) -> dict[str, float]:
        """Takes note of a step and its seconds, and decides if it is time to; all workers call it each time.

        Returns what was decided, by MLflow name; nothing where nothing was.
        """
        self._steps += 1
        self.hear()
        if self._heard is not None:
            metrics, self._heard = self._decide(self._heard), None
            return metrics  # the step was made before; the next one is the first by the new choice
        measured = self.measure(step, seconds)
        self._compute_s.append(measured.seconds)
        if not measured.nbytes:
            return {}
        mean_s = sum(self._compute_s) / len(self._compute_s)
        self._seen.append(measured._replace(seconds=mean_s))
        self._compute_s = []
        if self._steps >= self._chooser.adapt.every and not last:
            self._tell()
        return {}

    def _by_the_clock(self, step: Step, seconds: float) -> Measured:
        return Measured(seconds - step.blocked_s, step.blocked_s, step.exchange_s, step.received_bytes)

    def _tell(self) -> None:
        """Tells the others what this worker measured: a few numbers, beside the next step."""
        mine = torch.tensor(typical(self._seen), dtype=torch.float64, device=self._device)
        everybody = [torch.empty_like(mine) for _ in range(self._workers)]
        work = dist.all_gather(everybody, mine, async_op=True)
        assert work is not None
        self._told, self._held = (work, everybody), (work, mine)
        self._seen, self._steps = [], 0

    def hear(self) -> None:
        """Waits for what the others told, if that is on its way; all call this together. Raises PeerLost."""
        if self._told is None:
            return
        work, everybody = self._told
        with reaching():
            work.wait()
        self._heard, self._told = [row.tolist() for row in everybody], None

    def _decide(self, rows: Rows) -> dict[str, float]:
        before, window = self.choice, window_of(rows)
        self._link.add(window)
        chosen = self._chooser.choose(self._link, before)
        if chosen.density != before.density:
            chosen = replace(chosen, density=self._aim_at(chosen.density))
        self.choice = chosen
        step_s = window.compute_s + window.wait_s / before.local_steps
        waited = window.wait_s / before.local_steps / step_s
        if chosen != before:
            log.info(
                "sync.adapt: %s; the link carries %.4g Mbit/s after %.3g ms, a step computes %.4g ms and "
                "waited for %.0f%% of its time, %.0f%% are wanted at most",
                _difference(before, chosen),
                8 * self._link.rate / 1e6,
                1000 * self._link.delay_s,
                1000 * window.compute_s,
                100 * waited,
                100 * self._chooser.adapt.wait,
            )
        return {
            names.ADAPT_DENSITY: chosen.density,
            names.ADAPT_LOCAL_STEPS: float(chosen.local_steps),
            names.ADAPT_RATE: 8 * self._link.rate / 1e6,
            names.ADAPT_DELAY: self._link.delay_s,
            names.ADAPT_WAIT: waited,
        }

    def shared_state(self) -> dict[str, Any]:
        """What all workers have in common, as plain numbers; called together."""
        self.hear()
        return {
            "density": self.choice.density,
            "local_steps": self.choice.local_steps,
            "link": self._link.state_dict(),
            "steps": self._steps,
            "heard": self._heard,
        }

    def worker_state(self) -> dict[str, Any]:
        """What only this worker has measured, as plain numbers."""
        return {"compute_s": list(self._compute_s), "seen": [list(window) for window in self._seen]}

    def load(self, shared: dict[str, Any], local_state: dict[str, Any]) -> None:
        """Takes over both; the share of elements stands in the states of residuals, too."""
        self.choice = Adaptation(float(shared["density"]), int(shared["local_steps"]))
        self._link.load_state_dict(shared["link"])
        self._steps, self._heard, self._told = int(shared["steps"]), shared["heard"], None
        self._compute_s = [float(seconds) for seconds in local_state["compute_s"]]
        self._seen = [Measured(*map(float, window)) for window in local_state["seen"]]


def adapter_for(
    adapt: Adapt | None,
    method: Method,
    device: torch.device,
    aim_at: Callable[[float], float],
    local_steps: int = 1,
) -> Adapter | None:
    """What follows the link as the spec says, see `Adapter`; None where it says nothing.

    `validation` has seen the method. `local_steps` is 0 where epochs decide.
    """
    if adapt is None:
        return None
    assert method.aim is not None
    assert isinstance(method, ThresholdedMethod | WholeValues), "others have no share to aim at"
    transport = transport_of(None, device)
    return Adapter(Chooser(adapt, method.aim, method.value_bits), local_steps, transport, aim_at)


def typical(seen: Sequence[Measured]) -> list[float]:
    """The means of what was measured, without the fifth of the exchanges that took longest, and the shortest.

    Of whole exchanges: what bytes and seconds have to do with one another stays.
    """
    left_out = len(seen) // 5
    middle = sorted(seen, key=lambda window: window.exchange_s)[left_out : len(seen) - left_out]
    return [sum(values) / len(middle) for values in zip(*middle, strict=True)]


def window_of(rows: Rows) -> Window:
    """What the workers measured, as one: the slowest link counts, and a worker that computes slowly does not.

    A worker that is done sooner waits for the slowest one first, and for the link then.
    """
    workers = [Measured(*row) for row in rows]
    compute_s = max(worker.seconds for worker in workers)
    ahead = [compute_s - worker.seconds for worker in workers]
    waits = [max(0.0, worker.wait_s - early) for worker, early in zip(workers, ahead, strict=True)]
    exchanges = [
        max(_SHORTEST_S, worker.exchange_s - early) for worker, early in zip(workers, ahead, strict=True)
    ]
    exchange_s = max(exchanges)
    nbytes = max(worker.nbytes for worker in workers)
    return Window(nbytes, exchange_s, min(max(waits), exchange_s), max(compute_s, _SHORTEST_S))


def _difference(before: Adaptation, now: Adaptation) -> str:
    changes = []
    if now.density != before.density:
        changes.append(f"density {before.density:.4g} becomes {now.density:.4g}")
    if now.local_steps != before.local_steps:
        changes.append(f"{before.local_steps} local steps become {now.local_steps}")
    return ", ".join(changes)
