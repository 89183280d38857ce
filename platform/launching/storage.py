"""A run's storage, a folder or a bucket: addresses in it, and whether and why not it can be written."""

import re
from pathlib import Path

from ..deadline import in_time
from ..places import address_of, is_bucket
from ..spec import RunSpec, SpecError
from ..tracking.masking import masked, without_login
from ..tracking.probe import unwritable

_ANSWER_S = 5.0
_TRIED = ".taugrad-can-write"
_OF_S3 = re.compile(r"AWS Error (?P<code>\w+)(?: \([^)]*\))? during \w+ operation: (?P<text>.*)")
_OF_A_DISK = re.compile(r"Detail: \[errno \d+\] (?P<text>.*)")
_REQUEST = re.compile(r"\s*\(Request ID: .*")
_UNKNOWN_KEY = re.compile(
    "ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN_ID|EXPIRED|Expired"
)


def below(place: str, *names: str) -> str:
    """The address of something under a storage, folder or bucket.

    Args:
        place: such as `/shared/runs`, or `s3://bucket/runs?region=eu-north-1`, whose options stay at the end.
        names: of folders, then a file.
    """
    base, options = _cut(place)
    return "/".join([base.rstrip("/"), *names]) + options


def above(place: str) -> tuple[str, str]:
    """What an address is below of, and its own name: the reverse of `below`."""
    base, options = _cut(place)
    base, _, name = base.rstrip("/").rpartition("/")
    return base + options, name


def _cut(place: str) -> tuple[str, str]:
    base, mark, options = place.partition("?") if is_bucket(place) else (place, "", "")
    return base, mark + options


def check_storage(spec: RunSpec, source: str, *, local: bool) -> None:
    """Writes a small file where checkpoints will lie, and removes it; messages call the spec `source`.

    A folder is tried only if the workers will be on this machine (`local`). Raises SpecError: it cannot be
    written there, or a bucket does not answer within 5 s.
    """
    place, helps = address_of(spec.storage), "--storage DIR names another"
    if is_bucket(place) and without_login(place) != place:
        problem = "an address with keys in it, which MLflow would show; AWS_ACCESS_KEY_ID and "
        problem += "AWS_SECRET_ACCESS_KEY are the place for them"
        raise SpecError(source, f"storage = {without_login(place)}: {problem}")
    if is_bucket(place):
        problem = bucket_problem(place)
        helps = what_helps(problem)
    else:
        problem = unwritable(Path(place)) if local else ""
    if problem:
        default = "" if "storage" in spec.model_fields_set else " (the default)"
        named = place if is_bucket(place) else f"{spec.storage}{default}: {place}"
        raise SpecError(source, f"storage = {named} cannot be written ({problem}); {helps}")


def bucket_problem(place: str) -> str:
    """Why a bucket cannot be written, known within 5 s; empty: it can."""
    try:
        in_time(_ANSWER_S, lambda: _write_to(place))
    except Exception as error:  # of pyarrow's types, which take a second to import
        return reason(error)
    return ""


def _write_to(place: str) -> None:
    from pyarrow.fs import FileSystem  # noqa: PLC0415 - takes a second

    system, path = FileSystem.from_uri(place)
    with system.open_output_stream(f"{path}/{_TRIED}") as stream:
        stream.write(b"")
    system.delete_file(f"{path}/{_TRIED}")


def reason(error: BaseException) -> str:
    """Why something could not be stored, in one line and without passwords."""
    text = masked(str(error).strip().partition("\n")[0])
    if "Unable to set up cluster storage" in text:  # Ray's text has ten lines
        return "this machine does not see there what the run began with"
    if match := _OF_A_DISK.search(text):
        return match["text"]
    match = _OF_S3.search(text)
    if match is None:
        return (isinstance(error, OSError) and error.strerror) or text or type(error).__name__
    said = _REQUEST.sub("", match["text"]).rstrip(". ")
    if said in {"", "No response body"}:
        said = "are the keys still good?" if match["code"] == "ACCESS_DENIED" else "nothing else is said"
    return f"{said} ({match['code']})"


def what_helps(problem: str) -> str:
    """What to do about the reason for which a bucket could not be written."""
    if _UNKNOWN_KEY.search(problem):
        return "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN where there is one"
    if "NO_SUCH_BUCKET" in problem:
        return "make it, or name another with --storage"
    if "no answer" in problem or "NETWORK_CONNECTION" in problem:
        return "see whether AWS_ENDPOINT_URL (of a server that is not Amazon's) and the credentials are set"
    return "--storage DIR names another"
