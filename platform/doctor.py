"""Checks what this machine has for training, what is wrong, and how to fix it."""

import os
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

State = Literal["ok", "absent", "wrong"]
_ENOUGH_SHARED_MEMORY = 2 * 2**30
_ENOUGH_DISK = 2 * 2**30
_DRIVER_TIMEOUT_S = 10


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: State
    """absent: not there, and only some runs need it; wrong: something will fail or be slow."""
    detail: str
    remedy: str = ""
    """What to do where it is not ok."""


def examine() -> Iterator[Finding]:
    """Runs all checks one after the other; some take seconds."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _machine,
        _torch,
        _gpu,
        _cupy,
        _ray,
        _mlflow,
        _storage,
        _for_some_data,
    )
    for check in checks:
        try:
            yield from check()
        except Exception as error:
            # A broken package can fail in any way; the other checks are still useful.
            name = check.__name__.removeprefix("_")
            remedy = f"reinstall {name}" if _version(name) else ""
            yield Finding(name, "wrong", f"{type(error).__name__}: {error}", remedy)


def _machine() -> Iterator[Finding]:
    version = platform.python_version()
    supported = (3, 11) <= sys.version_info[:2] < (3, 14)
    yield Finding(
        "Python", "ok" if supported else "wrong", version, "" if supported else "use Python 3.11 to 3.13"
    )
    try:
        with warnings.catch_warnings(action="ignore"):  # that of the folder is a line of its own
            from taugrad.compressors.ops.cpu import CACHE, avx512  # noqa: PLC0415 - imports numba
    except OSError as error:  # no folder for compiled code
        problem, _, remedy = str(error).rpartition("; ")
        yield Finding("CPUs", "wrong", problem, remedy)
        return
    cpus = len(os.sched_getaffinity(0))
    loops = "with AVX-512" if avx512.supported() else "without AVX-512: thresholds in portable loops, slower"
    yield Finding("CPUs", "ok", f"{cpus}, {loops}; numba {metadata.version('numba')}")
    if CACHE is not None:
        from taugrad.compressors.ops.cpu.compiling import REMEDY  # noqa: PLC0415

        detail = f"kept in {CACHE}: neither the package's folder nor the home can be written"
        yield Finding("compiled code", "absent", detail, REMEDY)
    yield _room("shared memory", Path("/dev/shm"), _ENOUGH_SHARED_MEMORY, "Ray keeps objects there")
    yield _room("disk", Path.cwd(), _ENOUGH_DISK, "checkpoints and runs go there")


def _room(what: str, path: Path, enough: int, why: str) -> Finding:
    if not path.exists():
        return Finding(what, "absent", f"{path} is not there")
    free = shutil.disk_usage(path).free
    detail = f"{free / 1e9:.1f} GB free in {path}"
    if free >= enough:
        return Finding(what, "ok", detail)
    return Finding(what, "wrong", f"{detail}; {why}", f"make room: {enough / 1e9:.0f} GB should be free")


def _torch() -> Iterator[Finding]:
    import torch  # noqa: PLC0415 - takes seconds
    import torch.distributed as dist  # noqa: PLC0415

    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for CPUs only"
    yield Finding("torch", "ok", f"{torch.__version__}, built {built}")
    available = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available()}
    backends = [name for name, there in available.items() if there]
    if "gloo" in backends:
        yield Finding("exchange", "ok", " and ".join(backends))
    else:
        yield Finding("exchange", "wrong", "torch has no gloo", "install a torch that is built with it")


def _gpu() -> Iterator[Finding]:
    import torch  # noqa: PLC0415

    driver = _driver()
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Finding("GPU", "ok", f"{', '.join(names)}; driver {driver or 'unknown'}")
    elif driver is None:
        yield Finding("GPU", "absent", "no NVIDIA driver here; specs with workers.device: cuda need one")
    elif torch.version.cuda is None:
        remedy = "install a torch that is built for CUDA (pytorch.org says which for this driver)"
        yield Finding("GPU", "wrong", f"driver {driver} is here, but torch is built for CPUs only", remedy)
    else:
        detail = f"driver {driver} is here, but torch for CUDA {torch.version.cuda} finds no device"
        yield Finding("GPU", "wrong", detail, "update the driver, or look at CUDA_VISIBLE_DEVICES")


def _driver() -> str | None:
    """The NVIDIA driver's version, None where there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(asked, capture_output=True, text=True, timeout=_DRIVER_TIMEOUT_S, check=False)
    lines = answer.stdout.split()
    return lines[0] if answer.returncode == 0 and lines else None


