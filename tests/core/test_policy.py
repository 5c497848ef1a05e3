"""The policy that applies to a topic, each field from the lowest level that sets it; and wrong values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.core.errors import Refused
from later.core.policy import (
    DEFAULT_POLICY,
    MIN_RATE,
    POLICY_FIELDS,
    Ack,
    DelayMode,
    Policy,
    PolicyValue,
    format_policy,
    parse_policy_fields,
)
from later.core.policy_scopes import (
    FOLLOW_UP_FIELDS,
    NO_SETTINGS,
    Level,
    Policies,
    PolicyScope,
    Settings,
    namespace_from_topic,
    namespace_scope,
    topic_scope,
)
from later.core.policy_warnings import dead_letter_warning, follow_up_warning
from later.core.retry import Outcome, OutcomeKind, SettleTarget, judge
from tests.builders import NOW, a_task
from tests.cases import each_case

TOPIC, NAMESPACE = topic_scope("shop/order"), namespace_scope("shop")

EXAMPLES: dict[str, tuple[Any, Any, Any]] = {
    "default_delay": (15, 30, 45.5),
    "max_delay": (900, 1800, 2700.001),
    "delay_mode": ("queue", "honor", "queue"),
    "delays": (False, True, False),
    "ttl": (60, 3600, 0.5),
    "timeout": (1, 120, 30.5),
    "retry": (1, 1000, 7),
    "retry_base": (1, 20, 0.25),
    "retry_cap": (60, 600, 6000),
    "retry_jitter": (1, 0.5, 0.25),
    "ack": ("code", "status", "auto"),
    "rate": (10, 0.5, 1000),
    "concurrency": (1, 10, 1_000_000),
    "paused": (True, False, True),
    "ramp": (1, 60, 0.5),
    "dead_keep": (1, 86_400, 0.001),
    "sign": ("off", "topic", "origin"),
    "deliver": ("pull", "push", "pull"),
    "callback": ("https://a.example/", "https://b.example/x?y=1", "http://127.0.0.1:8080/"),
    "claim_lease": (1, 43_200, 30.5),
    "max_claims": (1, 5, 1_000_000),
    "dead_to": ("shop/failed", "shop/lost", "shop/mail/failed"),
    "dead_ttl": (1, 86_400, 0.5),
    "remember": (0, 900, 0.5),
    "on_dead": ("shop/dead", "shop/lost", "shop/mail/dead"),
    "on_done": ("shop/done", "shop/audit", "shop/mail/done"),
    "durability": ("disk", "replica", "replica-disk"),
}
"""Three values of each field as they are written; the first two differ."""

TOPIC_FIELDS = ("dead_to", "on_dead", "on_done")
TAKE_ZERO = sorted(
    set(POLICY_FIELDS)
    - {
        "delay_mode",
        "delays",
        "timeout",
        "ack",
        "paused",
        "sign",
        "deliver",
        "callback",
        "claim_lease",
        "durability",
        *TOPIC_FIELDS,
    }
)


def daemon_policy(**written: Any) -> Policy:
    """Return the policy of a daemon's configuration, written as a topic's policy is."""
    return Policies(DEFAULT_POLICY, {TOPIC: Settings(written)}).for_scope(TOPIC)


def applied(field: str, *, daemon: Any = None, namespace: Any = None, topic: Any = None) -> tuple[Any, Level]:
    """Return the field's value for the topic, as it is written, and its level; None means not set on that level."""
    given = {NAMESPACE: namespace, TOPIC: topic}
    settings = {scope: Settings({field: value}) for scope, value in given.items() if value is not None}
    policies = Policies(DEFAULT_POLICY if daemon is None else daemon_policy(**{field: daemon}), settings)
    return format_policy(policies.for_topic("shop/order"))[field], policies.level_of(TOPIC, field)


def refuse_fields(**fields: object) -> Refused:
    with pytest.raises(Refused) as caught:
        parse_policy_fields(fields)
    return caught.value


