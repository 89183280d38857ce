"""Members that are killed and come back: what the others learn meanwhile.

    python -m benchmarks.network.churn [--quick] [--write]

Hosts are network namespaces (benchmarks/network), which needs root.
"""

import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import sleep, time

from ..harness.report import Table, number, publish, read_options, say
from . import Link, Network, uniform, why_not
from .churn_member import BATCH

HOSTS, LINK = 4, "50mbit,20ms"
PACE_S, EVERY = 0.5, 8
KILL_S, BACK_S = 60.0, 20.0
UNDISTURBED_S, CHURN_S = 90.0, 270.0
QUICK_S = 40.0
PORT = 7070
INTRODUCTION = (
    "Local steps with members, {hosts} hosts with links of {link}, a GPT of 4 x 128, {every} steps a round. "
    "Undisturbed for {undisturbed:g} s; and with a kill -9 every {kill:g} s, of one host after the other, "
    "whose member is started again after {back:g} s, with its checkpoint, for {churn:g} s. A step takes "
    "{pace:g} s: computing, and sleep for the rest, so that the hosts, which share this machine's "
    "processors, do not slow one another down."
)


@dataclass
class Learned:
    """What came of a training."""

    seconds: float
    """From the first exchange of all to the end."""
    present_s: float
    """Of all members together, while their processes ran."""
    joined_s: float
    """Of all members together, from when they were in."""
    examples: int
    """In the agreed weights."""
    exchanges: list[tuple[float, int, float]]
    """Time, examples and mean loss of each."""
    joining: list[float]
    """Seconds from the start of a process that was killed before until it was in."""


class Training:
    """A coordinator, and a member in each host."""

    def __init__(self, network: Network, folder: Path) -> None:
        self._network, self._folder = network, folder
        (folder / "key").write_text(secrets.token_hex(32))
        self._at = f"{network.hosts[0].address}:{PORT}"
        arguments = [
            "--listen",
            self._at,
            "--key-file",
            str(folder / "key"),
            "--state",
            str(folder / "run.db"),
        ]
        self._coordinator = network.hosts[0].popen(
            [sys.executable, "-m", "taugrad.compressors.coordinator", *arguments], stdout=subprocess.DEVNULL
        )
        self._members: dict[int, subprocess.Popen[bytes]] = {}
        self.spans: list[list[float]] = []
        """For each process, its start and its end."""
        self.joining: list[float] = []
        for host in range(HOSTS):
            self.start(host)

    def log(self, host: int) -> list[tuple[float, int, float]]:
        """By line, time, examples and loss; no examples in that of a start."""
        path = self._folder / f"{host}.log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(float(at), int(examples), float(loss)) for at, examples, loss in map(str.split, lines)]

    def start(self, host: int) -> None:
        """Starts a member, with its checkpoint if there is one."""
        files = [str(self._folder / name) for name in ("key", f"{host}.pt", f"{host}.log")]
        module = "benchmarks.network.churn_member"
        command = [sys.executable, "-m", module, self._at, *files, str(PACE_S), str(EVERY)]
        self._members[host] = self._network.hosts[host].popen(command, stdout=subprocess.DEVNULL)
        self.spans.append([float(host), time(), float("inf")])

    def kill(self, host: int) -> None:
        """Kills a member at once."""
        member = self._members.pop(host)
        member.kill()
        next(span for span in reversed(self.spans) if span[0] == host)[2] = time()
        member.wait()

    def wait_for_all(self) -> None:
        """Waits until each host has exchanged."""
        while not all(any(examples for _, examples, _ in self.log(host)) for host in range(HOSTS)):
            sleep(0.5)
            if any(member.poll() is not None for member in self._members.values()):
                raise RuntimeError("a member ended")

    def learned(self, began: float, ended: float) -> Learned:
        """What came of it between two times."""
        logs = [line for host in range(HOSTS) for line in self.log(host)]
        exchanges = sorted(line for line in logs if line[1] and began < line[0] <= ended)
        present = sum(max(0.0, min(end, ended) - max(start, began)) for _, start, end in self.spans)
        joined, joining = 0.0, []
        for host, start, end in self.spans:
            at = next((at for at, examples, _ in self.log(int(host)) if not examples and at > start), ended)
            joined += max(0.0, min(end, ended) - max(at, began))
            if start > began and at < min(end, ended):
                joining.append(at - start)
        return Learned(ended - began, present, joined, sum(line[1] for line in exchanges), exchanges, joining)

    def end(self) -> None:
        """Ends all processes."""
        for host in list(self._members):
            self.kill(host)
        self._coordinator.kill()
        self._coordinator.wait()


