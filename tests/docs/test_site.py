"""The site as it is built: whole, with links that lead somewhere, and without anything from elsewhere."""

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import needs_chromium, open_page, screenshot
from html_page import Page

MOST_RESULTS = 3
"""Pages of results that the browser opens: they are all alike."""
WIDE, NARROW = 1280, 400
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


@pytest.mark.long
@needs_chromium
def test_pages_fit_wide_and_narrow_windows_and_search_works_without_a_network(site, pages):
    results = [name for name in pages if re.match(r"results/\d", name)]
    opened = [name for name in pages if name not in results[MOST_RESULTS:] and not name.startswith("files/")]
    too_wide, asked = [], []
    with open_page(WIDE, 900) as (page, errors):
        page.on("request", lambda request: asked.append(request.url))
        for name in opened:
            page.set_viewport_size(
                {"width": WIDE, "height": 900}
            )  # a window that grows is too wide for a moment
            page.goto((site / name).as_uri())
            for width in (WIDE, NARROW):
                page.set_viewport_size({"width": width, "height": 900})
                room, taken = page.evaluate(
                    "[document.documentElement.clientWidth, document.documentElement.scrollWidth]"
                )
                if taken > room:
                    too_wide.append(f"{name} at {width}: {taken}")
        page.set_viewport_size({"width": WIDE, "height": 900})
        page.goto((site / "index.html").as_uri())
        page.get_by_role("textbox", name="Search").fill("golomb")
        page.locator(".md-search-result__link").first.wait_for()
        page.locator(".md-search-result__link", has_text="olomb").first.wait_for(state="attached")
        screenshot(page, "site_search")
    assert not too_wide
    assert not errors
    assert {urlsplit(address).scheme for address in asked} <= {"file", "data", "blob", "about"}
