"""The list of topics: a selection is paused and resumed, and those that failed are told and stay selected."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect as expect_of

from tests.console.browser.console_page import ConsolePage
from tests.console.browser.sample_data import put_waiting
from tests.system.api_client import get
from tests.system.daemons import Daemon


@pytest.fixture
def topics(console: ConsolePage, changed: Daemon, topic: str) -> list[str]:
    """Three topics in a namespace of their own, shown sorted by name, which needs no census."""
    names = [f"{topic}/{name}" for name in ("a", "b", "c")]
    for name in names:
        put_waiting(changed.url, name, 1)
    console.go_to(f"/console/topics?sort=name&namespace={topic}")
    expect_of(console.page.locator("tbody tr")).to_have_count(3)
    return names


def are_paused(url: str, topics: list[str]) -> list[bool]:
    paths = [f"/topics/{name.replace('/', '%2F')}/policy" for name in topics]
    return [bool(get(url, path).body.get("paused")) for path in paths]


def test_a_selection_is_paused_and_resumed(console: ConsolePage, changed: Daemon, topics: list[str]) -> None:
    for name in topics[:2]:
        console.page.get_by_label(f"Select {name}", exact=True).check()
    console.button("Pause").click()
    question = console.expect_question("Pause 2 topics?")
    expect_of(question.get_by_role("listitem")).to_have_text(topics[:2])
    console.confirm("Pause")
    console.expect_told("2 paused.")
    assert are_paused(changed.url, topics) == [True, True, False]
    expect_of(console.button("Pause")).to_have_count(0)
    console.page.get_by_label(f"Select {topics[0]}", exact=True).check()
    console.button("Resume").click()
    console.expect_question("Resume this topic?")
    console.confirm("Resume")
    console.expect_told("1 resumed.")
    assert are_paused(changed.url, topics) == [False, True, False]


def test_topics_that_failed_are_named_and_stay_selected(
    console: ConsolePage, changed: Daemon, topics: list[str]
) -> None:
    console.page.get_by_label("Select all").check()
    console.button("Pause").click()
    console.expect_question("Pause 3 topics?")
    console.answer(f"/topics/{topics[1].replace('/', '%2F')}/pause", 503, "store-away", "the store is away")
    console.confirm("Pause")
    console.expect_told("2 paused, 1 failed and still selected.")
    console.expect_told(f"{topics[1]}: the store is away")
    assert are_paused(changed.url, topics) == [True, False, True]
    console.button("Pause").click()
    console.expect_question("Pause this topic?")
    console.confirm("Pause")
    console.expect_told("1 paused.")
    assert are_paused(changed.url, topics) == [True, True, True]


def test_only_shown_topics_are_chosen(console: ConsolePage, changed: Daemon, topics: list[str]) -> None:
    console.page.get_by_label("Select all").check()
    console.page.get_by_role("searchbox", name="Filter this page").fill(topics[2])
    expect_of(console.page.locator("main").get_by_text("1 selected").first).to_be_visible()
    console.button("Pause").click()
    console.expect_question("Pause this topic?")
    console.confirm("Pause")
    console.expect_told("1 paused.")
    assert are_paused(changed.url, topics) == [False, False, True]
