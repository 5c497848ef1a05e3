"""The page of dead tasks: what is moved is what the question counted, in slices that can be stopped."""

from __future__ import annotations

from datetime import datetime

import pytest
from playwright.sync_api import Locator
from playwright.sync_api import expect as expect_of

from tests.console.browser.console_page import ConsolePage
from tests.console.browser.sample_data import NOBODY, counts, pause, put_dead, states
from tests.system.api_client import call, create, get, query
from tests.system.daemons import Daemon
from tests.system.receivers import run_receiver, status
from tests.system.waiting import wait_until


def progress(console: ConsolePage) -> Locator:
    return console.page.locator("section.move")


def set_policy(url: str, topic: str, **fields: object) -> None:
    assert call(url, "PATCH", f"/topics/{topic}/policy", fields).status == 200


def put_gone(url: str, topic: str, number: int) -> list[str]:
    """Create tasks whose receiver wants no further attempt, wait until they are dead, and return their ids."""
    before = counts(url, topic)["dead"]
    with run_receiver() as receiver:
        receiver.rules["/"] = status(410)
        ids = [create(url, topic=topic, callback=receiver.url(), delay=0) for _ in range(number)]
        wait_until(lambda: counts(url, topic)["dead"] == before + number, "dead tasks")
    return ids


def test_a_redrive_has_the_rate_of_the_topic(console: ConsolePage, changed: Daemon, topic: str) -> None:
    ids = put_dead(changed.url, topic, 3)
    set_policy(changed.url, topic, rate=0.5, paused=True)
    console.go_to(f"/console/dead?topic={topic}")
    console.button("Redrive…").click()
    question = console.expect_question("Redrive 3 dead tasks?")
    expect_of(question.get_by_role("listitem")).to_have_count(3)
    assert sorted(question.get_by_role("listitem").all_inner_texts()) == sorted(ids)
    expect_of(question.get_by_label("Tasks a second")).to_have_value("0.5")
    expect_of(question).to_contain_text("It takes 6 s.")
    console.confirm("Redrive")
    console.expect_told("3 tasks redriven.")
    [sent] = console.bodies("POST /redrive")
    assert (sent["topic"], sent["rate"]) == (topic, 0.5)
    due = sorted(datetime.fromisoformat(query(changed.url, id)["due_at"]) for id in ids)
    assert [(time - due[0]).total_seconds() for time in due] == [0, 2, 4]


def test_a_redrive_without_a_rate_makes_all_due(console: ConsolePage, changed: Daemon, topic: str) -> None:
    ids = put_dead(changed.url, topic, 2)
    set_policy(changed.url, topic, rate=0.5, paused=True)
    console.go_to(f"/console/dead?topic={topic}")
    console.button("Redrive…").click()
    question = console.expect_question("Redrive 2 dead tasks?")
    rate = question.get_by_label("Tasks a second")
    rate.fill("0")
    expect_of(question).to_contain_text("The rate is a number of at least 0.0001.")
    rate.fill("")
    console.confirm("Redrive")
    console.expect_told("2 tasks redriven.")
    assert "rate" not in console.bodies("POST /redrive")[0]
    assert len({query(changed.url, id)["due_at"] for id in ids}) == 1


@pytest.mark.parametrize("filtered", [False, True], ids=["all", "of one reason"])
def test_a_purge_leaves_what_died_after_the_question(
    console: ConsolePage, changed: Daemon, topic: str, *, filtered: bool
) -> None:
    counted = put_gone(changed.url, topic, 2)
    others = put_dead(changed.url, topic, 1)
    console.go_to(f"/console/dead?topic={topic}" + ("&reason=gone" if filtered else ""))
    console.button("Purge…").click()
    console.expect_question(f"Purge {2 if filtered else 3} dead tasks?")
    late = put_gone(changed.url, topic, 1)
    console.confirm("Purge")
    console.expect_told("2 tasks purged." if filtered else "3 tasks purged.")
    assert states(changed.url, [*counted, *others, *late]) == ["gone", "gone", "dead" if filtered else "gone", "dead"]
    [sent] = console.bodies(f"POST /topics/{topic}/purge")
    assert sent["states"] == ["dead"]
    assert sent.get("reason") == ("gone" if filtered else None)


