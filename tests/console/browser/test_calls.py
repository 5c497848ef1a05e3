"""The calls that the pages make: those of the table by which the cost of each page is measured, and no others."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
from playwright.sync_api import Request

from tests.console.browser.console_page import ConsolePage
from tests.console.page_calls import EVERY_PAGE, PAGES

WAIT_MS, MAX_WAITS = 100, 50
NAMES = {"TOPIC": "mail", "TASK": "order-1"}


def call_of(request: Request, url: str) -> str:
    """Return a request as the table has it."""
    path = re.sub("(?<=since=)[^&]*", "SINCE", unquote(request.url.removeprefix(url)))
    return " ".join(filter(None, (request.method, path, request.post_data)))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_makes_the_calls_of_the_table(page: ConsolePage, name: str) -> None:
    path, calls, _ = PAGES[name]
    made: list[str] = []
    page.page.on("request", lambda request: made.append(call_of(request, page.url)))
    for placeholder, value in NAMES.items():
        path = path.replace(placeholder, value)
        calls = tuple(call.replace(placeholder, value) for call in calls)
    expected = sorted([EVERY_PAGE, *calls])
    page.open(path)
    for _ in range(MAX_WAITS):  # a busy machine may make a call after the network has been idle
        if calls_of_api(made) == expected:
            break
        page.page.wait_for_timeout(WAIT_MS)
    assert calls_of_api(made) == expected


def calls_of_api(made: list[str]) -> list[str]:
    """Return the calls that ask for no file, each once."""
    return sorted({call for call in made if "/console/" not in call})
