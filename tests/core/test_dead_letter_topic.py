"""Verdicts on tasks that die in a topic with a dead-letter topic, and the way back."""

from __future__ import annotations

from typing import Any

import msgspec

from later.core.dead_letter_topic import move_back, move_dead
from later.core.policy import DEFAULT_POLICY
from later.core.policy_scopes import Policies, Settings, namespace_scope, topic_scope
from later.core.retry import Failure, SettleTarget, Verdict
from later.core.task import Death
from tests.builders import NOW, a_task
from tests.cases import each_case

GONE = Failure(3, "gone", 410, "answered 410", NOW, NOW - 5, 7)
DEAD = Verdict(SettleTarget.DEAD, NOW + 1, GONE)
TASK = a_task(topic="shop/order", ttl=9)


def policies(**fields: Any) -> Policies:
    return Policies(DEFAULT_POLICY, {topic_scope("shop/order"): Settings(fields)})


def test_a_task_that_dies_keeps_all_but_its_topic_and_its_ttl_and_knows_how_it_died() -> None:
    verdict = move_dead(DEAD, TASK, policies(dead_to="shop/failed", dead_ttl=60))
    assert verdict == msgspec.structs.replace(DEAD, moved=verdict.moved)
    assert verdict.moved == msgspec.structs.replace(
        TASK,
        topic="shop/failed",
        expires_at=NOW + 60_001,
        renewed_at=NOW + 1,
        death=Death("shop/order", "gone", 410, "answered 410", NOW, 7, 9000),
    )


@each_case(
    ("verdict", "rules"),
    [
        (DEAD, policies()),
        (DEAD, policies(dead_to="")),
        (DEAD, policies(dead_ttl=5)),
        (DEAD, Policies(DEFAULT_POLICY, {namespace_scope("shop"): Settings({"dead_to": "shop/order"})})),
        (Verdict(SettleTarget.DONE, NOW), policies(dead_to="shop/failed")),
        (Verdict(SettleTarget.ERROR, NOW, GONE), policies(dead_to="shop/failed")),
    ],
    ids=["no topic", "none for this topic", "a ttl alone", "it is the topic itself", "done", "retried"],
)
def test_any_other_verdict_stays_as_it_is(verdict: Verdict, rules: Policies) -> None:
    assert move_dead(verdict, TASK, rules) is verdict


@each_case(("ttl", "expires_at"), [(9, NOW + 9500), (None, None)])
def test_a_task_that_goes_back_has_its_ttl_again(ttl: float | None, expires_at: int | None) -> None:
    task = a_task(topic="shop/order", ttl=ttl)
    moved = move_dead(DEAD, task, policies(dead_to="shop/failed", dead_ttl=1)).moved
    assert moved is not None
    assert moved.death is not None
    back = move_back(moved, moved.death, NOW + 500)
    assert back == msgspec.structs.replace(task, expires_at=expires_at, renewed_at=NOW + 500)


def test_a_task_that_dies_again_knows_its_last_death_alone() -> None:
    first = move_dead(DEAD, TASK, policies(dead_to="shop/failed")).moved
    assert first is not None
    rules = Policies(DEFAULT_POLICY, {topic_scope("shop/failed"): Settings({"dead_to": "shop/lost"})})
    second = move_dead(DEAD, first, rules).moved
    assert second is not None
    assert (second.topic, second.death and second.death.topic) == ("shop/lost", "shop/failed")
