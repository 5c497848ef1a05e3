"""Schedules and bulk jobs with real data: what the page of schedules does, and what the pages of jobs show."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator
from playwright.sync_api import expect as expect_of

from tests.console.browser.console_page import ConsolePage
from tests.console.browser.sample_data import NOBODY, counts
from tests.system.api_client import call, get, post
from tests.system.daemons import Daemon


@pytest.fixture
def schedule(changed: Daemon, topic: str) -> str:
    """A schedule that fires every hour from a far day on into the test's topic."""
    definition = {"topic": topic, "every": 3600, "start": "2031-01-01T00:00:00Z", "callback": NOBODY}
    answer = call(changed.url, "PUT", f"/schedules/{topic}", definition)
    assert answer.status == 200, answer
    return topic


def row(console: ConsolePage, id: str) -> Locator:
    return console.page.get_by_role("row").filter(has_text=id)


def press(console: ConsolePage, id: str, name: str) -> None:
    row(console, id).get_by_role("button", name=name, exact=True).click()


def test_a_schedule_is_paused_and_resumed(console: ConsolePage, changed: Daemon, schedule: str) -> None:
    console.go_to("/console/schedules")
    expect_of(row(console, schedule)).to_contain_text("every 1 h")
    press(console, schedule, "Pause")
    console.expect_told(f"{schedule} is paused.")
    assert get(changed.url, f"/schedules/{schedule}").body["paused"] is True
    expect_of(row(console, schedule)).to_contain_text("paused")
    press(console, schedule, "Resume")
    console.expect_told(f"{schedule} fires again.")
    assert get(changed.url, f"/schedules/{schedule}").body["paused"] is False


def test_a_double_click_runs_a_schedule_once(console: ConsolePage, changed: Daemon, schedule: str) -> None:
    assert call(changed.url, "POST", f"/topics/{schedule}/pause").status == 200
    console.go_to("/console/schedules")
    held = console.hold(f"/schedules/{schedule}/run-now")
    row(console, schedule).get_by_role("button", name="Run now").dblclick()
    held.next().continue_()
    console.expect_told("It has created the task")
    assert console.bodies(f"POST /schedules/{schedule}/run-now") == [{}]
    assert counts(changed.url, schedule)["delay"] == 1
    id = get(changed.url, f"/schedules/{schedule}").body["last"]["task_id"]
    console.page.get_by_role("link", name=id).first.click()
    expect_of(console.page).to_have_title(f"Task {id} · later")


def test_a_schedule_is_deleted_after_a_question(console: ConsolePage, changed: Daemon, schedule: str) -> None:
    console.go_to("/console/schedules")
    press(console, schedule, "Delete")
    expect_of(console.expect_question("Delete this schedule?").get_by_role("listitem")).to_have_text(schedule)
    console.answer(f"/schedules/{schedule}", 503, "store-away", "the store is away")
    console.confirm("Delete")
    expect_of(console.question.get_by_role("alert")).to_contain_text("the store is away", ignore_case=True)
    assert get(changed.url, f"/schedules/{schedule}").status == 200
    console.confirm("Delete")
    console.expect_told(f"{schedule} is deleted.")
    assert get(changed.url, f"/schedules/{schedule}").status == 404
    expect_of(console.page.get_by_role("row").filter(has_text=schedule)).to_have_count(0)


@pytest.mark.parametrize(("name", "path"), [("Run now", "run-now"), ("Pause", "pause")])
def test_what_fails_is_told(console: ConsolePage, changed: Daemon, schedule: str, name: str, path: str) -> None:
    console.go_to("/console/schedules")
    console.answer(f"/schedules/{schedule}/{path}", 503, "store-away", "the store is away")
    press(console, schedule, name)
    expect_of(console.page.get_by_role("alert").first).to_contain_text("the store is away", ignore_case=True)
    expect_of(console.page.locator(".notice.level-ok")).to_have_count(0)


def test_a_schedule_that_is_gone_is_told(console: ConsolePage, changed: Daemon, schedule: str) -> None:
    console.go_to("/console/schedules")
    console.page.keyboard.press("p")  # the row would go with the next look at the list
    console.may_fail = True
    assert call(changed.url, "DELETE", f"/schedules/{schedule}").status == 200
    press(console, schedule, "Pause")
    refusal = post(changed.url, f"/schedules/{schedule}/pause", {}).body["detail"]
    expect_of(console.page.get_by_role("alert").first).to_contain_text(refusal, ignore_case=True)


def test_jobs_show_what_they_created(console: ConsolePage, changed: Daemon, topic: str) -> None:
    tasks = [{"id": f"{topic}.{n}", "topic": topic, "callback": NOBODY, "delay": 3600} for n in range(3)]
    assert post(changed.url, f"/create/batch?job={topic}&run=1", tasks).body["created"] == 3
    wrong = {"topic": topic, "callback": NOBODY, "delay": -1}
    assert post(changed.url, f"/create/batch?job={topic}&run=2", [tasks[0], wrong]).status == 200
    answer = get(changed.url, f"/jobs/{topic}").body
    console.go_to("/console/jobs")
    cells = row(console, topic).get_by_role("cell")
    expect_of(cells.nth(0)).to_have_text(str(answer["created"]))
    expect_of(cells.nth(1)).to_have_text(str(answer["existing"]))
    expect_of(cells.nth(2)).to_have_text(str(answer["refused"]))
    console.page.get_by_role("link", name=topic).click()
    numbers = console.page.locator(".tile-number")
    expect_of(numbers).to_have_text([str(answer[name]) for name in ("created", "existing", "refused")])
    console.page.get_by_label("Only this run").fill("2")
    console.button("Show").click()
    console.page.wait_for_url("**?run=2")
    run = get(changed.url, f"/jobs/{topic}?run=2").body
    expect_of(numbers).to_have_text([str(run[name]) for name in ("created", "existing", "refused")])
    assert run != answer


def test_a_job_that_is_not_there_is_a_page(console: ConsolePage) -> None:
    console.may_fail = True
    console.go_to("/console/jobs/nowhere")
    expect_of(console.page.locator("main").get_by_text("No such job").first).to_be_visible()
