"""The page of a task: each of its actions does what the API does, and what cannot be done is told."""

from __future__ import annotations

import threading

import pytest
from playwright.sync_api import expect as expect_of

from tests.console.browser.console_page import ConsolePage
from tests.console.browser.sample_data import NOBODY, pause, put_dead, put_waiting, states
from tests.system.api_client import create, get, post, query
from tests.system.daemons import Daemon
from tests.system.receivers import once_set, run_receiver
from tests.system.waiting import wait_until


def test_a_task_is_run_now(console: ConsolePage, changed: Daemon, topic: str) -> None:
    pause(changed.url, topic)
    [id] = put_waiting(changed.url, topic, 1)
    before = query(changed.url, id)
    console.go_to(f"/console/tasks/{id}")
    console.button("Run now").dblclick()
    console.expect_told("The task is due now.")
    assert console.bodies("POST /run-now") == [{"id": id}]
    after = query(changed.url, id)
    assert after["due_at"] < before["due_at"]
    assert {**after, "due_at": ""} == {**before, "due_at": ""}


def test_a_dead_task_is_redriven_and_not_edited(console: ConsolePage, changed: Daemon, topic: str) -> None:
    [id] = put_dead(changed.url, topic, 1)
    pause(changed.url, topic)
    console.go_to(f"/console/tasks/{id}")
    expect_of(console.button("Run now")).to_have_count(0)
    console.expect_off("Edit", "Dead tasks are not changed: redrive it first, or copy it as new.")
    console.button("Redrive").click()
    console.expect_told("The task is due now, with all its retries.")
    assert console.bodies("POST /redrive") == [{"id": id}]
    assert (query(changed.url, id)["state"], query(changed.url, id)["attempts"]) == ("delay", 0)


def test_an_edit_sends_only_what_is_marked(console: ConsolePage, changed: Daemon, topic: str) -> None:
    id = create(changed.url, topic=topic, callback=NOBODY, delay=3600, content="a", retry=5, ttl=7200)
    before = query(changed.url, id)
    console.go_to(f"/console/tasks/{id}")
    console.button("Edit").click()
    question = console.expect_question("Edit the task")
    expect_of(question.get_by_role("button", name="Save")).to_have_attribute("aria-disabled", "true")
    question.get_by_label("Change the content").check()
    question.get_by_label("Content", exact=True).fill("b")
    question.get_by_label("Change the retries").check()
    question.get_by_label("Retries", exact=True).fill("2")
    console.confirm("Save")
    console.expect_told("The task is changed.")
    assert console.bodies("POST /update") == [{"id": id, "content": "b", "retry": 2}]
    assert query(changed.url, id) == {**before, "content": "b", "max_retry": 2}


def test_an_edit_may_take_values_away(console: ConsolePage, changed: Daemon, topic: str) -> None:
    id = create(changed.url, topic=topic, callback=NOBODY, delay=3600, content="a", ttl=7200, context={"a": "b"})
    console.go_to(f"/console/tasks/{id}")
    console.button("Edit").click()
    question = console.expect_question("Edit the task")
    for label, mark in (("Time to live, in seconds", "Change the time to live"), ("Context", "Replace the context")):
        question.get_by_label(mark).check()
        question.get_by_label(label, exact=True).fill("")
    console.confirm("Save")
    console.expect_told("The task is changed.")
    assert console.bodies("POST /update") == [{"id": id, "ttl": None, "context": {}}]
    after = query(changed.url, id)
    assert (after.get("expires_at"), after.get("context")) == (None, None)


def test_a_refused_edit_is_told_at_its_field(console: ConsolePage, changed: Daemon, topic: str) -> None:
    [id] = put_waiting(changed.url, topic, 1)
    console.go_to(f"/console/tasks/{id}")
    console.may_fail = True
    console.button("Edit").click()
    question = console.expect_question("Edit the task")
    question.get_by_label("Change the callback").check()
    question.get_by_label("Callback", exact=True).fill("ftp://x")
    console.confirm("Save")
    refusal = post(changed.url, "/update", {"id": id, "callback": "ftp://x"}).body["detail"]
    expect_of(question.get_by_role("alert")).to_have_text(refusal)
    expect_of(question.get_by_label("Callback", exact=True)).to_have_attribute("aria-invalid", "true")


