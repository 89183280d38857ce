"""The process beside a vLLM server, against a server that has the same routes and rules."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from cases import in_turn

from taugrad.compressors import PatchWriter
from taugrad.compressors.integrations.vllm_server import VllmServer, reason


class Server(ThreadingHTTPServer):
    """The state that vLLM's routes for weights have, and the numbers that the engine refuses."""

    def __init__(self, place: Path) -> None:
        super().__init__(("127.0.0.1", 0), Routes)
        self.place = place
        self.refused = set[int]()
        self.start_again()

    def beside(self) -> VllmServer:
        return VllmServer(f"http://127.0.0.1:{self.server_port}", str(self.place))

    def start_again(self) -> None:
        self.version, self.number = "default", -1
        self.ready = self.updates = self.paused = False
        self.fetched = None

    def route(self, path: str, body: dict[str, Any]) -> Any:
        """Raises AssertionError where vLLM would answer 500."""
        if path == "init_weight_transfer_engine":
            self.ready = True
        elif path == "start_weight_update":
            assert not self.updates, "a weight update is already active"
            self.updates = True
        elif path == "update_weights":
            assert body["update_info"] == {"number": "newest"}
            assert self.ready, "init_weight_transfer_engine must be called first"
            assert self.paused
            self.updates, began = False, self.number
            published = {int(name.name[:10]) for name in self.place.glob("0*")}
            reached = {n for n in published - self.refused if began is None or n > began}
            reached |= {max(published)} & {began}
            assert reached, f"number {max(published)} is not reached"
            self.number = max(reached)
            self.updates = True
        elif path == "finish_weight_update":
            assert self.updates, "no weight update is active"
            self.updates = False
        elif path == "update_weight_version":
            self.version = body["new_version"]
        elif path == "collective_rpc":
            assert body == {"method": "served_weights"}
            return {
                "results": [[self.number, f"{self.number or 0:016x}", self.fetched] if self.ready else None]
            }
        elif path in ("pause?mode=wait", "resume"):
            self.paused = path != "resume"
        return {}


class Routes(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._answer(200, {"weight_version": self.server.version})

    def do_POST(self) -> None:
        try:
            size = int(self.headers["Content-Length"])
            answer = self.server.route(self.path[1:], json.loads(self.rfile.read(size)))
        except AssertionError as problem:
            self._answer(500, {"error": str(problem)})
        else:
            self._answer(200, answer)

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


def test_a_server_is_brought_to_the_newest_number_that_it_reaches(server: Server, tmp_path: Path) -> None:
    beside = server.beside()
    with pytest.raises(FileNotFoundError, match="nothing is published"):
        beside.follow()
    weights = {"weight": torch.arange(4096.0)}
    with PatchWriter(tmp_path, full_every=10**6) as writer:

        def publish() -> int:
            weights["weight"][5] += 1
            return writer.write(weights).number

        def served() -> tuple[int, str]:
            assert not server.paused
            assert not server.updates
            return server.number, server.version

        for number in (0, 1):
            publish()
            assert beside.follow() == f"{number}-{number:016x}" == server.version
            assert beside.follow() is None
        server.refused = {2}
        publish()
        with pytest.raises(OSError, match="500") as problem:
            beside.follow()
        assert "number 2 is not reached" in reason(problem.value)
        assert served() == (1, f"1-{1:016x}")
        server.refused, server.paused = set(), True
        assert beside.follow() is None  # requests do not wait again for the same files, for a while
        server.paused = False
        publish()
        assert beside.follow() is None  # it follows upon what was refused
        (tmp_path / "0000000002.patch").touch()
        assert beside.follow()
        assert served() == (3, f"3-{3:016x}")

        server.fetched = 3
        publish()
        assert beside.follow() is None  # it has not been fetched
        server.fetched = 4
        assert beside.follow()
        assert served() == (4, f"4-{4:016x}")

        server.start_again()
        assert beside.follow()
        assert served() == (4, f"4-{4:016x}")
        server.start_again()
        server.ready, server.number = True, 4  # of the newest snapshot
        server.refused = {4}
        assert beside.follow()
        assert served() == (4, f"4-{4:016x}")

        server.number, server.version, server.refused = None, "4", set(range(5))  # of no number any more
        with pytest.raises(OSError, match="500"):
            beside.follow()
        assert server.version == "unknown"


def test_a_stream_that_was_replaced_is_loaded_where_its_newest_number_is_the_same(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = server.beside()
    with PatchWriter(tmp_path) as writer:
        writer.write({"weight": torch.ones(9)})
    monkeypatch.setattr(server, "route", route := Mock(wraps=server.route))

    def updates() -> int:
        beside.follow()
        return sum(call.args[0] == "update_weights" for call in route.mock_calls)

    assert [updates(), updates()] == [1, 1]
    (tmp_path / f"{0:010d}.safetensors").unlink()
    with PatchWriter(tmp_path) as writer:
        writer.write({"weight": torch.zeros(9)})
    assert [updates(), updates()] == [2, 2]


def test_what_a_follower_has_left_that_was_killed(server: Server, tmp_path: Path) -> None:
    """Between pause and resume, and between start and finish of an update; nothing or something is new."""
    with PatchWriter(tmp_path) as writer:
        for number in (0, 1):
            writer.write({"weight": torch.ones(9) + number})
            server.beside().follow()
            server.paused = server.updates = True
            if number:
                writer.write({"weight": torch.zeros(9)})
            server.beside().follow()
            assert not server.paused
            assert server.updates == (number == 0)
            assert server.number == 2 * number


@in_turn(
    ("status", "body", "size", "said"),
    [
        (502, "<h1>Passerelle non trouvée</h1>".encode("latin-1"), 0, "502: Bad Gateway .*trouv\ufffde"),
        (502, b"<h1>Bad", 10**6, "502: Bad Gateway <h1>Bad"),  # and nothing follows
        (200, b"<h1>Log in</h1>", 0, "no vLLM server answers there: /resume says '<h1>Log in</h1>'"),
        (200, b"{}", 0, "no vLLM server answers there: /weight_info says '{}'"),
    ],
)
def test_what_a_proxy_answers_is_said(status: int, body: bytes, size: int, said: str, tmp_path: Path) -> None:
    ended = threading.Event()

    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(size or len(body)))
            self.end_headers()
            self.wfile.write(body)
            if size:
                ended.wait()

        def log_message(self, *_: Any) -> None:
            pass

    with PatchWriter(tmp_path) as writer:
        writer.write({"weight": torch.ones(9)})
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever).start()
        with pytest.raises(OSError, match=r"502|no vLLM server") as problem:
            VllmServer(f"http://127.0.0.1:{proxy.server_port}", str(tmp_path)).follow()
        assert re.search(said, reason(problem.value))
        ended.set()
        proxy.shutdown()


@in_turn("route", ["pause?mode=wait", "update_weights"])
def test_a_server_that_does_not_answer_is_left_as_before(
    route: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = server.beside()
    server.start_again()
    with PatchWriter(tmp_path) as writer:
        writer.write({"weight": torch.ones(9)})
    call = VllmServer._call

    def cut_off(self: VllmServer, method: str, path: str, *body: Any, **answers: Any) -> Any:
        result = call(self, method, path, *body, **answers)
        if path == route:
            raise TimeoutError("timed out")
        return result

    with monkeypatch.context() as patched:
        patched.setattr(VllmServer, "_call", cut_off)
        with pytest.raises(TimeoutError):
            beside.follow()
    assert not server.paused
    assert not server.updates
    assert server.version == "default"
    assert beside.follow()