def test_a_redrive_of_a_filter_leaves_the_rest(console: ConsolePage, changed: Daemon, topic: str) -> None:
    gone, others = put_gone(changed.url, topic, 2), put_dead(changed.url, topic, 1)
    pause(changed.url, topic)
    console.go_to(f"/console/dead?topic={topic}")
    console.page.get_by_role("link", name="gone 2").click()
    expect_of(console.page.locator("tbody tr")).to_have_count(2)
    console.button("Redrive…").click()
    expect_of(console.expect_question("Redrive 2 dead tasks?")).to_contain_text(f"topic {topic}, reason gone")
    console.confirm("Redrive")
    console.expect_told("2 tasks redriven.")
    assert states(changed.url, [*gone, *others]) == ["delay", "delay", "dead"]


def test_an_earlier_time_of_the_filter_stays(console: ConsolePage, changed: Daemon, topic: str) -> None:
    early, late = put_dead(changed.url, topic, 1), put_dead(changed.url, topic, 1)
    died = query(changed.url, late[0])["died_at"]
    console.go_to(f"/console/dead?topic={topic}&before={died}")
    console.button("Purge…").click()
    console.expect_question("Purge 1 dead task?")
    console.confirm("Purge")
    console.expect_told("1 task purged.")
    assert console.bodies(f"POST /topics/{topic}/purge")[0]["died_before"] == died
    assert states(changed.url, [*early, *late]) == ["gone", "dead"]


def test_a_purge_is_stopped_between_two_slices(console: ConsolePage, changed: Daemon, topic: str) -> None:
    put_dead(changed.url, topic, 5)
    console.go_to(f"/console/dead?topic={topic}")
    console.button("Purge…").click()
    console.expect_question("Purge 5 dead tasks?")
    held = console.hold(f"/topics/{topic}/purge")
    console.confirm("Purge")
    held.let_go(limit=2)
    expect_of(progress(console)).to_contain_text("2 of 5.")
    console.page.get_by_role("link", name="Jobs").click()  # the progress goes along
    expect_of(console.page).to_have_title("Jobs · later")
    expect_of(progress(console)).to_contain_text(f"topic {topic}")
    console.button("Stop").click()
    held.let_go(limit=2)
    console.expect_told("Stopped: 4 tasks purged, the rest stays as it is.")
    assert counts(changed.url, topic)["dead"] == 1
    console.button("Close").click()
    expect_of(console.page.locator(".move-end")).to_have_count(0)


@pytest.mark.parametrize(
    ("code", "type", "words"),
    [(503, "store-away", "at least 2 tasks redriven. the words"), (401, "no-key", "2 tasks redriven. the words")],
)
def test_a_failure_between_two_slices_says_what_is_done(
    console: ConsolePage, changed: Daemon, topic: str, code: int, type: str, words: str
) -> None:
    put_dead(changed.url, topic, 5)
    pause(changed.url, topic)
    console.go_to(f"/console/dead?topic={topic}")
    console.button("Redrive…").click()
    console.expect_question("Redrive 5 dead tasks?")
    held = console.hold("/redrive")
    console.confirm("Redrive")
    held.let_go(limit=2)
    second = held.next()
    console.may_fail = True
    second.fulfill(status=code, json={"type": f"/problems/{type}", "title": "t", "status": code, "detail": "the words"})
    console.expect_told(f"It failed after {words}")
    assert counts(changed.url, topic) == {"delay": 2, "unack": 0, "error": 0, "dead": 3}


def test_a_second_move_waits_for_the_first(console: ConsolePage, changed: Daemon, topic: str) -> None:
    put_dead(changed.url, topic, 2)
    console.go_to(f"/console/dead?topic={topic}")
    held = console.hold(f"/topics/{topic}/purge")
    console.button("Purge…").click()
    console.expect_question("Purge 2 dead tasks?")
    console.confirm("Purge")
    console.button("Redrive…").click()
    question = console.expect_question("Redrive 2 dead tasks?")
    expect_of(question).to_contain_text("Another one is running. Stop it first.")
    expect_of(question.get_by_role("button", name="Redrive")).to_have_attribute("aria-disabled", "true")
    held.let_go()
    expect_of(question).not_to_contain_text("Another one is running.")