def trained(seconds: float, *, kills: bool) -> Learned:
    """A training for so long; perhaps a member is killed from time to time."""
    with Network(uniform(HOSTS, Link.parse(LINK))) as network, tempfile.TemporaryDirectory() as folder:
        training = Training(network, Path(folder))
        try:
            training.wait_for_all()
            began = time()
            if kills:
                for number_of in count():
                    kill_at = began + (number_of + 0.5) * KILL_S
                    if kill_at + BACK_S >= began + seconds:
                        break
                    sleep(max(0.0, kill_at - time()))
                    say(f"host {number_of % HOSTS} is killed")
                    training.kill(number_of % HOSTS)
                    sleep(BACK_S)
                    training.start(number_of % HOSTS)
            sleep(max(0.0, began + seconds - time()))
            return training.learned(began, began + seconds)
        finally:
            training.end()


def loss_at(learned: Learned, examples: int) -> float:
    """The mean loss over the last fifth of so many examples, of all members together."""
    total, weighed, loss = 0, 0, 0.0
    for _, amount, mean in learned.exchanges:
        total += amount
        if 0.8 * examples <= total <= examples:
            weighed, loss = weighed + amount, loss + amount * mean
    return loss / max(1, weighed)


def main(arguments: Sequence[str]) -> int:
    options = read_options("network.churn", "Members that are killed and come back.", arguments)
    if reason := why_not():
        print(f"no network can be made here: {reason}", file=sys.stderr)
        return 2
    undisturbed_s, churn_s = (QUICK_S, KILL_S) if options.quick else (UNDISTURBED_S, CHURN_S)
    say("undisturbed")
    calm = trained(undisturbed_s, kills=False)
    say("with kills")
    churn = trained(churn_s, kills=True)
    rate, equal = BATCH / PACE_S, min(calm.examples, churn.examples)
    rows = [
        (
            name, f"{run.seconds:g}", f"{run.examples:,}", number(run.examples / run.seconds),
            number(100 * run.examples / (rate * run.joined_s)),
            number(100 * run.examples / (rate * run.present_s)),
            number(100 * run.examples / (rate * HOSTS * run.seconds)),
            number(loss_at(run, equal)),
            number(sum(run.joining) / len(run.joining)) if run.joining else "-",
        )
        for name, run in (("undisturbed", calm), ("kills", churn))
    ]  # fmt: skip
    columns = (
        *("training", "seconds", "examples", "examples/s", "% of members in", "% of processes"),
        *("% of all hosts", "loss", "start to in, s"),
    )
    notes = (
        "Examples: those in the agreed weights. Percentages: of what members learn at this pace if nothing "
        "is exchanged, while they were in; while their processes ran, which includes their start (Python, "
        "torch, the agreed state); and all hosts all the time, of which, with kills, "
        f"{number(100 - 100 * BACK_S / KILL_S / HOSTS)}% is the most that can be reached in the long run. "
        f"Loss: the mean of the last fifth of the first {equal:,} examples, one run each.",
    )
    introduction = INTRODUCTION.format(
        hosts=HOSTS, link=LINK, every=EVERY, undisturbed=undisturbed_s, kill=KILL_S, back=BACK_S,
        churn=churn_s, pace=PACE_S,
    )  # fmt: skip
    publish("churn", options, introduction, [Table("Examples learned", columns, rows, notes)])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
