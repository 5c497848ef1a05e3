"""Cross-site requests of a real browser: what pages of other sites can send, and a name that leads here can read."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.system.api_client import call, create, get
from tests.system.daemons import run_up

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
NAMES = {"elsewhere": "elsewhere.test", "rebound": "rebound.test", "allowed": "later.test"}
"""Names that the browser resolves to this machine. None counts as loopback for it, so it sends no Sec-Fetch-Site."""
ATTEMPTS = [
    ("POST", "/create", '{"topic": "order", "callback": "http://127.0.0.1:9/", "id": "evil", "delay": 900}'),
    ("POST", "/create/batch", '[{"topic": "order", "callback": "http://127.0.0.1:9/", "id": "evil", "delay": 900}]'),
    ("POST", "/delete", '{"id": "mine"}'),
    ("POST", "/delete/batch", '[{"id": "mine"}]'),
    ("POST", "/topics/order/purge", ""),
    ("POST", "/topics/order/pause", ""),
    ("POST", "/update", '{"id": "mine", "delay": 0}'),
    ("POST", "/run-now", '{"id": "mine"}'),
    ("PUT", "/topics/order/policy", '{"paused": true}'),
    ("PATCH", "/topics/order/policy", '{"paused": true}'),
    ("DELETE", "/topics/order/policy", ""),
]
SEND = """async ([url, method, body]) => {
    const simple = {method, mode: "no-cors", body, headers: {"Content-Type": "text/plain"}};
    const results = [];
    for (const options of [simple, {...simple, mode: "cors"}]) {
        try { results.push((await fetch(url, options)).status); } catch (error) { results.push(String(error)); }
    }
    return results;
}"""
"""Send a request without and with CORS, and return the status that the page sees: 0 for an opaque answer."""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="neither chromium-headless-shell nor chromium is on the PATH")


@pytest.fixture(scope="module", autouse=True)
def processes() -> int:
    """The number of processes of each daemon. One is enough: each of several checks its own requests."""
    return 1


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium that resolves the names to this machine."""
    rules = ", ".join(f"MAP {name} 127.0.0.1" for name in NAMES.values())
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", f"--host-resolver-rules={rules}"]
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


class _Pages(BaseHTTPRequestHandler):
    """Another site: every path is an empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[int]:
    """The port of another site on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def port_of(url: str) -> str:
    return url.rpartition(":")[2]


def daemon_urls(url: str) -> list[str]:
    """Return the URLs by which a page can reach the daemon."""
    return [url, f"http://localhost:{port_of(url)}", f"http://{NAMES['allowed']}:{port_of(url)}"]


@pytest.mark.parametrize("origin", ["elsewhere.test", "127.0.0.1", "localhost"])
def test_a_page_of_another_origin_creates_nothing(folder: Path, data: Path, page: Page, site: int, origin: str) -> None:
    with run_up(folder, data, "--allow-host", NAMES["allowed"]) as up:
        create(up.url, callback="http://127.0.0.1:9/", id="mine", delay=900)
        before = get(up.url, "/topics/order").body
        page.goto(f"http://{origin}:{site}/")
        for url in daemon_urls(up.url):
            for method, path, body in ATTEMPTS:
                statuses = page.evaluate(SEND, [url + path, method, body or None])
                assert 200 not in statuses, (url, method, path)
        after = get(up.url, "/topics/order").body
        assert {**after, "oldest_lateness_s": None} == {**before, "oldest_lateness_s": None}
        assert call(up.url, "POST", "/query", {"id": "evil"}).status == 404
        assert call(up.url, "POST", "/query", {"id": "mine"}).body["state"] == "delay"


@pytest.mark.parametrize("target", ["127.0.0.1", "localhost", "later.test"])
def test_a_page_of_this_origin_creates(folder: Path, data: Path, page: Page, target: str) -> None:
    with run_up(folder, data, "--allow-host", NAMES["allowed"]) as up:
        url = f"http://{target}:{port_of(up.url)}"
        page.goto(f"{url}/problems/refused")
        method, path, body = ATTEMPTS[0]
        assert page.evaluate(SEND, [path, method, body])[1] == 200
        assert call(up.url, "POST", "/query", {"id": "evil"}).status == 200


def test_a_form_of_another_origin_creates_nothing(folder: Path, data: Path, page: Page, site: int) -> None:
    with run_up(folder, data) as up:
        page.goto(f"http://{NAMES['elsewhere']}:{site}/")
        name = '{"topic": "order", "callback": "http://127.0.0.1:9/", "delay": 900, "id": "evil", "content": "'
        with page.expect_navigation() as navigation:
            page.evaluate(
                """([url, name]) => {
                    const form = document.createElement("form");
                    Object.assign(form, {method: "POST", action: url, enctype: "text/plain"});
                    form.append(Object.assign(document.createElement("input"), {name, value: '"}'}));
                    document.body.append(form);
                    form.submit();
                }""",
                [f"{up.url}/create", name],
            )
        assert navigation.value is not None
        assert navigation.value.status == 403
        assert call(up.url, "POST", "/query", {"id": "evil"}).status == 404


def test_a_name_that_leads_here_reads_nothing(folder: Path, data: Path, page: Page) -> None:
    with run_up(folder, data) as up:
        create(up.url, callback="http://127.0.0.1:9/", id="mine", topic="secret-topic", delay=900)
        for path in ("/topics", "/metrics", "/"):
            response = page.goto(f"http://{NAMES['rebound']}:{port_of(up.url)}{path}")
            assert response is not None
            assert (response.status, "secret-topic" in page.content()) == (403, False)
            assert "--allow-host" in page.content()


def test_a_link_from_elsewhere_opens_the_page(folder: Path, data: Path, page: Page, site: int) -> None:
    with run_up(folder, data, "--allow-host", NAMES["allowed"]) as up:
        for url in daemon_urls(up.url):
            page.goto(f"http://{NAMES['elsewhere']}:{site}/")
            page.evaluate(
                "url => document.body.append(Object.assign(document.createElement('a'), {href: url, text: 'link'}))",
                f"{url}/problems/refused",
            )
            with page.expect_navigation() as navigation:
                page.click("a")
            assert navigation.value is not None
            assert navigation.value.status == 200
            assert "Bad Request (400, /problems/refused)" in page.content()
