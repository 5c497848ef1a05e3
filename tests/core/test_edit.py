"""Edits of waiting tasks, by the rules and with the texts of a create."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from later.core.edit import TaskChanges, edit, renew_ttl
from later.core.errors import Refused
from later.core.policy import DelayMode, Policy
from later.core.policy_scopes import Policies
from later.core.task import Task, decode_task, encode_task
from later.core.validation import EXPECTED, MAX_AHEAD_MS
from tests.builders import NOW, a_task
from tests.cases import each_case

LATER = NOW + 60_000
TASK = a_task(delay=15, ttl=600, headers={"X-A": "a"}, context={"tenant": "a"})


def edit_task(policy: Policy | None = None, task: Task = TASK, **changes: Any) -> Task:
    """Edit the task at LATER, a minute after its creation."""
    return edit(task, TaskChanges(id=task.id, **changes), Policies(policy or Policy()), LATER)


def expect(**fields: Any) -> Task:
    return msgspec.structs.replace(TASK, **fields)


def refuse_edit(policy: Policy | None = None, **changes: Any) -> tuple[str, str | None]:
    with pytest.raises(Refused) as caught:
        edit_task(policy, **changes)
    return caught.value.detail, caught.value.field


@each_case(
    ("changes", "fields"),
    [
        ({}, {}),
        ({"content": "other"}, {"content": "other"}),
        ({"content": ""}, {"content": ""}),
        ({"callback": "https://b.example/x"}, {"callback": "https://b.example/x"}),
        ({"headers": {"X-B": "b"}}, {"headers": {"X-B": "b"}}),
        ({"headers": {}}, {"headers": {}}),
        ({"context": {"tenant": "b"}}, {"context": {"tenant": "b"}}),
        ({"context": {}}, {"context": None}),
        ({"retry": 0}, {"max_retry": 0}),
        ({"delay": 0}, {"execute_at": LATER}),
        ({"delay": 1.5}, {"execute_at": LATER + 1500}),
        ({"execute_time": LATER / 1000 + 7}, {"execute_at": LATER + 7000}),
        ({"execute_time": 5}, {"execute_at": LATER}),
        ({"ttl": 90}, {"expires_at": NOW + 90_000}),
        ({"ttl": None}, {"expires_at": None}),
        ({"ttl": 1}, {"expires_at": NOW + 1000}),
    ],
)
def test_only_named_fields_change(changes: dict[str, Any], fields: dict[str, Any]) -> None:
    assert edit_task(**changes) == expect(**fields)


def test_all_fields_change_at_once() -> None:
    everything = edit_task(delay=5, content="c", callback="http://b/", headers={}, retry=9, ttl=30)
    assert everything == expect(
        execute_at=LATER + 5000, content="c", callback="http://b/", headers={}, max_retry=9, expires_at=NOW + 30_000
    )


def test_a_new_content_is_a_text_whatever_the_old_one_was() -> None:
    message = msgspec.structs.replace(TASK, client=b"c" * 16, is_json=True, content="[1]")
    edited = edit(message, TaskChanges(id=TASK.id, content="["), Policies(Policy()), LATER)
    assert edited == msgspec.structs.replace(message, is_json=False, content="[")
    assert edit(message, TaskChanges(id=TASK.id, retry=1), Policies(Policy()), LATER).is_json


def test_a_new_delay_over_the_limit_is_refused_in_zaqars_words() -> None:
    policy = Policy(max_delay_ms=900_000)
    assert edit_task(policy, delay=900).execute_at == LATER + 900_000
    detail = "Exceeds max allowed delivery delay of 900000 milliseconds"
    assert refuse_edit(policy, delay=900.001) == (detail, "delay")
    assert refuse_edit(policy, execute_time=LATER / 1000 + 901) == (detail, "execute_time")


def test_an_edit_without_a_new_due_time_ignores_newer_limits() -> None:
    assert edit_task(Policy(max_delay_ms=1, delays=False, default_delay_ms=5), content="c") == expect(content="c")


def test_a_topic_without_delays_refuses_a_new_delay() -> None:
    policy = Policy(delays=False)
    assert edit_task(policy, delay=0).execute_at == LATER
    assert refuse_edit(policy, delay=1) == ("delay: expected none, for the topic's policy allows no delays", "delay")


@each_case("change", [{"delay": 60}, {"execute_time": LATER / 1000 + 60}])
def test_in_queue_mode_a_delay_that_would_be_ignored_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="the topic's policy ignores a task's own") as caught:
        edit_task(Policy(delay_mode=DelayMode.QUEUE), **change)
    assert [caught.value.field] == list(change)
    assert edit_task(Policy(delay_mode=DelayMode.QUEUE), content="x").content == "x"
    assert edit_task(Policy(delay_mode=DelayMode.QUEUE, default_delay_ms=1), delay=60).execute_at == LATER + 60_000


@each_case(
    ("changes", "detail"),
    [
        ({"delay": -5}, f"delay: expected {EXPECTED['delay']}, got -5"),
        ({"delay": 1, "execute_time": 1}, "execute_time: expected either delay or execute_time, got both"),
        ({"delay": MAX_AHEAD_MS}, f"delay: expected a time at most ten years ahead, got {MAX_AHEAD_MS}"),
        ({"callback": "ftp://x"}, f'callback: expected {EXPECTED["callback"]}, got "ftp://x"'),
        ({"headers": {"Host": "x"}}, 'headers: expected a header of your own, got "Host", which later sets'),
        ({"retry": 1001}, f"retry: expected {EXPECTED['retry']}, got 1001"),
        ({"ttl": 0}, f"ttl: expected {EXPECTED['ttl']}, got 0"),
        ({"content": "\ud800"}, "content: expected Unicode text, got a lone surrogate in it"),
    ],
)
def test_an_edit_is_refused_like_a_create(changes: dict[str, Any], detail: str) -> None:
    assert refuse_edit(**changes) == (detail, detail.partition(":")[0])


@each_case("changes", [{}, {"id": "a"}])
def test_an_edit_without_fields_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="expected something to change: delay, execute_time, content"):
        TaskChanges(**changes).require_any()


@each_case("changes", [{"ttl": None}, {"delay": 0}, {"headers": {}}, {"context": {}}, {"content": ""}, {"retry": 0}])
def test_any_field_is_a_change(changes: dict[str, Any]) -> None:
    TaskChanges(**changes).require_any()


class TestRenewTtl:
    def test_a_ttl_counts_from_now(self) -> None:
        assert renew_ttl(TASK, LATER) == expect(expires_at=LATER + 600_000, renewed_at=LATER)

    def test_a_renewed_ttl_is_as_long_the_next_time(self) -> None:
        assert renew_ttl(renew_ttl(TASK, LATER), LATER + 7).expires_at == LATER + 7 + 600_000

    def test_a_task_without_a_ttl_stays_as_it_is(self) -> None:
        assert renew_ttl(a_task(id="a"), LATER) == a_task(id="a")

    def test_a_new_ttl_counts_from_the_renewal_too(self) -> None:
        assert edit_task(task=renew_ttl(TASK, LATER), ttl=5).expires_at == LATER + 5000

    def test_a_renewed_task_is_stored_and_read_back(self) -> None:
        task = renew_ttl(TASK, LATER)
        assert decode_task(task.id, encode_task(task)) == task
        assert len(encode_task(TASK)) < len(encode_task(task))
