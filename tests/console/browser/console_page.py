"""A page of the console, and what must never happen on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, Route
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


READING_POSTS = ("POST /list", "POST /explain", "POST /query", "POST /query/batch")


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
        self.changes: list[tuple[str, Any]] = []
        """The calls that are no GETs, with their bodies: `("POST /run-now", {"id": …})`."""
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
        name = f"{request.method} {request.url.removeprefix(self.url)}"
        self.requests.append(name)
        if request.method != "GET":
            self.changes.append((name, request.post_data_json if request.post_data else None))

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

    def go_to(self, path: str) -> Page:
        """Open a path below the daemon's, and wait for the page's heading alone."""
        self.page.goto(self.url + path)
        expect_of(self.page.locator("main h1").first).to_be_visible()
        return self.page

    def wait_until_drawn(self) -> None:
        expect_of(self.page.locator("main h1").first).to_be_visible()
        self.page.wait_for_load_state("networkidle")

    def announced(self) -> list[str]:
        """Return what the live region has said since the page was loaded."""
        return list(self.page.evaluate("globalThis.announced"))

    def calls(self) -> list[str]:
        """Return the requests that are no files."""
        return [request for request in self.requests if "/console/" not in request]

    def bodies(self, name: str) -> list[Any]:
        """Return the bodies of the calls of this name, such as `POST /run-now`, that were no dry runs."""
        return [body for called, body in self.changes if called == name and not is_dry_run(body)]

    def button(self, name: str) -> Locator:
        """Return the button of this name that is not in a dialog."""
        return self.page.locator("main").get_by_role("button", name=name, exact=True)

    @property
    def question(self) -> Locator:
        return self.page.locator("dialog[open]")

    def confirm(self, name: str) -> None:
        """Press a button of the question."""
        self.question.get_by_role("button", name=name, exact=True).click()

    def expect_question(self, title: str) -> Locator:
        """Wait for a question of this title, and return it."""
        expect_of(self.question.get_by_role("heading")).to_have_text(title)
        return self.question

    def expect_told(self, text: str) -> None:
        """Wait until a notice on the page, or in its question, has this text."""
        expect_of(self.page.locator(".notice").filter(has_text=text).first).to_be_visible()

    def expect_off(self, name: str, reason: str) -> None:
        """Check that a button does nothing and says why."""
        button = self.button(name)
        expect_of(button).to_have_attribute("aria-disabled", "true")
        expect_of(button).to_have_accessible_description(reason)
        before = len(self.changes)
        button.click(force=True)
        expect_of(self.question).to_have_count(0)
        assert not [name for name, _ in self.changes[before:] if name not in READING_POSTS], self.changes[before:]

    def answer(self, path: str, status: int, type: str, detail: str, *, times: int = 1) -> None:
        """Answer the next calls of a path with a problem, without asking the daemon. The test may then see errors."""
        self.may_fail = True
        body = {"type": f"/problems/{type}", "title": type, "status": status, "detail": detail}
        self.page.route(
            self.url + path,
            lambda route: route.fulfill(status=status, json=body, content_type="application/problem+json"),
            times=times,
        )

    def hold(self, path: str) -> HeldCalls:
        """Hold the calls of a path until the test lets them go."""
        return HeldCalls(self.page, self.url + path)

    def check(self) -> None:
        assert not self.messages, self.messages
        assert not self.strangers, self.strangers


class HeldCalls:
    """Calls of a page that wait in the browser. Dry runs go on at once."""

    def __init__(self, page: Page, url: str) -> None:
        self._page = page
        self._held: list[Route] = []
        page.route(url, self._note)

    def _note(self, route: Route) -> None:
        body = route.request.post_data_json
        if is_dry_run(body):
            route.fallback()
        else:
            self._held.append(route)

    def next(self) -> Route:
        """Wait for the next call and return it."""
        wait_for(self._page, lambda: bool(self._held), "a call")
        return self._held.pop(0)

    def let_go(self, **changes: Any) -> Any:
        """Send the next call with these changes of its body, and return that."""
        route = self.next()
        body = {**(route.request.post_data_json or {}), **changes}
        route.continue_(post_data=body)
        return body


def is_dry_run(body: Any) -> bool:
    return isinstance(body, dict) and body.get("dry_run") is True


def wait_for(page: Page, condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition while the page goes on."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        page.wait_for_timeout(10)


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
