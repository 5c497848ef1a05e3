"""The calls of topics and policies, each made of arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from later.client.answers import AppliedField, AppliedPolicy, TopicInfo
from later.client.call import Call, given
from later.client.call_fields import PAGE_SIZE, Page, decoder, plain_seconds, scope_path
from later.core.durations import Seconds
from later.core.policy import POLICY_FIELDS, PolicyValue, ValueKind
from later.core.policy_scopes import PolicyScope


class _TopicsPage(msgspec.Struct):
    topics: list[TopicInfo]
    cursor: str | None


_read_topics_page = decoder(_TopicsPage)


def topics(namespace: str | None, cursor: str | None = None) -> Call[Page[TopicInfo]]:
    def read(body: bytes) -> Page[TopicInfo]:
        page = _read_topics_page(body)
        return Page(page.topics, None if page.cursor is None else topics(namespace, page.cursor))

    query = urlencode(given(limit=PAGE_SIZE, namespace=namespace, cursor=cursor))
    return Call(f"/topics?{query}", read, method="GET", safe=True)


def topic(name: str) -> Call[TopicInfo]:
    return Call(scope_path(name), _read_topic, method="GET", safe=True)


_read_topic = decoder(TopicInfo)


def policy(of: str | PolicyScope) -> Call[AppliedPolicy]:
    return Call(f"{scope_path(of)}/policy?applied=true", _read_policy, method="GET", safe=True)


def _read_policy(body: bytes) -> AppliedPolicy:
    return AppliedPolicy(fields=_read_applied_fields(body))


_read_applied_fields = decoder(dict[str, AppliedField])


def set_policy(of: str | PolicyScope, fields: Mapping[str, object]) -> Call[dict[str, PolicyValue]]:
    """The call that sets these fields and leaves the others as they are; None lets one be inherited."""
    changes = {name: policy_value(name, value) for name, value in fields.items()}
    return Call(f"{scope_path(of)}/policy", _read_settings, changes, method="PATCH", safe=True)


def unset_policy(of: str | PolicyScope, fields: Sequence[str]) -> Call[dict[str, PolicyValue]]:
    """The call that lets these fields be inherited, or all if none is named."""
    if fields:
        return set_policy(of, dict.fromkeys(fields))
    return Call(f"{scope_path(of)}/policy", _read_settings, method="DELETE", safe=True)


_read_settings = decoder(dict[str, PolicyValue])


def policy_value(name: str, value: object) -> Any:
    """Return a field's value as JSON has it: a duration in seconds. What is wrong in it, the daemon says."""
    field = POLICY_FIELDS.get(name)
    if field is not None and field.kind is ValueKind.DURATION and isinstance(value, Seconds):
        return plain_seconds(name, value)
    return value


class _Paused(msgspec.Struct):
    paused: bool


_decode_paused = decoder(_Paused)


def pause(topic: str) -> Call[bool]:
    return Call(f"{scope_path(topic)}/pause", _read_paused, {}, safe=True)


def resume(topic: str) -> Call[bool]:
    return Call(f"{scope_path(topic)}/resume", _read_paused, {}, safe=True)


def _read_paused(body: bytes) -> bool:
    return _decode_paused(body).paused
