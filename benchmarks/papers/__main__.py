"""Writes docs/papers.md: `python -m benchmarks.papers`."""

from .claims import PAGE, page

PAGE.write_text(page(), encoding="utf-8")
