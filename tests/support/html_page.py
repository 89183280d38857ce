"""What a browser makes of a page: its elements, texts and links, and what it loads by itself."""

import re
from html.parser import HTMLParser
from pathlib import Path

_LOADING_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "manifest"}
_LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}


class Page(HTMLParser):
    """One page.

    Attributes:
        elements: each with the names of its attributes.
        links: where it leads.
        places: ids and names, to link to.
        loaded: what a browser fetches by itself.
        text: all of it but scripts and styles.
    """

    def __init__(self, source: str | Path) -> None:
        """Reads HTML, or a file of it."""
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.loaded: list[str] = []
        self.text = ""
        self.feed(source if isinstance(source, str) else source.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        values = {name: value or "" for name, value in attrs}
        self.places |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and set(values.get("rel", "").split()) & _LOADING_LINKS:
            self.loaded.append(values.get("href", ""))
        if tag in _LOADING and _LOADING[tag] in values:
            self.loaded.append(values[_LOADING[tag]])
        # Commas stand in addresses, too.
        sources = re.split(r",\s+|(?<=[wx]),", values.get("srcset", ""))
        self.loaded += [source.split()[0] for source in sources if source.strip()]

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:
            self.text += data

    @property
    def words(self) -> str:
        """Its text on one line."""
        return " ".join(self.text.split())
