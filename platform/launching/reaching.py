"""Whether a cluster answers and takes us, asked before Ray, which tries for minutes and says little."""

import http.client
import os
import socket
import urllib.error
import urllib.request
from pathlib import Path

from ..deadline import in_time
from ..spec import SpecError

_ANSWER_S = 2.0
_HEARTBEAT = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_SILENT = (OSError, OverflowError, UnicodeError)


def check_cluster(address: str, source: str = "RAY_ADDRESS") -> None:
    """Asks a cluster's head, known within 5 s.

    Args:
        address: HOST:PORT or ray://HOST:PORT; others, such as auto, are Ray's matter.
        source: where it was given, for messages.

    Raises:
        SpecError: nobody answers there, or wants a token that we do not send.
    """
    target = address.rpartition("://")[2]
    host, separator, port = target.rpartition(":")
    if not separator or not port.isdecimal():
        return
    try:
        in_time(_ANSWER_S, lambda: _connect(host, int(port)))
    except _SILENT as error:  # no host, no port, no name
        raise _no_cluster(source, address, str(error)) from None
    if os.environ.get("RAY_USE_TLS", "0") in ("", "0", "false"):
        _call(target, address, source)


def check_job_server(address: str) -> None:
    """Asks a cluster's job server, known within 5 s.

    Raises:
        SpecError: nobody answers there, or wants a token that we do not send.
    """
    source = f"--address {address}"
    request = urllib.request.Request(f"{address.rstrip('/')}/api/version")
    token = sent_token()
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        in_time(_ANSWER_S, lambda: urllib.request.urlopen(request, timeout=_ANSWER_S).close())
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise SpecError(source, [_token_problem()]) from None
        raise SpecError(
            source, [f"what answers there is no Ray cluster ({error.code} {error.reason})"]
        ) from None
    except urllib.error.URLError as error:
        raise SpecError(source, [f"no cluster answers there ({error.reason})"]) from None
    except http.client.HTTPException:
        raise SpecError(source, ["what answers there is no Ray cluster"]) from None
    except (*_SILENT, ValueError) as error:
        raise SpecError(source, [f"no cluster answers there ({error})"]) from None


def sent_token() -> str:
    """The token that Ray sends from here; empty where it sends none."""
    return _token() if os.environ.get("RAY_AUTH_MODE", "").lower() == "token" else ""


def _connect(host: str, port: int) -> None:
    socket.create_connection((host.strip("[]"), port), timeout=_ANSWER_S).close()


def _call(target: str, address: str, source: str) -> None:
    """One request as Ray's clients send it. Whatever Ray says, but for a missing token, it is Ray."""
    import grpc  # noqa: PLC0415 - takes a second

    token = sent_token()
    options = [("grpc.enable_http_proxy", 0)]  # as Ray's own
    with grpc.insecure_channel(target, options=options) as channel:
        ask = channel.unary_unary(_HEARTBEAT)
        metadata = [("authorization", f"Bearer {token}")] if token else []
        try:
            in_time(_ANSWER_S, lambda: ask(b"", timeout=_ANSWER_S, metadata=metadata))
        except grpc.RpcError as error:
            code = error.code()
        except TimeoutError:
            code = grpc.StatusCode.DEADLINE_EXCEEDED
        else:
            return
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        raise SpecError(source, [f"{address}: {_token_problem()}"])
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        raise _no_cluster(source, address, f"connected, but no answer within {_ANSWER_S:.0f} s")
    if code is grpc.StatusCode.UNAVAILABLE:
        raise _no_cluster(source, address, "what answers there does not speak Ray's language")


def _no_cluster(source: str, address: str, reason: str) -> SpecError:
    return SpecError(source, [f"{address}: no cluster answers there ({reason})"])


def _token_problem() -> str:
    """What to do where a cluster does not take us."""
    mode, token = os.environ.get("RAY_AUTH_MODE", ""), _token()
    copy = "copy ~/.ray/auth_token of the cluster's head to ~/.ray here"
    if mode.lower() == "token":
        return f"the cluster refuses the token that is used here; {copy}" if token else (
            f"the cluster wants a token, and there is none here; {copy}"
        )  # fmt: skip
    return "the cluster wants a token: export RAY_AUTH_MODE=token" + ("" if token else f", and {copy}")


def _token() -> str:
    """The token that Ray would find here."""
    given = os.environ.get("RAY_AUTH_TOKEN", "").strip()
    if given:
        return given
    path = os.environ.get("RAY_AUTH_TOKEN_PATH", "") or Path.home() / ".ray" / "auth_token"
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").strip()
    except OSError:
        return ""
