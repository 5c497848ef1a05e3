"""Schedules: their definitions, which of their times fire, and the tasks that they create."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.core import cron
from later.core.api_keys import ALL_SCOPES
from later.core.caller import ANYBODY, Caller
from later.core.clock import rfc3339
from later.core.errors import NotAllowed, PolicyRefusal, Refused, TooLarge
from later.core.policy import DEFAULT_POLICY
from later.core.policy_scopes import Policies
from later.core.schedule import (
    FIRINGS_REMEMBERED_MS,
    LATE_MS,
    MAX_FIRINGS,
    TIMES_SHOWN,
    CatchUp,
    FiringPlan,
    FiringRecord,
    FiringRefusal,
    Schedule,
    ScheduleDraft,
    StoredSchedule,
    build_schedule,
    firing_id,
    firing_task,
    move_on,
    next_times,
    parse_schedule_draft,
    plan_firings,
    put_schedule,
    set_paused,
)
from later.core.task import decode_task, encode_task
from later.core.validation import MAX_AHEAD_MS
from tests.builders import NOW
from tests.cases import each_case

HOUR = 3_600_000
DAY = 24 * HOUR
NO_POLICIES = Policies(DEFAULT_POLICY)
TEAM = Caller(key_id="k", namespace="team", scopes=ALL_SCOPES)


def a_definition(**fields: Any) -> Schedule:
    timing = {} if fields.keys() & {"cron", "every"} else {"every": 3600}
    draft = ScheduleDraft(**{"topic": "report", "callback": "http://127.0.0.1:9/", **timing, **fields})
    return build_schedule(draft, "daily", ANYBODY)


def a_schedule(now: int = NOW, **fields: Any) -> StoredSchedule:
    return put_schedule(a_definition(**fields), None, now)


# Definitions


@each_case(
    "body, field, says",
    [
        (b"{}", "cron", "either cron or every, got neither"),
        (b'{"cron": "@daily", "every": 60}', "cron", "either cron or every, got both"),
        (b'{"cron": "@daily", "id": "x"}', "id", "expected none, because the path has it"),
        (b'{"cron": "@daily", "delay": 5}', "delay", "expected none, because cron or every says when"),
        (b'{"cron": "@daily", "execute_time": 5}', "execute_time", "expected none, because cron or every says when"),
        (b'{"topic": "x", "every": 0.9}', "every", "a number of seconds"),
        (b'{"topic": "x", "every": 1e300}', "every", "ten years at most"),
        (b'{"every": "5m"}', "every", "a number of seconds"),
        (b'{"topic": "x", "every": 60, "jitter": -1}', "jitter", "a number of seconds"),
        (b'{"every": 60, "catch_up": "some"}', "catch_up", '"one", "all" or "none"'),
        (b'{"every": 60, "paused": 1}', "paused", "true or false"),
        (b'{"every": 60, "zone": "Mars"}', "zone", "the name of a time zone"),
        (b'{"every": 60, "start": "tomorrow"}', "start", "RFC 3339"),
        (b'{"every": 60, "start": -5}', "start", "from 1970 to 9999"),
        (b'{"every": 60, "start": 200, "end": 100}', "end", "not before start"),
        (b'{"every": 60, "topic": "/x"}', "topic", "without control characters or empty parts"),
        (b'{"every": 60, "topic": "x", "headers": {"a": 1}}', "headers", "an object of up to 20 strings"),
    ],
)
def test_a_wrong_field_of_a_schedule_is_refused_by_name(body: bytes, field: str, says: str) -> None:
    with pytest.raises(Refused) as refusal:
        build_schedule(parse_schedule_draft(body), "daily", ANYBODY)
    assert refusal.value.field == field
    assert says in refusal.value.detail


def test_a_schedule_of_more_than_128_kib_is_too_large() -> None:
    a_definition(content="x" * 130_000)
    with pytest.raises(TooLarge, match="131072 bytes"):
        a_definition(content="x" * 131_072)


def test_the_topic_of_a_bound_key_is_in_its_namespace() -> None:
    draft = ScheduleDraft(topic="other/x", every=60)
    with pytest.raises(NotAllowed):
        build_schedule(draft, "team/x", TEAM)


@each_case("text", ["s:x", "ev:x", ".", "..", "a" * 101, "", "a/b", "ä"])
def test_the_id_of_a_schedule_is_a_free_one_of_100_characters_at_most(text: str) -> None:
    with pytest.raises(Refused) as refusal:
        ANYBODY.own_schedule(text)
    assert refusal.value.field == "id"
    assert ANYBODY.own_schedule("a" * 100) == "a" * 100
    uuid = "35adbde5-77c4-4d65-adac-0082d91f2554"
    assert (TEAM.own_schedule("x"), TEAM.own_schedule("team/x"), TEAM.own_schedule(uuid)) == (
        "team/x", "team/x", f"team/{uuid}",
    )  # fmt: skip


# Times


@each_case(
    "fields, expected",
    [
        ({"every": 60}, [0, 60, 120]),
        ({"every": 1.5}, [0, 1.5, 3]),
        ({"every": 60, "start": (NOW + 90_000) / 1000}, [90, 150, 210]),
        ({"every": 60, "start": (NOW - 90_000) / 1000}, [30, 90, 150]),
        ({"every": 60, "end": (NOW + 60_000) / 1000}, [0, 60]),
        ({"every": 60, "end": (NOW - 1) / 1000}, []),
        ({"cron": "* * * * *"}, [0, 60, 120]),  # NOW is a whole minute
        ({"cron": "* * * * *", "start": (NOW + 1) / 1000}, [60, 120, 180]),
        ({"cron": "* * * * *", "start": (NOW + 60_000) / 1000, "end": (NOW + 120_000) / 1000}, [60, 120]),
    ],
)
def test_times_count_from_the_start_and_stop_at_the_end(fields: dict[str, Any], expected: list[float]) -> None:
    found = [(at - NOW) / 1000 for at in next_times(a_schedule(**fields), NOW, 3)]
    assert found == expected


def test_a_paused_schedule_shows_its_times_and_one_that_has_ended_none() -> None:
    schedule = set_paused(a_schedule(every=60), True)
    assert next_times(schedule, NOW + 90_000, 2) == [NOW + 120_000, NOW + 180_000]
    assert next_times(a_schedule(every=60, end=NOW / 1000 - 5), NOW) == []


@each_case(
    "catch_up, late_ms, fire, next_hour",
    [
        # on time, or late by less than its period
        ("one", 0, [0], 1), ("all", 0, [0], 1), ("none", 0, [0], 1),
        ("one", LATE_MS, [0], 1), ("all", LATE_MS + 1, [0], 1), ("none", LATE_MS, [0], 1), ("none", LATE_MS + 1, [], 1),
        # three times and a half have passed
        ("one", 3.5 * HOUR, [3], 4), ("all", 3.5 * HOUR, [0, 1, 2, 3], 4), ("none", 3.5 * HOUR, [], 4),
        ("none", 3 * HOUR + LATE_MS, [3], 4),
        # a year
        ("one", 8760 * HOUR, [8760], 8761), ("all", 8760 * HOUR, [*range(MAX_FIRINGS)], 8761),
        ("none", 8760 * HOUR, [8760], 8761),
    ],
)  # fmt: skip
@pytest.mark.parametrize("timing", [{"every": 3600}, {"cron": "0 * * * *"}])
def test_missed_times_fire_as_catch_up_says(
    timing: dict[str, Any], catch_up: str, late_ms: float, fire: list[int], next_hour: int
) -> None:
    plan = plan_firings(a_schedule(**timing, catch_up=catch_up), NOW + int(late_ms))
    assert [(at - NOW) / HOUR for at in plan.times] == fire
    assert plan.next_at == NOW + next_hour * HOUR


@given(
    every_ms=st.integers(1000, 3 * HOUR),
    ticks=st.lists(st.integers(0, 5 * HOUR), min_size=1, max_size=8),
    catch_up=st.sampled_from(CatchUp),
)
def test_no_time_fires_twice_or_early_and_with_all_none_is_left_out(
    every_ms: int, ticks: list[int], catch_up: CatchUp
) -> None:
    schedule, now, fired = a_schedule(every=every_ms / 1000, catch_up=catch_up.value), NOW, list[int]()
    is_complete = True
    for tick in ticks:
        now += tick
        plan = plan_firings(schedule, now)
        assert all(at <= now for at in plan.times)
        assert plan.next_at is not None
        assert plan.next_at > now
        is_complete = is_complete and len(plan.times) < MAX_FIRINGS
        fired += plan.times
        schedule = StoredSchedule(schedule.definition, move_on(schedule.state, plan.next_at, None, []))
    assert fired == sorted(set(fired))
    if catch_up is CatchUp.ALL and is_complete:
        assert fired == [*range(NOW, now + 1, every_ms)]


def test_the_last_firing_before_the_end_leaves_no_next_time() -> None:
    plan = plan_firings(a_schedule(every=3600, end=(NOW + HOUR) / 1000), NOW + 5 * HOUR)
    assert (plan.times, plan.next_at) == ([NOW + HOUR], None)


@each_case(
    "fields",
    [
        {"cron": "0 0 1 1 *", "start": "9999-06-01T00:00:00Z"},
        {"cron": "0 0 29 2 *", "start": "9997-01-01T00:00:00Z"},
        {"cron": "* * * * *", "start": "9999-12-31T23:30:00Z", "zone": "Pacific/Kiritimati"},
        {"cron": "* * * * *", "start": "9999-12-31T23:59:30Z", "zone": "America/New_York"},
    ],
)
def test_a_schedule_that_begins_too_late_to_fire_has_no_times(fields: dict[str, Any]) -> None:
    schedule = a_schedule(**fields)
    assert (schedule.state.next_at, next_times(schedule, NOW)) == (None, [])


def test_the_last_times_of_all_are_those_of_the_year_9999() -> None:
    schedule = a_schedule(cron="* * * * *", start="9999-12-31T23:57:30Z")
    assert [rfc3339(at) for at in next_times(schedule, NOW)] == ["9999-12-31T23:58:00.000Z", "9999-12-31T23:59:00.000Z"]


@pytest.mark.parametrize("catch_up", ["one", "all", "none"])
def test_a_firing_whose_time_other_rules_of_the_zone_have_given_is_made_once(catch_up: str) -> None:
    """The rules change with the system's tzdata; and machines may have different ones."""
    schedule = a_schedule(cron="0 9 * * *", zone="Europe/Berlin", catch_up=catch_up)
    right = schedule.state.next_at
    assert right is not None

    def due_at(at: int) -> StoredSchedule:
        return StoredSchedule(schedule.definition, move_on(schedule.state, at, None, []))

    too_late = right + HOUR
    assert plan_firings(due_at(too_late), too_late) == FiringPlan([too_late], right + DAY)
    days = [too_late, right + DAY, right + 2 * DAY]
    expected = {"one": days[-1:], "all": days, "none": days[-1:]}
    assert plan_firings(due_at(too_late), right + 2 * DAY).times == expected[catch_up]
    too_early = right - HOUR
    assert plan_firings(due_at(too_early), too_early) == FiringPlan([], right)
    assert plan_firings(due_at(right), right) == FiringPlan([right], right + DAY)
    # this machine has new rules, another one has old ones, and each goes on from what the other one has left
    assert plan_firings(due_at(too_early), right + 2 * DAY).next_at == right + 3 * DAY


