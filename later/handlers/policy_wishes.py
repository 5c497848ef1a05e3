"""The wishes of handlers for the policies of their topics, and how these differ from what applies."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from later.client.answers import AppliedField, AppliedPolicy
from later.client.topic_calls import policy_value
from later.core.errors import Refused
from later.core.policy import POLICY_FIELDS, PULL, PolicyValue, parse_policy_fields
from later.core.policy_scopes import Level


class PolicyChange(NamedTuple):
    """A field of a topic's policy that differs from what its handler wishes.

    `before` is what applies now, and `after` the wish, as JSON has them: durations are in seconds. None: no topic or
    URL, or as a wish that the topic is not to set the field any more.
    """

    topic: str
    field: str
    before: PolicyValue | None
    after: PolicyValue | None


class PolicyWish(NamedTuple):
    """The fields that a topic's policy is to have.

    A topic that gets a task for each dead one of another topic, that of `follows`, is to be delivered as that one is:
    it is pulled, too, or else `callback` is called.
    """

    topic: str
    fields: Mapping[str, object]
    follows: PolicyWish | None = None
    callback: str | None = None


def wished_changes(
    wish: PolicyWish, applied: AppliedPolicy, followed: AppliedPolicy | None = None
) -> list[PolicyChange]:
    """Return the fields that differ from a wish, by the policies that apply to its topic and to the followed one.

    Raises:
        Refused: the daemon would refuse a field; the text is its own, after the topic.
    """
    fields = {**_delivery_fields(wish, followed), **wish.fields}
    return [
        PolicyChange(wish.topic, name, applied.values.get(name), value)
        for name, value in check_wish(wish.topic, fields, applied.fields).items()
        if _differs(applied.fields.get(name), value)
    ]


def check_wish(
    topic: str, fields: Mapping[str, object], known_fields: Container[str] = ()
) -> dict[str, PolicyValue | None]:
    """Return the fields of a wish as the daemon writes them; those that only a newer daemon knows stay as they are.

    Raises:
        Refused: the daemon would refuse a field; the text is its own, after the topic.
    """
    checked: dict[str, PolicyValue | None] = {}
    for name, given in fields.items():
        try:
            value = policy_value(name, given)
            if name in POLICY_FIELDS or name not in known_fields:
                value = parse_policy_fields({name: value})[name]
        except Refused as error:
            raise Refused(f"{topic}: {error}", error.field) from None
        checked[name] = value
    return checked


def fields_to_set(changes: Iterable[PolicyChange]) -> list[tuple[str, dict[str, object]]]:
    """Return what is to be set for each topic, in the order in which it should be.

    A topic that gets tasks for the dead ones of another topic comes before that one, or some could not be delivered.
    """
    fields: dict[str, dict[str, object]] = {}
    for change in changes:
        fields.setdefault(change.topic, {})[change.field] = change.after
    return [*reversed(fields.items())]


def _differs(applied: AppliedField | None, wish: PolicyValue | None) -> bool:
    """Return True if a wish changes what applies. No topic and no URL are "" as a wish, and None where they apply."""
    if wish is None:
        return applied is not None and applied.level is Level.TOPIC
    return applied is None or applied.value != (None if wish == "" else wish)


def _delivery_fields(wish: PolicyWish, followed: AppliedPolicy | None) -> dict[str, object]:
    if wish.follows is None or followed is None:
        return {}
    if wish.follows.fields.get("deliver", followed.values.get("deliver")) == PULL:
        return {"deliver": str(PULL)}
    return {} if wish.callback is None else {"callback": wish.callback}