def test_there_is_an_example_of_every_field_and_a_field_for_every_attribute() -> None:
    assert EXAMPLES.keys() == POLICY_FIELDS.keys()
    assert [field.attribute for field in POLICY_FIELDS.values()] == list(Policy.__struct_fields__)


@pytest.mark.parametrize("field", POLICY_FIELDS)
class TestLevels:
    def test_without_settings_the_daemons_default_applies(self, field: str) -> None:
        assert applied(field) == (format_policy(DEFAULT_POLICY)[field], Level.DAEMON)

    def test_the_daemons_value_applies_if_no_other_is_set(self, field: str) -> None:
        assert applied(field, daemon=EXAMPLES[field][0]) == (EXAMPLES[field][0], Level.DAEMON)

    def test_the_namespaces_value_overrides_the_daemons(self, field: str) -> None:
        first, second, _ = EXAMPLES[field]
        assert applied(field, daemon=first, namespace=second) == (second, Level.NAMESPACE)

    def test_the_topics_value_overrides_all_others(self, field: str) -> None:
        first, second, third = EXAMPLES[field]
        assert applied(field, daemon=first, namespace=second, topic=third) == (third, Level.TOPIC)
        if field != "durability":  # which a lower level can only raise
            assert applied(field, daemon=second, topic=first) == (first, Level.TOPIC)

    def test_null_inherits(self, field: str) -> None:
        first, second, _ = EXAMPLES[field]
        settings = Settings({field: first}).merge(parse_policy_fields({field: None}))
        assert settings == NO_SETTINGS
        policies = Policies(DEFAULT_POLICY, {TOPIC: settings, NAMESPACE: Settings({field: second})})
        assert (format_policy(policies.for_topic("shop/order"))[field], policies.level_of(TOPIC, field)) == (
            second,
            Level.NAMESPACE,
        )

    def test_another_field_set_on_a_lower_level_has_no_effect(self, field: str) -> None:
        other = next(name for name in POLICY_FIELDS if name not in (field, "max_delay", "default_delay"))
        policies = Policies(
            DEFAULT_POLICY,
            {TOPIC: Settings({other: EXAMPLES[other][1]}), NAMESPACE: Settings({field: EXAMPLES[field][0]})},
        )
        assert format_policy(policies.for_topic("shop/order"))[field] == EXAMPLES[field][0]

    def test_a_value_is_shown_as_it_was_written(self, field: str) -> None:
        for value in EXAMPLES[field]:
            assert parse_policy_fields({field: value}) == {field: value}
            assert format_policy(daemon_policy(**{field: value}))[field] == value


@each_case("field", TAKE_ZERO)
def test_zero_is_a_value_and_overrides_higher_levels(field: str) -> None:
    assert parse_policy_fields({field: 0}) == {field: 0}
    assert applied(field, daemon=EXAMPLES[field][0], namespace=EXAMPLES[field][1], topic=0) == (0, Level.TOPIC)


def test_a_level_of_durability_is_never_lowered_by_another_level() -> None:
    written = {"daemon": "replica", "namespace": "disk", "topic": "primary"}
    assert applied("durability", **written) == ("replica", Level.TOPIC)


