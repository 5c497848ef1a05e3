"""The hold of a task between the time when it was due and its claim."""

from __future__ import annotations

import pytest

from later.core.held import Held
from later.core.policy import DEFAULT_POLICY
from later.core.policy_scopes import Policies, PolicyScope, Settings, namespace_scope, topic_scope
from later.worker.hold_history import MAX_HOLDS, SAME_HOLD_MS, HoldHistory
from tests.builders import NOW
from tests.cases import each_case


def test_a_task_that_was_due_during_a_hold_was_held() -> None:
    history = HoldHistory()
    history.add("order", Held.RATE, NOW, NOW + 100)
    assert history.held_by("order", NOW + 50, NOW + 100) is Held.RATE
    assert history.held_by("order", NOW - 5000, NOW + 100) is Held.RATE


def test_a_task_that_was_due_after_the_hold_was_not_held() -> None:
    history = HoldHistory()
    history.add("order", Held.RATE, NOW, NOW + 100)
    assert history.held_by("order", NOW + 101, NOW + 200) is Held.NO


def test_a_task_claimed_in_the_tick_that_met_the_hold_was_not_held() -> None:
    history = HoldHistory()
    history.add("order", Held.RATE, NOW, NOW + 100)
    assert history.held_by("order", NOW - 1, NOW) is Held.NO


def test_a_limit_that_holds_again_and_again_is_one_hold() -> None:
    history = HoldHistory()
    history.add("order", Held.RATE, NOW, NOW + 100)
    history.add("order", Held.RATE, NOW + 100 + SAME_HOLD_MS, NOW + 5000)
    assert history.held_by("order", NOW, NOW + 100 + SAME_HOLD_MS) is Held.RATE


def test_other_topics_are_not_held() -> None:
    history = HoldHistory()
    history.add("order", Held.RATE, NOW, NOW + 100)
    assert history.held_by("mail", NOW, NOW + 100) is Held.NO


@each_case("scope", [topic_scope("shop/order"), namespace_scope("shop")])
def test_tasks_due_during_a_pause_were_held_by_it(scope: PolicyScope) -> None:
    history = HoldHistory()
    history.add_ended_pauses(Policies(DEFAULT_POLICY, {scope: Settings({"paused": True})}), NOW)
    history.add_ended_pauses(Policies(DEFAULT_POLICY), NOW + 60_000)
    assert history.held_by("shop/order", NOW + 30_000, NOW + 61_000) is Held.PAUSE
    assert history.held_by("shop/order", NOW + 70_000, NOW + 70_001) is Held.NO
    assert history.held_by("mail", NOW + 30_000, NOW + 61_000) is Held.NO


def test_only_a_moment_ago_counts_as_current() -> None:
    history = HoldHistory()
    history.add("order", Held.RECEIVER, NOW, NOW + 100)
    assert history.current("order", NOW + 100 + SAME_HOLD_MS) is Held.RECEIVER
    assert history.current("order", NOW + 101 + SAME_HOLD_MS) is Held.NO


def test_old_holds_are_forgotten() -> None:
    history = HoldHistory()
    history.add("old", Held.RATE, NOW, NOW)
    for n in range(MAX_HOLDS):
        history.add(f"t{n}", Held.RATE, NOW + 5000, NOW + 5000)
    assert history.held_by("old", NOW, NOW + 5000) is Held.NO
    assert history.held_by("t0", NOW, NOW + 5001) is Held.RATE


def test_tasks_of_a_topic_that_was_pulled_were_held_by_a_pause() -> None:
    history = HoldHistory()
    for fields in ({"deliver": "pull"}, {}):
        policies = Policies(DEFAULT_POLICY, {topic_scope("order"): Settings(fields)})  # type: ignore[arg-type]  # dict
        history.add_ended_pauses(policies, NOW)
    assert history.held_by("order", NOW - 60_000, NOW) is Held.PAUSE
    assert history.held_by("other", NOW - 60_000, NOW) is Held.NO


def test_topics_that_are_held_at_once_are_looked_through_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, number = [0], 3 * MAX_HOLDS

    def goes_on(self: HoldHistory, hold: object, now: int) -> bool:
        looks[0] += 1
        return True

    history = HoldHistory()
    monkeypatch.setattr(HoldHistory, "_goes_on", goes_on)
    for n in range(number):
        history.add(f"t{n}", Held.PAUSE, NOW, NOW)
        assert looks[0] < 2 * number
