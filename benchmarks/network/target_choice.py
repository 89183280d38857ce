"""What `taugrad auto --link` chooses for the workloads of network/network_target.py."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from taugrad.platform.data import load
from taugrad.platform.spec import RunSpec
from taugrad.search.auto_link.finding import find
from taugrad.search.auto_link.probe_runs import probe_runs_of
from taugrad.search.auto_link.request import PROBE_SECONDS
from taugrad.search.plan.link import Link

from .target_settings import HOSTS, Setting, Workload

NAME = "ours, `auto --link`"
AUTO_KIND = "auto --link (ours)"
GOAL = 1.15
"""How many times the minutes of the best fixed setting it may take."""
ROOT = Path(__file__).resolve().parents[2]
PLAIN = Setting("none")
"""What a user has who asks: the workload's own optimizer and rate, and no compression."""


class Choices:
    """By link and workload, in a file with a line for each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._known = {(each["link"], each["fingerprint"]): each for each in map(json.loads, lines)}

    def choose(self, workload: Workload, links: Sequence[str]) -> dict[str, Setting]:
        """What is chosen for each link; beginnings of trainings are probed once for all of them.

        All hosts share this machine's processors, and so the calibration is made.
        """
        spec = workload.whole(PLAIN, 0)
        todo = [link for link in links if (link, spec.fingerprint()) not in self._known]
        if todo:
            self._find(spec, todo)
        return {link: self._setting(link, spec) for link in links}

    def _find(self, spec: RunSpec, links: Sequence[str]) -> None:
        # The calibration's processes must find the workload's own data.
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._path.parent.mkdir(exist_ok=True)
        with probe_runs_of(spec, load(spec.data)) as probe_runs:
            for link in links:
                print(f"{link}: auto --link ...", flush=True)
                found = find(
                    spec,
                    "target_settings.py",
                    Link.parse(link),
                    PROBE_SECONDS,
                    probe_runs,
                    print,
                    sharing=HOSTS,
                )
                best = found.choice.best
                entry = {
                    "link": link,
                    "fingerprint": spec.fingerprint(),
                    "way": str(best.prospect.way),
                    "predicted_s": best.prospect.seconds,
                    "worth": best.worth,
                    "spec": best.prospect.way.spec.model_dump(mode="json"),
                }
                self._known[link, spec.fingerprint()] = entry
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")

    def _setting(self, link: str, spec: RunSpec) -> Setting:
        chosen = RunSpec.model_validate(self._known[link, spec.fingerprint()]["spec"])
        return Setting(
            str(chosen.compressor),
            chosen.sync.model_dump(mode="json"),
            chosen.training.optimizer.model_dump(mode="json"),
            name=f"{NAME}: {self._known[link, spec.fingerprint()]['way']}",
        )


def as_if_chosen(setting: Setting) -> Setting:
    """A setting under the name of a choice, where choosing would take minutes."""
    return replace(setting, name=f"{NAME}: {setting.name}")


def judged(minutes: float, best_fixed: float) -> str:
    """A line that says whether the choice is near the best fixed setting."""
    times = minutes / best_fixed
    met = "met" if times <= GOAL else "missed"
    return (
        f"`auto --link` takes {times:.2f} times the best fixed setting; the goal, at most {GOAL}, is {met}."
    )