class TestScopes:
    @each_case(
        ("topic", "namespace"),
        [("order", "default"), ("shop/order", "shop"), ("a/b/c", "a"), ("default/a/b", "default")],
    )
    def test_a_topics_namespace_is_the_part_before_the_first_slash(self, topic: str, namespace: str) -> None:
        assert namespace_from_topic(topic) == namespace

    def test_a_namespace_applies_to_its_own_topics_only(self) -> None:
        policies = Policies(DEFAULT_POLICY, {NAMESPACE: Settings({"retry": 7})})
        assert [policies.for_topic(topic).retry for topic in ("shop/a", "shop/a/b", "shop", "shopping/a", "a")] == [
            7,
            7,
            3,
            3,
            3,
        ]

    def test_the_namespace_of_plain_topics_is_default(self) -> None:
        policies = Policies(DEFAULT_POLICY, {namespace_scope("default"): Settings({"retry": 7})})
        assert [policies.for_topic(topic).retry for topic in ("order", "default/a/b", "shop/order")] == [7, 7, 3]

    def test_the_policy_of_a_namespace_ignores_its_topics(self) -> None:
        policies = Policies(DEFAULT_POLICY, {TOPIC: Settings({"retry": 9}), NAMESPACE: Settings({"ttl": 60})})
        assert (policies.for_scope(NAMESPACE).retry, policies.for_scope(NAMESPACE).ttl_ms) == (3, 60_000)
        assert policies.level_of(NAMESPACE, "retry") is Level.DAEMON


@each_case(("given", "value"), [(7.0, 7), (1e2, 100), (-0.0, 0)])
def test_an_integral_float_is_an_integer(given: float, value: int) -> None:
    fields = parse_policy_fields({"retry": given, "concurrency": given})
    assert [(number, type(number)) for number in fields.values()] == [(value, int)] * 2


class TestWrongValues:
    @each_case(
        ("field", "values"),
        [
            *((name, [-1, -0.001, True, False, "15", [], {}, float("nan"), float("inf"), 10**400])
              for name in POLICY_FIELDS
              if name not in ("delay_mode", "delays", "ack", "paused", "callback", *TOPIC_FIELDS)),
            ("timeout", [0, 0.999, 120.001]),
            ("retry", [1001, 1.5, -1.0]),
            ("retry_jitter", [1.001]),
            ("rate", [1_000_001, 1e-306, 0.00009]),
            ("concurrency", [1_000_001, 2.5, 1e400]),
            ("default_delay", [3653 * 86_400 + 1]),
            ("delay_mode", ["Honor", "", 0, [], True]),
            ("ack", ["body", 1, False]),
            ("durability", ["Disk", "", "none"]),
            ("delays", [0, 1, "true", "off"]),
            ("paused", [0, 1, "yes"]),
            ("callback", [-1, 0, True, [], {}, float("nan")]),
            *((name, [0, True, [], {}, "/x", "x/", "a\nb", "x" * 256, "\ud800"]) for name in TOPIC_FIELDS),
        ],
    )  # fmt: skip
    def test_a_wrong_value_is_refused_by_name(self, field: str, values: list[object]) -> None:
        for value in values:
            refusal = refuse_fields(**{field: value})
            assert refusal.field == field
            assert refusal.detail.startswith(
                f"{field}: expected {POLICY_FIELDS[field].expected}, or null to inherit, got "
            )

    def test_an_unknown_field_is_refused_by_name(self) -> None:
        refusal = refuse_fields(max_dely=1)
        assert (refusal.field, refusal.detail.split(";")[0]) == ("max_dely", "max_dely: no field of a policy")

    def test_an_unknown_name_is_shown_on_one_line_and_short(self) -> None:
        assert refuse_fields(**{"x\n" * 100: 1}).field == repr("x\n" * 40)[1:-1]

    def test_the_refusal_says_what_the_field_takes(self) -> None:
        assert refuse_fields(timeout=121).detail == (
            "timeout: expected a number of seconds from 1 to 120, or null to inherit, got 121"
        )


