"""Sign-in and sign-out, and what the console does for keys that may not do everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser
from playwright.sync_api import expect as expect_of

from later.core.api_keys import make_key_text
from tests.console.browser.console_page import ConsolePage, open_console
from tests.console.browser.sample_data import NOBODY
from tests.system import canaries
from tests.system.api_client import call
from tests.system.daemons import run_command, run_up

SCOPES = {"reader": "read", "editor": "read,edit"}


class Keyed(NamedTuple):
    """A daemon that asks for keys, and these by their names."""

    url: str
    keys: dict[str, str]


def make_key(data: Path, scopes: str, *options: str) -> str:
    made = run_command("keys", "create", "test", "--scopes", scopes, *options, "--data", str(data))
    assert made.returncode == 0, made.stderr
    return canaries.add_key(made.stdout.strip())


def put_data(url: str, root: str) -> None:
    """Create waiting and dead tasks in two namespaces, and a schedule."""
    header = {"Authorization": f"Bearer {root}"}
    for namespace in ("shop", "rival"):
        topic = f"{namespace}/mail"
        for id in ("waits", "dies"):
            task = {"id": f"{id}-in-{namespace}", "topic": topic, "callback": NOBODY, "delay": 3600}
            assert call(url, "POST", "/create", task, headers=header).status == 200
        schedule = {"topic": topic, "every": 3600, "start": "2031-01-01T00:00:00Z", "callback": NOBODY}
        assert call(url, "PUT", f"/schedules/of-{namespace}", schedule, headers=header).status == 200


@pytest.fixture(scope="session", params=["on"])
def keyed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    folder = tmp_path_factory.mktemp("keyed")
    root = canaries.add_key(make_key_text())
    with run_up(folder, folder / "data", "--console", request.param, env={"LATER_ROOT_KEY": root}) as up:
        keys = {"root": root}
        if request.param == "on":
            keys |= {name: make_key(folder / "data", scopes) for name, scopes in SCOPES.items()}
            keys["bound"] = make_key(folder / "data", "create,read,edit,admin", "--namespace", "shop")
            own = {"id": "own", "topic": "shop/mail", "callback": NOBODY, "delay": 3600}
            header = {"Authorization": f"Bearer {keys['bound']}"}
            assert call(up.url, "POST", "/create", own, headers=header).status == 200
        put_data(up.url, root)
        yield Keyed(up.url, keys)


@pytest.fixture
def console(browser: Browser, keyed: Keyed) -> Iterator[ConsolePage]:
    with open_console(browser, keyed.url, viewport={"width": 1360, "height": 900}) as opened:
        yield opened


def sign_in(console: ConsolePage, key: str, next: str = "/workers") -> None:
    """Sign in on the page for that, which then leads to `next`."""
    console.may_fail = True  # the page asks who we are before
    console.page.goto(f"{console.url}/console/sign-in?next={quote(next, safe='')}")
    console.page.get_by_label("Key", exact=True).fill(key)
    console.page.get_by_role("button", name="Sign in", exact=True).click()
    expect_of(console.page.get_by_role("button", name="Sign out")).to_be_visible()
    console.messages.clear()
    console.may_fail = False


def test_a_wrong_key_is_told_and_forgotten(console: ConsolePage) -> None:
    console.may_fail = True
    console.page.goto(f"{console.url}/console/tasks")
    field = console.page.get_by_label("Key", exact=True)
    for wrong in (make_key_text(), "x"):
        field.fill(wrong)
        field.press("Enter")
        expect_of(console.page.get_by_role("alert")).to_be_visible()
        expect_of(field).to_have_value("")
    assert console.page.context.cookies() == []


def test_a_sign_in_that_cannot_be_judged_is_told(console: ConsolePage, keyed: Keyed) -> None:
    console.may_fail = True
    console.page.goto(f"{console.url}/console/tasks")
    console.answer("/console/session", 503, "store-away", "the store is away")
    field = console.page.get_by_label("Key", exact=True)
    field.fill(keyed.keys["root"])
    field.press("Enter")
    expect_of(console.page.get_by_role("alert")).to_contain_text("the store is away", ignore_case=True)


NEXT = {
    "/tasks?topic=a&state=dead": "/tasks?topic=a&state=dead",
    "/topics/shop%2Fmail": "/topics/shop%2Fmail",
    "//evil.example/": "/",
    "/\\evil.example/": "/",
    "\\\\evil.example": "/",
    "/\t/evil.example": "/",
    "/\n\\evil.example": "/",
    "https://evil.example/": "/",
    "javascript:alert(1)": "/",
    "data:text/html,x": "/",
    "/..//evil.example": "//evil.example",
    "/.//evil.example": "//evil.example",
    "/sign-in": "/",
    "": "/",
}
"""What `next` says, and the page of the console that it leads to."""


def test_a_sign_in_leads_to_pages_of_its_own_only(console: ConsolePage, keyed: Keyed) -> None:
    sign_in(console, keyed.keys["root"], "//evil.example/")
    console.page.wait_for_url(f"{keyed.url}/console/")
    script = """async (all) => {
        const { nextPage } = await import(`${location.origin}/console/static/pages/sign_in.js`);
        return all.map((next) => nextPage(new URLSearchParams({ next })));
    }"""
    pages = console.page.evaluate(script, list(NEXT))
    assert dict(zip(NEXT, pages, strict=True)) == NEXT
    console.page.context.clear_cookies()
    sign_in(console, keyed.keys["root"], "/..//evil.example")
    console.page.wait_for_url(f"{keyed.url}/console//evil.example")


def test_a_sign_out_forgets_the_session(console: ConsolePage, keyed: Keyed) -> None:
    sign_in(console, keyed.keys["root"])
    console.page.get_by_role("button", name="Sign out").click()
    console.may_fail = True
    console.page.wait_for_url("**/console/sign-in")
    expect_of(console.page.get_by_label("Key", exact=True)).to_be_visible()
    assert console.bodies("DELETE /console/session") == [None]
    assert console.page.context.cookies() == []
    expect_of(console.page.get_by_role("button", name="Sign out")).to_have_count(0)


def test_a_session_that_is_back_is_noticed(console: ConsolePage, keyed: Keyed) -> None:
    sign_in(console, keyed.keys["root"])
    console.may_fail = True
    console.page.context.clear_cookies()
    console.page.keyboard.press("r")
    banner = console.page.locator(".banner")
    expect_of(banner).to_contain_text("You are signed out.")
    key = {"key": keyed.keys["root"]}
    assert console.page.context.request.post(f"{keyed.url}/console/session", data=key).ok  # as in another tab
    console.page.keyboard.press("r")
    expect_of(banner).to_have_count(0)


BUTTONS = {
    "/tasks/waits-in-shop": {"Run now": "edit", "Edit": "edit", "Copy as new": "create", "Delete": "edit"},
    "/topics/shop%2Fmail": {"Pause": "admin", "Purge…": "edit", "Edit": "admin"},
    "/dead?topic=shop/mail": {"Redrive…": "edit", "Purge…": "edit"},
}
"""The buttons of pages, and the scope that each needs."""


@pytest.mark.parametrize("name", SCOPES)
def test_buttons_are_off_without_their_scope_and_say_so(console: ConsolePage, keyed: Keyed, name: str) -> None:
    sign_in(console, keyed.keys[name])
    for path, buttons in BUTTONS.items():
        console.go_to(f"/console{path}")
        for button, scope in buttons.items():
            if scope in SCOPES[name].split(","):
                expect_of(console.button(button)).not_to_have_attribute("aria-disabled", "true")
            else:
                console.expect_off(button, f"Your key lacks the scope “{scope}”.")
    console.go_to("/console/tasks?topic=shop/mail")
    selectors = console.page.get_by_label("Select all")
    expect_of(selectors).to_be_enabled(enabled="edit" in SCOPES[name])
    console.go_to("/console/schedules")
    missing = "create" if name == "editor" else "edit"
    for button in ("Run now", "Pause", "Delete"):
        shown = console.page.get_by_role("row", name="of-shop").get_by_role("button", name=button)
        expect_of(shown).to_have_accessible_description(f"Your key lacks the scope “{missing}”.")


CHANGES = {
    ("POST", "/run-now"): {"id": "waits-in-shop"},
    ("POST", "/update"): {"id": "waits-in-shop", "delay": 0},
    ("POST", "/delete"): {"id": "waits-in-shop"},
    ("POST", "/delete/batch"): [{"id": "waits-in-shop"}],
    ("POST", "/create"): {"topic": "shop/mail", "callback": NOBODY},
    ("POST", "/redrive"): {"topic": "shop/mail"},
    ("POST", "/topics/shop%2Fmail/purge"): {},
    ("POST", "/topics/shop%2Fmail/pause"): {},
    ("POST", "/topics/shop%2Fmail/resume"): {},
    ("PATCH", "/topics/shop%2Fmail/policy"): {"rate": 1},
    ("POST", "/schedules/of-shop/run-now"): {},
    ("POST", "/schedules/of-shop/pause"): {},
    ("DELETE", "/schedules/of-shop"): None,
}
"""Every change that the console can ask for."""
FETCH = """async ([method, path, body]) => {
    const headers = {"Content-Type": "application/json"};
    const answer = await fetch(path, {method, headers, body: body === null ? undefined : JSON.stringify(body)});
    return [answer.status, (await answer.json()).detail];
}"""


def refused(console: ConsolePage) -> dict[tuple[str, str], list[object]]:
    """Send every change with the cookie of the page, and return the answers."""
    console.may_fail = True
    return {name: console.page.evaluate(FETCH, [*name, body]) for name, body in CHANGES.items()}


def test_the_api_refuses_what_a_reading_session_asks_for(console: ConsolePage, keyed: Keyed) -> None:
    sign_in(console, keyed.keys["reader"])
    assert {status for status, _ in refused(console).values()} == {403}
    console.go_to("/console/tasks/waits-in-shop")


SEEN_BY_SHOP = {
    "/topics?sort=name": "shop/mail",
    "/": "Overview",
    "/workers": "Workers deliver for all namespaces",
    "/tasks?topic=shop/mail": "waits-in-shop",
    "/dead": "No task is dead",
    "/schedules": "of-shop",
    "/jobs": "No job",
    "/topics/shop%2Fmail": "What falls due",
    "/tasks/own": "shop/mail",
}
"""What pages show to a key that is bound to the namespace `shop`."""


def test_a_bound_key_sees_its_namespace_alone(console: ConsolePage, keyed: Keyed) -> None:
    sign_in(console, keyed.keys["bound"], "/topics?sort=name")
    expect_of(console.page.locator("header").get_by_text("shop", exact=True)).to_be_visible()
    for path, shown in SEEN_BY_SHOP.items():
        console.go_to(f"/console{path}")
        expect_of(console.page.locator("main")).to_contain_text(shown)
        assert "rival" not in console.page.locator("body").inner_text()
    console.go_to("/console/tasks/waits-in-rival")
    expect_of(console.page.locator("main").get_by_text("Delivered, deleted, or never created.").first).to_be_visible()
    console.may_fail = True
    console.go_to("/console/tasks?topic=rival/mail")
    expect_of(console.page.get_by_role("alert").first).to_contain_text(
        "this key is for the namespace shop", ignore_case=True
    )
    statuses = {
        path: console.page.evaluate(FETCH, [method, path.replace("shop", "rival"), body])[0]
        for (method, path), body in CHANGES.items()
        if "shop" in path
    }
    assert set(statuses.values()) <= {403, 404}, statuses


@pytest.mark.parametrize("keyed", ["readonly"], indirect=True)
class TestReadOnly:
    def test_no_button_acts_and_each_says_why(self, console: ConsolePage, keyed: Keyed) -> None:
        sign_in(console, keyed.keys["root"])
        expect_of(console.page.locator("header").get_by_text("Read-only")).to_be_visible()
        for path, buttons in BUTTONS.items():
            console.go_to(f"/console{path}")
            for button in buttons:
                console.expect_off(button, "This console is read-only.")
        console.go_to("/console/schedules")
        for button in ("Run now", "Pause", "Delete"):
            shown = console.page.get_by_role("row", name="of-shop").get_by_role("button", name=button)
            expect_of(shown).to_have_accessible_description("This console is read-only.")
        console.go_to("/console/tasks?topic=shop/mail")
        expect_of(console.page.get_by_label("Select all")).to_be_disabled()

    def test_the_api_refuses_its_sessions(self, console: ConsolePage, keyed: Keyed) -> None:
        sign_in(console, keyed.keys["root"])
        assert set(map(tuple, refused(console).values())) == {(403, "this console is read-only")}
        header = {"Authorization": f"Bearer {keyed.keys['root']}"}
        assert call(keyed.url, "POST", "/query", {"id": "waits-in-shop"}, headers=header).status == 200
