"""Take the pictures of the console that the documentation shows.

    python -m scripts.console_screenshots [--folder docs]

They are of a daemon of its own with made-up data (`scripts/console_example.py`), drawn by Debian's
chromium-headless-shell or another Chromium of this machine.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from scripts.console_example import PAUSED_TOPIC, WAVE_TOPIC, Example, run_example

DOCS = Path(__file__).parent.parent / "docs"
WIDTH = 1280
CENSUS_S = 40
"""How long to wait for a census of all topics, which the overview needs."""


class Picture(NamedTuple):
    """A page, in the theme and at the height of its picture."""

    name: str
    path: str
    scheme: Literal["light", "dark"]
    height: int


PICTURES = (
    Picture("console-overview.png", "/console/", "light", 946),
    Picture("console-topic.png", f"/console/topics/{quote(WAVE_TOPIC, safe='')}", "dark", 742),
)


def main() -> int:
    """Take all pictures; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=DOCS, help="folder to write them to (default: %(default)s)")
    folder: Path = parser.parse_args().folder
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if chromium is None:
        print("install chromium-headless-shell (Debian: apt install chromium-headless-shell)", file=sys.stderr)
        return 1
    with run_example() as example, sync_playwright() as playwright:
        wait_for_census(example)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for picture in PICTURES:
            (folder / picture.name).write_bytes(shrink(take(browser, example.url, picture)))
        browser.close()
    return 0


def wait_for_census(example: Example) -> None:
    """Wait until the overview is about the topic that is paused."""
    deadline = time.monotonic() + CENSUS_S
    while example.call("GET", "/overview")["topic"] != PAUSED_TOPIC:
        if time.monotonic() > deadline:
            raise TimeoutError("the overview does not show the example")
        time.sleep(0.5)


def take(browser: Browser, url: str, picture: Picture) -> bytes:
    """Return a page as a PNG, on a clock of 24 hours."""
    page = browser.new_page(
        color_scheme=picture.scheme,
        viewport={"width": WIDTH, "height": picture.height},
        locale="en-GB",
        timezone_id="UTC",
        reduced_motion="reduce",
    )
    page.goto(url + picture.path)
    page.locator(".chart-svg").nth(2).wait_for()
    page.wait_for_load_state("networkidle")
    image = page.screenshot()
    page.close()
    return image


def shrink(png: bytes) -> bytes:
    """Return the same picture in fewer bytes: without transparency, and better compressed."""
    shrunk = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").save(shrunk, "PNG", optimize=True)
    return shrunk.getvalue()


if __name__ == "__main__":
    sys.exit(main())
