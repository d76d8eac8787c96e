"""Headless Chromium of the system, driven by Playwright."""

import shutil
from pathlib import Path
from typing import Any

from playwright.sync_api import ConsoleMessage, Page

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
DESKTOP, PHONE = (1280, 900), (390, 844)


def chromium() -> str | None:
    """Return the path of the browser, None if it is not installed."""
    return next((path for path in map(shutil.which, PROGRAMS) if path is not None), None)


class Browser:
    """Page of a browser with a fresh profile, with requests, errors and warnings since `open`."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.warnings: list[str] = []
        page.on("request", lambda request: self._asked(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._said)

    def _asked(self, url: str) -> None:
        if not url.startswith(("data:", "blob:", "about:")):
            self.requests.append(url)

    def _said(self, message: ConsoleMessage) -> None:
        kept = {"error": self.errors, "assert": self.errors, "warning": self.warnings}
        kept.get(message.type, []).append(f"{message.text} {message.location.get('url', '')}")

    def look(self, size: tuple[int, int] = DESKTOP, dark: bool = False, media: Any = "screen") -> None:
        """Set the size of the window in CSS pixels, the colour scheme, and the medium, screen or print."""
        self._page.set_viewport_size({"width": size[0], "height": size[1]})
        self._page.emulate_media(media=media, color_scheme="dark" if dark else "light")

    def open(self, url: str | Path) -> None:
        """Open a page, or a file, and wait until it has loaded."""
        for kept in (self.requests, self.errors, self.warnings):
            kept.clear()
        self._page.goto(url.resolve().as_uri() if isinstance(url, Path) else url)

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, awaited if it is a promise."""
        return self._page.evaluate(expression)

    def wait_for(self, condition: str, seconds: float = 60) -> None:
        """Wait until an expression is true."""
        self._page.wait_for_function(condition, timeout=1000 * seconds)

    def click(self, text: str) -> None:
        """Click the first element that shows exactly this text, once nothing covers it."""
        self._page.get_by_text(text, exact=True).first.click()

    def press(self, key: str) -> None:
        """Press a key, such as Enter or Tab."""
        self._page.keyboard.press(key)
