"""Names, contents and messages that would be markup, scripts, addresses or layout, on a phone: all of it is text."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page
from playwright.sync_api import expect as expect_of

from tests.console.browser.console_page import ConsolePage, open_console
from tests.console.browser.hostile_data import (
    CONTENTS,
    HOST,
    IDS,
    IMAGE,
    MESSAGE,
    PATH_IDS,
    RUN,
    SCHEDULE_IDS,
    TOPICS,
    fill_with_hostile_values,
)
from tests.system.api_client import get
from tests.system.daemons import Daemon, run_up
from tests.system.receivers import run_receiver

PHONE = {"width": 320, "height": 700}
LISTS = {
    "overview": "/console/", "topics": "/console/topics?sort=name", "contents": "/console/tasks?topic=contents",
    "ids": "/console/tasks?topic=ids&state=delay", "dead": "/console/dead", "jobs": "/console/jobs",
    "schedules": "/console/schedules", "workers": "/console/workers", "policy": "/console/topics/followed",
    "moved": "/console/tasks/followed", "dead of a topic with a follower": "/console/dead?topic=followed",
}  # fmt: skip
MARKUP = quote(IMAGE, safe="")
ADDRESSES = [
    f"/console/tasks/{MARKUP}", "/console/tasks/%E0%A4", "/console/topics/%00", f"/console/jobs/{MARKUP}",
    f"/console/tasks?topic={MARKUP}&state={MARKUP}&after={MARKUP}&before=1&cursor={MARKUP}",
    f"/console/tasks?topic=ids&cursor={MARKUP}", f"/console/tasks?id={MARKUP}", "/console/?range=__proto__",
    f"/console/topics?namespace={MARKUP}&filter={MARKUP}&sort=__proto__&cursor=x", f"/console/jobs?cursor={MARKUP}",
    f"/console/dead?topic={MARKUP}&reason=__proto__&after=x", f"/console/schedules?cursor={MARKUP}",
    f"/console/jobs/new?run={MARKUP}", f"/console/api#{MARKUP}", f"/console/sign-in?next=javascript:{RUN}",
    f"/console/topics/{'w' * 3000}",
]  # fmt: skip
FOREIGN = (
    "main :is(img, script, iframe, object, embed, base, link, style, form[action]), "
    "main a:not([href^='/console/'], [href^='#'])"
)
"""What stands in no page, outside the description of the API."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with hostile values, which tests only look at."""
    folder = tmp_path_factory.mktemp("hostile")
    with run_receiver() as receiver, run_up(folder, folder / "data", "--retry", "0") as up:
        fill_with_hostile_values(up.url, folder / "data", receiver)
        yield up


@pytest.fixture(scope="module")
def shared(browser: Browser, hostile: Daemon) -> Iterator[ConsolePage]:
    with open_console(browser, hostile.url, viewport=PHONE) as opened:
        opened.open("/console/")
        yield opened


@pytest.fixture
def phone(shared: ConsolePage) -> Iterator[ConsolePage]:
    """A page as wide as a phone, on which after each test nothing has run, and nothing hangs out at the side."""
    yield shared
    shared.check()
    check_text(shared.page)


def check_text(page: Page) -> None:
    """What the page shows is text, and fits."""
    assert page.evaluate("globalThis.ran") is None
    if not page.url.partition("#")[0].endswith("/api"):
        assert page.locator(FOREIGN).evaluate_all("all => all.map(one => one.outerHTML)") == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def main_text(page: Page) -> str:
    return page.locator("main").inner_text()


@pytest.mark.parametrize("path", LISTS.values(), ids=LISTS)
def test_a_page_of_hostile_values_is_text(phone: ConsolePage, path: str) -> None:
    phone.open(path)
    assert phone.page.get_by_role("alert").count() == 0


