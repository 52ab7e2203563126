"""Pages in a real, headless Chromium; pictures are left in `screenshots/`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.support.studies import REPOSITORY

SCREENSHOTS = REPOSITORY / "screenshots"
ANSWERED_404 = ("/ajax-api/2.0/mlflow/users/current",)
"""What MLflow's pages ask of a server with accounts; one without answers 404, and the pages go on."""
HARMLESS = (*ANSWERED_404, "ResizeObserver loop completed with undelivered notifications")
"""The second: charts that a browser draws in its next picture."""
QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


@contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    """A browser with a profile of its own."""
    options = webdriver.ChromeOptions()
    for argument in (*QUIET, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    SCREENSHOTS.mkdir(exist_ok=True)
    try:
        yield driver
    finally:
        driver.quit()


def look(
    browser: webdriver.Chrome, address: str, name: str, *texts: str, width: int = 1280, height: int = 1400
) -> None:
    """Opens a page, waits until every text is on it, keeps a picture, and fails for errors in its scripts."""
    browser.get_log("browser")
    browser.set_window_size(width, height)
    browser.get(address)
    try:
        for text in texts:
            WebDriverWait(browser, 30).until(
                lambda page, text=text: text in page.find_element(By.TAG_NAME, "body").text
            )
        _wait_until_settled(browser)  # pictures and charts are drawn after the text
    finally:
        browser.save_screenshot(str(SCREENSHOTS / f"{name}.png"))
    severe = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [message for message in severe if not any(known in message for known in HARMLESS)]


def _wait_until_settled(browser: webdriver.Chrome, quiet_seconds: float = 0.5, at_most_seconds: float = 5.0) -> None:
    """Waits until a page has loaded nothing and changed nothing for a while."""
    state = "return [performance.getEntriesByType('resource').length, document.body?.innerHTML.length]"
    began = changed = time.monotonic()
    seen = None
    while time.monotonic() < min(changed + quiet_seconds, began + at_most_seconds):
        if (now := browser.execute_script(state)) != seen:
            seen, changed = now, time.monotonic()
        time.sleep(0.05)
