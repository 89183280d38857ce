"""What does not work with a quorum; checked when a spec is read, without torch."""

import math

from taugrad.compressors.method import Method, PowerSGD

from ..config import SimulatedSync, SyncConfig, WeightsSync, real


def needed_of(quorum: float, workers: int) -> int:
    """How many workers close a round: always more than half of all."""
    # A share such as 0.6 of 5 is a hair above 3 in floating point.
    return max(workers // 2 + 1, math.ceil(quorum * workers - 1e-9))


def check_quorum(sync: SyncConfig, method: Method, device: str) -> None:
    """Refuses what the rounds cannot do.

    Args:
        sync: any mode; one without a quorum is left alone.
        method: what differences are compressed with.
        device: of the workers.

    Raises:
        ValueError: it names the field, its value and what would do.
    """
    mode = real(sync)
    if not isinstance(mode, WeightsSync):
        return
    where = "sync.of" if isinstance(sync, SimulatedSync) else "sync"
    if mode.quorum is None:
        for field in ("deadline", "schedule"):
            if getattr(mode, field) is not None:
                raise ValueError(
                    f"{where}.{field} without {where}.quorum: every round waits for all; add one"
                )
        return
    reason = _why_not(sync, mode, where, method, device)
    if reason:
        raise ValueError(f"{where}.quorum = {mode.quorum:g} with {reason}")
    if mode.schedule is not None and mode.deadline is not None:
        raise ValueError(
            f"{where}.deadline with {where}.schedule: workers do what the schedule says; leave one out"
        )


def _why_not(sync: SyncConfig, mode: WeightsSync, where: str, method: Method, device: str) -> str | None:
    """What does not go with a quorum, and what would do."""
    simulated = isinstance(sync, SimulatedSync)
    against = {
        f"{where}.every = 0: give the steps of a round, such as 16": not mode.every,
        f"{where}.exchange = weights: what a late worker has learnt could not wait for its next round; use "
        f"{where}.exchange: difference": mode.exchange == "weights",
        f"{where}.pattern = {mode.pattern}: whoever passes on or adds up for others cannot be left out; use "
        f"{where}.pattern: allgather": mode.pattern != "allgather",
        f"{where}.adapt: it goes by what all workers have measured; leave one of them out": (
            mode.adapt is not None
        ),
        "compressor.kind = powersgd: it goes through torch's own all-reduce; use another compressor": (
            isinstance(method, PowerSGD)
        ),
        "workers.device = cuda: offers go over connections of their own, from the CPU's memory, and that was "
        "not tried with GPUs; use workers.device: cpu": device == "cuda" and not simulated,
        f"{where}.deadline and sync.mode = simulated: simulated workers take no time; say in "
        f"{where}.schedule who is late": mode.deadline is not None and simulated,
    }
    return next((reason for reason, holds in against.items() if holds), None)
