"""Checks whether a cluster answers and accepts us, before Ray, which tries for minutes and says little."""

import http.client
import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlparse

import psutil

from ...deadline import in_time
from ...spec import SpecError

if TYPE_CHECKING:
    import grpc

T = TypeVar("T")

_ANSWER_S = 2.0
_HEARTBEAT = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_SILENT = (OSError, OverflowError, UnicodeError)
_OK, _NO_TOKEN = 200, (401, 403)
_MODE = "RAY_AUTH_MODE"


def check_cluster(address: str) -> None:
    """Asks a cluster's head, each question for 2 s; `ray.init` would try for ten minutes.

    `address` is RAY_ADDRESS: HOST:PORT, ray://HOST:PORT, or auto, which is replaced by what was found. Where
    nobody set RAY_AUTH_MODE, a token that is here is sent to a cluster that asks for one: `ray.init` does so,
    too, and Ray's job client does not. Raises SpecError: it is no address, nothing answers there, or it wants
    a token that we do not send.
    """
    resolved = _found() if address == "auto" else address
    scheme, _, target = resolved.rpartition("://")
    host, _, port = target.rpartition(":")
    if scheme not in ("", "ray") or not host or not port.isdecimal():
        if scheme not in ("", "ray", "http", "https") and scheme.isidentifier() and find_spec(scheme):
            return  # Ray has the module of that name connect
        raise _refusal(f"{resolved}: must look like HOST:6379 or ray://HOST:10001, or be auto or local")
    if address == "auto":
        address = f"auto, which is {resolved}"
    try:
        in_time(_ANSWER_S, lambda: _connect(host, int(port)))
    except _SILENT as error:  # no host, no port, no name
        raise _no_cluster(address, str(error)) from None
    if os.environ.get("RAY_USE_TLS", "0") in ("", "0", "false"):
        _call(f"{host}:{port}", address)
    if address != resolved:
        os.environ["RAY_ADDRESS"] = resolved  # Ray would look again, and might find another


def _found() -> str:
    """What `auto` stands for, chosen as Ray does: the Ray that runs here, or the one noted as current."""
    # Some processes write their whole command line as one argument.
    lines = [" ".join(process.info["cmdline"] or ()).split() for process in psutil.process_iter(["cmdline"])]
    words = {word for line in lines if line and Path(line[0]).name == "raylet" for word in line}
    running = sorted(word.partition("=")[2] for word in words if word.startswith("--gcs-address="))
    temporary = os.environ.get("RAY_TMPDIR", os.environ.get("TMPDIR", "/tmp"))
    try:
        noted = (Path(temporary) / "ray" / "ray_current_cluster").read_text(encoding="utf-8").strip()
    except OSError:
        noted = ""
    address = noted if noted and len(running) != 1 else "".join(running[:1])
    if not address:
        raise _refusal("auto: no Ray runs on this machine; start one with `ray start --head`")
    return address


def check_job_server(address: str) -> None:
    """Asks a cluster's job server, known within 5 s. A token is used as `check_cluster` says.

    Raises SpecError: nothing answers there, or it wants a token that we do not send.
    """
    source = f"--address {address}"
    try:
        code, reason = _asked(lambda token: _status(address, token), lambda said: said[0] in _NO_TOKEN)
    except http.client.HTTPException:
        raise SpecError(source, "what answers there is not a Ray cluster") from None
    except (*_SILENT, ValueError) as error:
        raise SpecError(source, f"no cluster answers there ({getattr(error, 'reason', error)})") from None
    if code in _NO_TOKEN:
        raise SpecError(source, _token_problem())
    if code != _OK:
        raise SpecError(source, f"what answers there is not a Ray cluster ({code} {reason})")
    if reason:
        raise SpecError(source, f"what answers there is not a Ray cluster: {reason}")


def _status(address: str, token: str) -> tuple[int, str]:
    """What a job server answers: a code of HTTP, and its words; of one that is not Ray's, what it says."""
    try:
        said = in_time(_ANSWER_S, lambda: _read(_request(f"{address.rstrip('/')}/api/version", token)))
    except urllib.error.HTTPError as error:
        return error.code, " ".join(str(error.reason).split())
    with suppress(ValueError, LookupError, TypeError):
        if json.loads(said)["ray_version"]:
            return _OK, ""
    return _OK, repr(said[:100].decode(errors="replace"))


