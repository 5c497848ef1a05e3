"""The live page: who looks away asks nothing, what is away is told, and times are the server's."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, Page, Route
from playwright.sync_api import expect as expect_of

from tests.console.browser.console_page import ConsolePage, open_console
from tests.console.browser.sample_data import NOBODY
from tests.system.api_client import call, create, get, query
from tests.system.daemons import COMMAND, Daemon, run_daemon, run_daemon_as_given
from tests.system.stores import StoreServer, run_store
from tests.system.waiting import wait_until

HOUR = timedelta(hours=1)
OTHER_VERSION = "import later; later.__version__ = '9.9.9'; from later.cli import main; raise SystemExit(main())"
LIVE_PAGES = [
    "/console/", "/console/topics", "/console/topics/order", "/console/tasks/order-1", "/console/dead",
    "/console/workers", "/console/schedules", "/console/jobs",
]  # fmt: skip


def set_visibility(page: Page, state: str) -> None:
    page.evaluate(
        """state => {
            Object.defineProperty(document, "visibilityState", {configurable: true, value: state});
            Object.defineProperty(document, "hidden", {configurable: true, value: state === "hidden"});
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        state,
    )


WATCH_CALLS = """
    const send = globalThis.fetch;
    globalThis.sent = [];
    globalThis.unanswered = 0;
    globalThis.fetch = async (...call) => {
        globalThis.sent.push(performance.now() / 1000);
        globalThis.unanswered += 1;
        try {
            const answer = await send(...call);
            const { ok, status, headers } = answer;
            const text = await answer.text();
            return { ok, status, headers, text: async () => text };
        } finally {
            globalThis.unanswered -= 1;
        }
    };
"""


class Clock:
    """The clock of a page, which a test moves on. Real time passes, too."""

    def __init__(self, opened: ConsolePage) -> None:
        self._page = opened.page
        self._page.add_init_script(WATCH_CALLS)
        self._page.clock.install()

    def run(self, seconds: int, *, steps: int = 1) -> list[float]:
        """Let so much time pass in each of so many steps, and return when (s) calls were made. They are answered."""
        self.settle()
        before = len(self._sent())
        for _ in range(steps):
            self._page.clock.run_for(seconds * 1000)
            self.settle()
        return self._sent()[before:]

    def settle(self) -> None:
        """Wait until every call has been answered, and the page has dealt with the answers."""
        wait_until(lambda: self._page.evaluate("unanswered") == 0, "all answers have come")

    def wait_for_call(self) -> None:
        """Wait for a call without moving the clock on."""
        before = len(self._sent())
        wait_until(lambda: len(self._sent()) > before, "it asks")
        self.settle()

    def _sent(self) -> list[float]:
        return list(self._page.evaluate("sent"))


@pytest.fixture
def clock(page: ConsolePage) -> Clock:
    return Clock(page)


# Who looks away, who stops


@pytest.mark.parametrize("path", LIVE_PAGES)
def test_a_hidden_tab_asks_nothing_and_asks_at_once_on_return(page: ConsolePage, clock: Clock, path: str) -> None:
    shown = page.open(path)
    assert clock.run(31)
    set_visibility(shown, "hidden")
    assert clock.run(600) == []
    before = shown.evaluate("sent.length")
    set_visibility(shown, "visible")
    assert shown.evaluate("sent.length") > before
    assert clock.run(31)


def test_p_stops_and_starts_all_calls_and_the_age_is_told(page: ConsolePage, clock: Clock) -> None:
    shown = page.open("/console/")
    live = shown.locator(".live")
    shown.keyboard.press("p")
    assert clock.run(40) == []
    expect_of(live).to_have_text(re.compile(r"^\s*Stopped[4-9]\d s old"))
    before = shown.evaluate("sent.length")
    shown.keyboard.press("p")
    assert shown.evaluate("sent.length") > before
    clock.settle()
    clock.run(1)
    expect_of(live).to_have_text(re.compile(r"^\s*Live\s*$"))
    assert page.announced() == ["Live updates are off", "Live updates are on"]
    shown.keyboard.press("p")
    shown.reload()
    page.wait_until_drawn()
    assert clock.run(60) == []  # remembered


def test_the_age_is_told_on_a_phone_too(page: ConsolePage, clock: Clock) -> None:
    page.page.set_viewport_size({"width": 320, "height": 700})
    shown = page.open("/console/")
    shown.keyboard.press("p")
    clock.run(130)
    expect_of(shown.locator(".live-age")).to_have_text("2 min old")
    tops = "all => all.filter(one => one.checkVisibility()).map(one => one.getBoundingClientRect().top)"
    assert len(set(shown.locator(".top-tools > *").evaluate_all(tops))) == 1  # in one line
    expect_of(shown.locator(".live")).to_have_attribute("title", re.compile(r"^Go live · 2 min"))
    assert shown.evaluate("document.documentElement.scrollWidth") <= 320


