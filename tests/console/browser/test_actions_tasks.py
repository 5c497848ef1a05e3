"""The list of tasks: what is done with a selection is what the API does, and what was not done is told."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from playwright.sync_api import expect as expect_of

from tests.console.browser.console_page import ConsolePage
from tests.console.browser.sample_data import NOBODY, pause, put_dead, put_waiting, states
from tests.system.api_client import create, post, query
from tests.system.daemons import Daemon
from tests.system.receivers import run_receiver
from tests.system.waiting import wait_until


def select(console: ConsolePage, ids: Sequence[str]) -> None:
    for id in ids:
        console.page.get_by_label(f"Select {id}", exact=True).check()


def test_a_selection_is_run_now(console: ConsolePage, changed: Daemon, topic: str) -> None:
    pause(changed.url, topic)
    first, second, third = put_waiting(changed.url, topic, 3)
    console.go_to(f"/console/tasks?topic={topic}&state=delay")
    select(console, [first, second])
    console.button("Run now").click()
    question = console.expect_question("Run 2 tasks now?")
    expect_of(question.get_by_role("listitem")).to_have_text([first, second])
    console.confirm("Run now")
    console.expect_told("2 tasks are due now.")
    expect_of(console.question).to_have_count(0)
    assert console.bodies("POST /run-now") == [{"ids": [first, second]}]
    assert states(changed.url, [first, second, third]) == ["delay"] * 3
    now, later = (datetime.fromisoformat(query(changed.url, id)["due_at"]) for id in (second, third))
    assert (later - now).total_seconds() > 3000


def test_a_selection_is_deleted_and_the_page_says_what_was_gone(
    console: ConsolePage, changed: Daemon, topic: str
) -> None:
    ids = put_waiting(changed.url, topic, 4)
    console.go_to(f"/console/tasks?topic={topic}")
    select(console, ids[:3])
    console.button("Delete").click()
    console.expect_question("Delete 3 tasks?")
    assert post(changed.url, "/delete", {"id": ids[0]}).status == 200
    console.confirm("Delete")
    console.expect_told("2 tasks are deleted; 1 not there any more.")
    assert console.bodies("POST /delete/batch") == [[{"id": id} for id in ids[:3]]]
    assert states(changed.url, ids) == ["gone"] * 3 + ["delay"]
    expect_of(console.page.locator("tbody tr")).to_have_count(1)
    expect_of(console.page.get_by_text("3 selected")).to_have_count(0)


def test_a_delete_tells_what_had_ended_before(console: ConsolePage, changed: Daemon, topic: str) -> None:
    with run_receiver() as receiver:
        id = create(changed.url, topic=topic, id=f"{topic}.own", callback=receiver.url(), delay=3600, remember=3600)
        console.go_to(f"/console/tasks?topic={topic}")
        select(console, [id])
        console.button("Delete").click()
        console.expect_question("Delete 1 task?")
        assert post(changed.url, "/run-now", {"id": id}).status == 200
        wait_until(lambda: post(changed.url, "/query", {"id": id}).body.get("ended"), "it is done")
    console.confirm("Delete")
    console.expect_told("0 tasks are deleted; 1 had ended before.")


def test_only_dead_tasks_are_redriven(console: ConsolePage, changed: Daemon, topic: str) -> None:
    [waiting], dead = put_waiting(changed.url, topic, 1), put_dead(changed.url, topic, 3)
    pause(changed.url, topic)
    console.go_to(f"/console/tasks?topic={topic}")
    select(console, [waiting])
    console.expect_off("Redrive", "Only dead tasks are redriven.")
    console.go_to(f"/console/tasks?topic={topic}&state=dead")
    select(console, dead[:2])
    console.button("Redrive").click()
    console.expect_question("Redrive 2 tasks?")
    console.confirm("Redrive")
    console.expect_told("2 tasks are redriven.")
    assert console.bodies("POST /redrive") == [{"ids": dead[:2]}]
    assert states(changed.url, dead) == ["delay", "delay", "dead"]


def test_what_is_selected_is_what_the_filter_shows(console: ConsolePage, changed: Daemon, topic: str) -> None:
    ids = [
        create(changed.url, topic=topic, id=f"{topic}.{name}", callback=NOBODY, delay=3600) for name in ("a", "ab", "c")
    ]
    console.go_to(f"/console/tasks?topic={topic}")
    console.page.get_by_label("Filter this page").fill(f"{topic}.a")
    expect_of(console.page.locator("tbody tr")).to_have_count(2)
    console.page.get_by_label("Select all").check()
    console.button("Delete").click()
    console.expect_question("Delete 2 tasks?")
    console.confirm("Delete")
    console.expect_told("2 tasks are deleted.")
    assert states(changed.url, ids) == ["gone", "gone", "delay"]


def test_a_call_that_fails_changes_nothing_and_may_be_repeated(
    console: ConsolePage, changed: Daemon, topic: str
) -> None:
    ids = put_waiting(changed.url, topic, 2)
    console.go_to(f"/console/tasks?topic={topic}")
    select(console, ids)
    console.button("Delete").click()
    console.answer("/delete/batch", 503, "store-away", "the store is away: no answer in 2 s")
    console.confirm("Delete")
    expect_of(console.question.get_by_role("alert")).to_contain_text(
        "the store is away: no answer in 2 s", ignore_case=True
    )
    console.expect_question("Delete 2 tasks?")
    assert states(changed.url, ids) == ["delay", "delay"]
    console.confirm("Delete")
    console.expect_told("2 tasks are deleted.")
    assert states(changed.url, ids) == ["gone", "gone"]


def test_a_session_that_ends_meanwhile_is_told(console: ConsolePage, changed: Daemon, topic: str) -> None:
    ids = put_waiting(changed.url, topic, 1)
    console.go_to(f"/console/tasks?topic={topic}")
    select(console, ids)
    console.button("Run now").click()
    console.answer("/run-now", 401, "no-key", "the session has ended: sign in again")
    console.confirm("Run now")
    expect_of(console.question.get_by_role("alert")).to_contain_text(
        "the session has ended: sign in again", ignore_case=True
    )
    expect_of(console.page.locator(".banner")).to_contain_text("You are signed out.")
    console.confirm("Cancel")
    link = console.page.get_by_role("link", name="Sign in again")
    assert f"next=%2Ftasks%3Ftopic%3D{topic}" in (link.get_attribute("href") or "")


def test_tasks_in_flight_are_told(console: ConsolePage, changed: Daemon, topic: str) -> None:
    ids = put_waiting(changed.url, topic, 2)
    console.go_to(f"/console/tasks?topic={topic}")
    select(console, ids)
    console.button("Run now").click()
    error = {"type": "/problems/in-flight", "title": "Conflict", "status": 409, "detail": "the task is in flight"}
    answer = {
        "moved": 1, "missing": 0, "refused": 0, "in_flight": 1, "failed": 0,
        "results": [{"id": ids[0], "due_at": "2026-01-01T00:00:00.000Z"}, {"error": error}],
    }  # fmt: skip
    console.page.route(f"{changed.url}/run-now", lambda route: route.fulfill(json=answer))
    console.confirm("Run now")
    console.expect_told("1 task is due now; 1 in flight. The first: the task is in flight")