@pytest.mark.parametrize("name", TOPICS)
def test_every_link_of_a_topic_leads_back_to_it(phone: ConsolePage, name: str) -> None:
    topic = TOPICS[name]
    page = phone.page
    phone.visit("/console/topics?sort=name", "Topics")  # the other orders are those of the last census
    page.get_by_role("link", name=topic, exact=True).click()
    rest = topic.rpartition("/")[2]
    expect_of(page.locator("h1 > bdi")).to_have_text(rest)
    check_text(page)
    page.get_by_role("link", name="Tasks", exact=True).click()
    expect_of(page.locator("main input[list]")).to_have_value(topic)
    page.get_by_role("link", name=f"waits-{list(TOPICS).index(name)}", exact=True).click()
    expect_of(page.locator(".facts")).to_be_visible()
    check_text(page)
    assert page.locator(".facts a").first.text_content() == topic
    page.locator(".facts a").first.click()
    expect_of(page.locator("h1 > bdi")).to_have_text(rest)
    page.locator(".tile", has_text="Dead").get_by_role("link").click()
    expect_of(page.locator("h1")).to_contain_text(topic)
    page.get_by_role("link", name=f"died-{list(TOPICS).index(name)}", exact=True).click()
    expect_of(page.locator(".facts a").first).to_have_text(topic)
    assert IMAGE in main_text(page)  # the receiver's message


@pytest.mark.parametrize("id", IDS)
def test_every_link_of_an_id_leads_back_to_it(phone: ConsolePage, id: str) -> None:
    page = phone.page
    phone.visit("/console/tasks?topic=ids&state=delay", "Tasks of ids")
    page.get_by_role("link", name=id, exact=True).click()
    expect_of(page.locator(".facts")).to_be_visible()
    assert page.locator("h1 .code").text_content() == id


@pytest.mark.parametrize("id", PATH_IDS)
def test_every_link_of_a_job_leads_back_to_it(phone: ConsolePage, id: str) -> None:
    page = phone.page
    phone.visit("/console/jobs", "Jobs")
    page.get_by_role("link", name=id, exact=True).click()
    expect_of(page.locator(".tile-number").first).to_have_text("1")
    assert page.locator("h1 .code").text_content() == id


@pytest.mark.parametrize("name", CONTENTS)
def test_a_content_is_text_wherever_it_is_shown(phone: ConsolePage, name: str) -> None:
    page = phone.open(f"/console/tasks/content-{list(CONTENTS).index(name)}")
    shown = page.locator(".content-text").inner_text()
    assert 0 < len(shown) < 2 * 65_536
    if page.get_by_label("as it was sent").count():
        page.get_by_label("as it was sent").check()
        shown = page.locator(".content-text").inner_text()
    assert shown[:60] == CONTENTS[name][:60] or "\\u" in shown[:60]
    check_text(page)
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Change the content").check()
    expect_of(page.locator("dialog textarea")).to_be_visible()
    assert page.locator("dialog textarea").input_value()[-60:] == CONTENTS[name].replace("\r", "\n")[-60:]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_that_somebody_made_up_is_text(phone: ConsolePage, address: str) -> None:
    phone.may_fail = True
    phone.open(address)
    phone.may_fail = False


def test_no_name_that_is_typed_is_sent_to_a_spell_checker(phone: ConsolePage) -> None:
    page = phone.open("/console/tasks?topic=ids")
    inputs = page.locator("input:is([type=search], [type=text], :not([type]))")
    assert set(inputs.evaluate_all("all => all.map(one => one.spellcheck)")) == {False}


def test_the_search_takes_every_name_for_text(phone: ConsolePage) -> None:
    page = phone.open("/console/topics?sort=name")
    proposed = page.locator(".search option").evaluate_all("all => all.map(one => one.value)")
    assert set(TOPICS.values()) <= set(proposed)
    phone.may_fail = True  # what is no task's id may be a topic
    for name in [*TOPICS.values(), *IDS]:
        page.keyboard.press("/")
        page.keyboard.insert_text(name)
        page.keyboard.press("Enter")
        expect_of(page).to_have_title(f"{'Task ' if name in IDS else ''}{name} · later")
        expect_of(page.locator(".search-input")).to_have_value("")
    unknown = f"{IMAGE}/unknown"
    page.keyboard.press("/")
    page.keyboard.insert_text(unknown)
    page.keyboard.press("Enter")
    expect_of(page.locator(".search-told")).to_contain_text(unknown)
    check_text(page)
    page.get_by_role("link", name="Look at that topic").click()
    expect_of(page.locator("h1 > bdi")).to_have_text("unknown")
    phone.may_fail = False


