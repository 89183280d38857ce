"""Builds workers whose rounds close with a quorum from a spec."""

from ...spec import RunSpec
from ..config import SimulatedSync, WeightsSync, real
from ..weights import OwnWorkers
from .carriers import ProcessCarrier, SimulatedCarrier
from .free import FreeRounds
from .mailroom import Mailroom
from .refusals import needed_of
from .schedule import Drawn, Schedule, Synchronous
from .scheduled import ScheduledRounds
from .training import QuorumTraining

SILENT_AFTER_S = 10.0
"""Seconds of silence after which a worker is not asked for anything, if another one can be asked."""


def build_quorum(spec: RunSpec, own: OwnWorkers) -> QuorumTraining:
    """The workers of this process; torch's process group must exist.

    Args:
        spec: the run.
        own: the workers.
    """
    mode = real(spec.sync)
    assert isinstance(mode, WeightsSync)
    assert mode.quorum is not None
    needed = needed_of(mode.quorum, own.crew.workers)
    schedule: Schedule = Synchronous(own.crew.workers)
    if mode.schedule is not None:
        schedule = Drawn(mode.schedule, own.crew.workers, needed, mode.every)
    carrier: SimulatedCarrier | ProcessCarrier
    if isinstance(spec.sync, SimulatedSync):
        carrier = SimulatedCarrier(own.crew.workers)
    else:
        # Whoever follows a schedule waits for every offer.
        mailroom = Mailroom(own.crew.carriers[0], skips=mode.schedule is None)
        if mode.schedule is None:
            return FreeRounds(mode, own, mailroom, needed)
        carrier = ProcessCarrier(mailroom)
    return ScheduledRounds(mode, own, carrier, schedule)
