"""The page of a topic: its policy, pause, resume, purge, and what a change would do to its forecast."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect as expect_of

from tests.console.browser.console_page import ConsolePage
from tests.console.browser.sample_data import counts, put_dead, put_waiting, states
from tests.system.api_client import call, get
from tests.system.daemons import Daemon


def policy(url: str, topic: str) -> dict[str, Any]:
    """Return the fields that are set at the topic itself."""
    return dict(get(url, f"/topics/{topic}/policy").body)


def edit(console: ConsolePage, topic: str) -> None:
    console.go_to(f"/console/topics/{topic}")
    console.button("Edit").click()


def test_a_change_of_the_policy_sends_only_what_changed(console: ConsolePage, changed: Daemon, topic: str) -> None:
    assert call(changed.url, "PATCH", f"/topics/{topic}/policy", {"rate": 5, "retry": 2, "ramp": 60}).status == 200
    edit(console, topic)
    form = console.page.locator(".policy-form")
    form.get_by_label("rate", exact=True).fill("2.5")
    form.get_by_label("Set retry here").uncheck()
    form.get_by_label("Set timeout here").check()
    form.get_by_label("timeout", exact=True).fill("90s")
    console.button("Review 3 changes…").click()
    question = console.expect_question("Make 3 changes?")
    rows = ["rate: 5 → 2.5", "timeout: 15s → 90s", "retry: 2 → inherit"]
    shown = [" ".join(text.split()) for text in question.get_by_role("listitem").all_inner_texts()]
    assert sorted(shown) == sorted(rows)
    console.confirm("Save")
    expect_of(form).to_have_count(0)
    assert console.bodies(f"PATCH /topics/{topic}/policy") == [{"rate": 2.5, "retry": None, "timeout": 90}]
    assert policy(changed.url, topic) == {"rate": 2.5, "timeout": 90, "ramp": 60}
    expect_of(console.page.locator(".policy div", has_text="retry").first).to_contain_text("daemon")


def test_a_change_that_is_taken_back_is_none(console: ConsolePage, changed: Daemon, topic: str) -> None:
    put_waiting(changed.url, topic, 1)
    edit(console, topic)
    form = console.page.locator(".policy-form")
    form.get_by_label("Set rate here").check()
    form.get_by_label("Set rate here").uncheck()
    button = console.button("No changes")
    expect_of(button).to_have_attribute("aria-disabled", "true")
    button.click(force=True)
    expect_of(console.question).to_have_count(0)
    console.button("Cancel").click()
    assert policy(changed.url, topic) == {}
    assert console.bodies(f"PATCH /topics/{topic}/policy") == []


def test_a_refused_value_is_told_at_its_field(console: ConsolePage, changed: Daemon, topic: str) -> None:
    edit(console, topic)
    console.may_fail = True
    form = console.page.locator(".policy-form")
    form.get_by_label("Set timeout here").check()
    form.get_by_label("timeout", exact=True).fill("1h")
    console.button("Review 1 change…").click()
    console.expect_question("Make this change?")
    console.confirm("Save")
    refusal = call(changed.url, "PATCH", f"/topics/{topic}/policy", {"timeout": 3600}).body["detail"]
    expect_of(form.get_by_role("alert")).to_have_text(refusal)
    expect_of(form.get_by_label("timeout", exact=True)).to_have_attribute("aria-invalid", "true")
    expect_of(form.get_by_label("timeout", exact=True)).to_have_value("1h")
    assert policy(changed.url, topic) == {}


@pytest.mark.parametrize(("status", "type"), [(503, "store-away"), (401, "no-key"), (409, "changed")])
def test_a_change_that_fails_is_told_and_kept(
    console: ConsolePage, changed: Daemon, topic: str, status: int, type: str
) -> None:
    edit(console, topic)
    console.page.get_by_label("Set concurrency here").check()
    console.page.get_by_label("concurrency", exact=True).fill("7")
    console.button("Review 1 change…").click()
    console.expect_question("Make this change?")
    console.answer(f"/topics/{topic}/policy", status, type, f"words of a {status}")
    console.confirm("Save")
    expect_of(console.question.get_by_role("alert")).to_contain_text(f"words of a {status}", ignore_case=True)
    assert policy(changed.url, topic) == {}
    console.confirm("Save")
    expect_of(console.question).to_have_count(0)
    assert policy(changed.url, topic) == {"concurrency": 7}


def test_the_question_says_what_a_rate_does_to_the_forecast(console: ConsolePage, changed: Daemon, topic: str) -> None:
    put_waiting(changed.url, topic, 30)
    edit(console, topic)
    console.page.get_by_label("Set rate here").check()
    console.page.get_by_label("rate", exact=True).fill("0.05")
    console.button("Review 1 change…").click()
    question = console.expect_question("Make this change?")
    expect_of(question).to_contain_text("No rate limits this topic")
    expect_of(question.locator("dd").last).to_contain_text("(30 tasks) takes 10 min")
    forecast = get(changed.url, f"/topics/{topic}/forecast?hours=6&step=300&rate=0.05").body
    assert forecast["worst_lateness_s"] > 200
    assert policy(changed.url, topic) == {}


def test_another_rate_is_tried_without_a_change(console: ConsolePage, changed: Daemon, topic: str) -> None:
    put_waiting(changed.url, topic, 30)
    console.go_to(f"/console/topics/{topic}")
    console.page.get_by_label("Try another rate").fill("0.1")
    expect_of(console.page.locator(".forecast-text")).to_contain_text("At 0.1/s, the wave of")
    assert policy(changed.url, topic) == {}


def test_a_topic_is_paused_and_resumed(console: ConsolePage, changed: Daemon, topic: str) -> None:
    put_waiting(changed.url, topic, 1)
    console.go_to(f"/console/topics/{topic}")
    console.button("Pause").click()
    console.expect_question("Pause this topic?")
    console.answer(f"/topics/{topic}/pause", 503, "store-away", "the store is away")
    console.confirm("Pause")
    expect_of(console.question.get_by_role("alert")).to_contain_text("the store is away", ignore_case=True)
    assert policy(changed.url, topic) == {}
    console.confirm("Pause")
    expect_of(console.button("Resume")).to_be_visible()
    assert policy(changed.url, topic) == {"paused": True}
    expect_of(console.page.locator(".policy div", has_text="paused").first).to_contain_text("on")
    console.button("Resume").click()
    console.expect_question("Resume this topic?")
    console.confirm("Resume")
    expect_of(console.button("Pause")).to_be_visible()
    assert policy(changed.url, topic).get("paused", False) is False


def test_a_purge_asks_for_the_name_and_removes_what_was_counted(
    console: ConsolePage, changed: Daemon, topic: str
) -> None:
    waiting, dead = put_waiting(changed.url, topic, 3), put_dead(changed.url, topic, 2)
    console.go_to(f"/console/topics/{topic}")
    console.button("Purge…").click()
    question = console.expect_question("Remove tasks for good?")
    expect_of(question.get_by_role("button", name="Remove 5")).to_have_attribute("aria-disabled", "true")
    question.get_by_label("Waiting").uncheck()
    question.get_by_role("textbox").fill(topic)
    late = put_dead(changed.url, topic, 1)
    console.confirm("Remove 2")
    console.expect_told(f"topic {topic}, dead: 2 tasks purged.")
    assert states(changed.url, [*waiting, *dead, *late]) == ["delay"] * 3 + ["gone"] * 2 + ["dead"]


def test_a_purge_removes_no_more_than_it_asked_for(console: ConsolePage, changed: Daemon, topic: str) -> None:
    put_waiting(changed.url, topic, 3)
    put_dead(changed.url, topic, 1)
    console.go_to(f"/console/topics/{topic}")
    console.button("Purge…").click()
    question = console.expect_question("Remove tasks for good?")
    question.get_by_role("textbox").fill(topic)
    held = console.hold(f"/topics/{topic}/purge")
    console.confirm("Remove 4")
    put_waiting(changed.url, topic, 2)
    assert held.let_go(limit=2)["states"] == ["delay"]
    expect_of(console.page.locator("section.move")).to_contain_text("2 of 4.")
    assert held.let_go()["limit"] == 1
    assert held.let_go()["states"] == ["dead"]
    console.expect_told("4 tasks purged.")
    assert counts(changed.url, topic) == {"delay": 2, "unack": 0, "error": 0, "dead": 0}


def test_a_purge_of_an_empty_topic_removes_nothing(console: ConsolePage, changed: Daemon, topic: str) -> None:
    console.go_to(f"/console/topics/{topic}")
    console.button("Purge…").click()
    question = console.expect_question("Remove tasks for good?")
    question.get_by_role("textbox").fill(topic)
    expect_of(question).to_contain_text("There is nothing to remove.")
    expect_of(question.get_by_role("button", name="Remove 0")).to_have_attribute("aria-disabled", "true")


def test_what_comes_late_does_not_change_the_question(console: ConsolePage, changed: Daemon, topic: str) -> None:
    put_waiting(changed.url, topic, 1)
    console.go_to(f"/console/topics/{topic}")
    console.button("Purge…").click()
    question = console.expect_question("Remove tasks for good?")
    expect_of(question.get_by_role("button", name="Remove 1")).to_be_visible()  # it has counted them
    put_waiting(changed.url, topic, 1)
    expect_of(console.page.locator(".tile", has_text="Waiting").locator(".tile-number")).to_have_text("2")
    expect_of(question.get_by_role("button", name="Remove 1")).to_be_visible()