def test_times_that_are_made_up_for_are_found_in_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read an expression may take longer than to find its next time, and nothing else runs meanwhile."""
    searches: list[str] = []
    find = cron._local_times

    def count_search(fields: str, after: datetime, *, reverse: bool = False) -> Iterator[datetime]:
        searches.append(fields)
        return find(fields, after, reverse=reverse)

    schedule = a_schedule(cron=f"{'*,' * 100}* * * * *", catch_up="all")
    monkeypatch.setattr(cron, "_local_times", count_search)
    assert len(plan_firings(schedule, NOW + DAY).times) == MAX_FIRINGS
    assert len(searches) <= 3
    assert len(next_times(schedule, NOW)) == TIMES_SHOWN
    assert len(searches) <= 4


# Tasks


def test_a_firing_is_a_task_of_its_own_that_says_when_it_was_scheduled() -> None:
    definition = a_definition(
        cron="@daily", content="hello", headers={"a": "b"}, retry=7, ttl=60, context={"trace": "1"}, remember=10**6
    )
    task = firing_task(definition, NOW - DAY, NO_POLICIES, NOW)

    assert task.id == f"s:daily:{(NOW - DAY) // 1000}"
    assert (task.own_id, task.scheduled_at, task.execute_at, task.created_at) == (True, NOW - DAY, NOW, NOW)
    assert (task.topic, task.content, task.headers, task.max_retry) == ("report", "hello", {"a": "b"}, 7)
    assert (task.expires_at, task.context, task.remember_ms) == (NOW + 60_000, {"trace": "1"}, 10**9)
    assert decode_task(task.id, encode_task(task)) == task


def test_a_firing_is_remembered_for_an_hour_at_least() -> None:
    forgetful = Policies(msgspec.structs.replace(DEFAULT_POLICY, remember_ms=0))
    assert firing_task(a_definition(), NOW, forgetful, NOW).remember_ms == FIRINGS_REMEMBERED_MS
    assert firing_task(a_definition(remember=5), NOW, NO_POLICIES, NOW).remember_ms == FIRINGS_REMEMBERED_MS
    assert firing_task(a_definition(), NOW, NO_POLICIES, NOW).remember_ms is None


def test_a_firing_of_a_bound_keys_schedule_has_its_namespace_in_front() -> None:
    assert firing_id("team/x", 1_700_000_000_999) == "team/s:x:1700000000"
    definition = build_schedule(ScheduleDraft(topic="team/t", callback="http://h/", every=60), "team/x", TEAM)
    task = firing_task(definition, NOW, NO_POLICIES, NOW)
    assert (task.id, task.is_namespaced_uuid) == (f"team/s:x:{NOW // 1000}", False)
    with pytest.raises(NotAllowed):  # as if the key's namespace had changed
        firing_task(msgspec.structs.replace(definition, namespace="other"), NOW, NO_POLICIES, NOW)


def test_jitter_delays_each_firing_by_its_id_and_no_more_than_it_says() -> None:
    definition = a_definition(jitter=60)
    delays = {firing_task(definition, NOW + n * HOUR, NO_POLICIES, NOW).execute_at - NOW - n * HOUR for n in range(50)}
    assert len(delays) > 40
    assert all(0 <= delay <= 60_000 for delay in delays)
    assert firing_task(definition, NOW, NO_POLICIES, NOW).execute_at == (
        firing_task(definition, NOW, NO_POLICIES, NOW - 5).execute_at
    )


def test_policies_judge_a_firing_as_any_create() -> None:
    strict = Policies(msgspec.structs.replace(DEFAULT_POLICY, delays=False))
    assert firing_task(a_definition(), NOW, strict, NOW).execute_at == NOW
    with pytest.raises(PolicyRefusal):
        firing_task(a_definition(jitter=MAX_AHEAD_MS / 1000), NOW, strict, NOW)
    with pytest.raises(PolicyRefusal, match="callback"):
        firing_task(a_definition(callback=None), NOW, NO_POLICIES, NOW)


# States


def test_another_definition_takes_over_from_the_next_firing_on() -> None:
    before = a_schedule(every=3600)
    state = move_on(before.state, NOW + HOUR, FiringRecord(NOW, "s:daily:1"), [FiringRefusal(NOW, "no")])
    before = StoredSchedule(before.definition, state)
    same_times = put_schedule(a_definition(every=3600, content="new"), before, NOW + 5)
    assert same_times.state == state
    faster = put_schedule(a_definition(every=60), before, NOW + 5)
    assert next_times(faster, NOW + 5, 2) == [NOW + 60_000, NOW + 120_000]
    assert (faster.state.last, faster.state.refused) == (state.last, 1)
    moved = put_schedule(a_definition(every=60, start=rfc3339(NOW + DAY)), before, NOW + 5)
    assert next_times(moved, NOW + 5, 1) == [NOW + DAY]


def test_a_pause_outlasts_a_new_definition_that_says_nothing_of_it() -> None:
    paused = set_paused(a_schedule(every=60), True)
    assert put_schedule(a_definition(every=60, content="new"), paused, NOW).state.paused
    declared = put_schedule(a_definition(every=60, paused=True), paused, NOW)
    assert declared.state.paused
    assert not put_schedule(a_definition(every=60), declared, NOW).state.paused
