"""Checks before anything starts whether checkpoints can be written to the spec's storage."""

from pathlib import Path

from ..deadline import NoAnswer, in_time
from ..spec import RunSpec, SpecError
from ..tracking.masking import without_login
from ..tracking.probe import unwritable
from ..tracking.store import home
from .addresses import is_bucket, repaired
from .reasons import reason, what_helps

_ANSWER_S = 5.0
_TRIED = ".taugrad-can-write"


def storage_path(spec: RunSpec) -> str:
    """Where checkpoints lie, as Ray wants it: absolute, or a bucket's address."""
    text = str(spec.storage)
    if text.startswith("file:/"):
        return f"/{text.removeprefix('file:').lstrip('/')}"
    if ":/" in text:
        return repaired(text)
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
    place, helps = storage_path(spec), "--storage DIR names another"
    if is_bucket(place) and without_login(place) != place:
        problem = "an address with keys in it, which MLflow would show; AWS_ACCESS_KEY_ID and "
        problem += "AWS_SECRET_ACCESS_KEY are the place for them"
        raise SpecError(source, [f"storage = {without_login(place)}: {problem}"])
    if is_bucket(place):
        problem = bucket_problem(place)
        helps = what_helps(problem)
    else:
        problem = unwritable(Path(place)) if local else ""
    if problem:
        default = "" if "storage" in spec.model_fields_set else " (the default)"
        named = place if is_bucket(place) else f"{spec.storage}{default}: {place}"
        raise SpecError(source, [f"storage = {named} cannot be written ({problem}); {helps}"])


def bucket_problem(place: str) -> str:
    """Why a bucket cannot be written, known within 5 s; empty: it can."""
    try:
        return in_time(_ANSWER_S, lambda: _try_bucket(place))
    except NoAnswer as error:
        return str(error)


def _try_bucket(place: str) -> str:
    from pyarrow import ArrowException  # noqa: PLC0415 - takes a second
    from pyarrow.fs import FileSystem  # noqa: PLC0415

    try:
        system, path = FileSystem.from_uri(place)
        with system.open_output_stream(f"{path}/{_TRIED}") as stream:
            stream.write(b"")
        system.delete_file(f"{path}/{_TRIED}")
    except (OSError, ValueError, ArrowException) as error:
        return reason(error)
    return ""
