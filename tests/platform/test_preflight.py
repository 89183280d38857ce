"""What is looked at before anything starts: the cluster that RAY_ADDRESS names."""

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from servers import answering, http

from taugrad.platform.launching.driver.cluster_probe import check_cluster, check_job_server
from taugrad.platform.launching.driver.preflight import check
from taugrad.platform.spec import SpecError
from taugrad.platform.spec.reading import read_spec

TOKEN = "0123456789abcdef"
VERSION = '{"version": "4", "ray_version": "2.60.0"}'


class Head(grpc.GenericRpcHandler):
    """Answers a cluster's heartbeat, as its head does, to those who have the token."""

    def __init__(self, token: str = "") -> None:
        self.token = token

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        def answer(_: bytes, context: grpc.ServicerContext) -> bytes:
            given = dict(context.invocation_metadata()).get("authorization", "")
            if self.token and given != f"Bearer {self.token}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken: ...")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def head(token: str = "") -> Iterator[str]:
    """A cluster's head: its address."""
    server = grpc.server(ThreadPoolExecutor(2), handlers=[Head(token)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


def token_in(asked: str) -> str | None:
    """What an HTTP request gives."""
    match = re.search(r"^Authorization: Bearer (.*?)\r?$", asked, re.MULTILINE | re.IGNORECASE)
    return match and match[1]


@pytest.fixture
def job_server():
    """A cluster's job server that wants the token."""
    said = {None: "401 Unauthorized", TOKEN: "200 OK"}
    with answering(lambda asked: http(said.get(token_in(asked), "403 Forbidden"), VERSION)) as address:
        yield address


@pytest.fixture
def no_token(own_folder, monkeypatch):
    """Where a user keeps the token, who has none."""
    monkeypatch.setenv("HOME", str(own_folder))
    (own_folder / ".ray").mkdir()
    return own_folder / ".ray" / "auth_token"


@pytest.mark.parametrize("address", ["{}", "ray://{}"])
def test_a_cluster_must_answer(address, no_token, monkeypatch):
    spec = read_spec(Path("spec.yaml"))
    with head() as there:
        named = address.format(there)
        monkeypatch.setenv("RAY_ADDRESS", named)
        check(spec, "spec.yaml", local=False)
    with pytest.raises(SpecError, match="no cluster answers there") as refused:
        check(spec, "spec.yaml", local=False)
    assert (refused.value.source, named in str(refused.value)) == ("RAY_ADDRESS", True)
    check(spec, "spec.yaml", local=True)  # which needs none


def test_what_takes_connections_and_never_answers_is_no_cluster(no_token, monkeypatch):
    monkeypatch.setattr("taugrad.platform.launching.driver.cluster_probe._ANSWER_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = f"127.0.0.1:{server.getsockname()[1]}"
        begun = time.monotonic()
        with pytest.raises(SpecError, match=f"{silent}: no cluster answers there"):
            check_cluster(silent)
        with pytest.raises(SpecError, match=r"no cluster answers there \(.*(1 s|timed out)"):
            check_job_server(f"http://{silent}")
        assert time.monotonic() - begun < 100


def refused(address: str, ask: Callable[[str], None] = check_cluster) -> str:
    with pytest.raises(SpecError) as error:
        ask(address)
    assert ask is not check_cluster or error.value.source == "RAY_ADDRESS"
    (problem,) = error.value.problems
    assert "\n" not in problem
    return problem


def test_a_cluster_that_wants_a_token_says_what_helps(no_token, job_server, monkeypatch):
    copy = "copy ~/.ray/auth_token of the cluster's head to ~/.ray here"
    with head(TOKEN) as there:
        for ask, address in ((check_cluster, there), (check_job_server, job_server)):
            for mode in ("token", None):
                monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
                if mode:
                    monkeypatch.setenv("RAY_AUTH_MODE", mode)
                no_token.unlink(missing_ok=True)
                assert refused(address, ask).endswith(f"wants a token, and there is none here; {copy}")
                no_token.write_text("another")
                assert refused(address, ask).endswith(f"refuses the token that is used here; {copy}")
                assert os.environ.get("RAY_AUTH_MODE") == mode
                no_token.write_text(TOKEN + "\n")
                ask(address)  # is taken
                assert os.environ["RAY_AUTH_MODE"] == "token"  # for Ray, which sends it from now on
            monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
            wanted = "the cluster wants a token: export RAY_AUTH_MODE=token"
            assert refused(address, ask).endswith(wanted)
            no_token.unlink()
            assert refused(address, ask).endswith(f"{wanted}, and {copy}")


@pytest.mark.parametrize("body", ["", "{}", "[]", "<h1>Log in</h1>"])
def test_a_page_of_something_else_is_no_job_server(body):
    with answering(lambda _: http("200 OK", body)) as address:
        assert refused(address, check_job_server) == f"what answers there is not a Ray cluster: {body!r}"


def test_a_token_is_sent_on_request_only(no_token, monkeypatch):
    no_token.write_text(TOKEN)
    given = []
    with answering(lambda asked: given.append(token_in(asked)) or http("200 OK", VERSION)) as address:
        check_job_server(address)
        assert given == [None]
        assert "RAY_AUTH_MODE" not in os.environ
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        check_job_server(address)
    assert given == [None, TOKEN]


@pytest.fixture
def here(no_token, tmp_path, monkeypatch):
    """What `auto` finds: the address that `ray start` has written last, and those of the Rays that run."""
    result = SimpleNamespace(noted=tmp_path / "ray" / "ray_current_cluster", running=[])
    result.noted.parent.mkdir()

    def processes(_: list[str]) -> list[SimpleNamespace]:
        lines = [["/x/raylet/raylet", "--a=1", f"--gcs-address={address}"] for address in result.running]
        others = [None, [], ["python", "--gcs-address=127.0.0.1:3"], ["ray::IDLE --gcs-address=127.0.0.1:3"]]
        return [SimpleNamespace(info={"cmdline": line}) for line in [*others, *lines]]

    monkeypatch.setattr("psutil.process_iter", processes)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    return result


def test_auto_is_checked_as_an_address_is(here):
    assert refused("auto").startswith("auto: no Ray runs on this machine; ")
    here.noted.write_text("127.0.0.1:1\n")  # it has ended
    assert refused("auto").startswith("auto, which is 127.0.0.1:1: no cluster answers there (")
    assert os.environ["RAY_ADDRESS"] == "auto"
    with head() as there:
        here.running.append(there)  # Ray takes the only one that runs, whatever is noted
        check_cluster("auto")
        assert os.environ["RAY_ADDRESS"] == there  # Ray does not look once more
        here.running.append("127.0.0.1:2")
        assert refused("auto").startswith("auto, which is 127.0.0.1:1: ")
        here.noted.write_text(there)
        check_cluster("auto")


@pytest.mark.parametrize(
    "address",
    ["head", "head:", ":6379", "ray://head", "http://127.0.0.1:8265", "a.b://c", "127.0.0.1:x", "Auto", " "],
)
def test_what_is_no_address_is_refused(address):
    assert refused(address).startswith(f"{address}: must look like HOST:6379 or ray://HOST:10001, ")


@pytest.mark.parametrize("command", ["train spec.yaml", "search search.yaml", "auto spec.yaml"])
def test_every_command_says_so_before_it_starts(command, own_folder, new_store, said, monkeypatch):
    new_store(own_folder)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert "127.0.0.1:1: no cluster answers there" in said(command)
