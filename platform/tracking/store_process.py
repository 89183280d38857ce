"""A process that talks to MLflow for a worker, so that MLflow's Python takes no turn from training's.

To store a metric takes MLflow about 50 us of Python, and the threads of a process run Python one at a time: a
batch of a thousand metrics from a thread of its own would stop a training for 50 ms, and MLflow's import for
seconds. The process gets questions and gives answers as lines of JSON. It ends when its input does, and so
never outlives the worker for long.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import IO, Any

from .store import LateStore
from .writer import Point, Stored

_LEAVING_S = 2.0
"""How long the process may take to end by itself."""


class StoreError(Exception):
    """What MLflow raised in the process, in its words.

    Attributes:
        error_code: MLflow's name for it; empty if it has none.
    """

    def __init__(self, said: str, error_code: str) -> None:
        super().__init__(said)
        self.error_code = error_code


class StoreProcess:
    """A tracking store, opened in another process when it is first needed.

    Threads may share it; their calls wait for one another. If the process cannot be started, or ends too
    early, everything goes on in this one.
    """

    def __init__(self, uri: str) -> None:
        """Starts nothing yet.

        Args:
            uri: the tracking URI.
        """
        self._uri = uri
        self._turn = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._own: LateStore | None = None
        """The store in this process, where there is no other."""
        self._closed = False

    def log_points(self, run_id: str, points: Sequence[Point]) -> None:
        """Stores metrics of a run; raises StoreError, as all of these do."""
        self._ask("log_points", run_id, [point[:4] for point in points])

    def stored(self, run_id: str) -> Stored:
        """How far the store has a run's metrics."""
        return Stored(*self._ask("stored", run_id))

    def set_tag(self, run_id: str, name: str, value: str) -> None:
        """Tags a run."""
        self._ask("set_tag", run_id, name, value)

    def log_text(self, run_id: str, text: str, name: str) -> None:
        """Stores a text as an artifact of a run."""
        self._ask("log_text", run_id, text, name)

    def close(self) -> None:
        """Ends the process; what was not answered may not be done. Nothing can be asked any more."""
        self._closed = True
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_LEAVING_S)
        except subprocess.TimeoutExpired:  # it waits for a store that does not answer
            process.kill()
            process.wait()

    def _ask(self, call: str, *arguments: Any) -> Any:
        with self._turn:
            answer = None if self._own is not None else self._told([call, *arguments])
            if answer is None and self._closed:
                raise StoreError("the store was closed", "")
            if answer is None:
                self._own = self._own or LateStore(self._uri)
                answer = _answer(self._own, [call, *arguments])
        if "said" in answer:
            raise StoreError(answer["said"], answer["code"])
        return answer["result"]

    def _told(self, question: list[Any]) -> dict[str, Any] | None:
        """What the process answers; None if there is none."""
        try:
            if self._process is None:
                self._process = _started(self._uri)
            asked, told = self._process.stdin, self._process.stdout
            assert asked is not None
            assert told is not None
            _write(asked, question)
            line = told.readline()
            answer: dict[str, Any] | None = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):  # it could not be started, has ended, or was closed
            return None
        return answer


def _started(uri: str) -> "subprocess.Popen[bytes]":
    """The process; the URI goes by its input, as it may have a password in it."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],  # -P: nothing is imported from the working directory
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C ends the worker, which may have something left to store
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdin is not None
    _write(process.stdin, uri)
    return process


def _write(file: IO[bytes], what: object) -> None:
    file.write(json.dumps(what).encode() + b"\n")
    file.flush()


def _answer(store: LateStore, question: list[Any]) -> dict[str, Any]:
    """Of a store to a question: its result, or what it raised."""
    call, *arguments = question
    try:
        calls: dict[str, Callable[..., Any]] = {
            "log_points": store.log_points,
            "stored": store.stored,
            "set_tag": store.client.set_tag,
            "log_text": store.client.log_text,
        }
        return {"result": calls[call](*arguments)}
    except Exception as error:  # whoever asked decides what to do
        return {"said": str(error) or type(error).__name__, "code": getattr(error, "error_code", "")}


def main() -> None:
    """Answers until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    questions = sys.stdin.buffer
    store = LateStore(json.loads(questions.readline()))
    for line in questions:
        _write(answers, _answer(store, json.loads(line)))


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):  # the worker has ended
        main()
