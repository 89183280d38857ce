"""A few steps of all workers as text: Chrome's trace event format, for Perfetto and chrome://tracing.

A worker is a process of the trace, and its lanes are threads. Events of a thread may be nested, but must not
overlap otherwise. A lane with overlapping spans (several buckets under way) therefore has several threads.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from taugrad.compressors.spans import Lane, Span

_TITLES: dict[Lane, str] = {"compute": "computing", "wire": "network"}
_MOST_THREADS = 1000
"""The largest number of threads of a lane; the next lane's threads have higher numbers."""


def moved(span: Span, by: float) -> Span:
    """The same by another clock, so many seconds ahead."""
    return replace(span, began=span.began + by, ended=span.ended + by)


@dataclass(frozen=True)
class Timeline:
    """What each worker did when."""

    workers: tuple[tuple[Span, ...], ...]
    """By rank; seconds since the earliest span began."""

    @classmethod
    def of(cls, workers: Sequence[Sequence[Span]]) -> "Timeline":
        """Makes a timeline from spans of one clock; each worker has at least one span."""
        start = min(span.began for spans in workers for span in spans)
        return cls(tuple(tuple(moved(span, -start) for span in spans) for spans in workers))

    @property
    def steps(self) -> list[tuple[str, float]]:
        """Each recorded step's number, and when the first worker began with it."""
        began: dict[str, float] = {}
        for span in (span for spans in self.workers for span in spans if span.name == "step"):
            began[span.about] = min(span.began, began.get(span.about, span.began))
        return sorted(began.items(), key=lambda step: step[1])

    def to_json(self) -> str:
        """As a trace; times in microseconds."""
        events: list[dict[str, Any]] = []
        for rank, spans in enumerate(self.workers):
            events.append(_about("process_name", rank, 0, name=f"worker {rank}"))
            events.append(_about("process_sort_index", rank, 0, sort_index=rank))
            for first, (lane, title) in enumerate(_TITLES.items()):
                for row, inside in enumerate(_rows([span for span in spans if span.lane == lane])):
                    thread = _MOST_THREADS * first + row
                    name = f"{title} {row + 1}" if row else title
                    events.append(_about("thread_name", rank, thread, name=name))
                    events += [_event(child, rank, thread) for child in inside]
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})

    @classmethod
    def from_json(cls, text: str) -> "Timeline":
        """Reads what `to_json` wrote; raises ValueError if it is not one of our traces."""
        threads: dict[int, list[Span]] = {}
        try:
            for event in json.loads(text)["traceEvents"]:
                if event["ph"] != "X":
                    continue
                began = event["ts"] / 1e6
                span = Span(
                    event["name"], event["cat"], began, began + event["dur"] / 1e6, event["args"]["about"]
                )
                threads.setdefault(int(event["pid"]), []).append(span)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a taugrad timeline: {error!r}") from error
        return cls(tuple(tuple(threads[rank]) for rank in sorted(threads)))


def _rows(spans: Sequence[Span]) -> list[list[Span]]:
    """Arranges the spans of one lane in rows, so that spans of a row are nested or do not overlap."""
    rows: list[list[Span]] = []
    around: list[list[int]] = []
    """By row, when the spans end that lie around the latest one, it included."""
    for span in sorted(spans, key=lambda span_: (_ns(span_.began), -_ns(span_.ended))):
        for row, ends in zip(rows, around, strict=True):
            while ends and ends[-1] <= _ns(span.began):
                ends.pop()
            if not ends or _ns(span.ended) <= ends[-1]:
                row.append(span)
                ends.append(_ns(span.ended))
                break
        else:
            rows.append([span])
            around.append([_ns(span.ended)])
    return rows


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)


def _event(span: Span, rank: int, thread: int) -> dict[str, Any]:
    began, ended = _ns(span.began), _ns(span.ended)
    return {
        "name": span.name, "cat": span.lane, "ph": "X", "ts": began / 1000, "dur": (ended - began) / 1000,
        "pid": rank, "tid": thread, "args": {"about": span.about},
    }  # fmt: skip


def _about(what: str, rank: int, thread: int, **said: str | int) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": rank, "tid": thread, "args": said}
