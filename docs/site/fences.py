"""The fenced blocks of a page: what tests check, and what `make docs-long` runs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_OPENING = re.compile(r"^(?P<indent> *)(?P<marks>```+)(?P<language>\w*)\s*$")
_CONTINUED = re.compile(r" *\\\n *")
_FILE = re.compile(r"^(?:#|//) (?P<name>[\w./-]+\.(?:py|yaml|toml))$")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    """The page's path, from the repository's top."""
    line: int
    """Of the page, where the block opens, from 1."""
    language: str
    text: str

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that the block is, by a comment in its first line."""
        found = _FILE.match(self.text.partition("\n")[0])
        return found["name"] if found else None

    @property
    def commands(self) -> list[str]:
        """The lines to type, of a block of bash or of no language; a block with a prompt has outputs, too."""
        if self.language not in {"", "bash"} or re.search(r"^\$ ", self.text, re.MULTILINE):
            return []
        return [line for line in _CONTINUED.sub(" ", self.text).splitlines() if line.strip()]


def pages() -> list[str]:
    """Every page that people write: those of docs/ without what benchmarks wrote, and the README."""
    found = [path for path in DOCS.rglob("*.md") if path.parent.name != "results"]
    return ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in found)]


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page, those in lists without their indentation."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    numbered = iter(enumerate(lines, start=1))
    for number, line in numbered:
        opening = _OPENING.match(line)
        if opening is None:
            continue
        inside = []
        for _, each in numbered:
            if each.strip() == opening["marks"]:
                break
            inside.append(each.removeprefix(opening["indent"]))
        else:
            raise ValueError(f"{page}:{number}: this block, or one before it, is not closed")
        yield Block(page, number, opening["language"], "\n".join(inside) + "\n")
