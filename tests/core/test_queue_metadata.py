"""A queue's metadata: what of them is policy, what is kept beside it, and which values Zaqar's checks refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from later.core.errors import Refused
from later.core.policy import DEFAULT_POLICY, Policy
from later.core.queue_metadata import (
    MAX_METADATA_BYTES,
    Queue,
    check_metadata,
    check_size,
    is_queue_name,
    metadata_view,
    own_metadata,
    queue_name,
    split_metadata,
)
from tests.cases import each_case

DEFAULTS = {
    "_default_message_delay": 0,
    "_default_message_ttl": 3600,
    "_max_claim_count": None,
    "_dead_letter_queue": None,
    "_dead_letter_queue_messages_ttl": None,
    "_max_messages_post_size": 262_144,
    "_enable_encrypt_messages": False,
}
MAX_DELAY_MS = 900_000

TTL = "_default_message_ttl can not exceed 1209600 seconds, and must be at least 60 seconds long."
POST_SIZE = "_max_messages_post_size can not exceed 262144,  and must be at least greater than 0."
CLAIMS = "_max_claim_count can not exceed 1000000, and must be at least 0."
DEAD_TTL = "The TTL for a message may not exceed 1209600 seconds, and must be at least 60 seconds long."
DELAY = "The TTL can not exceed 900 seconds, and must be at least 0 seconds long."
PAUSES = "invalid minimum_delay and maximum_delay."


def metadata(policy: Policy = DEFAULT_POLICY, **extra: object) -> dict[str, object]:
    return metadata_view(Queue("order", policy, extra))


def test_a_queue_without_metadata_shows_zaqars_defaults() -> None:
    assert metadata() == DEFAULTS


def test_metadata_show_the_policy_that_applies() -> None:
    policy = Policy(default_delay_ms=2000, ttl_ms=60_500, max_claims=3, dead_to="shop/failed", dead_ttl_ms=120_000)
    assert metadata(policy) == {
        **DEFAULTS,
        "_default_message_delay": 2,
        "_default_message_ttl": 60.5,
        "_max_claim_count": 3,
        "_dead_letter_queue": "failed",
        "_dead_letter_queue_messages_ttl": 120,
    }


def test_all_other_metadata_are_shown_as_they_were_written() -> None:
    extra: dict[str, Any] = {
        "node": 31,
        "tags": ["a", {"b": None}],
        "_retry_policy": {},
        "_max_messages_post_size": 255,
    }
    assert metadata(DEFAULT_POLICY, **extra) == {**DEFAULTS, **extra}


@each_case(
    "topic, written, fields, extra",
    [
        ("shop/order", {}, {}, {}),
        ("shop/order", {"_default_message_delay": 0, "_max_claim_count": 5}, {"default_delay": 0, "max_claims": 5}, {}),
        ("shop/order", {"_default_message_ttl": 60, "node": None}, {"ttl": 60}, {"node": None}),
        ("shop/order", {"_default_message_ttl": None, "_max_messages_post_size": None}, {}, {}),
        ("shop/order", {"_dead_letter_queue": "failed"}, {"dead_to": "shop/failed"}, {}),
        ("order", {"_dead_letter_queue": "failed"}, {"dead_to": "failed"}, {}),
        ("order", {"_dead_letter_queue": ""}, {"dead_to": ""}, {}),
        ("order", {"_dead_letter_queue_messages_ttl": 60}, {"dead_ttl": 60}, {}),
        ("order", {"_max_messages_post_size": 255}, {}, {"_max_messages_post_size": 255}),
        ("order", {"_enable_encrypt_messages": False, "_other": [1]}, {}, {"_other": [1]}),
    ],
)
def test_what_is_policy_is_split_from_the_rest(
    topic: str, written: dict[str, object], fields: dict[str, Any], extra: dict[str, object]
) -> None:
    split_fields, split_extra = split_metadata(topic, written)
    assert {name: value for name, value in split_fields.items() if value is not None} == fields
    assert split_extra == extra
    joined = own_metadata(fields, extra)
    assert {key: joined[key] for key in written if written[key] is not None and key in joined} == {
        key: value for key, value in written.items() if value is not None and key != "_enable_encrypt_messages"
    }


def wrong(key: str, sentence: str, *values: object) -> list[tuple[str, object, str]]:
    """Return cases of values that are refused by this sentence."""
    return [(key, value, sentence) for value in values]


@each_case(
    "key, value, sentence",
    [
        *wrong("_default_message_ttl", TTL, 0, 59, 1_209_601, -1),
        *wrong("_default_message_ttl", "_default_message_ttl must be integer.", "60", 60.0, True, []),
        *wrong("_max_messages_post_size", POST_SIZE, 0, 262_145),
        *wrong("_max_messages_post_size", "_max_messages_post_size must be integer.", "1"),
        *wrong("_max_claim_count", "_max_claim_count must be integer.", "123"),
        *wrong("_max_claim_count", CLAIMS, -1),
        *wrong("_dead_letter_queue_messages_ttl", DEAD_TTL, 0, 59, 1_209_601),
        *wrong("_dead_letter_queue_messages_ttl", "_dead_letter_queue_messages_ttl must be integer.", "123"),
        *wrong("_default_message_delay", DELAY, 901, -1),
        *wrong("_default_message_delay", "_default_message_delay must be integer.", "5", 5.5, True, "", {}),
        *wrong("_dead_letter_queue", "_dead_letter_queue must be the name of a queue.", 7, "a/b", ["a"]),
        *wrong("_enable_encrypt_messages", "_enable_encrypt_messages must be boolean.", "yes"),
        *wrong("_enable_encrypt_messages", "_enable_encrypt_messages must be false: messages are not encrypted.", True),
        *wrong("_retry_policy", "retry_policy must be a dict.", "x", 7),
        *wrong(
            "_retry_policy", "Retry policy: retries_with_no_delay must be a integer.", {"retries_with_no_delay": "x"}
        ),
        *wrong("_retry_policy", "Retry policy: minimum_delay must be a integer.", {"minimum_delay": 5.5}),
        *wrong("_retry_policy", "retry_backoff_function must be a string.", {"retry_backoff_function": 1}),
        *wrong("_retry_policy", "invalid retry_backoff_function.", {"retry_backoff_function": "sine"}),
        *wrong(
            "_retry_policy",
            "ignore_subscription_override must be a boolean.",
            {"ignore_subscription_override": 1},
        ),
        *wrong("_retry_policy", "minimum_delay must less than maximum_delay.", {"minimum_delay": 31}),
        *wrong("_retry_policy", PAUSES, {"minimum_delay": 21}, {"maximum_delay": 14}),
    ],
)
def test_wrong_metadata_are_refused_in_zaqars_words(key: str, value: object, sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        check_metadata({"node": 31, key: value}, MAX_DELAY_MS)
    assert refused.value.detail == sentence


@each_case(
    "written",
    [
        {},
        dict.fromkeys(DEFAULTS),
        {"_default_message_delay": 900, "_default_message_ttl": 60, "_max_claim_count": 0},
        {"_default_message_delay": 0, "_default_message_ttl": 1_209_600, "_max_messages_post_size": 262_144},
        {"_dead_letter_queue": "Q.1_-", "_dead_letter_queue_messages_ttl": 60, "_enable_encrypt_messages": False},
        {"_dead_letter_queue": ""},
        {"_retry_policy": {}},
        {"_retry_policy": {"minimum_delay": 5, "maximum_delay": 30, "retry_backoff_function": "geometric"}},
        {"_retry_policy": {"minimum_delay": 20, "ignore_subscription_override": True, "retries_with_no_delay": 3}},
        {"_unknown": 901, "default_message_delay": 901},
    ],
)
def test_what_zaqar_takes_is_taken(written: dict[str, object]) -> None:
    check_metadata(written, MAX_DELAY_MS)


def test_the_limit_of_a_delay_is_that_of_the_topic() -> None:
    check_metadata({"_default_message_delay": 3600}, 3_600_000)
    check_metadata({"_default_message_delay": 86_400 * 365}, 0)
    with pytest.raises(Refused) as refused:
        check_metadata({"_default_message_delay": 3601}, 3_600_000)
    assert refused.value.detail == "The TTL can not exceed 3600 seconds, and must be at least 0 seconds long."


def test_what_is_kept_beside_the_policy_has_a_limit() -> None:
    check_size({"a": "x" * (MAX_METADATA_BYTES - 8)})
    with pytest.raises(Refused) as refused:
        check_size({"a": "x" * (MAX_METADATA_BYTES - 7)})
    assert refused.value.detail == "Queue metadata is too large. Max size: 65536"


@each_case("opening, closing", [("[", "]"), ('{"a":', "}")])
def test_what_is_kept_beside_the_policy_is_not_nested_too_deeply(opening: str, closing: str) -> None:
    for levels, taken in ((100, True), (101, False), (900, False)):
        nested = json.loads(opening * levels + "1" + closing * levels)
        if taken:
            check_size({"a": nested, "b": "text"})
        else:
            with pytest.raises(Refused) as refused:
                check_size({"a": nested, "b": "text"})
            assert refused.value.detail == "Queue metadata is nested too deeply. Max levels: 100"


@each_case(
    "topic, name, is_one",
    [
        ("order", "order", True),
        ("shop/order", "order", True),
        ("shop/a.b-c_1", "a.b-c_1", True),
        ("shop/" + "a" * 64, "a" * 64, True),
        ("shop/" + "a" * 65, "a" * 65, False),
        ("shop/mail/new", "mail/new", False),
        ("default/shop/order", "shop/order", False),
        ("shop/ä", "ä", False),
        ("two words", "two words", False),
        ("", "", False),
    ],
)
def test_a_queue_has_the_last_part_of_its_topic_as_name(topic: str, name: str, is_one: bool) -> None:
    assert queue_name(topic) == name
    assert is_queue_name(name) == is_one
