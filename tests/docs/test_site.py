"""The site as it is built: whole, with links that lead somewhere, and without anything from elsewhere."""

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from html_page import Page

_IN_STYLES = re.compile(r"(?:url\(|@import\s+)['\"]?(?P<address>[^'\")\s]+)")

page_at = cache(Page)


@pytest.fixture(scope="module")
def pages(site):
    """By their paths; the page for what is not found has links of a server alone."""
    results = {path.relative_to(site).as_posix(): page_at(path) for path in sorted(site.rglob("*.html"))}
    results.pop("404.html")
    return results


def test_every_benchmark_with_results_is_in_their_list():
    folder = Path(__file__).resolve().parents[2] / "docs" / "results"
    listed = (folder / "README.md").read_text(encoding="utf-8")
    for path in folder.glob("2*.md"):
        of_any_date = re.sub(r"^\d{4}-\d\d-\d\d", "DATE", path.name)
        assert f"`{of_any_date}`" in listed or f"({path.name})" in listed, path.name


def test_nothing_is_loaded_from_elsewhere(site, pages):
    addresses = [(name, address) for name, page in pages.items() for address in page.loaded]
    for style in site.rglob("*.css"):
        matches = _IN_STYLES.finditer(style.read_text(encoding="utf-8"))
        addresses += [(style.name, match["address"]) for match in matches]
    assert len(addresses) > 5 * len(pages)
    elsewhere = {
        pair for pair in addresses if urlsplit(pair[1]).scheme not in {"", "data"} or pair[1][:2] == "//"
    }
    assert not elsewhere


def test_links_lead_to_pages_and_places_that_are_there(site, pages):
    broken = []
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = (site / name).parent / unquote(parts.path) if parts.path else site / name
            there = target.is_file() or (target / "index.html").is_file()
            place = unquote(parts.fragment)
            if not there or (
                place and target.suffix == ".html" and place not in page_at(target.resolve()).places
            ):
                broken.append(f"{name}: {link}")
    assert not broken
