"""A real browser, where there is one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PHONE = {"width": 390, "height": 844}


def found() -> str | None:
    """The browser's path; CHROMIUM names another."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


def needed() -> str:
    """The browser's path; where there is none, the test is skipped, or fails if one was promised."""
    path = found()
    if path is None and os.environ.get("TURNKEEPER_BROWSER") == "required":
        pytest.fail("TURNKEEPER_BROWSER=required, and there is no chromium on PATH")
    if path is None:
        pytest.skip("no browser: install chromium, or name one in CHROMIUM")
    return path


@contextmanager
def launched() -> Iterator[Browser]:
    path = needed()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--disable-dev-shm-usage"])
        yield browser
        browser.close()


class Complaints:
    """What a page has to complain of: errors, what its policy refused, and windows that a script opened."""

    def __init__(self, page: Page) -> None:
        self.heard: list[str] = []
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.heard.append(str(error)))
        page.on("dialog", self._dialog)

    def _note(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.heard.append(text)

    def _dialog(self, dialog) -> None:
        self.heard.append(f"dialog: {dialog.message}")
        dialog.dismiss()
