"""The figures of a report as PNG files, for slides: a Chromium without a window draws the page with all of them."""

import base64
import html
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from scalestudy.experiments.study.folder import StudyFolder

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
WINDOW = (1240, 1600)
"""Pixels of the page's picture, which has room for the answer and the first figures."""
SECONDS = 60
"""Seconds without a picture after which the browser counts as broken."""


class BrowserError(RuntimeError):
    """No browser, or one that draws nothing."""


def write_pictures(folder: StudyFolder) -> list[Path]:
    """Write every figure of a study's report.html as figures/NAME.png, and the page's top as figures/report.png.

    Delete the pictures of an earlier report. Raises BrowserError, and OSError where a file can't be read or written.
    """
    page = folder.report_file.absolute().as_uri()
    with tempfile.TemporaryDirectory(prefix="scalestudy-") as scratch:
        # the figures of the page are drawn after it is loaded: virtual time waits for them
        text = _browse(scratch, "--virtual-time-budget=20000", "--dump-dom", f"{page}#pictures")
        told = re.search(r'<pre id="pictures">(.*?)</pre>', text, re.DOTALL)
        if told is None:
            raise BrowserError("the browser did not draw the report's figures")
        pictures = {name: base64.b64decode(data) for name, data in json.loads(html.unescape(told[1])).items()}
        whole = Path(scratch) / "report.png"
        _browse(scratch, f"--screenshot={whole}", page)
        if not whole.exists():
            raise BrowserError("the browser did not draw the report")
        pictures["report"] = whole.read_bytes()
    for file in sorted(folder.figures.glob("*.png")):
        if file.stem not in pictures:
            folder.delete(file)
    for name, data in pictures.items():
        folder.write_bytes(folder.figure_file(name), data)
    return [folder.figure_file(name) for name in pictures]


def _browse(scratch: str, *arguments: str) -> str:
    """Open a page in a browser without a window; return what it prints."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise BrowserError("there is no Chromium or Chrome on this machine")
    command = [
        *(browser, "--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", f"--user-data-dir={scratch}/profile"),
        f"--window-size={WINDOW[0]},{WINDOW[1]}",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),  # root has no sandbox to start it in
        *arguments,
    ]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise BrowserError(f"{browser} fails: {error}".splitlines()[0]) from error
    return done.stdout.decode("utf-8", "replace")
