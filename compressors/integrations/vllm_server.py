"""Keeps a vLLM server at the newest number of a stream.

    python -m taugrad.compressors.integrations.vllm_server http://127.0.0.1:8000 PLACE

It tells the server over HTTP when to change, and to what; the server's engine reads the stream itself. The
routes are open where the server has VLLM_SERVER_DEV_MODE=1: let nobody else reach its port.
"""

import argparse
import http.client
import json
import time
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any

from ..errors import CorruptMessage
from ..patches.store import File, Store, log
from ..patches.stream import complete, summary_of

_RETRY_S = 10.0
"""Seconds until requests wait again for files that have led nowhere."""


class VllmServer:
    """A server, and the number that it was last brought to."""

    def __init__(self, url: str, place: str, **init_info: Any) -> None:
        """Names a server and a stream.

        Args:
            url: such as http://127.0.0.1:8000.
            place: the stream, as the server's own process reaches it.
            init_info: see `InitInfo`.
        """
        self._url, self._store, self._init_info = url.rstrip("/"), Store(place), init_info | {"place": place}
        self._version = ""
        self._left: tuple[dict[str, File], float] = {}, 0.0
        """The files among which nothing led on, and until when they are left alone."""

    def follow(self, mode: str = "wait") -> str | None:
        """Brings the server to the newest number that it can reach.

        Args:
            mode: what becomes of requests in between: wait (they end first), abort, or keep (they go on with
                what they have computed from the weights before).

        Returns:
            Number and digest, as `/weight_info` says them, if they are new.

        Raises:
            OSError: the server does not answer.
        """
        files = self._store.files()
        sets = complete(iter(files))
        if not sets:
            return None
        numbers = sorted({number for _, number in sets}, reverse=True)
        served = self._call("GET", "weight_info")["weight_version"]
        reached = int(served.partition("-")[0]) if served[:1].isdigit() else None
        if served != self._version or reached is None:  # a server that has started, or started again
            self._call("POST", "init_weight_transfer_engine", {"init_info": self._init_info})
            self._version = served
        is_left = self._left[0] == files and time.monotonic() < self._left[1]
        if reached in numbers[:1] or (is_left and reached is not None):
            return None
        self._call("POST", f"pause?mode={mode}")
        try:
            for number in numbers:
                if number == reached:
                    break
                names = sets.get(("patch", number)) or sets["safetensors", number]
                try:
                    version = f"{number}-{summary_of(self._store, names, files).digest:016x}"
                    self._call("POST", "start_weight_update")
                    self._call("POST", "update_weights", {"update_info": {"number": number}})
                except (urllib.error.HTTPError, CorruptMessage, FileNotFoundError) as problem:
                    log.warning("%s stays: %s", self._url, reason(problem))
                    with suppress(urllib.error.HTTPError):  # of several ranks, all but one are in an update
                        self._call("POST", "finish_weight_update")
                    continue
                self._call("POST", "finish_weight_update", {"weight_version": version})
                self._version = version
                return version
        finally:
            self._call("POST", "resume")
        self._left = files, time.monotonic() + _RETRY_S
        return None

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps(body or {}).encode() if method == "POST" else None
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=600) as response:
            return json.load(response)


def reason(problem: Exception) -> str:
    """What went wrong, with what the server said about it."""
    said = problem.read().decode()[:1000] if isinstance(problem, urllib.error.HTTPError) else ""
    return f"{problem} {said}".strip()


def main() -> None:
    """Follows until it is interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of the server, such as http://127.0.0.1:8000")
    parser.add_argument("place", help="a folder, or an address such as s3://bucket/run")
    parser.add_argument("--every", type=float, default=1.0, help="seconds from one look to the next")
    parser.add_argument(
        "--mode", choices=["wait", "abort", "keep"], default="wait", help="for requests meanwhile"
    )
    parser.add_argument(
        "--verify-every", type=int, help="updates after which the digest of what runs is compared"
    )
    given = parser.parse_args()
    server = VllmServer(given.url, given.place, verify_every=given.verify_every)
    while True:
        try:
            if version := server.follow(given.mode):
                print(version, flush=True)
        except (OSError, http.client.HTTPException) as problem:  # the next round tries again
            log.warning("%s: %s", given.url, reason(problem))
        time.sleep(given.every)


if __name__ == "__main__":
    main()