class TestDefaultsAndLimits:
    def change(
        self,
        before: dict[PolicyScope, dict[str, Any]],
        scope: PolicyScope,
        after: dict[str, Any],
        daemon: Policy = DEFAULT_POLICY,
    ) -> Policies:
        policies = Policies(daemon, {set_on: Settings(fields) for set_on, fields in before.items()})
        return policies.with_settings(scope, policies.settings_at(scope).merge(parse_policy_fields(after)))

    def test_a_default_may_be_as_long_as_the_limit(self) -> None:
        assert (
            self.change({}, TOPIC, {"default_delay": 900, "max_delay": 900}).for_topic("shop/order").default_delay_ms
            == 900_000
        )

    @each_case(
        ("before", "daemon", "after", "field"),
        [
            ({}, DEFAULT_POLICY, {"default_delay": 900.001, "max_delay": 900}, "default_delay"),
            ({NAMESPACE: {"max_delay": 900}}, DEFAULT_POLICY, {"default_delay": 901}, "default_delay"),
            ({}, Policy(max_delay_ms=900_000), {"default_delay": 901}, "default_delay"),
            ({TOPIC: {"default_delay": 60}}, DEFAULT_POLICY, {"max_delay": 59}, "default_delay"),
            ({NAMESPACE: {"default_delay": 60}}, DEFAULT_POLICY, {"max_delay": 59}, "max_delay"),
            ({NAMESPACE: {"default_delay": 60}, TOPIC: {"default_delay": 5, "max_delay": 9}}, DEFAULT_POLICY,
             {"default_delay": None}, "max_delay"),
        ],
        ids=["both", "limit above", "limit of the daemon", "limit below it", "default above", "default inherited"],
    )  # fmt: skip
    def test_a_default_beyond_the_limit_that_applies_is_refused(
        self, before: dict[PolicyScope, dict[str, Any]], daemon: Policy, after: dict[str, Any], field: str
    ) -> None:
        with pytest.raises(Refused) as caught:
            self.change(before, TOPIC, after, daemon)
        assert caught.value.field == field
        assert "expected a default_delay of at most the max_delay that applies" in caught.value.detail

    @each_case("after", [{"paused": True}, {"retry": 5}, {"default_delay": 9}])
    def test_a_conflict_with_a_higher_level_does_not_prevent_other_changes(self, after: dict[str, Any]) -> None:
        before = {TOPIC: {"default_delay": 60}, NAMESPACE: {"max_delay": 9}}
        policies = self.change(before, TOPIC, after)
        assert policies.settings_at(TOPIC).fields == {"default_delay": 60} | after

    def test_a_conflict_with_a_higher_level_does_not_prevent_removal(self) -> None:
        policies = Policies(
            DEFAULT_POLICY, {TOPIC: Settings({"default_delay": 60}), NAMESPACE: Settings({"max_delay": 9})}
        )
        assert policies.with_settings(TOPIC, NO_SETTINGS).for_topic("shop/order").default_delay_ms == 0

    def test_a_limit_that_is_lifted_allows_any_default(self) -> None:
        policies = self.change({NAMESPACE: {"max_delay": 900}}, TOPIC, {"default_delay": 9000, "max_delay": 0})
        assert policies.for_topic("shop/order").default_delay_ms == 9_000_000


FAILED = topic_scope("shop/failed")


