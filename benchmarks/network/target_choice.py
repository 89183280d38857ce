"""What `taugrad auto --link` chooses for the workloads of network/network_target.py."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from taugrad.platform.data import load
from taugrad.platform.spec import RunSpec
from taugrad.search.auto_link.finding import find
from taugrad.search.auto_link.probe_runs import ProbeRuns, probe_runs_of
from taugrad.search.auto_link.request import PROBE_SECONDS
from taugrad.search.plan.link import Link

from ..harness.trainings import Cells
from .target_settings import HOSTS, Setting, Workload

NAME = "ours, `auto --link`"
AUTO_KIND = "auto --link (ours)"
GOAL = 1.15
"""How many times the minutes of the best fixed setting it may take."""
PLAIN = Setting("none")
"""What a user has who asks: the workload's own optimizer and rate, and no compression."""


def chosen_for(workload: Workload, links: Sequence[str], cells: Cells) -> dict[str, Setting]:
    """What is chosen for each link; beginnings of trainings are probed once for all of them.

    All hosts share this machine's processors, and so the calibration is made.
    """
    spec = workload.whole(PLAIN, 0)
    # The calibration's processes must find the workload's own data.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    chosen = {}
    with probe_runs_of(spec, load(spec.data)) as probe_runs:
        for link in links:
            asked = {"link": link, "fingerprint": spec.fingerprint()}
            chosen[link] = _setting(cells.of(asked, partial(_found, spec, link, probe_runs)))
    return chosen


def _found(spec: RunSpec, link: str, probe_runs: ProbeRuns) -> dict[str, Any]:
    decision = find(
        spec, "target_settings.py", Link.parse(link), PROBE_SECONDS, probe_runs, print, sharing=HOSTS
    )
    best = decision.decision.best
    return {
        "way": str(best),
        "predicted_s": best.seconds,
        "worth": best.worth,
        "spec": best.run.model_dump(mode="json"),
    }


def _setting(decision: Mapping[str, Any]) -> Setting:
    chosen = RunSpec.model_validate(decision["spec"])
    return Setting(
        str(chosen.compressor),
        chosen.sync.model_dump(mode="json"),
        chosen.training.optimizer.model_dump(mode="json"),
        name=f"{NAME}: {decision['way']}",
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