# Errors


def test_errors_slow_it_down_to_half_a_minute_and_an_answer_ends_that(page: ConsolePage, clock: Clock) -> None:
    page.may_fail = True
    shown = page.open("/console/workers")  # one call, every five seconds

    def fail(route: Route) -> None:
        route.abort()

    shown.route("**/workers", fail)
    clock.run(6)
    expect_of(shown.locator(".banner")).to_contain_text("later does not answer.")
    at = clock.run(2, steps=90)
    gaps = [after - before for before, after in pairwise(at)]
    assert all(29 < gap < 45 for gap in gaps[-2:]), gaps
    assert len(at) < 10, at
    shown.unroute("**/workers", fail)
    clock.run(31)
    expect_of(shown.locator(".banner")).to_contain_text("later answers again.")
    assert len(clock.run(2, steps=10)) > 2
    expect_of(shown.locator(".banner")).to_have_count(0)
    assert page.announced() == ["later does not answer.", "later answers again."]


def test_data_stays_while_later_is_away_and_its_age_is_told(page: ConsolePage, clock: Clock) -> None:
    page.may_fail = True
    shown = page.open("/console/topics/order")
    sentence = shown.locator(".sentence-text").inner_text()
    shown.route(re.compile("/(explain|forecast|history|whoami)"), lambda route: route.abort())
    clock.run(10, steps=7)
    expect_of(shown.locator(".sentence-text")).to_have_text(sentence)
    expect_of(shown.locator(".live")).to_contain_text(re.compile(r"\d min.* old"))
    expect_of(shown.locator(".banner")).to_contain_text(re.compile(r"For (\d\d s|\d min)"))


@contextmanager
def run_on_a_store(folder: Path) -> Iterator[tuple[StoreServer, Daemon]]:
    with (
        run_store("valkey", folder, "--appendonly", "yes") as store,
        run_daemon("up", folder, "--redis", store.url, "--retry", "0", env={"LATER_STORE_TIMEOUT": "1"}) as up,
    ):
        wait_until(up.is_ready, "the daemon is ready")
        create(up.url, id="kept", topic="kept", callback=NOBODY, delay=3600)
        yield store, up


@pytest.mark.parametrize("fault", ["killed", "hangs"])
def test_a_store_that_is_away_is_told_and_its_return_too(browser: Browser, folder: Path, fault: str) -> None:
    with run_on_a_store(folder) as (store, up), open_console(browser, up.url) as opened:
        opened.may_fail = True
        clock = Clock(opened)
        page = opened.open("/console/")
        store.kill() if fault == "killed" else store.hang()
        wait_until(lambda: clock.run(3) and page.locator(".banner").count(), "it is told")
        expect_of(page.locator(".banner")).to_contain_text("The store is away.")
        clock.run(10, steps=8)
        expect_of(page.locator(".banner")).to_contain_text("The store is away.")
        assert opened.announced() == ["The store is away. Nothing is delivered until it is back."]
        page.keyboard.press("g")
        page.keyboard.press("w")
        expect_of(page.locator("h1")).to_have_text("Workers")
        clock.run(10)
        expect_of(page.locator(".banner")).to_contain_text("The store is away.")
        store.start() if fault == "killed" else store.resume()
        wait_until(lambda: get(up.url, "/topics").status == 200, "the store is back")
        wait_until(lambda: clock.run(5) is not None and "The store is back." in opened.announced(), "it is told")
        clock.run(10)
        expect_of(page.locator(".banner")).to_have_count(0)
        expect_of(page.get_by_role("alert")).to_have_count(0)
        assert opened.announced() == [
            "The store is away. Nothing is delivered until it is back.", "Workers", "The store is back.",
        ]  # fmt: skip


@contextmanager
def run_other_version(folder: Path, port: str) -> Iterator[Daemon]:
    options = ("--data", str(folder / "data"), "--retry", "0")
    program = (sys.executable, "-c", OTHER_VERSION)
    with run_daemon_as_given("up", folder, "--listen", f"127.0.0.1:{port}", *options, program=program) as up:
        _ = up.url
        yield up


