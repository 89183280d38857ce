"""Checks before anything starts whether checkpoints can be written to the spec's storage."""

from pathlib import Path

from ..deadline import NoAnswer, in_time
from ..spec import RunSpec, SpecError
from ..tracking.probe import unwritable
from ..tracking.store import home

_ANSWER_S = 5.0
_TRIED = ".taugrad-can-write"


def storage_path(spec: RunSpec) -> str:
    """Where checkpoints lie, as Ray wants it: absolute, or a bucket's address."""
    # A Path makes s3://bucket of YAML into s3:/bucket.
    text = str(spec.storage)
    if text.startswith("file:/"):
        return f"/{text.removeprefix('file:').lstrip('/')}"
    if ":/" in text:
        return text if "://" in text else text.replace(":/", "://", 1)
    return str(home() / Path(text).expanduser())


def check_storage(spec: RunSpec, source: str, *, local: bool) -> None:
    """Writes a small file where checkpoints will lie, and removes it.

    Args:
        spec: the run.
        source: its file's name, for messages.
        local: the workers will be on this machine; a folder of another cannot be tried here.

    Raises:
        SpecError: it cannot be written there, or a bucket does not answer within 5 s.
    """
    place = storage_path(spec)
    try:
        if "://" in place:
            problem = in_time(_ANSWER_S, lambda: _try_bucket(place))
        else:
            problem = unwritable(Path(place)) if local else ""
    except NoAnswer as error:
        problem = str(error)
    if problem:
        default = "" if "storage" in spec.model_fields_set else " (the default)"
        raise SpecError(
            source,
            [
                f"storage = {spec.storage}{default}: {place} cannot be written ({problem}); "
                "--storage DIR names another"
            ],
        )


def _try_bucket(place: str) -> str:
    """Why a bucket cannot be written; empty: it can."""
    from pyarrow import ArrowException  # noqa: PLC0415 - takes a second
    from pyarrow.fs import FileSystem  # noqa: PLC0415

    try:
        system, path = FileSystem.from_uri(place)
        with system.open_output_stream(f"{path}/{_TRIED}") as stream:
            stream.write(b"")
        system.delete_file(f"{path}/{_TRIED}")
    except (OSError, ValueError, ArrowException) as error:
        return str(error).strip().partition("\n")[0]
    return ""
