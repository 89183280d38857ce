"""The forward schemes: whose examples go through the fully connected layers together (section 4.1).

(a) The examples of all workers at once. (b) Those of one worker after the other. (c) Each turn has 1/K of
every worker's examples. The schemes differ only in the examples of a turn, which this module decides.
"""

from collections.abc import Sequence
from typing import Literal

Scheme = Literal["a", "b", "c"]
Turn = list[range]
"""Examples that go through the layers together: of each worker, by rank, the numbers among its own."""


def turns_of(scheme: Scheme, counts: Sequence[int]) -> list[Turn]:
    """The turns of one iteration, each with an example at least; `counts` are the workers' examples."""
    workers = len(counts)
    match scheme:
        case "a":
            turns = [[range(count) for count in counts]]
        case "b":
            turns = [
                [range(count * (rank == at)) for rank, count in enumerate(counts)] for at in range(workers)
            ]
        case "c":
            turns = [
                [range(count * at // workers, count * (at + 1) // workers) for count in counts]
                for at in range(workers)
            ]
    return [turn for turn in turns if any(turn)]
