from __future__ import annotations

from typing import Any

from later.core.edit import TaskChanges
from later.core.if_exists import ExclusiveCreate, Upsert, creation_of, task_of
from later.core.policy import Policy
from later.core.policy_scopes import Policies
from later.core.task import Draft
from tests.builders import a_task

POLICIES = Policies(Policy())
GIVEN: dict[str, Any] = {
    "id": "a", "delay": 1.5, "content": "c", "callback": "http://a/", "headers": {"A": "b"}, "retry": 7, "ttl": 9.0,
    "context": {"tenant": "b"},
}  # fmt: skip


def test_an_update_changes_every_field_that_the_create_gives() -> None:
    assert {*GIVEN, "execute_time"} == {*TaskChanges.__struct_fields__} - {"durability"}
    creation = creation_of(Draft(topic="order", if_exists="update", **GIVEN), a_task(), POLICIES)
    assert isinstance(creation, Upsert)
    assert creation.changes == TaskChanges(**GIVEN)


def test_an_update_leaves_the_fields_that_the_create_does_not_give() -> None:
    creation = creation_of(Draft(topic="order", id="a", if_exists="update", execute_time=5), a_task(), POLICIES)
    assert isinstance(creation, Upsert)
    assert creation.changes == TaskChanges(id="a", execute_time=5)


def test_a_create_that_keeps_is_its_task_alone() -> None:
    task = a_task()
    assert creation_of(Draft(id="a", if_exists="keep"), task, POLICIES, in_job=True) is task
    for if_exists in (None, "keep", "error"):
        assert task_of(creation_of(Draft(id="a", if_exists=if_exists), task, POLICIES)) is task
    assert creation_of(Draft(id="a", if_exists="error"), task, POLICIES) == ExclusiveCreate(task)
