"""Each page at its URL: it is drawn in both themes and at two widths, and survives reload and Back."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from playwright.sync_api import expect as expect_of

from tests.console.browser.console_page import ConsolePage, open_console
from tests.system.daemons import Daemon

PAGES = {
    "overview": "/console/", "topics": "/console/topics", "topic": "/console/topics/order",
    "tasks": "/console/tasks?topic=order&state=delay", "task": "/console/tasks/order-1",
    "dead task": "/console/tasks/dead-1", "no task": "/console/tasks/nowhere", "dead": "/console/dead?topic=mail",
    "workers": "/console/workers", "jobs": "/console/jobs", "schedules": "/console/schedules", "api": "/console/api",
}  # fmt: skip
WIDTHS = (320, 1360)
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], "resultTypes": ["violations"]}


def violations(page: Page) -> list[str]:
    """Return the faults that axe finds, with the first element of each."""
    found = Axe().run(page, options=RULES).response["violations"]
    return [f"{fault['id']}: {fault['nodes'][0]['html'][:200]}" for fault in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
def test_a_page_is_drawn_without_a_fault(browser: Browser, sample: Daemon, path: str, scheme: str) -> None:
    with open_console(browser, sample.url, color_scheme=scheme, viewport={"width": 1360, "height": 900}) as opened:
        opened.may_fail = "nowhere" in path
        page = opened.open(path)
        assert page.title()
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert violations(page) == [], width
            overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert overflow <= 0, f"{overflow} px too wide at {width}"


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
def test_reload_and_back_show_the_same_page(page: ConsolePage, path: str) -> None:
    page.may_fail = True  # of the pages that are opened in between
    shown = page.open(path)
    title, heading = shown.title(), shown.locator("main h1").first.inner_text()
    shown.reload()
    page.wait_until_drawn()
    assert (shown.title(), shown.locator("main h1").first.inner_text()) == (title, heading)
    page.open("/console/workers" if "workers" not in path else "/console/")
    shown.go_back()
    page.wait_until_drawn()
    expect_of(shown.locator("main h1").first).to_have_text(heading)
    assert shown.title() == title
