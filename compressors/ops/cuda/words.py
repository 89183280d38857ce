"""Elements that words name, on a device. Nothing here waits."""

from typing import Any

from .runtime import Runtime

_THREADS = 256


def _launch(runtime: Runtime, kernel: str, words: Any, *arguments: Any) -> None:
    runtime.launch("words", kernel, -(-int(words.size) // _THREADS), _THREADS, words, *arguments)


def clear_named(runtime: Runtime, words: Any, base: int, dense: Any) -> None:
    """Sets to zero the elements of `dense` (float32 [n]) that words name; dense[0] has position `base`."""
    _launch(runtime, "clear_named", words, int(words.size), base, dense, int(dense.size))
