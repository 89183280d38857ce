"""Real workers over gloo, on the loopback interface: every scenario of ddp_*.py; some on one GPU, too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ddp_process
import pytest
import torch
from ddp import KILLED, SCENARIOS
from forked import run_workers
from torch import nn

from taugrad.compressors import LocalSteps, compress_replicas

SCRIPT = Path(ddp_process.__file__)
TIMEOUT_S = 1200
"""For all scenarios of a group, which take two or three minutes; one that hangs ends by its group."""
Failures = dict[str, str]


def module_of(scenario: Any) -> str:
    return str(getattr(scenario, "func", scenario).__module__)


ON_A_GPU = ("ddp_methods", "ddp_local_steps", "ddp_powersgd", "ddp_replicas")
CASES = [
    pytest.param(device, workers, name, marks=[pytest.mark.gpu] if device == "cuda" else [])
    for device, places in (("cpu", None), ("cuda", ON_A_GPU))
    for workers, listed in SCENARIOS.items()
    for name in sorted(listed, key=KILLED.__contains__)
    if places is None or module_of(listed[name]) in places
]


@pytest.fixture(scope="module")
def failures(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, int], Failures]:
    """What failed, with what the workers said, on a device, of so many workers; each group runs once."""
    done: dict[tuple[str, int], Failures] = {}
    items = [item for item in request.session.items if item.path == request.path]
    asked = [item.callspec.params for item in items if hasattr(item, "callspec")]

    def failures_of(device: str, workers: int) -> Failures:
        if (device, workers) not in done:
            names = [case["name"] for case in asked if (case["device"], case["workers"]) == (device, workers)]
            done[device, workers] = run_all(device, workers, names, tmp_path_factory)
        return done[device, workers]

    return failures_of


def run_all(device: str, workers: int, names: list[str], folders: pytest.TempPathFactory) -> Failures:
    """Runs scenarios; where one fails, new processes go on behind it."""
    failed, environment = Failures(), None if device == "cpu" else {"TAUGRAD_TESTS_DEVICE": device}
    while names:
        folder = folders.mktemp(f"ddp-{workers}")
        try:
            given = [(rank, workers, folder, *names) for rank in range(workers)]
            options: Any = {"timeout_s": TIMEOUT_S, "killed": KILLED.get(names[-1], ())}
            run_workers(SCRIPT, given.__getitem__, workers, environment=environment, **options)
            return failed
        except AssertionError as error:
            counts = [int(path.read_text()) for path in folder.glob("done-*")]
            done = min(counts) if len(counts) == workers else 0
            if done == len(names):  # all held, and the end did not
                raise
            failed[names[done]] = str(error)
            names = names[done + 1 :]
    return failed


@pytest.mark.parametrize(("device", "workers", "name"), CASES)
def test_scenario(device: str, workers: int, name: str, failures: Callable[[str, int], Failures]) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    result = failures(device, workers)
    assert name not in result, result.get(name)


def test_without_a_process_group_a_sentence_says_what_to_call() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"no process group: call torch.distributed.init_process_group"):
        LocalSteps(model, optimizer, every=1)
    with pytest.raises(ValueError, match=r"no process group: call torch.distributed.init_process_group"):
        compress_replicas(model, None, "none")  # type: ignore[arg-type]
