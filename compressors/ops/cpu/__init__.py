"""The operations on the CPU, compiled by numba."""

from pathlib import Path

from .compiling import announce, ensure_cache

announce()
CACHE: Path | None = ensure_cache()  # before any kernel is defined
"""Where compiled code is kept, if numba found no folder by itself."""
