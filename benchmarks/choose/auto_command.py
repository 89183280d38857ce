"""What `taugrad auto` comes to in choose/auto_threshold.py: until a training is within the tolerance."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.claims import interval
from taugrad.platform.tasks.metric import ACCURACY, LOSS
from taugrad.search.attempts import Attempt, attempts, lost, missing, tightening
from taugrad.search.auto import DENSITIES
from taugrad.search.auto_specs import at_density, without_compression
from taugrad.search.objective import Outcome

from ..harness.report import Table
from ..harness.trainings import Trainings

TOLERANCES = (0.5, 2.0)
"""The command's default, and a larger one; percentage points."""


def commanded(specs: Sequence[RunSpec], tolerance: float, trainings: Trainings) -> list[list[Attempt]]:
    """What the command trains for each of some specs.

    It is asked again and again: a training that is not known yet ends it, and is then trained.
    """
    while True:
        wanted: list[RunSpec] = []

        def known(spec: RunSpec, wanted: list[RunSpec] = wanted) -> Outcome | None:
            point = trainings.known(spec)
            if point is None:
                wanted.append(spec)
                return None
            return Outcome(point["accuracy"], point["wire_bytes"])

        rows = [
            attempts(
                known,
                without_compression(spec),
                tightening(spec, tolerance, at_density(spec, DENSITIES[-1])),
                tolerance,
                ACCURACY,
            )[0]
            for spec in specs
        ]
        if not wanted:
            return rows
        trainings.train(wanted)


def command_table(commanded: dict[tuple[str, float], list[list[Attempt]]]) -> Table:
    """One row for each pair and tolerance; of each its seeds' attempts."""
    rows, within, total = [], 0, 0
    for (pair, tolerance), seeds in commanded.items():
        kept = [done for done in seeds if missing(done, tolerance, ACCURACY) <= 0]
        within, total = within + len(kept), total + len(seeds)
        losses = [lost(done, ACCURACY) for done in seeds]
        bare = fmean(done[0].outcome.wire_bytes for done in seeds)
        sent = fmean(done[-1].outcome.wire_bytes for done in seeds)
        ways = Counter(_way(done) for done in seeds)
        rows.append(
            (
                pair,
                f"{tolerance:g}",
                f"{fmean(losses):.2f} ({min(losses):.2f} to {max(losses):.2f})",
                _interval(losses),
                f"{len(kept)} of {len(seeds)}",
                f"{bare / sent:,.4g}",
                ", ".join(f"{way} {count}" for way, count in sorted(ways.items())),
            )
        )
    columns = ("pair", "tolerance", "points lost", "95% interval", "within", "times smaller", "ended with")
    notes = (
        f"Within the tolerance: {within} of {total}. Interval: of the mean, over seeds (Student's t). "
        "Lost: against the same seed without compression, on the examples by which the command decides: 360 "
        "digits, 1,000 of mnist5k: one of them is 0.28 or 0.1 points. Tau 1: the "
        "one for the tolerance; tau 2: in the light of what that lost.",
    )
    return Table("The command: trainings until one is within the tolerance", columns, rows, notes)


def _interval(losses: Sequence[float]) -> str:
    """Of a mean over seeds; the unit of what was lost does not matter to it."""
    ends = interval(losses, None, LOSS)
    return f"{ends[0]:.2f} to {ends[1]:.2f}" if ends else "one seed: none"


def _way(done: Sequence[Attempt]) -> str:
    """By what the last attempt got its threshold."""
    tau = getattr(done[-1].spec.compressor, "tau", None)
    return "allocate" if getattr(tau, "kind", "") == "allocate" else f"tau {len(done) - 1}"
