"""What workers do together, each worker's part as a coroutine; simulated workers take turns.

A coroutine yields None where it goes on with what others have sent. A real worker waits there. Simulated
workers of one process run from one `yield` to the next, worker 0 first: what one needs, the others have sent
before they paused.

A coroutine may also yield a function, of what is the same on all workers: the mean that they agree on, or a
step of weights that they share. Simulated workers have one result, and one copy of what it changes.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

Coroutine = Generator[Callable[[], Any] | None, Any, T]


def run(coroutine: Coroutine[T]) -> T:
    """Runs a real worker's part in this thread; raises what it raises."""
    result = None
    while True:
        try:
            call = coroutine.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        result = None if call is None else call()


def run_lockstep(coroutines: Sequence[Coroutine[T]]) -> list[T]:
    """Runs simulated workers' parts; a function is called once all have yielded one, or have ended."""
    results: dict[int, T] = {}
    calls: dict[int, Callable[[], Any]] = {}
    result = None
    while len(results) < len(coroutines):
        for rank, coroutine in enumerate(coroutines):
            if rank in results or rank in calls:
                continue
            try:
                call = coroutine.send(result)
            except StopIteration as end:
                results[rank] = end.value
            else:
                calls |= {} if call is None else {rank: call}
        result = None
        if calls and len(calls) + len(results) == len(coroutines):
            result = calls[min(calls)]()
            calls = {}
    return [results[rank] for rank in range(len(coroutines))]
