"""A page of the console, and what must never happen on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Route
from playwright.sync_api import expect as expect_of

WATCH_POLICY = """addEventListener("securitypolicyviolation",
    event => console.error(`content policy: ${event.violatedDirective} ${event.blockedURI}`));"""
WATCH_ANNOUNCEMENTS = """addEventListener("DOMContentLoaded", () => {
    const region = document.getElementById("announcements");
    const note = () => { if (region.textContent) globalThis.announced.push(region.textContent); };
    globalThis.announced = [];
    new MutationObserver(note).observe(region, {childList: true, characterData: true, subtree: true});
});"""
STATUS_MESSAGE = "Failed to load resource: the server responded with a status of"
"""The message that Chromium logs for each answer that is an error, which tests may ask for."""


class ConsolePage:
    """A page of Chromium, with the messages that it logged and the requests that it sent.

    `may_fail`: answers of the API may be errors, or not come at all.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.may_fail = False
        self.messages: list[str] = []
        self.strangers: list[str] = []
        self.requests: list[str] = []
        page.add_init_script(WATCH_POLICY)
        page.add_init_script(WATCH_ANNOUNCEMENTS)
        page.on("console", self._note_message)
        page.on("pageerror", lambda error: self.messages.append(f"error: {error}"))
        page.on("request", self._note_request)
        page.route("**/*", self._check_origin)

    def _note_message(self, message: ConsoleMessage) -> None:
        if not (self.may_fail and message.text.startswith(("Failed to load resource", STATUS_MESSAGE))):
            self.messages.append(f"{message.type}: {message.text}")

    def _note_request(self, request: Request) -> None:
        self.requests.append(f"{request.method} {request.url.removeprefix(self.url)}")

    def _check_origin(self, route: Route) -> None:
        if route.request.url.startswith(f"{self.url}/"):
            route.continue_()
        else:
            self.strangers.append(route.request.url)
            route.abort()

    def open(self, path: str) -> Page:
        """Open a path below the daemon's, and wait until the page shows what it asked for."""
        self.page.goto(self.url + path)
        self.wait_until_drawn()
        return self.page

    def visit(self, path: str, title: str) -> None:
        """Go to the page of this title as a link does, without loading all anew."""
        self.page.evaluate("path => history.pushState(null, '', path)", path)
        self.page.evaluate("dispatchEvent(new PopStateEvent('popstate'))")
        expect_of(self.page).to_have_title(f"{title} · later")
        expect_of(self.page.locator(".loading")).to_have_count(0)

    def wait_until_drawn(self) -> None:
        expect_of(self.page.locator("main h1").first).to_be_visible()
        self.page.wait_for_load_state("networkidle")

    def announced(self) -> list[str]:
        """Return what the live region has said since the page was loaded."""
        return list(self.page.evaluate("globalThis.announced"))

    def calls(self) -> list[str]:
        """Return the requests that are no files."""
        return [request for request in self.requests if "/console/" not in request]

    def check(self) -> None:
        assert not self.messages, self.messages
        assert not self.strangers, self.strangers


@contextmanager
def open_console(browser: Browser, url: str, **options: Any) -> Iterator[ConsolePage]:
    """Open an empty page in a context of its own, and check at the end what happened on it."""
    context = browser.new_context(**options)
    context.set_default_timeout(20_000)
    try:
        opened = ConsolePage(context.new_page(), url)
        yield opened
        opened.check()
    finally:
        context.close()
