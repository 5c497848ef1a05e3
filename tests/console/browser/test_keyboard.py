"""The console by keyboard alone: everything can be reached and done, and the focus never gets lost."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route
from playwright.sync_api import expect as expect_of

from tests.console.browser.console_page import ConsolePage, open_console
from tests.console.browser.sample_data import NOBODY
from tests.console.browser.test_pages import PAGES
from tests.system.api_client import call, create, get, post, query
from tests.system.daemons import Daemon
from tests.system.waiting import wait_until

ACTIVE = """() => { const one = document.activeElement; return one.closest("dialog") ? "dialog"
    : one === document.body ? "body" : one.getAttribute("aria-label") || one.textContent.trim() || one.id; }"""
"""What has the focus."""
WALK = """() => {
    const one = document.activeElement;
    const last = globalThis.walked ?? document.querySelector(".skip");
    if (one === document.body || (one === last && one.matches(".skip") && globalThis.walked)) return "end";
    const style = getComputedStyle(one);
    const faults = [];
    if (style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 2) faults.push("no outline");
    if (one !== last && !(last.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING)) faults.push("order");
    const box = one.getBoundingClientRect();
    const top = one.closest(".top, .skip") ? 0 : document.querySelector(".top").getBoundingClientRect().bottom;
    if (box.bottom <= top || box.top >= innerHeight) faults.push("not in sight");
    one.toggleAttribute("data-walked", true);
    globalThis.walked = one;
    return faults.length ? `${faults.join()}: ${one.outerHTML.slice(0, 150)}` : "";
}"""
"""A step of a walk with the Tab key: the faults of what has the focus."""
MISSED = """all => all.filter((one) => one.checkVisibility() && !one.disabled && !one.hasAttribute("data-walked"))
    .map((one) => one.outerHTML.slice(0, 150))"""
CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex='0']"
MOST_STEPS = 700


@pytest.fixture
def opened(browser: Browser, changing: Daemon) -> Iterator[ConsolePage]:
    """A page of that daemon, which asks again only when it is told to."""
    with open_console(browser, changing.url, viewport={"width": 1200, "height": 700}) as opened:
        opened.page.add_init_script("localStorage.setItem('later.live', 'off')")
        yield opened


def active(page: Page) -> str:
    return str(page.evaluate(ACTIVE))


def put_schedules(url: str, *ids: str) -> None:
    schedule = {"topic": "order", "callback": NOBODY, "every": 86_400, "start": "2100-01-01T00:00:00Z"}
    for id in ids:
        assert call(url, "PUT", f"/schedules/{id}", schedule).status == 200


def create_waiting(url: str, topic: str, count: int) -> list[str]:
    return [create(url, id=f"{topic}-{i}", topic=topic, callback=NOBODY, delay=3600 + i) for i in range(count)]


def create_dead(url: str, topic: str, count: int) -> list[str]:
    ids = [create(url, id=f"{topic}-{i}", topic=topic, callback=NOBODY, delay=0) for i in range(count)]
    wait_until(lambda: get(url, f"/topics/{topic}").body["dead"] == count, "they are dead")
    return ids


# Everything can be reached


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
def test_the_tab_key_reaches_every_control_in_order_and_one_sees_where_it_is(opened: ConsolePage, path: str) -> None:
    put_schedules(opened.url, "walked")
    page = opened.open(path)
    faults = []
    for _ in range(MOST_STEPS):
        page.keyboard.press("Tab")
        fault = page.evaluate(WALK)
        if fault == "end":
            break
        faults += [fault] if fault else []
    else:
        pytest.fail("the walk has no end")
    assert faults == []
    assert page.locator(CONTROLS).evaluate_all(MISSED) == []


def test_the_first_control_skips_to_the_content(opened: ConsolePage) -> None:
    page = opened.open("/console/workers")
    page.keyboard.press("Tab")
    expect_of(page.get_by_text("Skip to the content")).to_be_in_viewport()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


# Keys that act

GO = {"o": "/", "t": "/topics", "d": "/dead", "w": "/workers", "s": "/schedules", "j": "/jobs"}


def test_the_list_of_keys_names_those_that_act(opened: ConsolePage) -> None:
    page = opened.open("/console/tasks?topic=order")
    page.keyboard.press("?")
    keys = page.locator("dialog kbd").all_inner_texts()
    assert set(keys) == {"g", *GO, "r", "p", "u", "?", "/", "j", "k", "x", "Enter"}
    page.keyboard.press("Escape")
    page = opened.open("/console/api")
    page.keyboard.press("?")
    assert {"k", "x", "Enter"}.isdisjoint(page.locator("dialog kbd").all_inner_texts())
    page.keyboard.press("Escape")
    page = opened.open("/console/workers")
    page.keyboard.press("?")
    assert {"x", "Enter"}.isdisjoint(page.locator("dialog kbd").all_inner_texts())


@pytest.mark.parametrize("key", GO)
def test_g_and_a_letter_go_to_a_page(opened: ConsolePage, key: str) -> None:
    page = opened.open("/console/api")
    page.keyboard.press("g")
    page.keyboard.press(key)
    page.wait_for_url(f"{opened.url}/console{GO[key]}")
    expect_of(page.locator("main")).to_be_focused()
    expect_of(page).not_to_have_title("API · later")
    wait_until(opened.announced, "the page is announced")
    assert opened.announced() == [page.title().removesuffix(" · later")]


def test_r_asks_again_p_goes_live_and_u_shows_utc(opened: ConsolePage) -> None:
    page = opened.open("/console/tasks?topic=order")
    with page.expect_request("**/list"):
        page.keyboard.press("r")
    page.keyboard.press("p")
    expect_of(page.locator("#announcements")).to_have_text("Live updates are on")
    expect_of(page.locator(".live")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("p")
    expect_of(page.locator("#announcements")).to_have_text("Live updates are off")
    page.keyboard.press("u")
    expect_of(page.locator("#announcements")).to_have_text("Times are in UTC")
    expect_of(page.locator("tbody time").first).to_have_text(re.compile(r"^20\d\d-"))
    assert opened.announced() == ["Live updates are on", "Live updates are off", "Times are in UTC"]


def press_all(page: Page, prefix: str = "") -> None:
    for key in ["g", "t", "g", "w", "r", "p", "u", "j", "k", "x", "/", "?"]:
        page.keyboard.press(prefix + key)


def test_no_key_acts_with_a_modifier(opened: ConsolePage) -> None:
    page = opened.open("/console/tasks?topic=order")
    before, calls = page.url, len(opened.calls())
    for modifier in ("Control+", "Alt+", "Meta+"):
        press_all(page, modifier)
    assert (page.url, active(page), opened.announced()) == (before, "body", [])
    assert page.locator("dialog, input:checked").count() == 0
    assert len(opened.calls()) == calls


@pytest.mark.parametrize("place", [".search-input", ".page-filter", "main input[list]", "input[type=datetime-local]"])
def test_no_key_acts_while_somebody_types(opened: ConsolePage, place: str) -> None:
    page = opened.open("/console/tasks?topic=order")
    page.locator(place).first.focus()
    before, calls = page.url, len(opened.calls())
    press_all(page)
    expect_of(page.locator(place).first).to_be_focused()
    assert (page.url, opened.announced(), page.locator("dialog").count()) == (before, [], 0)
    assert len(opened.calls()) == calls


def test_no_key_acts_below_a_dialog(opened: ConsolePage) -> None:
    page = opened.open("/console/tasks?topic=order")
    page.keyboard.press("?")
    before = page.url
    press_all(page)
    assert (page.url, page.locator("dialog").count(), opened.announced()) == (before, 1, [])


def test_a_search_that_was_begun_while_a_page_came_goes_on(opened: ConsolePage) -> None:
    page = opened.open("/console/workers")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/pages/jobs.js", hold)
    page.keyboard.press("g")
    page.keyboard.press("j")
    wait_until(lambda: page.evaluate("1") and held, "the page is asked for")
    page.keyboard.press("/")
    held[0].continue_()
    expect_of(page.locator("h1")).to_have_text("Jobs")
    page.keyboard.type("order-1")
    expect_of(page.locator(".search-input")).to_have_value("order-1")


# Tables


def test_rows_are_walked_selected_and_opened_with_keys(opened: ConsolePage) -> None:
    ids = create_waiting(opened.url, "walk", 3)
    page = opened.open("/console/tasks?topic=walk")
    page.keyboard.press("x")  # no row has the focus
    for expected in (ids[0], ids[1], ids[2], ids[2]):
        page.keyboard.press("j")
        assert active(page) == expected
    page.keyboard.press("k")
    page.keyboard.press("x")
    assert active(page) == ids[1]
    expect_of(page.locator(".selection strong")).to_have_text("1 selected")
    assert page.locator("tbody input:checked").count() == 1
    page.keyboard.press("k")
    page.keyboard.press("x")
    page.keyboard.press("x")
    expect_of(page.locator(".selection strong")).to_have_text("1 selected")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/console/tasks/{ids[0]}")


def test_rows_without_a_link_are_walked_too(opened: ConsolePage) -> None:
    page = opened.open("/console/workers")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.closest('tbody tr') !== null")


# Find, open, redrive


def test_a_dead_task_is_found_opened_and_redriven(opened: ConsolePage) -> None:
    (id,) = create_dead(opened.url, "redriven", 1)
    page = opened.open("/console/")
    page.keyboard.press("/")
    page.keyboard.type(id)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/console/tasks/{id}")
    expect_of(page.get_by_role("button", name="Redrive")).to_be_visible()
    for _ in range(10):
        page.keyboard.press("Tab")
        if active(page) == "Redrive":
            break
    died_at = query(opened.url, id)["died_at"]
    page.keyboard.press("Enter")
    expect_of(page.get_by_text("The task is due now, with all its retries.").first).to_be_visible()
    wait_until(lambda: query(opened.url, id).get("died_at") != died_at, "it is redriven")
    wait_until(lambda: len(opened.announced()) == 2, "it is said")
    assert opened.announced() == [f"Task {id}", "The task is due now, with all its retries."]


# Dialogs

DIALOGS = {
    "keys": ("/console/topics/order", ["Keys"]), "resume": ("/console/topics/order", ["Resume"]),
    "purge": ("/console/topics/order", ["Purge…"]), "edit": ("/console/tasks/order-1", ["Edit"]),
    "copy": ("/console/tasks/order-1", ["Copy as new"]), "delete": ("/console/tasks/order-1", ["Delete"]),
    "run now": ("/console/tasks?topic=order", ["jx", "Run now"]), "pause": ("/console/topics", ["jx", "Pause"]),
    "redrive all": ("/console/dead?topic=mail", ["Redrive…"]), "purge all": ("/console/dead?topic=mail", ["Purge…"]),
    "schedule": ("/console/schedules", ["Delete"]),
}  # fmt: skip


@pytest.mark.parametrize(("path", "steps"), DIALOGS.values(), ids=DIALOGS)
def test_a_dialog_keeps_the_focus_and_gives_it_back(opened: ConsolePage, path: str, steps: list[str]) -> None:
    put_schedules(opened.url, "asked")
    page = opened.open(path)
    for step in steps[:-1]:
        page.keyboard.type(step)
    button = page.locator("main, header").get_by_role("button", name=steps[-1], exact=True).first
    button.focus()
    page.keyboard.press("Enter")
    expect_of(page.locator("dialog")).to_be_visible()
    assert active(page) == "dialog"
    assert page.locator("dialog :is(.button-primary, .button-danger):focus").count() == 0
    count = page.locator("dialog").locator(CONTROLS).count()
    for key in ("Tab", "Shift+Tab"):
        for _ in range(count + 3):
            page.keyboard.press(key)
            assert active(page) in ("dialog", "body"), key  # the body: the browser's own controls
    page.keyboard.press("Escape")
    expect_of(page.locator("dialog")).to_have_count(0)
    expect_of(button).to_be_focused()
    assert opened.announced() == []


# What had the focus goes away


def test_the_focus_stays_near_a_button_that_is_gone(opened: ConsolePage) -> None:
    """A redriven task is not dead any more, so its button goes."""
    (id,) = create_dead(opened.url, "revived", 1)
    assert call(opened.url, "POST", "/topics/revived/pause").status == 200  # or it dies again
    page = opened.open(f"/console/tasks/{id}")
    page.get_by_role("button", name="Redrive").focus()
    page.keyboard.press("Enter")
    expect_of(page.get_by_role("button", name="Redrive")).to_have_count(0)
    assert page.evaluate("document.activeElement.closest('.page-actions') !== null")


def test_the_focus_goes_to_the_next_row_when_its_row_is_gone(opened: ConsolePage) -> None:
    ids = create_waiting(opened.url, "gone", 4)
    page = opened.open("/console/tasks?topic=gone")
    page.get_by_role("link", name=ids[1]).focus()
    assert post(opened.url, "/delete", {"id": ids[1]}).status == 200
    page.keyboard.press("r")
    expect_of(page.get_by_role("link", name=ids[2])).to_be_focused()
    assert post(opened.url, "/delete/batch", [{"id": id} for id in ids[2:]]).status == 200
    page.keyboard.press("r")
    expect_of(page.get_by_role("link", name=ids[0])).to_be_focused()


def test_the_focus_goes_to_the_next_row_when_a_dialog_has_removed_its_row(opened: ConsolePage) -> None:
    put_schedules(opened.url, "removed-1", "removed-2", "removed-3")
    page = opened.open("/console/schedules")
    row = page.locator("tbody tr", has_text="removed-2")
    row.get_by_role("button", name="Delete").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect_of(row).to_have_count(0)
    expect_of(page.locator("dialog")).to_have_count(0)
    assert page.evaluate("document.activeElement.matches('tbody tr a, tbody tr')")
    wait_until(opened.announced, "it is said")
    assert opened.announced() == ["removed-2 is deleted."]


def test_the_focus_follows_its_row_to_another_place(opened: ConsolePage) -> None:
    ids = create_waiting(opened.url, "moved", 4)
    page = opened.open("/console/tasks?topic=moved")
    page.get_by_role("link", name=ids[3]).focus()
    assert post(opened.url, "/update", {"id": ids[3], "delay": 60}).status == 200
    page.keyboard.press("r")
    expect_of(page.locator("tbody th a").first).to_have_text(ids[3])
    expect_of(page.locator("tbody th a").first).to_be_focused()


def test_a_selection_is_deleted_and_said_once(opened: ConsolePage) -> None:
    ids = create_waiting(opened.url, "chosen", 4)
    page = opened.open("/console/tasks?topic=chosen")
    for key in "jxjx":
        page.keyboard.press(key)
    page.get_by_role("button", name="Delete").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect_of(page.locator("tbody tr")).to_have_count(2)
    expect_of(page.locator("dialog")).to_have_count(0)
    wait_until(opened.announced, "it is said")
    assert opened.announced() == ["2 tasks are deleted."]
    assert page.evaluate("document.activeElement.closest('.task-list') !== null")
    page.keyboard.press("j")
    assert active(page) in ids[2:]


def test_a_deleted_task_leaves_the_focus_in_its_page(opened: ConsolePage) -> None:
    (id,) = create_waiting(opened.url, "ended", 1)
    page = opened.open(f"/console/tasks/{id}")
    page.get_by_role("button", name="Delete").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect_of(page.get_by_text("Deleted here, just now.").first).to_be_visible()
    expect_of(page.locator("dialog")).to_have_count(0)
    assert page.evaluate("document.activeElement.closest('main') !== null")
    wait_until(opened.announced, "it is said")
    assert opened.announced() == ["Deleted here, just now."]


def test_the_focus_stays_near_a_number_that_was_acknowledged(opened: ConsolePage) -> None:
    page = opened.open("/console/dead")
    row = page.locator("tbody tr", has_text="mail")
    row.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect_of(row.get_by_role("button")).to_have_count(0)
    expect_of(row.get_by_role("link")).to_be_focused()
