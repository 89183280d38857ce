"""Why a storage did not take something, in one line, and what helps."""

import re

from ..tracking.masking import masked

_OF_S3 = re.compile(r"AWS Error (?P<code>\w+)(?: \([^)]*\))? during \w+ operation: (?P<text>.*)")
_OF_A_DISK = re.compile(r"Detail: \[errno \d+\] (?P<text>.*)")
_REQUEST = re.compile(r"\s*\(Request ID: .*")
_UNKNOWN_KEY = re.compile(
    "ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN_ID|EXPIRED|Expired"
)


def reason(error: BaseException) -> str:
    """Why something could not be stored, in one line and without passwords."""
    text = masked(str(error).strip().partition("\n")[0])
    if "Unable to set up cluster storage" in text:  # Ray's text has ten lines
        return "this machine does not see there what the run began with"
    if found := _OF_A_DISK.search(text):
        return found["text"]
    found = _OF_S3.search(text)
    if found is None:
        return (isinstance(error, OSError) and error.strerror) or text or type(error).__name__
    said = _REQUEST.sub("", found["text"]).rstrip(". ")
    if said in {"", "No response body"}:
        said = "are the keys still good?" if found["code"] == "ACCESS_DENIED" else "nothing else is said"
    return f"{said} ({found['code']})"


def what_helps(problem: str) -> str:
    """What to do about the reason for which a bucket could not be written."""
    if _UNKNOWN_KEY.search(problem):
        return "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN where there is one"
    if "NO_SUCH_BUCKET" in problem:
        return "make it, or name another with --storage"
    if "no answer" in problem or "NETWORK_CONNECTION" in problem:
        return "see whether AWS_ENDPOINT_URL (of a server that is not Amazon's) and the credentials are set"
    return "--storage DIR names another"
