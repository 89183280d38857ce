"""What the lines of a training say (network/churn.py)."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

Line = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """A training; times are seconds from when all had exchanged."""

    seconds: float
    """How long it was measured; lines go on for a while after it."""
    rolls_back: bool
    """Whether what came after a state is lost when a host begins with that state."""
    lines: list[Line]
    """Of all hosts' logs, by time; see `churn_member.Log`."""
    spans: list[list[float]]
    """For each process, its host, its start and its end."""
    events: list[list[Any]]
    """The time, what was done, and to which host."""

    def exchanges(self) -> Iterator[tuple[float, Line]]:
        """What is in the agreed weights: when its steps began, and the line."""
        latest: dict[int, float] = {}
        for place, line in enumerate(self.lines):
            if line["event"] == "exchange":
                lost = self.rolls_back and any(
                    later["event"] == "in" and later["state"] < line["state"] for later in self.lines[place:]
                )
                if not lost:
                    yield latest[line["host"]], line
            if line["event"] != "begins":
                latest[line["host"]] = line["at"]

    def examples(self, hosts: Collection[int] | None = None) -> float:
        """Examples in the agreed weights; of an exchange at either end, the part within the time."""
        total = 0.0
        for begin, line in self.exchanges():
            if hosts is None or line["host"] in hosts:
                within = min(line["at"], self.seconds) - max(begin, 0.0)
                total += line["examples"] * max(0.0, within) / (line["at"] - begin)
        return total

    def joins(self) -> list[tuple[float, Line, Line, Line]]:
        """For each process that was started within the time: when, and its first line of each event."""
        joins = []
        for span in self.spans:
            begins, joined, exchange = (self._first(event, span) for event in ("begins", "in", "exchange"))
            if span[1] > 0 and begins and joined and exchange:
                joins.append((span[1], begins, joined, exchange))
        return joins

    def _first(self, event: str, span: list[float]) -> Line | None:
        """The first line of an event that a process wrote."""
        host, start, end = span
        known = (
            line for line in self.lines
            if (line["host"], line["event"]) == (host, event) and start < line["at"] < end
        )  # fmt: skip
        return next(known, None)

    def member_seconds(self) -> float:
        """Seconds of all hosts together, from when they were in until they ended."""
        total = 0.0
        for span in self.spans:
            joined = self._first("in", span)
            began = self.seconds if joined is None else max(joined["at"], 0.0)
            total += max(0.0, min(span[2], self.seconds) - began)
        return total

    def loss_at(self, examples: float) -> float:
        """The mean loss of the last fifth of so many examples, of all hosts together."""
        done, weighed, loss = 0.0, 0.0, 0.0
        for begin, line in self.exchanges():
            if begin >= 0:
                done += line["examples"]
                if 0.8 * examples <= done <= examples:
                    weighed, loss = weighed + line["examples"], loss + line["examples"] * line["loss"]
        return loss / max(1.0, weighed)

    def rounds(self) -> dict[int, list[float]]:
        """By round, when each host that has an update in it has exchanged; those within the time."""
        rounds: dict[int, list[float]] = {}
        for _, line in self.exchanges():
            if 0 <= line["at"] <= self.seconds:
                rounds.setdefault(line["state"], []).append(line["at"])
        return rounds

    def between_rounds(self) -> float:
        """The usual seconds from one round to the next."""
        times = sorted(min(times) for times in self.rounds().values())
        return median(later - earlier for earlier, later in pairwise(times))

    def until_next_round(self, what: str, *, coordinator: bool = False) -> list[float]:
        """Seconds from each event of a kind until another host exchanged."""
        return [
            next(line["at"] for _, line in self.exchanges() if line["host"] != host and line["at"] > at) - at
            for at, event, host in self.events
            if event == what and (host < 0) == coordinator and 0 < at < self.seconds
        ]

    def last(self, name: str) -> list[int]:
        """What the hosts' last exchanges say."""
        return list({line["host"]: line[name] for line in self.lines if line["event"] == "exchange"}.values())