def test_an_edit_of_a_task_in_flight_is_told(console: ConsolePage, changed: Daemon, topic: str) -> None:
    may_end = threading.Event()
    with run_receiver() as receiver:
        receiver.rules["/"] = once_set(may_end)
        id = create(changed.url, topic=topic, callback=receiver.url(), delay=3600, content="a")
        console.go_to(f"/console/tasks/{id}")
        console.may_fail = True
        console.button("Edit").click()
        question = console.expect_question("Edit the task")
        question.get_by_label("Change the content").check()
        question.get_by_label("Content", exact=True).fill("b")
        assert post(changed.url, "/run-now", {"id": id}).status == 200
        wait_until(lambda: states(changed.url, [id]) == ["unack"], "it is in flight")
        console.confirm("Save")
        expect_of(question).to_contain_text(
            "A worker is delivering the task, so nothing was changed. Try again after this attempt."
        )
        assert query(changed.url, id)["content"] == "a"
        console.confirm("Cancel")
        reason = "In flight: a worker is delivering it. Wait until the attempt has ended."
        console.expect_off("Run now", reason)
        console.expect_off("Edit", reason)
        console.button("Delete").click()
        expect_of(console.expect_question("Delete this task?")).to_contain_text(
            "its receiver may still get this attempt"
        )
        console.confirm("Delete")
        expect_of(
            console.page.locator("main").get_by_text("Its receiver may still get the attempt").first
        ).to_be_visible()
        may_end.set()
    assert states(changed.url, [id]) == ["gone"]


def test_a_task_is_deleted_after_a_question(console: ConsolePage, changed: Daemon, topic: str) -> None:
    [id] = put_waiting(changed.url, topic, 1)
    console.go_to(f"/console/tasks/{id}")
    console.button("Delete").click()
    question = console.expect_question("Delete this task?")
    expect_of(question.get_by_role("listitem")).to_have_text([id])
    console.page.keyboard.press("Escape")
    expect_of(console.question).to_have_count(0)
    assert console.bodies("POST /delete") == []
    expect_of(console.button("Delete")).to_be_focused()
    console.button("Delete").click()
    console.confirm("Delete")
    expect_of(console.page.locator("main").get_by_text("Deleted here, just now.").first).to_be_visible()
    assert states(changed.url, [id]) == ["gone"]


def test_a_delete_after_the_delivery_does_not_claim_it(console: ConsolePage, changed: Daemon, topic: str) -> None:
    with run_receiver() as receiver:
        id = create(changed.url, topic=topic, id=f"{topic}.own", callback=receiver.url(), delay=3600, remember=3600)
        console.go_to(f"/console/tasks/{id}")
        console.button("Delete").click()
        console.expect_question("Delete this task?")
        held = console.hold("/delete")
        console.confirm("Delete")
        delete = held.next()
        assert post(changed.url, "/run-now", {"id": id}).status == 200
        wait_until(lambda: post(changed.url, "/query", {"id": id}).body.get("ended"), "it is done")
    delete.continue_()
    expect_of(
        console.page.locator("main").get_by_text("It had ended before. Its id is free again now.").first
    ).to_be_visible()


@pytest.mark.parametrize(("status", "type"), [(409, "in-flight"), (503, "store-away"), (401, "no-key")])
def test_a_failed_run_now_is_told(console: ConsolePage, changed: Daemon, topic: str, status: int, type: str) -> None:
    [id] = put_waiting(changed.url, topic, 1)
    console.go_to(f"/console/tasks/{id}")
    console.answer("/run-now", status, type, f"words of a {status}")
    console.button("Run now").click()
    expect_of(console.page.get_by_role("alert").first).to_contain_text(f"words of a {status}", ignore_case=True)
    expect_of(console.page.get_by_text("The task is due now.")).to_have_count(0)
    console.button("Run now").click()
    console.expect_told("The task is due now.")
    expect_of(console.page.get_by_text(f"words of a {status}")).to_have_count(0)


def test_a_copy_is_a_new_task(console: ConsolePage, changed: Daemon, topic: str) -> None:
    id = create(changed.url, topic=topic, callback=NOBODY, delay=3600, content="a", retry=5)
    console.go_to(f"/console/tasks/{id}")
    console.button("Copy as new").click()
    question = console.expect_question("Create a task like this one")
    question.get_by_label("Headers").fill("X-New: 1")
    question.get_by_label("Content", exact=True).fill("b")
    console.confirm("Create")
    console.page.wait_for_url(lambda url: "/console/tasks/" in url and not url.endswith(id))
    copied = query(changed.url, console.page.url.rpartition("/")[2])
    assert {name: copied[name] for name in ("topic", "callback", "content", "max_retry", "headers")} == {
        "topic": topic, "callback": NOBODY, "content": "b", "max_retry": 5, "headers": ["X-New"],
    }  # fmt: skip
    assert query(changed.url, id)["content"] == "a"


def test_a_copy_with_an_id_that_is_taken_says_so(console: ConsolePage, changed: Daemon, topic: str) -> None:
    [id] = put_waiting(changed.url, topic, 1)
    console.go_to(f"/console/tasks/{id}")
    console.button("Copy as new").click()
    question = console.expect_question("Create a task like this one")
    question.get_by_label("Id", exact=True).fill(id)
    console.confirm("Create")
    expect_of(question.get_by_role("alert")).to_have_text(
        f"A task with the id {id} is there already, or its id is remembered: nothing was created."
    )
    assert get(changed.url, f"/topics/{topic}").body["delay"] == 1
