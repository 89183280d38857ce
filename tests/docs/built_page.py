"""What a built page has, by its HTML: links, places to link to, and what a browser loads for it."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

_LOADING_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "manifest"}
_LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}


@dataclass
class BuiltPage(HTMLParser):
    """One page."""

    links: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)
    """Ids and names."""
    loaded: list[str] = field(default_factory=list)
    """What a browser fetches by itself."""
    text: str = ""

    def __post_init__(self) -> None:
        HTMLParser.__init__(self)

    @classmethod
    def read(cls, path: Path) -> "BuiltPage":
        page = cls()
        page.feed(path.read_text(encoding="utf-8"))
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.places |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and set(values.get("rel", "").split()) & _LOADING_LINKS:
            self.loaded.append(values.get("href", ""))
        if tag in _LOADING and _LOADING[tag] in values:
            self.loaded.append(values[_LOADING[tag]])
        self.loaded += [part.split()[0] for part in values.get("srcset", "").split(",") if part.strip()]

    def handle_data(self, data: str) -> None:
        self.text += data
