r"""Makes pages that GitHub shows well show as well on the site (a hook of mkdocs).

- The README is the first page.
- A link that leaves docs/ leads to a page that shows the file, or lists the folder.
- GitHub wants `\|` for a bar in a table's code; on the site it is a bar already.
- A link to a folder of docs/ leads to its README.
- GitHub needs no empty line before a list, and two blanks of indentation within one.
- A browser breaks a line after a hyphen; options such as `--allow-custom` stay whole.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
README, INDEX = "README.md", "index.md"
FILES = "files"
"""The folder of the site that shows files of the repository."""

_LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]+)(#[^)\s]*)?(?=\))")
_INSIDE = re.compile(r"(?<=\]\()(?!\w+:|#)[^)\s]+(?=\))")
_TO_FOLDER = re.compile(r"(?<=\]\()((?:\.\./)*results)/?(?=\))")
_CODE = re.compile(r"`[^`\n]+`")
_CODE_IN_TEXT = re.compile(r"<code>[^<]+</code>")
_OPTION = re.compile(r"--[\w.-]+")
_FENCE = re.compile(r"^\s*(```|~~~)")
_ITEM = re.compile(r"^(?P<indent> *)(?P<marker>(?:[-*+]|\d+\.) )")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".md": "markdown", "": "text"}


def on_files(files: Any, config: Any) -> Any:
    """Adds the README as the first page, and a page for every file outside docs/ that a page links to."""
    text = _INSIDE.sub(lambda link: _from_top(link[0]), (ROOT / README).read_text(encoding="utf-8"))
    files.append(File.generated(config, INDEX, content=text))
    pages = {file.src_uri: file.content_string for file in files.documentation_pages()}
    while pages:
        wanted = {there for source, text in pages.items() for _, there in _outside(text, source)}
        missing = {_page_of(there): there for there in sorted(wanted)}
        pages = {page: _shown(there) for page, there in missing.items() if page not in files.src_uris}
        for page, text in pages.items():
            files.append(File.generated(config, page, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites a page's own text."""
    source = page.file.src_uri
    for link, there in _outside(markdown, source):
        target = posixpath.relpath(_page_of(there), posixpath.dirname(source) or ".")
        markdown = re.sub(rf"(?<=\]\(){re.escape(link)}(?=[)#])", target, markdown)
    markdown = _TO_FOLDER.sub(r"\1/README.md", markdown)
    return "\n".join(_lines(markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Keeps options within a line."""
    return _CODE_IN_TEXT.sub(lambda code: _OPTION.sub(r'<span class="option">\g<0></span>', code[0]), html)


def _outside(markdown: str, source: str) -> Iterator[tuple[str, str]]:
    """Links that leave docs/: as they stand, and the path from the repository's top."""
    for found in _LINK.finditer(markdown):
        there = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), found[1]))
        if not there.startswith("docs/") and (ROOT / there).exists():
            yield found[1], there


def _page_of(there: str) -> str:
    if there == README:
        return INDEX
    return f"{FILES}/{there}" if there.endswith(".md") else f"{FILES}/{there}.md"


def _shown(there: str) -> str:
    """A page that shows a file, or lists a folder."""
    path, hidden = ROOT / there, "---\nsearch: {exclude: true}\n---\n"
    if path.suffix == ".md":
        return hidden + _INSIDE.sub(lambda link: _moved(link[0], there), path.read_text(encoding="utf-8"))
    title = f"# {there}\n\n"
    if path.is_dir():
        inside = sorted(each for suffix in _LANGUAGES for each in path.rglob(f"*{suffix}") if suffix)
        return hidden + title + "".join(f"- `{each.relative_to(path).as_posix()}`\n" for each in inside)
    language = _LANGUAGES.get(path.suffix, "text")
    return f"{hidden}{title}````{language}\n{path.read_text(encoding='utf-8')}````\n"


def _moved(link: str, there: str) -> str:
    """A link of a file as it must stand in the page that shows it."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(there), link))
    up = "../" * len(Path(there).parts)
    return up + path.removeprefix("docs/") if path.startswith("docs/") else f"{up}../{path}"


def _from_top(link: str) -> str:
    """A link of the README as it must stand in docs/."""
    return link.removeprefix("docs/") if link.startswith("docs/") else f"../{link}"


def _lines(markdown: str) -> Iterator[str]:
    fenced, before, width, apart = False, "", 0, False
    for line in markdown.split("\n"):
        fence = _FENCE.match(line)
        fenced = fenced != bool(fence)
        plain = not fenced and not fence
        item = _ITEM.match(line) if plain else None
        if item and not item["indent"]:
            width = len(item["marker"])
        elif line[:1].strip() and (plain or (fence and fenced)):
            width = 0
        if item and (_ends_a_paragraph(before) or apart):
            yield ""
        # A paragraph of its own within a list would take the next item for its own line.
        apart = not item and bool(line.strip()) and (apart or not before.strip()) and line.startswith(" ")
        yield (
            _in_list(line, width)
            if plain is False or not line.startswith("|")
            else _CODE.sub(_with_bars, line)
        )
        before = line


def _in_list(line: str, width: int) -> str:
    """A line with the indentation of Python-Markdown's lists, four blanks a level.

    Args:
        line: as it stands.
        width: of the list's marker, by which GitHub indents; 0 outside lists.
    """
    inside = line.lstrip(" ")
    indent = len(line) - len(inside)
    if not width or not inside or indent < width:
        return line
    return " " * (4 * (indent // width) + indent % width) + inside


def _ends_a_paragraph(line: str) -> bool:
    return bool(line.strip()) and not _ITEM.match(line) and not line.startswith((" ", "\t"))


def _with_bars(code: re.Match[str]) -> str:
    return code[0].replace("\\|", "|")