def test_the_questions_of_dialogs_are_text(phone: ConsolePage) -> None:
    page = phone.open("/console/topics?sort=name")
    page.get_by_label("Select all").check()
    page.get_by_role("button", name="Pause").click()
    expect_of(page.locator("dialog .sample")).to_contain_text("more")
    check_text(page)
    page.keyboard.press("Escape")
    for name in ("markup", "long", "from right to left"):
        phone.visit(f"/console/topics/{quote(TOPICS[name], safe='')}", TOPICS[name])
        page.get_by_role("button", name="Purge").click()
        assert page.locator("dialog .type-name bdi").text_content() == TOPICS[name]
        page.keyboard.insert_text(TOPICS[name])
        expect_of(page.locator("dialog .button-danger")).not_to_have_attribute("aria-disabled", "true")
        check_text(page)
        phone.visit(f"/console/dead?topic={quote(TOPICS[name])}", f"Dead tasks of {TOPICS[name]}")
        page.get_by_role("button", name="Redrive").first.click()
        expect_of(page.locator("dialog .sample")).to_contain_text("died-")
        assert TOPICS[name] in (page.locator("dialog").text_content() or "")
        check_text(page)


def test_a_message_a_host_and_a_policy_are_shown_as_they_are(phone: ConsolePage) -> None:
    page = phone.open("/console/workers")
    assert HOST in main_text(page)
    page = phone.open("/console/topics/followed")
    assert IMAGE in main_text(page)
    page.get_by_role("button", name="Edit").click()
    expect_of(page.get_by_label("dead_to", exact=True)).to_have_value(IMAGE)
    page.get_by_label("dead_to", exact=True).fill(f"{IMAGE}2")
    page.get_by_role("button", name="Review 1 change").click()
    expect_of(page.locator("dialog .sample")).to_contain_text(f"{IMAGE} → {IMAGE}2")
    check_text(page)
    page = phone.open("/console/dead?topic=followed")
    page.get_by_role("link", name=IMAGE).click()
    expect_of(page.locator("main input[list]")).to_have_value(IMAGE)
    page = phone.open("/console/tasks/followed")
    assert main_text(page).count(MESSAGE.split()[0]) >= 2


def test_the_sign_in_leads_to_pages_of_the_console_alone(phone: ConsolePage) -> None:
    page = phone.open("/console/sign-in")
    places = [
        f"javascript:{RUN}",
        "//evil.example/",
        "/\\evil.example",
        "https://evil.example/",
        "/\t/evil.example",
        IMAGE,
    ]
    next_page = """places => import("/console/static/pages/sign_in.js").then(({ nextPage }) => (
        places.map((next) => new URL("/console" + nextPage(new URLSearchParams({ next })), location.origin).origin)))"""
    assert set(page.evaluate(next_page, places)) == {phone.url}


@pytest.mark.parametrize("id", SCHEDULE_IDS)
def test_a_schedule_is_acted_on_whatever_its_id(phone: ConsolePage, id: str) -> None:
    page = phone.page
    phone.visit("/console/schedules", "Schedules")
    row = page.locator("tr", has=page.get_by_role("rowheader", name=id, exact=True))
    row.get_by_role("button", name="Pause").click()
    expect_of(row.get_by_role("button", name="Resume")).to_be_visible()
    paused = [one["id"] for one in get(phone.url, "/schedules").body["schedules"] if one["paused"]]
    assert paused == [id]
    row.get_by_role("button", name="Resume").click()
    expect_of(row.get_by_role("button", name="Pause")).to_be_visible()
