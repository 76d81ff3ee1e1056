"""A browser for tests of pages: Chromium of the system, without a window."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """Yield Selenium's driver of a Chromium with a profile of its own; the test is skipped where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    browser, control = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or control is None:
        pytest.skip("the programs chromium and chromedriver are absent (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for word in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "disable-background-networking",
                 "disable-component-update", "disable-sync", "no-first-run", "no-proxy-server", "window-size=1280,800",
                 f"user-data-dir={profile}"):  # fmt: skip
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(control))
    try:
        yield driver
    finally:
        driver.quit()


def complaints(driver: Any) -> list[str]:
    """Return the console's new messages: script errors and files that were not found."""
    return [entry["message"] for entry in driver.get_log("browser")]