class TestDeadLetterTopics:
    def change(
        self, before: dict[PolicyScope, dict[str, Any]], scope: PolicyScope, dead_to: str | None, **more: Any
    ) -> Policies:
        policies = Policies(DEFAULT_POLICY, {set_on: Settings(fields) for set_on, fields in before.items()})
        fields = parse_policy_fields({"dead_to": dead_to, **more})
        return policies.with_settings(scope, policies.settings_at(scope).merge(fields))

    @each_case(
        ("scope", "dead_to", "detail"),
        [
            (TOPIC, "order", 'another topic of the namespace shop, got "order"'),
            (TOPIC, "bank/order", 'another topic of the namespace shop, got "bank/order"'),
            (TOPIC, "shop/order", 'another topic of the namespace shop, got "shop/order"'),
            (NAMESPACE, "order", 'a topic of the namespace shop, got "order"'),
            (topic_scope("order"), "shop/order", 'another topic of the namespace default, got "shop/order"'),
            (topic_scope("order"), "default/order", 'another topic of the namespace default, got "order"'),
        ],
    )
    def test_it_is_another_topic_of_the_same_namespace(self, scope: PolicyScope, dead_to: str, detail: str) -> None:
        with pytest.raises(Refused) as caught:
            self.change({}, scope, dead_to)
        assert (caught.value.field, caught.value.detail) == ("dead_to", f"dead_to: expected {detail}")

    @each_case(
        ("before", "scope", "dead_to"),
        [
            ({FAILED: {"dead_to": "shop/order"}}, TOPIC, "shop/failed"),
            ({FAILED: {"dead_to": "shop/c"}, topic_scope("shop/c"): {"dead_to": "shop/order"}}, TOPIC, "shop/failed"),
            ({NAMESPACE: {"dead_to": "shop/failed"}}, FAILED, "shop/order"),
            ({FAILED: {"dead_to": "shop/order"}}, NAMESPACE, "shop/failed"),
            (
                {
                    NAMESPACE: {"dead_to": "shop/c"},
                    FAILED: {"dead_to": ""},
                    topic_scope("shop/c"): {"dead_to": "shop/failed"},
                },
                FAILED,
                None,
            ),
        ],
        ids=["of two", "of three", "by the namespace", "of the namespace", "by inheriting again"],
    )
    def test_no_dead_task_comes_back(
        self, before: dict[PolicyScope, dict[str, Any]], scope: PolicyScope, dead_to: str | None
    ) -> None:
        with pytest.raises(Refused, match="expected a topic from which no dead task comes back, got") as caught:
            self.change(before, scope, dead_to)
        assert caught.value.field == "dead_to"

    def test_a_chain_is_allowed_and_the_topic_of_a_namespace_keeps_its_own_dead(self) -> None:
        policies = self.change({NAMESPACE: {"dead_to": "shop/failed"}}, TOPIC, "shop/bad")
        topics = ("shop/order", "shop/bad", "shop/failed", "order")
        assert [policies.dead_letter_topic(topic) for topic in topics] == ["shop/bad", "shop/failed", "", ""]
        assert self.change({NAMESPACE: {"dead_to": "shop/failed"}}, TOPIC, "").dead_letter_topic("shop/order") == ""

    @each_case("fields", [{"retry": 1}, {"dead_ttl": 5}])
    def test_they_are_not_checked_again_where_another_field_is_set(self, fields: dict[str, Any]) -> None:
        settings = {TOPIC: Settings({"dead_to": "shop/failed"}), FAILED: Settings({"dead_to": "shop/order"})}
        policies = Policies(DEFAULT_POLICY, settings)
        changed = policies.with_settings(TOPIC, policies.settings_at(TOPIC).merge(fields))
        assert changed.dead_letter_topics == {"shop/failed", "shop/order"}

    @each_case(
        ("before", "scope", "is_warned"),
        [
            ({TOPIC: {"deliver": "pull", "dead_to": "shop/failed"}}, TOPIC, True),
            ({TOPIC: {"deliver": "pull", "dead_to": "shop/failed"}}, FAILED, True),
            ({NAMESPACE: {"deliver": "pull", "dead_to": "shop/failed"}, FAILED: {"deliver": "push"}}, NAMESPACE, True),
            ({TOPIC: {"deliver": "pull", "dead_to": "shop/failed"}, FAILED: {"deliver": "pull"}}, TOPIC, False),
            ({TOPIC: {"deliver": "pull", "dead_to": "shop/failed"}, FAILED: {"deliver": "pull"}}, FAILED, False),
            ({TOPIC: {"dead_to": "shop/failed"}}, TOPIC, False),
            ({TOPIC: {"dead_to": "shop/failed"}, FAILED: {"deliver": "pull"}}, TOPIC, False),
            ({TOPIC: {"deliver": "pull"}}, TOPIC, False),
        ],
    )
    def test_tasks_without_a_callback_in_a_pushed_dead_letter_topic_are_warned_of(
        self, before: dict[PolicyScope, dict[str, Any]], scope: PolicyScope, is_warned: bool
    ) -> None:
        policies = Policies(DEFAULT_POLICY, {set_on: Settings(fields) for set_on, fields in before.items()})
        assert (dead_letter_warning(policies, scope) is not None) is is_warned


