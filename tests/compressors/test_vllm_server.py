"""The process beside a vLLM server, against a server that has the same routes and rules."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from taugrad.compressors import PatchWriter
from taugrad.compressors.integrations.vllm_server import VllmServer
from taugrad.compressors.patches import listing


class Server(ThreadingHTTPServer):
    """The state that vLLM's routes for weights have, and the numbers that the engine refuses."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Routes)
        self.refused = set[int]()
        self.start_again()

    def start_again(self) -> None:
        self.version, self.number = "default", -1
        self.ready = self.updates = self.paused = False

    def route(self, path: str, body: dict[str, Any]) -> None:
        """Raises AssertionError where vLLM would answer 500."""
        if path == "init_weight_transfer_engine":
            self.ready = True
        elif path == "start_weight_update":
            assert not self.updates, "a weight update is already active"
            self.updates = True
        elif path == "update_weights":
            number = body["update_info"]["number"]
            assert self.ready, "init_weight_transfer_engine must be called first"
            assert self.paused
            assert number not in self.refused, f"number {number} is not reached"
            self.number = number
        elif path == "finish_weight_update":
            assert self.updates, "no weight update is active"
            self.updates, self.version = False, body.get("weight_version", self.version)
        elif path in ("pause?mode=wait", "resume"):
            self.paused = path != "resume"


class Routes(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._answer(200, {"weight_version": self.server.version})

    def do_POST(self) -> None:
        try:
            size = int(self.headers["Content-Length"])
            self.server.route(self.path[1:], json.loads(self.rfile.read(size)))
        except AssertionError as problem:
            self._answer(500, {"error": str(problem)})
        else:
            self._answer(200, {})

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


def test_a_server_is_brought_to_the_newest_number_that_it_reaches(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    beside = VllmServer(f"http://127.0.0.1:{server.server_port}", str(tmp_path))
    assert beside.follow() is None  # nothing is published yet
    weights = {"weight": torch.arange(4096.0)}
    with PatchWriter(tmp_path, full_every=10**6) as writer:

        def publish() -> str:
            weights["weight"][5] += 1
            number = writer.write(weights).number
            return f"{number}-{list(listing(tmp_path))[-1].split()[-1]}"

        for _ in range(2):
            newest = publish()
            assert beside.follow() == newest == server.version
            assert beside.follow() is None
        server.refused = {2}
        publish()
        assert beside.follow() is None
        assert "number 2 is not reached" in caplog.text
        assert (server.version, server.number, server.paused) == (newest, 1, False)
        server.refused = set()
        assert beside.follow() is None  # requests do not wait again for the same files, for a while
        newest = publish()
        assert beside.follow() == newest == server.version

        server.refused = {0, 1, 2, 3}
        server.start_again()
        assert beside.follow() is None
        server.start_again()  # before it has reached a number
        server.refused = {3}
        assert beside.follow() is not None
        assert server.number == 2

        publish()
        patch = tmp_path / "0000000004.patch"
        good = patch.read_bytes()
        patch.write_bytes(good[:9])
        server.refused = set()
        assert beside.follow() == server.version == newest
        patch.write_bytes(good)
        assert beside.follow() == server.version
        assert (server.number, server.updates, server.paused) == (4, False, False)
