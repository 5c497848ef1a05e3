"""The metadata of a queue of Zaqar's API: what of them is the policy of its topic, what else is kept, and the checks.

A queue is a topic whose tasks are pulled. Keys that begin with `_` are reserved: some of them are fields of the policy,
where everybody sees and changes them. All other keys are the queue's own, and are kept as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

import msgspec

from later.core.errors import Refused
from later.core.policy import MAX_AHEAD_S, MAX_LIMIT, DelayMode, Deliver, Policy, PolicyValue, plain_number

NEW_QUEUE: Mapping[str, PolicyValue] = {
    "deliver": Deliver.PULL.value,
    "delay_mode": DelayMode.QUEUE.value,
    "max_delay": 900,
}
"""Fields of its policy that a topic gets when it is made as a queue, unless it sets them: what Zaqar does."""
DEFAULT_MESSAGE_TTL_S = 3600
"""The ttl of a message if neither it nor a policy sets one."""
MIN_MESSAGE_TTL_S = 60
MAX_MESSAGE_TTL_S = 1_209_600
MAX_POST_BYTES = 262_144
"""The most bytes of a post of messages."""
MAX_METADATA_BYTES = 65_536
TOO_MUCH_METADATA = f"Queue metadata is too large. Max size: {MAX_METADATA_BYTES}"
MAX_LEVELS = 100
"""Levels of arrays and objects in metadata. Deeper ones can be parsed, and perhaps not be written or read again."""

DELAY, TTL, MAX_CLAIMS = "_default_message_delay", "_default_message_ttl", "_max_claim_count"
DEAD_LETTER_QUEUE, DEAD_LETTER_TTL = "_dead_letter_queue", "_dead_letter_queue_messages_ttl"
POST_BYTES, ENCRYPTION, RETRY_POLICY = "_max_messages_post_size", "_enable_encrypt_messages", "_retry_policy"

NUMBERS_IN_POLICY = {DELAY: "default_delay", TTL: "ttl", MAX_CLAIMS: "max_claims", DEAD_LETTER_TTL: "dead_ttl"}
POLICY_FIELDS_BY_KEY = {**NUMBERS_IN_POLICY, DEAD_LETTER_QUEUE: "dead_to"}
"""The metadata that are fields of the policy."""
RESERVED = frozenset({*POLICY_FIELDS_BY_KEY, POST_BYTES, ENCRYPTION})
"""Keys that each queue shows, whether they are set or not."""

_QUEUE_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_MIN_PAUSE_S, _MAX_PAUSE_S = 5, 30
"""Zaqar's defaults of a retry policy's `minimum_delay` and `maximum_delay`."""
_LEAST_SPREAD_S = 10
_RETRY_NUMBERS = (
    "retries_with_no_delay",
    "minimum_delay_retries",
    "minimum_delay",
    "maximum_delay",
    "maximum_delay_retries",
)
_RETRY_FUNCTIONS = ("linear", "arithmetic", "exponential", "geometric")


class Queue(NamedTuple):
    """A queue: its topic, the policy that applies to it, and those of its metadata that are no policy."""

    topic: str
    policy: Policy
    extra: Mapping[str, object]


def metadata_view(queue: Queue) -> dict[str, object]:
    """Return all metadata of a queue, as Zaqar shows them: reserved ones that are not set have their defaults."""
    policy = queue.policy
    return {
        **queue.extra,
        DELAY: plain_number(policy.default_delay_ms / 1000),
        TTL: plain_number(policy.ttl_ms / 1000) or DEFAULT_MESSAGE_TTL_S,
        MAX_CLAIMS: policy.max_claims or None,
        DEAD_LETTER_QUEUE: queue_name(policy.dead_to) or None,
        DEAD_LETTER_TTL: plain_number(policy.dead_ttl_ms / 1000) or None,
        POST_BYTES: queue.extra.get(POST_BYTES, MAX_POST_BYTES),
        ENCRYPTION: False,
    }


def own_metadata(fields: Mapping[str, PolicyValue], extra: Mapping[str, object]) -> dict[str, object]:
    """Return the metadata that a queue sets itself, by the fields that its topic sets."""
    own = {**extra, **{key: fields[field] for key, field in NUMBERS_IN_POLICY.items() if field in fields}}
    if "dead_to" in fields:
        own[DEAD_LETTER_QUEUE] = queue_name(str(fields["dead_to"]))
    return own


def split_metadata(topic: str, own: Mapping[str, object]) -> tuple[dict[str, PolicyValue | None], dict[str, object]]:
    """Return what `own_metadata` joins: the fields of the policy (None: it inherits them), and the other metadata.

    The metadata were checked. Reserved ones that are null are not set. A dead letter queue is of the topic's namespace.
    """
    fields: dict[str, PolicyValue | None] = {}
    for key, field in NUMBERS_IN_POLICY.items():
        value = own.get(key)
        fields[field] = value if isinstance(value, int | float) else None
    dead_letter_queue = own.get(DEAD_LETTER_QUEUE)
    if isinstance(dead_letter_queue, str):
        namespace, slash, _ = topic.rpartition("/")
        fields["dead_to"] = dead_letter_queue and namespace + slash + dead_letter_queue
    else:
        fields["dead_to"] = None
    is_set = own.get(POST_BYTES) is not None
    return fields, {k: value for k, value in own.items() if k not in RESERVED or (k == POST_BYTES and is_set)}


def queue_name(topic: str) -> str:
    """Return the name of the queue that a topic is, in its project. `is_queue_name` says if it can be one."""
    first, slash, rest = topic.partition("/")
    return rest if slash else first


def is_queue_name(name: str) -> bool:
    """Return True if a queue can have this name."""
    return _QUEUE_NAME.fullmatch(name) is not None


# Checks


def check_metadata(metadata: Mapping[str, object], max_delay_ms: int) -> None:
    """Check the reserved ones among metadata that are to be set, as Zaqar does.

    `max_delay_ms` is the limit on delays that applies to the topic (0: none).

    Raises:
        Refused: with Zaqar's sentence.
    """
    _check_number(
        metadata, TTL, MIN_MESSAGE_TTL_S, MAX_MESSAGE_TTL_S,
        f"{TTL} can not exceed {MAX_MESSAGE_TTL_S} seconds, and must be at least {MIN_MESSAGE_TTL_S} seconds long.",
    )  # fmt: skip
    _check_number(
        metadata, POST_BYTES, 1, MAX_POST_BYTES,
        f"{POST_BYTES} can not exceed {MAX_POST_BYTES},  and must be at least greater than 0.",
    )  # fmt: skip
    _check_number(
        metadata, MAX_CLAIMS, 0, MAX_LIMIT, f"{MAX_CLAIMS} can not exceed {MAX_LIMIT}, and must be at least 0."
    )
    _check_number(
        metadata, DEAD_LETTER_TTL, MIN_MESSAGE_TTL_S, MAX_MESSAGE_TTL_S,
        f"The TTL for a message may not exceed {MAX_MESSAGE_TTL_S} seconds, "
        f"and must be at least {MIN_MESSAGE_TTL_S} seconds long.",
    )  # fmt: skip
    longest_s = plain_number(max_delay_ms / 1000) if max_delay_ms else MAX_AHEAD_S
    _check_number(
        metadata,
        DELAY,
        0,
        longest_s,
        f"The TTL can not exceed {longest_s} seconds, and must be at least 0 seconds long.",
    )
    _check_dead_letter_queue(metadata.get(DEAD_LETTER_QUEUE))
    _check_encryption(metadata.get(ENCRYPTION))
    _check_retry_policy(metadata.get(RETRY_POLICY))


def check_size(extra: Mapping[str, object]) -> None:
    """Check how large the metadata are that are kept beside a policy, and how deeply nested. Raises Refused."""
    nested: list[dict[str, object] | list[object]] = [dict(extra)]
    for _ in range(MAX_LEVELS + 1):
        items = chain.from_iterable(each.values() if isinstance(each, dict) else each for each in nested)
        nested = [item for item in items if isinstance(item, dict | list)]
    if nested:
        raise Refused(f"Queue metadata is nested too deeply. Max levels: {MAX_LEVELS}")
    if len(msgspec.json.encode(extra)) > MAX_METADATA_BYTES:
        raise Refused(TOO_MUCH_METADATA)


def _check_number(metadata: Mapping[str, object], key: str, least: int, most: float, sentence: str) -> None:
    """Check an integer within limits, which `sentence` says. Null is not set."""
    value = metadata.get(key)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(f"{key} must be integer.", key)
    if not least <= value <= most:
        raise Refused(sentence, key)


def _check_dead_letter_queue(name: object) -> None:
    if name and not (isinstance(name, str) and is_queue_name(name)):
        raise Refused(f"{DEAD_LETTER_QUEUE} must be the name of a queue.", DEAD_LETTER_QUEUE)


def _check_encryption(value: object) -> None:
    """Refuse what would be a promise that is not kept."""
    if value and not isinstance(value, bool):
        raise Refused(f"{ENCRYPTION} must be boolean.", ENCRYPTION)
    if value:
        raise Refused(f"{ENCRYPTION} must be false: messages are not encrypted.", ENCRYPTION)


def _check_retry_policy(policy: object) -> None:
    """Check the policy of subscriptions' retries, which has no effect here."""
    if not policy:
        return
    if not isinstance(policy, dict):
        raise Refused("retry_policy must be a dict.", RETRY_POLICY)
    for key in _RETRY_NUMBERS:
        if policy.get(key) and not (isinstance(policy[key], int) and not isinstance(policy[key], bool)):
            raise Refused(f"Retry policy: {key} must be a integer.", RETRY_POLICY)
    function, override = policy.get("retry_backoff_function"), policy.get("ignore_subscription_override")
    if function and not isinstance(function, str):
        raise Refused("retry_backoff_function must be a string.", RETRY_POLICY)
    if function and function not in _RETRY_FUNCTIONS:
        raise Refused("invalid retry_backoff_function.", RETRY_POLICY)
    if override and not isinstance(override, bool):
        raise Refused("ignore_subscription_override must be a boolean.", RETRY_POLICY)
    _check_pauses(policy.get("minimum_delay"), policy.get("maximum_delay"))


def _check_pauses(least: object, most: object) -> None:
    """Check the pauses of a retry policy, in seconds; those that are no integers are not set."""
    least_s = least if isinstance(least, int) else _MIN_PAUSE_S
    most_s = most if isinstance(most, int) else _MAX_PAUSE_S
    if most_s < least_s:
        raise Refused("minimum_delay must less than maximum_delay.", RETRY_POLICY)
    if most_s - least_s < _LEAST_SPREAD_S:
        raise Refused("invalid minimum_delay and maximum_delay.", RETRY_POLICY)