def _cupy() -> Iterator[Finding]:
    import torch  # noqa: PLC0415

    installed = [name for name in ("cupy-cuda12x", "cupy-cuda13x", "cupy") if _version(name)]
    cuda = torch.version.cuda
    extra = f"taugrad[cuda{cuda.split('.')[0]}]" if cuda else "taugrad[cuda12]"
    if not installed:
        there = torch.cuda.is_available()
        detail = "not installed" + ("; compression on the GPU needs it" if there else "; only GPUs need it")
        yield Finding(
            "CuPy", "wrong" if there else "absent", detail, f"pip install '{extra}'" if there else ""
        )
        return
    if len(installed) > 1:
        detail = f"{' and '.join(installed)} conflict"
        yield Finding("CuPy", "wrong", detail, f"pip uninstall {' '.join(installed)}, then install {extra}")
        return
    (name,) = installed
    detail = f"{name} {_version(name)}"
    if cuda and name.startswith("cupy-cuda") and not name.startswith(f"cupy-cuda{cuda.split('.')[0]}"):
        remedy = f"pip uninstall {name}, then pip install '{extra}'"
        yield Finding("CuPy", "wrong", f"{detail}, but torch is built for CUDA {cuda}", remedy)
    else:
        yield Finding("CuPy", "ok", detail)


def _ray() -> Iterator[Finding]:
    from .launching.driver.cluster_probe import check_cluster  # noqa: PLC0415
    from .spec import SpecError  # noqa: PLC0415

    address, version = os.environ.get("RAY_ADDRESS"), metadata.version("ray")
    goes = "RAY_ADDRESS is not set: each command starts a Ray of its own on 127.0.0.1"
    if address and address != "local":
        goes = f"runs go to RAY_ADDRESS = {address}"
        try:
            check_cluster(address)
        except SpecError as error:
            remedy = "start the cluster, or correct RAY_ADDRESS"
            yield Finding("Ray", "wrong", f"{version}; RAY_ADDRESS = {error.problems[0]}", remedy)
            return
    yield Finding("Ray", "ok", f"{version}; {goes}")


def _mlflow() -> Iterator[Finding]:
    from .spec import SpecError  # noqa: PLC0415
    from .tracking.local_database import served_only  # noqa: PLC0415
    from .tracking.masking import masked  # noqa: PLC0415
    from .tracking.probe import answering_client, unwritable  # noqa: PLC0415
    from .tracking.store import sqlite_path, tracking_uri  # noqa: PLC0415

    version, uri = metadata.version("mlflow"), tracking_uri()
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        problem = unwritable(path.parent)
        if problem:
            remedy = "choose another folder, or set MLFLOW_TRACKING_URI"
            yield Finding("MLflow", "wrong", f"{version}; {path} cannot be made ({problem})", remedy)
        else:
            yield Finding("MLflow", "ok", f"{version}; the first run makes {path}")
        return
    try:
        count = len(answering_client().search_experiments(max_results=1000))
    except SpecError as error:
        problem, _, remedy = error.problems[0].rpartition("; ")
        yield Finding("MLflow", "wrong", f"{version}; {problem}", remedy)
    else:
        yield Finding("MLflow", "ok", f"{version}; {count} experiments in {masked(uri)}")
        for name, (problem, remedy) in served_only(path, uri).items() if path is not None else ():
            yield Finding("MLflow", "wrong", f"experiment {name}: {problem}", remedy)


def _storage() -> Iterator[Finding]:
    """Where TAUGRAD_STORAGE puts checkpoints, if it names a bucket."""
    from .launching.storage import bucket_problem, what_helps  # noqa: PLC0415
    from .places import is_bucket  # noqa: PLC0415
    from .tracking.masking import without_login  # noqa: PLC0415

    place = os.environ.get("TAUGRAD_STORAGE", "").strip()
    if not is_bucket(place):
        return
    problem, client = bucket_problem(place), f"pyarrow {metadata.version('pyarrow')}"
    if problem:
        detail = f"{client}; TAUGRAD_STORAGE = {without_login(place)} cannot be written ({problem})"
        yield Finding("storage", "wrong", detail, what_helps(problem))
    else:
        yield Finding("storage", "ok", f"{client}; checkpoints go to TAUGRAD_STORAGE = {place}")


def _for_some_data() -> Iterator[Finding]:
    from .data.errors import EXTRAS  # noqa: PLC0415

    wanted = {"Pillow": "image_folder, and parquet with images,", "tokenizers": "text with a tokenizer"}
    for package, extra in EXTRAS.values():
        version = _version(package.lower())
        if version is None:
            remedy = f"pip install 'taugrad[{extra}]'"
            yield Finding(package, "absent", f"not installed; data of kind {wanted[package]} need it", remedy)
        else:
            yield Finding(package, "ok", version)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