class TestSettings:
    def test_merging_keeps_unnamed_fields_and_replacing_does_not(self) -> None:
        before = Settings({"ttl": 60, "retry": 5}, tick_time_ms=1000)
        assert before.merge({"retry": None, "ack": "code"}) == Settings({"ttl": 60, "ack": "code"}, 1000)
        assert before.replace({"ack": "code", "ttl": None}) == Settings({"ack": "code"}, 1000)

    def test_fields_are_kept_in_the_order_of_the_table(self) -> None:
        assert list(Settings({"ack": "code"}).merge({"max_delay": 1, "retry": 2}).fields) == [
            "max_delay",
            "retry",
            "ack",
        ]

    def test_a_field_of_a_newer_version_is_ignored_and_kept(self) -> None:
        settings = Settings({"colour": "red", "retry": 5})
        assert Policies(DEFAULT_POLICY, {TOPIC: settings}).for_topic("shop/order").retry == 5
        assert settings.merge({"retry": 6}).fields == {"retry": 6, "colour": "red"}

    @each_case(("field", "value"), [("rate", 1e-306), ("retry", "many"), ("timeout", 10**9)])
    def test_a_value_of_a_newer_version_is_ignored_too(self, field: str, value: Any) -> None:
        policies = Policies(DEFAULT_POLICY, {TOPIC: Settings({field: value, "ttl": 60})})
        assert policies.for_topic("shop/order") == Policies(DEFAULT_POLICY, {TOPIC: Settings({"ttl": 60})}).for_topic(
            "shop/order"
        )


def test_the_shortest_dead_keep_of_all_levels_is_found() -> None:
    settings = {
        TOPIC: Settings({"dead_keep": 60}),
        NAMESPACE: Settings({"dead_keep": 90}),
        topic_scope("x"): Settings(),
    }
    assert Policies(DEFAULT_POLICY, settings).shortest_dead_keep_ms == 60_000
    assert Policies(DEFAULT_POLICY).shortest_dead_keep_ms == DEFAULT_POLICY.dead_keep_ms


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "default_delay": st.floats(0, 10**6),
        "max_delay": st.floats(0, 10**6),
        "delay_mode": st.sampled_from([*map(str, DelayMode)]),
        "delays": st.booleans(),
        "ttl": st.just(0),
        "timeout": st.floats(1, 120),
        "retry": st.integers(1, 1000),
        "retry_base": st.floats(0, 10**6),
        "retry_cap": st.floats(0, 10**6),
        "retry_jitter": st.floats(0, 1),
        "ack": st.sampled_from([*map(str, Ack)]),
        "rate": st.just(0) | st.floats(MIN_RATE, 10**6),
        "concurrency": st.integers(0, 10**6),
        "paused": st.booleans(),
    },
)


@given(
    topic=SETTINGS,
    namespace=SETTINGS,
    kind=st.sampled_from([OutcomeKind.FAILED, OutcomeKind.BUSY]),
    requested_ms=st.none() | st.integers(0, 10**9),
    random=st.floats(0, 1, exclude_max=True),
)
def test_a_retry_can_always_be_scheduled(
    topic: dict[str, Any], namespace: dict[str, Any], kind: OutcomeKind, requested_ms: int | None, random: float
) -> None:
    """PIP-315's problem: a consumer that is stuck because the delay of its retry is longer than the limit."""
    policy = Policies(DEFAULT_POLICY, {TOPIC: Settings(topic), NAMESPACE: Settings(namespace)}).for_topic("shop/order")
    outcome = Outcome(kind=kind, reason="status", status=500, message="", retry_after_ms=requested_ms)
    verdict = judge(a_task(max_retry=policy.retry), 1, None, outcome, NOW, policy, random)
    assert verdict.target is SettleTarget.ERROR
    assert verdict.at > NOW