def test_a_question_that_cannot_count_does_not_act(console: ConsolePage, changed: Daemon, topic: str) -> None:
    put_dead(changed.url, topic, 1)
    console.go_to(f"/console/dead?topic={topic}")
    expect_of(console.page.get_by_role("link", name="exhausted 1")).to_be_visible()
    console.answer(f"/topics/{topic}/purge", 503, "store-away", "the store is away")
    console.button("Purge…").click()
    expect_of(console.question.get_by_role("alert")).to_contain_text("the store is away", ignore_case=True)
    expect_of(console.question.get_by_role("button", name="Purge")).to_have_attribute("aria-disabled", "true")


def test_many_are_purged_only_after_the_name_was_typed(console: ConsolePage, changed: Daemon, topic: str) -> None:
    console.go_to(f"/console/dead?topic={topic}")
    answer = {
        "dry_run": True,
        "topic": topic,
        "purged": 1234,
        "states": {"dead": 1234},
        "at": "2026-01-01T00:00:00.000Z",
    }
    console.page.route(f"{changed.url}/topics/{topic}/purge", lambda route: route.fulfill(json=answer))
    console.button("Purge…").click()
    question = console.expect_question("Purge 1,234 dead tasks?")
    confirm = question.get_by_role("button", name="Purge")
    expect_of(confirm).to_have_attribute("aria-disabled", "true")
    question.get_by_role("textbox").fill(topic)
    expect_of(confirm).not_to_have_attribute("aria-disabled", "true")


def test_a_selection_of_dead_tasks_says_what_became_of_it(console: ConsolePage, changed: Daemon, topic: str) -> None:
    ids = put_dead(changed.url, topic, 3)
    pause(changed.url, topic)
    console.go_to(f"/console/dead?topic={topic}")
    for id in ids[:2]:
        console.page.get_by_label(f"Select {id}", exact=True).check()
    console.button("Redrive").click()
    console.expect_question("Redrive 2 tasks?")
    console.confirm("Redrive")
    console.expect_told("2 tasks are redriven.")
    expect_of(console.page.locator("tbody tr")).to_have_count(1)
    console.expect_told("2 tasks are redriven.")
    assert states(changed.url, ids) == ["delay", "delay", "dead"]


def test_acknowledged_numbers_are_new_again_when_they_grow(console: ConsolePage, changed: Daemon) -> None:
    row = {"topic": "mail", "delay": 0, "unack": 0, "error": 0, "dead": 2, "due": 0}
    console.page.route(f"{changed.url}/topics?*", lambda route: route.fulfill(json={"topics": [row], "cursor": None}))
    console.go_to("/console/dead")
    shown = console.page.get_by_role("row", name="mail")
    acknowledge = shown.get_by_role("button", name="Acknowledge the dead tasks of mail")
    acknowledge.click()
    expect_of(shown).to_contain_text("acknowledged")
    row["dead"] = 3
    console.page.keyboard.press("r")
    expect_of(shown).to_contain_text("1 more")
    expect_of(acknowledge).to_be_visible()
    assert console.page.evaluate("({...localStorage})") == {"later.acknowledged.dead mail": "2"}
    assert {name for name, _ in console.changes} <= {"POST /list", "POST /explain"}


def test_the_number_of_all_dead_tasks_is_acknowledged_on_the_overview(console: ConsolePage, changed: Daemon) -> None:
    overview = get(changed.url, "/overview").body
    overview |= {"topics_total": 1, "tasks": {**overview["tasks"], "dead": 7}}
    console.page.route(f"{changed.url}/overview?*", lambda route: route.fulfill(json=overview))
    console.go_to("/console/")
    tile = console.page.locator(".tile", has_text="Dead")
    expect_of(tile.get_by_role("img", name="Problem")).to_be_visible()
    tile.get_by_role("button", name="Acknowledge").click()
    expect_of(tile).to_contain_text("acknowledged")
    expect_of(tile.get_by_role("img", name="Problem")).to_have_count(0)
    overview["tasks"]["dead"] = 9
    expect_of(tile).to_contain_text("2 more since")
    expect_of(tile.get_by_role("img", name="Problem")).to_be_visible()


def test_a_task_created_meanwhile_is_not_in_the_question(console: ConsolePage, changed: Daemon, topic: str) -> None:
    put_dead(changed.url, topic, 1)
    console.go_to(f"/console/dead?topic={topic}")
    console.button("Purge…").click()
    console.expect_question("Purge 1 dead task?")
    waiting = create(changed.url, topic=topic, callback=NOBODY, delay=3600)
    console.confirm("Purge")
    console.expect_told("1 task purged.")
    assert states(changed.url, [waiting]) == ["delay"]
