"""What can be found wrong before a worker starts: data, model, the machine's size."""

import os

from .data import load
from .models import build
from .reading import SpecError
from .spec import RunSpec


def cpus_here() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def check(spec: RunSpec, source: str, *, local: bool) -> None:
    """Builds what the workers will build.

    Args:
        spec: the run.
        source: its file's name, for messages.
        local: the workers will be on this machine.

    Raises:
        SpecError: a data set or a model that cannot be had, or more workers than CPUs.
    """
    workers = spec.workers
    if local and workers.count * workers.cpus > cpus_here():
        fitting = f"--workers.count {max(1, int(cpus_here() // workers.cpus))}"
        sharing = f"--workers.cpus {int(100 * cpus_here() / workers.count) / 100}"
        raise SpecError(
            source,
            [
                f"workers.count = {workers.count} at {workers.cpus:g} CPU each: this machine has "
                f"{cpus_here()} CPUs; {fitting} fits, or {sharing} to share them"
            ],
        )
    if local and workers.device == "cuda":
        _check_cuda(source)
    try:
        data = load(spec.data)
    except (ValueError, ImportError, OSError) as error:
        raise SpecError(source, [f"data: {error}"]) from error
    try:
        build(spec.model, channels=data.channels, height=data.height, width=data.width, classes=data.classes)
    except (ValueError, ImportError) as error:
        raise SpecError(source, [f"model: {error}"]) from error


def _check_cuda(source: str) -> None:
    import torch  # noqa: PLC0415 - takes seconds

    if not torch.cuda.is_available():
        raise SpecError(source, ["workers.device = cuda: torch finds no CUDA device here; use cpu"])
