"""What all tests share: `--require-gpu`, and how pytest-xdist spreads them over processes.

With `-n` (see the Makefile) a process gets whole files, so that a module's fixtures are made once. What else
stays together is in TOGETHER.

Helpers that every folder's tests may import lie in tests/support.
"""

import os
import sys
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).with_name("support")))
sys.path.append(str(Path(__file__).parents[1]))  # for benchmarks
import cases

COMPILING = ("tests/compressors/test_methods.py", "tests/compressors/test_codecs.py")
"""These compile nearly every kernel, in one process. Workers of a test would all compile the same."""
CLUSTER = "tests/integration/test_cluster.py"
"""Of two machines, with addresses of their own; it may run beside the folder's other tests."""
DDP = "tests/compressors/test_ddp.py"
"""Its groups of workers are independent: each is a unit, named by the test's first two parameters."""
TOGETHER = (COMPILING, ("tests/integration/",), ("tests/dashboards/",), ("tests/docs/",))
"""What one process runs as a whole: files, or a folder.

Two cores bear one Ray at a time, and most tests of it share one: with two at a time, in a third process, all
took 32 minutes in place of 26. The dashboards' tests read one experiment.
"""
FIRST = (
    *COMPILING,
    # Of these the first train nothing, or without kernels: what trains later loads what others have compiled.
    *(f"tests/integration/test_{name}.py" for name in ("stores", "interrupted", "submit", "search")),
    *("tests/integration/", "tests/dashboards/", "tests/docs/", DDP, CLUSTER, "tests/platform/"),
)
"""What others wait for, then what takes longest: nobody waits for it at the end."""

# No test depends on how long anything takes: another machine is busy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# A module is compiled once, not by each of some hundred processes that the tests start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if "PYTEST_XDIST_WORKER" in os.environ:  # each process has a core, not all of them; before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def unit_of(nodeid: str) -> str:
    """What one process runs as a whole: a file, several, or a group of workers of DDP."""
    file = nodeid.partition("::")[0]
    if file == DDP:
        return "-".join(nodeid.split("-")[:2])
    return file if file == CLUSTER else next((files[0] for files in TOGETHER if file.startswith(files)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process more than cores: a fifth of the time of two was waiting, for servers and for workers."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class UnitScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False  # the order is ours, not that of the number of tests
    return UnitScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> tuple[int, bool]:
        results = [(len(start), i) for i, start in enumerate(FIRST) if item.nodeid.startswith(start)]
        first = max(results, default=(0, len(FIRST)))[1]  # by the start that says most
        return first, "one_ray" in getattr(item, "fixturenames", ())  # these share one, without a break

    if not config.getoption("all"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    items.sort(key=place)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-gpu", action="store_true", help="fail where there is no CUDA device")
    parser.addoption("--all", action="store_true", help="long tests, too, as `make test-all` does")
    parser.addoption("--case", metavar="TEXT", help="of tests of many cases, those named so alone")


def pytest_configure(config: pytest.Config) -> None:
    cases.only, cases.everything = config.getoption("case"), config.getoption("all")


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("--require-gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.exit("no CUDA device here: the GPU tests cannot run", returncode=1)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """A database without runs, to be copied: to make one takes MLflow seconds."""
    from taugrad.platform.tracking.store import open_client

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    open_client(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="session")
def new_store(empty_store):
    """Puts an empty database into a folder; its URI."""
    return lambda folder: f"sqlite:///{copy(empty_store, folder)}"


@pytest.fixture(scope="module")
def alone():
    """A process group of one, with one thread as workers have."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
