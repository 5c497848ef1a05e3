"""The settings of many topics: what policies say of all of them, after changes of a few."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from later.core import parted_map
from later.core.policy import DEFAULT_POLICY, Deliver, PolicyValue
from later.core.policy_scopes import (
    FOLLOW_UP_FIELDS,
    Level,
    Policies,
    PolicyScope,
    Settings,
    SettingsMap,
    namespace_from_topic,
    namespace_scope,
    topic_scope,
)

TOPICS = ("a", "b", "n/a", "n/b", "m/a")
SCOPES = st.sampled_from([*map(topic_scope, TOPICS), *map(namespace_scope, ("default", "n", "m"))])
FIELDS: st.SearchStrategy[dict[str, PolicyValue]] = st.fixed_dictionaries(
    {},
    optional={
        "rate": st.sampled_from([0, 5]),
        "paused": st.booleans(),
        "deliver": st.sampled_from(["push", "pull"]),
        "dead_to": st.sampled_from(["", *TOPICS]),
        "on_done": st.sampled_from(["", *TOPICS]),
        "on_dead": st.sampled_from(["", *TOPICS]),
        "dead_keep": st.sampled_from([1, 60, 10**9, "unknown"]),
    },
)
CHANGES = st.lists(st.tuples(SCOPES, st.none() | st.builds(Settings, FIELDS)), max_size=30)
Changes = list[tuple[PolicyScope, Settings | None]]


def apply(changes: Changes) -> dict[PolicyScope, Settings]:
    """Return what is set after the changes."""
    found: dict[PolicyScope, Settings] = {}
    for scope, settings in changes:
        found.pop(scope, None)
        if settings is not None:
            found[scope] = settings
    return found


@given(CHANGES, CHANGES)
def test_policies_say_of_all_settings_what_each_says(first: Changes, then: Changes) -> None:
    with patch.object(parted_map, "MAX_PART", 3):
        policies = Policies(DEFAULT_POLICY, SettingsMap().changed(first).changed(then))
    settings = apply([*first, *then])
    fields = [each.fields for each in settings.values()]
    topics = sorted(scope.name for scope in settings if scope.level is Level.TOPIC)
    queues = [topic for topic in topics if "deliver" in settings[topic_scope(topic)].fields]
    assert policies.settings == settings
    assert policies.topics == topics
    assert [*policies.queues] == policies.queues_between("", "", 9) == queues
    assert policies.queue_count == len(queues)
    assert policies.has_limits == any(some.get("rate") or some.get("paused") for some in fields)
    assert policies.has_pulled == any(some.get("deliver") == Deliver.PULL for some in fields)
    assert policies.has_follow_ups == any(some.get(name) for some in fields for name in FOLLOW_UP_FIELDS)
    assert policies.dead_letter_topics == {some["dead_to"] for some in fields if some.get("dead_to")}
    assert policies.leave_tasks == bool(policies.dead_letter_topics or policies.has_follow_ups)
    assert policies.shortest_dead_keep_ms == min(
        [DEFAULT_POLICY.dead_keep_ms, *(policies.for_scope(scope).dead_keep_ms for scope in settings)]
    )
    for namespace in ("default", "n", "m", "x"):
        scopes = [namespace_scope(namespace), *(topic_scope(t) for t in TOPICS if namespace_from_topic(t) == namespace)]
        is_pulled = any(policies.for_scope(scope).deliver is Deliver.PULL for scope in scopes if scope in settings)
        assert policies.has_pulled_in(namespace) == is_pulled


@given(CHANGES, CHANGES)
def test_what_a_change_has_ended_is_found(first: Changes, then: Changes) -> None:
    with patch.object(parted_map, "MAX_PART", 3):
        before = SettingsMap().changed(first)
        after = before.changed(then)
    assert dict(before.without(after)) == {scope: each for scope, each in before.items() if after.get(scope) != each}


def test_a_change_of_one_among_many_copies_few() -> None:
    many = SettingsMap().changed((topic_scope(f"t{n:06}"), Settings({"rate": 1})) for n in range(20_000))
    changed = many.changed([(topic_scope("t000123"), Settings({"rate": 2}))])
    copied = [part for part in changed.parts if part not in {*many.parts}]
    assert sum(len(part.values) for part in copied) <= parted_map.MAX_PART