@each_case(
    ("fields", "has_limits", "has_pulled"),
    [
        ({}, False, False),
        ({"deliver": "push", "rate": 0}, False, False),
        ({"deliver": "pull"}, False, True),
        ({"paused": True}, True, False),
    ],
)
def test_workers_look_at_the_policies_of_topics_only_if_one_is_limited_paused_or_pulled(
    fields: dict[str, PolicyValue], has_limits: bool, has_pulled: bool
) -> None:
    daemon = Settings(fields).apply_to(DEFAULT_POLICY)
    for policies in (Policies(DEFAULT_POLICY, {NAMESPACE: Settings(fields)}), Policies(daemon)):
        assert (policies.has_limits, policies.has_pulled) == (has_limits, has_pulled)
        assert policies.can_hold is (has_limits or has_pulled)


class TestFollowUps:
    @each_case(
        ("scope", "target", "detail"),
        [
            (TOPIC, "shop/order", 'another topic of the namespace shop, got "shop/order"'),
            (TOPIC, "bank/order", 'another topic of the namespace shop, got "bank/order"'),
            (NAMESPACE, "order", 'a topic of the namespace shop, got "order"'),
        ],
    )
    def test_they_are_made_in_another_topic_of_the_same_namespace(
        self, scope: PolicyScope, target: str, detail: str
    ) -> None:
        for field in FOLLOW_UP_FIELDS:
            with pytest.raises(Refused) as caught:
                Policies(DEFAULT_POLICY).with_settings(scope, Settings({field: target}))
            assert (caught.value.field, caught.value.detail) == (field, f"{field}: expected {detail}")

    def test_the_topic_of_a_namespace_gets_none_for_its_own_tasks(self) -> None:
        policies = Policies(DEFAULT_POLICY, {NAMESPACE: Settings({"on_done": "shop/ends"})})
        policies = policies.with_settings(topic_scope("shop/quiet"), Settings({"on_done": ""}))
        topics = ("shop/order", "shop/ends", "shop/quiet", "order")
        assert [policies.follow_up_topic(topic, "on_done") for topic in topics] == ["shop/ends", "", "", ""]
        assert [policies.follow_up_topic(topic, "on_dead") for topic in topics] == [""] * 4

    @each_case(
        ("settings", "leave_tasks", "has_follow_ups"),
        [
            ({}, False, False),
            ({"retry": 1, "on_done": "", "dead_to": ""}, False, False),
            ({"dead_to": "shop/ends"}, True, False),
            ({"on_done": "shop/ends"}, True, True),
            ({"on_dead": "shop/ends"}, True, True),
        ],
    )
    def test_where_no_policy_has_them_none_need_be_looked_up(
        self, settings: dict[str, Any], leave_tasks: bool, has_follow_ups: bool
    ) -> None:
        policies = Policies(DEFAULT_POLICY, {TOPIC: Settings(settings)})
        assert (policies.leave_tasks, policies.has_follow_ups) == (leave_tasks, has_follow_ups)

    @each_case(
        ("target", "scope", "is_warned"),
        [
            ({}, TOPIC, True),
            ({}, topic_scope("shop/ends"), True),
            ({}, NAMESPACE, True),
            ({}, topic_scope("shop/other"), False),
            ({"deliver": "pull"}, TOPIC, False),
            ({"callback": "http://127.0.0.1:8888/ends"}, topic_scope("shop/ends"), False),
        ],
    )
    def test_it_is_warned_of_a_topic_in_which_they_would_be_dead(
        self, target: dict[str, Any], scope: PolicyScope, is_warned: bool
    ) -> None:
        settings = {TOPIC: Settings({"on_dead": "shop/ends"}), topic_scope("shop/ends"): Settings(target)}
        warning = follow_up_warning(Policies(DEFAULT_POLICY, settings), scope)
        assert (warning is not None) is is_warned
