"""Escapes texts that others wrote, such as names of runs in a shared store.

The HTML page escapes everything that it shows (`report_page.py`), and figures show texts as they are
(`style.as_written`). This module is for Markdown, CSV and file names.
"""

import html
import re
from collections.abc import Iterable, Sequence

_MARKUP = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
"""Characters with a meaning in a line of Markdown; an underscore within a word has none."""
_FORMULA = ("=", "+", "-", "@")
"""How a formula begins, for a spreadsheet that opens CSV."""


def in_markdown(text: str) -> str:
    """A text for a cell of a Markdown table: on one line, without markup, HTML, links and formulas."""
    return _MARKUP.sub(r"\\\g<0>", html.escape(" ".join(text.split()), quote=False))


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> str:
    """A table in Markdown, ending with a newline; the first columns are texts, the others numbers."""
    ruler = f"|{' --- |' * texts}{' ---: |' * (len(headings) - texts)}"
    first, *lines = ("| " + " | ".join(map(in_markdown, each)) + " |" for each in (headings, *rows))
    return "\n".join([first, ruler, *lines]) + "\n"


def in_csv(text: str) -> str:
    """A text for a cell of CSV: what a spreadsheet would take for a formula has a `'` before it."""
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def in_path(text: str) -> str:
    """A text as a file's name, or a part of one: without slashes, and dots that lead to other folders."""
    return re.sub(r"[^\w-]", "_", text)
