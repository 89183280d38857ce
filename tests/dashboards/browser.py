"""A real Chromium, driven by playwright: Debian's package, no download."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from needs import REQUIRED

CHROMIUM = os.environ.get("TAUGRAD_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
SCREENSHOTS = Path(os.environ.get("TAUGRAD_SCREENSHOTS", "build/screenshots"))
TIMEOUT_MS = 180_000  # a busy machine draws slowly

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and REQUIRED not in os.environ,
    reason="needs Chromium: apt-get install chromium, or its path in TAUGRAD_CHROMIUM",
)


@contextmanager
def open_page(width: int, height: int) -> Iterator[tuple[Any, list[str]]]:
    """A fresh page, and the list to which its errors are added: exceptions and console errors."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": width, "height": height}, locale="en-GB")
            errors: list[str] = []
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
            page.set_default_timeout(TIMEOUT_MS)
            yield page, errors
        finally:
            browser.close()


def screenshot(page: Any, name: str, **options: Any) -> Path:
    """Keeps a picture of the page."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    path = SCREENSHOTS / f"{name}.png"
    page.screenshot(path=path, **options)
    return path
