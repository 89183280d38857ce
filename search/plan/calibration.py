"""Measures a model once on this machine, and caches the result.

The cache is a file in the user's cache folder, named by a hash of model, data, batch, processor and versions.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from time import monotonic, sleep

import psutil
from pydantic import ValidationError

from taugrad import __version__
from taugrad.platform.data import token_cache
from taugrad.platform.spec import RunSpec

from .calibrated import Calibration, MeasureRequest

_FORM = 3
"""The version of the cache."""
_TIMEOUT_S = 1200
_POLL_S = 0.05
_LAST_LINES = 12
_COMPUTED_BY = ("numba", "numpy", "torch")
_MEASURED_FIELDS = ("task", "model", "data", "training", "seed")

SHARE = 0.25
"""The share of the machine's processors that other processes may use without a warning."""
_LEAST_S, _LOOK_S = 0.4, 0.5
"""The shortest time that is judged; the time before a measurement that is watched."""


class CalibrationError(ValueError):
    """A model that cannot be measured here; the message says why."""


def calibrate(
    spec: RunSpec,
    methods: Sequence[str],
    *,
    sharing: int = 1,
    renew: bool = False,
    seconds: float = 3.0,
    notify: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Measures what is not cached: a few seconds, and a few more for each method.

    Args:
        spec: the run; its data and model are built.
        methods: lines of compressors.
        sharing: how many workers will share this machine. As many processes compute during the measurement.
        renew: whether to measure again what is cached.
        seconds: how long steps of the model are counted: at least 5 steps, and at most 40.
        notify: called with what is measured, and with a warning if the machine is busy.

    Raises:
        CalibrationError: data or model cannot be built, or a measuring process failed.
    """
    if spec.workers.device != "cpu":
        raise CalibrationError(
            f"workers.device = {spec.workers.device}: only a CPU is measured; use cpu, or --calibration FILE"
        )
    path = file_of(spec, sharing)
    known = None if renew else _kept(path)
    missing = list(methods) if known is None else known.missing(methods)
    if known is not None and not missing:
        return known
    methods_of = f"{len(missing)} method{'s' * (len(missing) != 1)}"
    notify(f"calibrating: seconds of the model and {methods_of} on this machine ...")
    with warning_if_busy(notify):
        measured = _measure(
            MeasureRequest(spec=spec, methods=tuple(missing), sharing=sharing, seconds=seconds)
        )
    if known is not None:
        measured = known.model_copy(update={"methods": {**known.methods, **measured.methods}})
    with suppress(OSError):  # then it is measured again the next time
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write(measured.model_dump_json(indent=1))
        Path(file.name).replace(path)
    return measured


def file_of(spec: RunSpec, sharing: int = 1) -> Path:
    """The file in which a calibration is cached."""
    depends = {
        "form": _FORM,
        "spec": {name: spec.model_dump(mode="json")[name] for name in _MEASURED_FIELDS},
        "workers": [spec.workers.count, max(1, int(spec.workers.cpus)), sharing],
        "folder": str(Path.cwd()),  # where a user's own model and data may be
        "processor": processor(),
        "versions": {"taugrad": __version__} | {name: version(name) for name in _COMPUTED_BY},
        "python": platform.python_version(),
    }
    name = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:20]
    return token_cache.folder() / "plan" / f"{name}.json"


def _kept(path: Path) -> Calibration | None:
    """A calibration from a file; None if it cannot be read."""
    try:
        return Calibration.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def processor() -> str:
    """The processor's name, and how many of them this process may use."""
    name = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):  # not Linux
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return f"{name}, {os.cpu_count()}"


def _measure(request: MeasureRequest) -> Calibration:
    """Runs `measuring` in processes of its own, with their own process groups and threads."""
    processes = max(2, request.sharing)
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "OMP_NUM_THREADS": str(max(1, int(request.spec.workers.cpus))),
    }
    with tempfile.TemporaryDirectory() as folder:
        started = []
        try:
            for rank in range(processes):
                command = [sys.executable, "-m", f"{__package__}.measuring", str(rank), str(processes)]
                with (Path(folder) / f"{rank}.out").open("w") as out, (Path(folder) / "err").open("a") as err:
                    started.append(
                        subprocess.Popen(
                            [*command, str(Path(folder) / "store")],
                            stdin=subprocess.PIPE,
                            stdout=out,
                            stderr=err,
                            env=environment,
                            text=True,
                        )
                    )
            for process in started:
                assert process.stdin is not None
                process.stdin.write(request.model_dump_json())
                process.stdin.close()
            failed = _ended_badly(started)
        finally:
            for process in started:
                process.kill()
                process.wait()
        output = (Path(folder) / "0.out").read_text(encoding="utf-8").strip()
        if failed or not output:
            lines = (Path(folder) / "err").read_text(encoding="utf-8").strip().splitlines()
            raise CalibrationError("measuring failed:\n" + "\n".join(lines[-_LAST_LINES:]))
    result = json.loads(output.splitlines()[-1])
    if "problem" in result:
        raise CalibrationError(result["problem"])
    return Calibration.model_validate(result)


def _ended_badly(processes: "Sequence[subprocess.Popen[str]]") -> bool:
    """Waits for all processes, or for the first that fails; returns whether one did."""
    until = monotonic() + _TIMEOUT_S
    while monotonic() < until:
        codes = [process.poll() for process in processes]
        if any(codes):
            return True
        if None not in codes:
            return False
        sleep(_POLL_S)
    raise CalibrationError(f"measuring took more than {_TIMEOUT_S} s")


@contextmanager
def warning_if_busy(notify: Callable[[str], None]) -> Iterator[None]:
    """Warns if other processes use a large share of this machine, half a second before or while it lasts."""
    begun = _others_work()
    sleep(_LOOK_S)
    if warning := _warning(begun):
        notify(warning)
    begun = _others_work()
    yield
    if not warning and (warning := _warning(begun)):
        notify(warning)


def _others_work() -> tuple[float, float]:
    """The time, and the processor seconds of all processes but this one and its children that have ended."""
    times = psutil.cpu_times()
    busy = float(times.user + times.system + getattr(times, "nice", 0.0))
    return monotonic(), busy - sum(os.times()[:4])


def _warning(begun: tuple[float, float]) -> str:
    """The warning if others have used a large share of the machine since then; else empty."""
    (then, before), (now, after), count = begun, _others_work(), os.cpu_count() or 1
    if now - then < _LEAST_S or (processors := (after - before) / (now - then)) <= SHARE * count:
        return ""
    return (
        f"warning: this machine is busy: other processes used {processors:.1f} of its {count} "
        "processors, so measured seconds are too long; measure again when it is idle"
    )
