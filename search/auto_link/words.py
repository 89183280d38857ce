"""A decision as text: a table, and sentences that give the reasons."""

import math

from ..advice import PAGE
from ..plan.candidate import Candidate
from ..plan.link import Link
from ..plan.step_model import StepTime
from ..plan.table import number
from ..tables import TextTable
from .choice import NO_TIME, Decision

HEADINGS = ("way", "s a step", "KB received a step", "worth of a step", "times faster than fp16", "")
_REFERENCE = "fp16 all-reduce (torch's hook)"


def table_of(decision: Decision, half: StepTime, title: str = "") -> TextTable:
    """What was compared; the last row is the 16-bit all-reduce, `half`."""
    rows = []
    for candidate in decision.compared:
        step = candidate.step
        remark = "chosen" if candidate is decision.best else "given up" * candidate.given_up
        if not candidate.probed and not candidate.is_exact:
            remark += ", not probed"
        rows.append(
            (
                str(candidate),
                number(step.seconds),
                number(step.received / 1e3),
                f"{candidate.worth:.2f}",
                number(times_faster(candidate, half)),
                remark,
            )
        )
    reference = (_REFERENCE, number(half.seconds), number(half.received / 1e3), "1.00", "1", "no spec's")
    return TextTable(HEADINGS, [*rows, reference], (0, 5), title)


def left_out(decision: Decision) -> list[str]:
    """The candidates that were not tried, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for candidate in decision.rejected:
        reasons.setdefault(candidate.rejected, []).append(str(candidate))
    return [f"not tried: {why}: {', '.join(ways)}" for why, ways in reasons.items()]


def times_faster(candidate: Candidate, half: StepTime) -> float:
    """Speedup to the target against the 16-bit all-reduce; 0 for one that learns nothing."""
    return half.seconds / candidate.to_target if math.isfinite(candidate.to_target) else 0.0


def reason(decision: Decision, link: Link, workers: int, half: StepTime) -> str:
    """The reason of the decision, a sentence."""
    best, exact = decision.best, decision.exact
    where = f"At {link}, {workers} workers"
    if decision.problem:
        known = "loses nothing" if best is exact else f"was the best where it was measured ({PAGE})"
        return (
            f"{where}: could not compare: raise --probe-seconds ({decision.problem}). Without a probe: "
            f"{best}, {number(best.seconds)} s a step, which {known}"
        )
    if best is exact:
        text = f"{where}: {best}, {number(best.seconds)} s a step; "
        others = [candidate for candidate in decision.compared if candidate is not exact]
        if not others:
            return text + "no way that sends less saves more time than it loses"
        next_best = min(others, key=lambda candidate: candidate.to_target)
        times = next_best.to_target / exact.to_target
        if times < 1:
            return text + (
                f"{next_best} would save {100 * (1 - times):.0f}%, which is too little for a "
                "probe to be sure of"
            )
        if math.isinf(times):
            return text + "ways that send less learned nothing"
        return text + (
            f"ways that send less take longer to the target: {number(times)} times as long by {next_best}"
        )
    step, first, close = best.step, decision.compared[0], ""
    if first is not best:
        close = (
            f". {first} is {100 * (best.to_target / first.to_target - 1):.0f}% ahead, which is too "
            "little for a probe to be sure of, and spends more of its time on exchanges"
        )
    return (
        f"{where}: {best}. A step takes {number(step.seconds)} s instead of "
        f"{number(exact.seconds)} s by {exact}, with {number(step.received / 1e3)} "
        f"instead of {number(exact.step.received / 1e3)} KB received, and is worth {best.worth:.2f} "
        f"of its steps: {number(exact.to_target / best.to_target)} times faster to the target, "
        f"{number(times_faster(best, half))} times faster than a 16-bit all-reduce{close}{_limits(decision)}"
    )


def _limits(decision: Decision) -> str:
    """The limits of the estimate."""
    text = f". It is an estimate by a probe of {decision.best.probed} steps"
    if decision.rate:
        text += (
            f"; the training without compression had lr {decision.rate:g}, the better of its own learning "
            "rate and that of local steps"
        )
    left = sum(candidate.rejected == NO_TIME for candidate in decision.rejected)
    return text + (f"; {left} more could not be compared: raise --probe-seconds" if left else "")