def is_this_machine(address: str) -> bool:
    """Whether the cluster of a job server, which answers, runs here.

    An address on loopback may be one end of a tunnel; the cluster's machines have other names then.
    """
    if urlparse(address).hostname not in {"127.0.0.1", "localhost", "::1"}:
        return False
    request = _request(f"{address.rstrip('/')}/nodes?view=hostNameList", sent_token())
    try:
        answer = in_time(_ANSWER_S, lambda: _read(request))
        names = json.loads(answer)["data"]["hostNameList"]
    except (*_SILENT, http.client.HTTPException, ValueError, KeyError, TypeError):
        return True
    return not names or socket.gethostname() in names


def _read(request: urllib.request.Request) -> bytes:
    with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
        return bytes(answer.read())


def _request(url: str, token: str) -> urllib.request.Request:
    return urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})


def sent_token() -> str:
    """The token that Ray sends from here; empty where it sends none."""
    return _token() if os.environ.get(_MODE, "").lower() == "token" else ""


def _asked(ask: Callable[[str], T], is_refused: Callable[[T], bool]) -> T:
    """What a cluster answers to the token that Ray sends from here, or to the one that is here besides.

    Where that is accepted while nobody said whether to send one, Ray sends it from now on: it reads this
    when it is imported.
    """
    answer = ask(sent_token())
    spare = "" if _MODE in os.environ else _token()
    if spare and is_refused(answer):
        answer = ask(spare)
        if not is_refused(answer):
            os.environ[_MODE] = "token"
    return answer


def _connect(host: str, port: int) -> None:
    socket.create_connection((host.strip("[]"), port), timeout=_ANSWER_S).close()


def _call(target: str, address: str) -> None:
    """One request as Ray's clients send it. Whatever Ray says, but for a missing token, it is Ray."""
    import grpc  # noqa: PLC0415 - takes a second

    refusals = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    code = _asked(lambda token: _heartbeat(target, token), lambda said: said in refusals)
    if code in refusals:
        raise _refusal(f"{address}: {_token_problem()}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        raise _no_cluster(address, f"connected, but no answer within {_ANSWER_S:.0f} s")
    other = code is grpc.StatusCode.UNIMPLEMENTED and not address.startswith("ray://")  # no head of a cluster
    if other or code is grpc.StatusCode.UNAVAILABLE:
        raise _no_cluster(address, "what answers there does not speak Ray's protocol")


def _heartbeat(target: str, token: str) -> "grpc.StatusCode":
    """How a head answers to its heartbeat."""
    import grpc  # noqa: PLC0415

    options = [("grpc.enable_http_proxy", 0)]  # as Ray's own
    with grpc.insecure_channel(target, options=options) as channel:
        ask = channel.unary_unary(_HEARTBEAT)
        metadata = [("authorization", f"Bearer {token}")] if token else []
        try:
            in_time(_ANSWER_S, lambda: ask(b"", timeout=_ANSWER_S, metadata=metadata))
        except grpc.RpcError as error:
            # What is no gRPC at all, such as a proxy, counts as UNIMPLEMENTED, too.
            return grpc.StatusCode.UNAVAILABLE if "http2 header" in str(error.details()) else error.code()
        except TimeoutError:
            return grpc.StatusCode.DEADLINE_EXCEEDED
    return grpc.StatusCode.OK


def _no_cluster(address: str, reason: str) -> SpecError:
    return _refusal(f"{address}: no cluster answers there ({reason})")


def _refusal(problem: str) -> SpecError:
    return SpecError("RAY_ADDRESS", problem)


def _token_problem() -> str:
    """What to do if a cluster does not accept us."""
    mode, token = os.environ.get(_MODE, "token"), _token()
    copy = "copy ~/.ray/auth_token of the cluster's head to ~/.ray here"
    if mode.lower() != "token":
        return f"the cluster wants a token: export {_MODE}=token" + ("" if token else f", and {copy}")
    if token:
        return f"the cluster refuses the token that is used here; {copy}"
    return f"the cluster wants a token, and there is none here; {copy}"


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