def test_a_restart_is_told_and_a_new_version_offers_itself(browser: Browser, folder: Path) -> None:
    options = ("--data", str(folder / "data"), "--retry", "0")
    with run_daemon("up", folder, *options) as up, open_console(browser, up.url) as opened:
        opened.may_fail = True
        port = up.url.rpartition(":")[2]
        clock = Clock(opened)
        page = opened.open("/console/workers")
        assert up.stop() == 0
        wait_until(lambda: clock.run(3) and page.locator(".banner").count(), "it is told")
        expect_of(page.locator(".banner")).to_contain_text("later does not answer.")
        page.keyboard.press("g")
        page.keyboard.press("j")  # a page that was never loaded
        clock.run(5)
        with run_daemon_as_given("up", folder, "--listen", f"127.0.0.1:{port}", *options, program=COMMAND) as same:
            wait_until(same.is_ready, "it is back")
            wait_until(lambda: clock.run(10) is not None and page.locator("h1").count(), "the page comes by itself")
            expect_of(page.locator("h1")).to_have_text("Jobs")
            clock.run(10)
            expect_of(page.locator(".banner")).to_have_count(0)
            assert same.stop() == 0
        with run_other_version(folder, port) as other:
            wait_until(other.is_ready, "another version runs")
            wait_until(lambda: clock.run(5) and "9.9.9" in page.locator("body").inner_text(), "it is told")
            expect_of(page.locator(".banner")).to_contain_text("later was updated from")
            page.get_by_role("button", name="Load the new console").click()
            opened.wait_until_drawn()
            expect_of(page.locator(".banner")).to_have_count(0)
            expect_of(page.locator(".brand")).to_have_attribute("title", "later 9.9.9")


# Clocks


@pytest.mark.parametrize(
    ("off", "zone"), [(HOUR, "Asia/Kolkata"), (-HOUR, "America/St_Johns"), (timedelta(days=400), "UTC")]
)
def test_times_are_those_of_the_server(browser: Browser, changing: Daemon, off: timedelta, zone: str) -> None:
    with open_console(browser, changing.url, timezone_id=zone, locale="en-GB") as opened:
        opened.page.clock.install(time=datetime.now(UTC) + off)
        page = opened.open("/console/tasks/timed")
        due = datetime.fromisoformat(query(changing.url, "timed")["due_at"])
        shown = page.locator(".facts time").first
        expect_of(shown).to_have_text(re.compile(r"^in (1 h|[56]\d min)$"))
        local = due.astimezone(ZoneInfo(zone))
        assert f"{local:%H:%M:%S}" in (shown.get_attribute("title") or "")
        assert f"{local.day} " in (shown.get_attribute("title") or "")
        page.keyboard.press("u")
        expect_of(shown).to_have_text(f"{due:%Y-%m-%d %H:%M:%SZ}")


def test_a_time_is_written_on_the_local_clock_and_means_that_time(browser: Browser, changing: Daemon) -> None:
    zone = "America/St_Johns"
    create(changing.url, id="edited", topic="edited", callback=NOBODY, delay=3600)
    with open_console(browser, changing.url, timezone_id=zone) as opened:
        opened.page.clock.install(time=datetime.now(UTC) + HOUR)
        page = opened.open("/console/tasks/edited")
        page.get_by_role("button", name="Edit").click()
        page.get_by_label("Change when it is due").check()
        seconds = float(page.locator("dialog input[type=number]").input_value())
        assert 3000 < seconds <= 3600
        page.get_by_label("Due by").select_option("at")
        field = page.locator("dialog input[type=datetime-local]")
        due = datetime.fromisoformat(query(changing.url, "edited")["due_at"])
        assert field.input_value()[:16] == f"{due.astimezone(ZoneInfo(zone)):%Y-%m-%dT%H:%M}"
        moment = (due + 2 * HOUR).replace(microsecond=0)
        field.fill(f"{moment.astimezone(ZoneInfo(zone)):%Y-%m-%dT%H:%M:%S}")
        page.get_by_role("button", name="Save").click()
        expect_of(page.get_by_text("The task is changed.").first).to_be_visible()
        assert datetime.fromisoformat(query(changing.url, "edited")["due_at"]) == moment
        page = opened.open(f"/console/tasks?topic=edited&after={moment:%Y-%m-%dT%H:%M:00Z}")
        expect_of(page.get_by_role("link", name="edited", exact=True)).to_be_visible()


def test_dead_tasks_are_redriven_whatever_the_browsers_clock_says(browser: Browser, changing: Daemon) -> None:
    """The console redrives those that died until now, by the server's clock."""
    for number in range(3):
        create(changing.url, id=f"late-{number}", topic="late", callback=NOBODY, delay=0)
    wait_until(lambda: get(changing.url, "/topics/late").body["dead"] == 3, "they are dead")
    assert call(changing.url, "POST", "/topics/late/pause").status == 200  # or they die again
    with open_console(browser, changing.url) as opened:
        opened.page.clock.install(time=datetime.now(UTC) - HOUR)
        page = opened.open("/console/dead?topic=late")
        page.get_by_role("button", name="Redrive").first.click()
        expect_of(page.locator("dialog .sample")).to_contain_text("late-0")
        page.locator("dialog").get_by_role("button", name="Redrive").click()
        wait_until(lambda: get(changing.url, "/topics/late").body["dead"] == 0, "they are redriven")
