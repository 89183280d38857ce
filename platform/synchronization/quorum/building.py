"""Builds workers whose rounds close with a quorum from a spec."""

import weakref

import torch
import torch.distributed as dist

from taugrad.compressors.bucket.ledger import BASELINE_BYTES

from ...spec import RunSpec
from ..asynchronous.meeting import connected
from ..config import SimulatedSync, WeightsSync, real
from ..weights import OwnWorkers
from .carriers import ProcessCarrier, SimulatedCarrier
from .free import FreeRounds
from .mailroom import Mailroom
from .post import Post
from .refusals import needed_of
from .schedule import Drawn, Schedule, Synchronous
from .scheduled import ScheduledRounds
from .training import QuorumTraining

_HEADERS = 2**20
"""No message has more bytes than this in addition to its values."""
_VALUES = 3
"""Times the model's bytes that no message passes: weights, momentum, and what a method adds."""


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
        model = own.replicas[0].model
        values = sum(each.numel() for each in model.state_dict().values())
        most_bytes = 2 * _VALUES * BASELINE_BYTES * values + _HEADERS
        post = Post(
            dist.get_rank(),
            connected(torch.device("cpu")),
            most_bytes=most_bytes,
            replaces=mode.schedule is None,  # whoever follows a schedule waits for every offer
        )
        mailroom = Mailroom(post)
        # The thread refers to the connections, and only the run refers to the mailroom.
        weakref.finalize(mailroom, post.close)
        if mode.schedule is None:
            return FreeRounds(mode, own, mailroom, needed)
        carrier = ProcessCarrier(mailroom)
    return ScheduledRounds(mode, own, carrier, schedule)
