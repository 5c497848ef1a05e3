"""What the console does with hostile values, below a path, and for those who must sign in."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser
from playwright.sync_api import expect as expect_of

from later.core.api_keys import make_key_text
from tests.console.browser.console_page import ConsolePage, open_console
from tests.console.browser.sample_data import HOSTILE_TOPICS, NOBODY
from tests.system.api_client import call
from tests.system.daemons import Daemon, run_command, run_up

TASKS_OF_HOSTILE_TOPICS = [f"hostile-{number}" for number in range(len(HOSTILE_TOPICS))]


@pytest.mark.parametrize("id", TASKS_OF_HOSTILE_TOPICS)
def test_hostile_names_and_contents_are_text(page: ConsolePage, id: str) -> None:
    shown = page.open(f"/console/tasks/{id}")
    text = shown.locator("main").inner_text()
    assert "onerror=" in text  # the content is shown as it is
    assert id in shown.title()
    assert shown.locator("main img, main script, main iframe").count() == 0


def test_a_large_content_is_cut(page: ConsolePage) -> None:
    shown = page.open("/console/tasks/large")
    assert 30_000 < shown.locator("main").inner_text().count("x") < 40_000  # 64 kB, of which each second one is an x


def test_whoever_needs_a_key_signs_in_and_gets_to_the_page(browser: Browser, folder: Path) -> None:
    root = make_key_text()
    with (
        run_up(folder, folder / "data", env={"LATER_ROOT_KEY": root}) as up,
        open_console(browser, up.url) as opened,
    ):
        opened.may_fail = True
        shown = opened.page
        shown.goto(f"{up.url}/console/workers")
        field = shown.locator("input[type=password]")
        expect_of(field).to_be_visible()
        field.fill(make_key_text())
        field.press("Enter")
        expect_of(shown.get_by_role("alert").first).to_be_visible()
        shown.route("**/console/session", lambda route: route.fulfill(status=204))  # the browser keeps no cookie
        field.fill(root)
        field.press("Enter")
        expect_of(shown.get_by_text("The browser keeps no session")).to_be_visible()
        shown.unroute("**/console/session")
        field.fill(root)
        field.press("Enter")
        shown.wait_for_url("**/console/workers")
        opened.wait_until_drawn()
        cookies = {cookie["name"]: cookie for cookie in shown.context.cookies()}
        assert cookies["later-session"]["httpOnly"]
        assert root not in str(shown.evaluate("[{...localStorage}, {...sessionStorage}, document.cookie]"))


def test_pages_below_a_path_stay_there(browser: Browser, folder: Path) -> None:
    with (
        run_up(folder, folder / "data", "--base-path", "/below") as up,
        open_console(browser, up.url) as opened,
    ):
        shown = opened.open("/below/console/workers")
        assert all(request.split(" ")[1].startswith("/below/") for request in opened.requests), opened.requests
        links = shown.locator("header a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
        assert [link for link in links if not link.startswith(("/below/", "#"))] == []


def test_the_search_finds_a_task_by_its_id_with_the_keyboard_alone(page: ConsolePage, sample: Daemon) -> None:
    shown = page.open("/console/workers")
    shown.keyboard.press("/")
    shown.keyboard.type("order-1")
    shown.keyboard.press("Enter")
    shown.wait_for_url(f"**/console/tasks/{quote('order-1')}")


def test_an_operator_finds_a_task_of_a_namespace_by_its_id(browser: Browser, folder: Path) -> None:
    """Ids that callers of a namespace choose have it in front, and a slash in between."""
    root = make_key_text()
    with (
        run_up(folder, folder / "data", env={"LATER_ROOT_KEY": root}) as up,
        open_console(browser, up.url) as opened,
    ):
        opened.may_fail = True
        bound = ("--scopes", "create", "--namespace", "team", "--data", str(folder / "data"))
        key = run_command("keys", "create", *bound).stdout.strip()
        task = {"id": "order-1", "topic": "team/order", "callback": NOBODY, "delay": 3600}
        assert call(up.url, "POST", "/create", task, headers={"Authorization": f"Bearer {key}"}).status == 200
        opened.page.goto(f"{up.url}/console/")
        opened.page.locator("input[type=password]").fill(root)
        opened.page.keyboard.press("Enter")
        expect_of(opened.page).to_have_title("Overview · later")
        opened.page.keyboard.press("/")
        opened.page.keyboard.type("team/order-1")
        opened.page.keyboard.press("Enter")
        opened.page.wait_for_url("**/console/tasks/team%2Forder-1")
        expect_of(opened.page.locator(".facts a").first).to_have_text("team/order")


def test_the_search_finds_a_topic_whose_name_could_be_an_id_and_reports_no_failure(page: ConsolePage) -> None:
    shown = page.open("/console/workers")
    search = shown.get_by_role("combobox", name="Search by id or topic")
    search.fill("order")
    search.press("Enter")
    shown.wait_for_url("**/console/topics/order")
    search.fill("nobody")
    search.press("Enter")
    expect_of(shown.locator(".search-told")).to_contain_text("No task and no topic is called “nobody”.")
