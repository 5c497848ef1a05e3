"""The console in a real Chromium. A page that logs, breaks the content policy or asks elsewhere fails its test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.console.browser.console_page import ConsolePage, open_console
from tests.console.browser.sample_data import NOBODY, fill
from tests.system.api_client import create
from tests.system.daemons import Daemon, run_up

HERE = Path(__file__).parent
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
PATIENCE_MS = 20_000
"""How long a test waits for what it expects: processes of other tests may keep the machine busy."""
NO_CHROMIUM = "needs a Chromium: install chromium-headless-shell (Debian: apt install chromium-headless-shell)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.console)
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason=NO_CHROMIUM))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        expect.set_options(timeout=PATIENCE_MS)
        yield browser
        browser.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with tasks in every state, which tests only look at."""
    folder = tmp_path_factory.mktemp("sample")
    with run_up(folder, folder / "data", "--retry", "0") as up:
        fill(up.url)
        yield up


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose tasks, topics and schedules tests change; each makes its own."""
    folder = tmp_path_factory.mktemp("changing")
    with run_up(folder, folder / "data", "--retry", "0") as up:
        fill(up.url)
        create(up.url, id="timed", topic="timed", callback=NOBODY, delay=3690)
        yield up


@pytest.fixture
def daemon(folder: Path) -> Iterator[Daemon]:
    """A daemon for one test, with the same tasks."""
    with run_up(folder, folder / "data", "--retry", "0") as up:
        fill(up.url)
        yield up


@pytest.fixture(scope="session")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that tests change, each in topics of its own."""
    folder = tmp_path_factory.mktemp("changed")
    with run_up(folder, folder / "data", "--retry", "0") as up:
        yield up


@pytest.fixture
def console(browser: Browser, changed: Daemon) -> Iterator[ConsolePage]:
    """A page of the daemon that tests change."""
    with open_console(browser, changed.url, viewport={"width": 1360, "height": 900}) as opened:
        yield opened


@pytest.fixture
def topic() -> str:
    """A topic of the test's own."""
    return f"t-{uuid4()}"


@pytest.fixture
def page(browser: Browser, sample: Daemon) -> Iterator[ConsolePage]:
    """A page of the daemon that is only looked at."""
    with open_console(browser, sample.url) as opened:
        yield opened
