"""Keeps a vLLM server at the newest number of a stream.

    python -m taugrad.compressors.integrations.vllm_server http://127.0.0.1:8000 PLACE

It tells the server over HTTP when to change, and to what; the server's engine reads the stream itself. The
routes are open where the server has VLLM_SERVER_DEV_MODE=1: let nobody else reach its port.
"""

import argparse
import json
import signal
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any

from ..patches.store import File, Store, log
from ..patches.stream import complete, number_of

_RETRY_S = 30.0
"""Seconds until requests wait again for files that have led nowhere."""
_SERVED = {"method": "served_weights"}


class VllmServer:
    """A server, and what it was last seen to serve."""

    def __init__(self, url: str, place: str, **init_info: Any) -> None:
        """Names a server and a stream.

        Args:
            url: such as http://127.0.0.1:8000.
            place: the stream, as the server's own process reaches it.
            init_info: see `InitInfo`.
        """
        self._url, self._store, self._init_info = url.rstrip("/"), Store(place), init_info | {"place": place}
        self._number: int | None = None
        self._version = ""
        self._files = dict[str, File]()
        """The store's, when it served their newest number."""
        self._resumed = False
        """Whether no pause of ours, or of a process before this one that was killed, is left."""
        self._left: tuple[dict[str, File], float] = {}, 0.0
        """The files that did not lead on, and until when they are left alone."""

    def follow(self, mode: str = "wait") -> str | None:
        """Brings the server to the newest number that it can reach.

        Args:
            mode: what becomes of requests in between: wait (they end first), abort, or keep (they go on with
                what they have computed from the weights before).

        Returns:
            Number and digest, as `/weight_info` says them, if they are new.

        Raises:
            FileNotFoundError: nothing is published.
            OSError: the server does not answer, or refuses.
        """
        if not self._resumed:
            self._resume()
        files = self._store.files()
        newest = complete(files).newest
        if newest is None:
            raise FileNotFoundError(f"nothing is published in {self._store.place}")
        said = self._call("GET", "weight_info", answers="weight_version")
        is_new = said != self._version
        is_replaced = not is_new and self._is_replaced(files, newest)
        if not is_new and self._number == newest and not is_replaced:
            self._files = files
            return None
        if not is_new and self._left[0] == self._leading(files) and time.monotonic() < self._left[1]:
            return None
        number, digest, fetched = self._served()
        if number == newest and not is_replaced:
            self._files = files
            return self._say(number, digest, said)
        if number is not None and fetched is not None and fetched <= number < newest:
            return None  # requests do not wait while it fetches
        self._resumed = False
        try:
            self._call("POST", f"pause?mode={mode}")
            problem = self._update()
            version = self._say(*self._served()[:2], said)
        finally:
            self._resume()
        if problem is None:
            self._files = files
        else:
            if self._number == number:
                self._left = self._leading(files), time.monotonic() + _RETRY_S
            raise problem
        return version

    def _resume(self) -> None:
        self._call("POST", "resume")
        self._resumed = True

    def _served(self) -> tuple[int | None, str, int | None]:
        """See `EngineReader`: number and digest of what runs, and up to which number it has fetched."""
        if (served := self._call("POST", "collective_rpc", _SERVED, "results")[0]) is None:
            self._call("POST", "init_weight_transfer_engine", {"init_info": self._init_info})
            served = self._call("POST", "collective_rpc", _SERVED, "results")[0]
        number, digest, fetched = served
        return number, digest, fetched

    def _say(self, number: int | None, digest: str, said: str) -> str | None:
        """Has `/weight_info` say what is served; returns it if it is new."""
        self._number = number
        self._version = "unknown" if number is None else f"{number}-{digest}"
        if self._version == said:
            return None
        self._call("POST", "update_weight_version", {"new_version": self._version})
        return self._version

    def _update(self) -> urllib.error.HTTPError | None:
        """Has the engine go as far as files lead; returns the server's refusal."""
        try:
            self._call("POST", "start_weight_update")
        except urllib.error.HTTPError:  # one is active, of a process before this one that was killed
            self._finish()
            self._call("POST", "start_weight_update")
        try:
            self._call("POST", "update_weights", {"update_info": {"number": "newest"}})
        except urllib.error.HTTPError as problem:
            return problem
        finally:
            self._finish()
        return None

    def _finish(self) -> None:
        with suppress(urllib.error.HTTPError):  # of several ranks, those that refuse are in no update
            self._call("POST", "finish_weight_update")

    def _leading(self, files: dict[str, File]) -> dict[str, File]:
        """The files by which the server can go on: the next patch, and snapshots."""
        due = -1 if self._number is None else self._number + 1
        return {n: f for n, f in files.items() if n.endswith(".safetensors") or number_of(n) == due}

    def _is_replaced(self, files: dict[str, File], newest: int) -> bool:
        """Whether the newest number has other files than when it was served, as those of another stream."""
        before, now = (
            {row for row in rows.items() if number_of(row[0]) == newest} for rows in (self._files, files)
        )
        return bool(before) and not before & now

    def _call(self, method: str, path: str, body: Any = None, answers: str = "") -> Any:
        """Returns what a route answers, or one field of it; raises OSError."""
        data = json.dumps(body or {}).encode() if method == "POST" else None
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=600) as response:
            text = response.read()
        try:
            answer = json.loads(text)
            return answer[answers] if answers else answer
        except (ValueError, LookupError, TypeError):
            said = text[:100].decode(errors="replace")
            raise OSError(f"no vLLM server answers there: /{path} says {said!r}") from None


def reason(problem: Exception) -> str:
    """What went wrong, with the beginning of what the server, or a proxy, said about it."""
    said = b""
    if isinstance(problem, urllib.error.HTTPError):
        with suppress(Exception):  # it may be cut off; and a slow one is not waited for
            said = problem.read1(1000)
    return f"{problem} {said.decode(errors='replace')}".strip()


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which resumes first
    server, said = VllmServer(given.url, given.place, verify_every=given.verify_every), ""
    while True:
        try:
            if version := server.follow(given.mode):
                print(version, flush=True)
                said = ""
        except Exception as problem:  # the next round tries again
            if (now := reason(problem)) != said:
                log.warning("%s: %s", given.url, now)
            said = now
        time.sleep(given.every)


if __name__ == "__main__":
    main()
