"""The levels on which a policy is set, and the policy that results for one topic.

Each field is taken from the lowest level that sets it: the topic, its namespace, or the daemon's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from later.core.errors import Refused
from later.core.policy import POLICY_FIELDS, Deliver, Policy, PolicyValue, plain_number
from later.core.validation import DEFAULT_NAMESPACE, format_value


class Level(StrEnum):
    """A level on which a field can be set, the lowest first."""

    TOPIC = "topic"
    NAMESPACE = "namespace"
    DAEMON = "daemon"


class PolicyScope(NamedTuple):
    """A topic or a namespace that can have settings of its own."""

    level: Level
    name: str

    @property
    def parent(self) -> PolicyScope | None:
        """The namespace of a topic; None for a namespace, whose parent is the daemon."""
        return namespace_scope(namespace_from_topic(self.name)) if self.level is Level.TOPIC else None


def topic_scope(name: str) -> PolicyScope:
    """Return the scope of a topic, by its canonical name."""
    return PolicyScope(Level.TOPIC, name)


def namespace_scope(name: str) -> PolicyScope:
    """Return the scope of a namespace."""
    return PolicyScope(Level.NAMESPACE, name)


def namespace_from_topic(topic: str) -> str:
    """Return the part of a topic's name before the first `/`, or the default namespace if there is no `/`."""
    namespace, slash, _ = topic.partition("/")
    return namespace if slash else DEFAULT_NAMESPACE


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields that one topic or namespace sets. `tick_time_ms` has no effect; it is stored for Pulsar's API."""

    fields: dict[str, PolicyValue] = {}  # msgspec copies a mutable default
    tick_time_ms: int | None = None

    @property
    def loggable_fields(self) -> dict[str, PolicyValue]:
        """The fields without the query of a callback, which may be a secret."""
        url, query, _ = str(self.fields.get("callback", "")).partition("?")
        return {**self.fields, "callback": f"{url}?…"} if query else self.fields

    def merge(self, fields: Mapping[str, PolicyValue | None]) -> Settings:
        """Return a copy with these fields set, and without those that are None (RFC 7396)."""
        merged = {**self.fields, **fields}
        in_order = {name: merged[name] for name in [*POLICY_FIELDS, *merged] if name in merged}
        return Settings({name: value for name, value in in_order.items() if value is not None}, self.tick_time_ms)

    def replace(self, fields: Mapping[str, PolicyValue | None]) -> Settings:
        """Return a copy with these fields and no others."""
        return Settings(tick_time_ms=self.tick_time_ms).merge(fields)

    def apply_to(self, policy: Policy) -> Policy:
        """Return `policy` with these fields. A field or value that this version does not know is ignored."""
        values: dict[str, Any] = {}
        for name, value in self.fields.items():
            field = POLICY_FIELDS.get(name)
            with suppress(ValueError, OverflowError, Refused):  # one bad value must not stop every topic
                if field is not None:
                    values[field.attribute] = field.parse(value)
        return msgspec.structs.replace(policy, **values)


NO_SETTINGS = Settings()


class Policies:
    """An immutable snapshot of the settings of all levels, so that one decision never mixes two versions."""

    def __init__(self, daemon: Policy, settings: Mapping[PolicyScope, Settings] | None = None) -> None:
        self.daemon = daemon
        self.settings = settings or {}
        self._applied: dict[PolicyScope, Policy] = {}

    def for_topic(self, topic: str) -> Policy:
        """Return the policy that applies to a topic, by its canonical name."""
        return self.for_scope(topic_scope(topic)) if self.settings else self.daemon

    def for_scope(self, scope: PolicyScope) -> Policy:
        """Return the policy that applies to a topic or a namespace."""
        cached = self._applied.get(scope)
        if cached is not None:
            return cached
        parent = scope.parent
        inherited = self.daemon if parent is None else self.for_scope(parent)
        if scope not in self.settings:
            return inherited  # not cached: there is no limit to the number of such topics
        applied = self._applied[scope] = self.settings[scope].apply_to(inherited)
        return applied

    @cached_property
    def topics(self) -> list[str]:
        """The topics that have settings of their own, in the order of their bytes."""
        return sorted(scope.name for scope in self.settings if scope.level is Level.TOPIC)

    @cached_property
    def queues(self) -> list[str]:
        """The topics that say themselves how their tasks are delivered, as queues do, in the order of their bytes."""
        return [topic for topic in self.topics if "deliver" in self.settings[topic_scope(topic)].fields]

    def settings_at(self, scope: PolicyScope) -> Settings:
        """Return the scope's own settings."""
        return self.settings.get(scope, NO_SETTINGS)

    def settings_to_resume(self, scope: PolicyScope) -> Settings:
        """Return the scope's own settings without a pause, and with "not paused" if it would inherit one."""
        inherited = self.daemon if scope.parent is None else self.for_scope(scope.parent)
        return self.settings_at(scope).merge({"paused": False if inherited.paused else None})

    def level_of(self, scope: PolicyScope, field: str) -> Level:
        """Return the lowest level, from `scope` up, that sets the field."""
        if field in self.settings_at(scope).fields:
            return scope.level
        return Level.DAEMON if scope.parent is None else self.level_of(scope.parent, field)

    def with_settings(self, scope: PolicyScope, settings: Settings) -> Policies:
        """Return a copy with other settings in one scope.

        Raises:
            Refused: the change sets a default delay above the limit on delays that applies, lets dead tasks leave
                their namespace, or come back to a topic in which they have died, or makes follow-up tasks in another
                namespace. A conflict that exists already, through a change on a higher level, does not prevent changes
                of other fields.
        """
        changed = Policies(self.daemon, {**self.settings, scope: settings})
        before = self.settings_at(scope).fields
        if any(settings.fields.get(name) != before.get(name) for name in _DELAY_FIELDS):
            _check_delays(settings, changed.for_scope(scope))
        if settings.fields.get("dead_to") != before.get("dead_to"):
            _check_dead_to(scope, changed)
        for name in FOLLOW_UP_FIELDS:
            if settings.fields.get(name) != before.get(name):
                _topic_of_namespace(scope, name, changed)
        return changed

    def dead_letter_topic(self, topic: str) -> str:
        """Return the topic to which a task moves that dies in this one; "" if it is kept in the bucket `dead`.

        The dead-letter topic of a whole namespace keeps its own dead tasks.
        """
        dead_to = self.for_topic(topic).dead_to
        return "" if dead_to == topic else dead_to

    def follow_up_topic(self, topic: str, field: str) -> str:
        """Return the topic that gets a task when one ends in this one; `field` is the one for its end. "": none does.

        The follow-up topic of a whole namespace gets none for its own tasks.
        """
        target: str = getattr(self.for_topic(topic), field)
        return "" if target == topic else target

    @cached_property
    def has_follow_ups(self) -> bool:
        """True if the end of any task makes one: otherwise none need be looked up."""
        return any(settings.fields.get(name) for settings in self.settings.values() for name in FOLLOW_UP_FIELDS)

    @cached_property
    def leave_tasks(self) -> bool:
        """True if any task lives on in another topic after its end, or makes one; otherwise none need be looked up."""
        return bool(self.dead_letter_topics) or self.has_follow_ups

    def follow_up_warning(self, scope: PolicyScope) -> str | None:
        """Return a warning if follow-up tasks of this scope, or in it, would be dead because they have no callback."""
        for source, settings in self.settings.items():
            for name in FOLLOW_UP_FIELDS:
                target = topic_scope(str(settings.fields.get(name, "")))
                is_changed = target.name and scope in (source, target, target.parent)
                if is_changed and not self.for_topic(target.name).may_lack_callbacks:
                    return _UNSERVED.format(name=name, source=source.name, target=target.name)
        return None

    def dead_letter_warning(self, scope: PolicyScope) -> str | None:
        """Return a warning if tasks without a callback move to a topic that needs one.

        They move out of this scope or into this topic.
        """
        applied, moves = self.for_scope(scope), list[tuple[PolicyScope, str]]()
        if applied.may_lack_callbacks:
            moves = [(scope, applied.dead_to)] if applied.dead_to not in ("", scope.name) else []
        elif scope.level is Level.TOPIC:
            moves = [
                (source, scope.name)
                for source, settings in self.settings.items()
                if settings.fields.get("dead_to") == scope.name and self.for_scope(source).may_lack_callbacks
            ]
        for source, target in moves:
            if not self.for_topic(target).may_lack_callbacks:
                is_pulled = self.for_scope(source).deliver is Deliver.PULL
                lack = "have no callback (deliver pull)" if is_pulled else "may have no callback of their own"
                return _NO_CALLBACK.format(source=source.name, lack=lack, target=target)
        return None

    @cached_property
    def dead_letter_topics(self) -> frozenset[str]:
        """The topics to which dead tasks of others move. If there is none, none need be looked up."""
        named = {self.daemon.dead_to, *(str(settings.fields.get("dead_to", "")) for settings in self.settings.values())}
        return frozenset(named - {""})

    @cached_property
    def has_limits(self) -> bool:
        """True if any topic is paused or has a limit on rate or concurrency; otherwise no limit need be checked."""
        if self.daemon.rate or self.daemon.concurrency or self.daemon.paused:
            return True
        limits = ("rate", "concurrency", "paused")
        return any(settings.fields.get(name) for settings in self.settings.values() for name in limits)

    @cached_property
    def has_pulled(self) -> bool:
        """True if consumers claim the tasks of any topic."""
        if self.daemon.deliver is Deliver.PULL:
            return True
        return any(settings.fields.get("deliver") == Deliver.PULL for settings in self.settings.values())

    def has_pulled_in(self, namespace: str) -> bool:
        """Return True if consumers claim the tasks of any topic of this namespace."""
        if self.for_scope(namespace_scope(namespace)).deliver is Deliver.PULL:
            return True
        return any(
            self.for_scope(scope).deliver is Deliver.PULL
            for scope in self.settings
            if scope.level is Level.TOPIC and namespace_from_topic(scope.name) == namespace
        )

    @property
    def can_hold(self) -> bool:
        """True if policies hold any topic, or may: otherwise none need be looked up for that."""
        return self.has_limits or self.has_pulled

    @cached_property
    def shortest_dead_keep_ms(self) -> int:
        """The shortest time that any topic keeps its dead tasks: no task that died later can be due for removal."""
        scopes = [scope for scope, settings in self.settings.items() if "dead_keep" in settings.fields]
        return min([self.daemon.dead_keep_ms, *(self.for_scope(scope).dead_keep_ms for scope in scopes)])


FOLLOW_UP_FIELDS = ("on_dead", "on_done")
_DELAY_FIELDS = ("default_delay", "max_delay")
_NO_CALLBACK = (
    "Tasks of {source} {lack}, and {target} calls one (deliver push): "
    'those that die move there, and are dead there, too ("no callback").'
)
_UNSERVED = (
    "The {name} of {source} makes tasks without a callback in {target}, which calls one (deliver push), and its policy "
    'has none: they are dead there ("no callback").'
)


def _check_delays(settings: Settings, applied: Policy) -> None:
    """Check the delays of changed settings against the policy that applies with them. Raises Refused."""
    set_here = [name for name in _DELAY_FIELDS if name in settings.fields]
    if set_here and 0 < applied.max_delay_ms < applied.default_delay_ms:
        raise Refused(
            f"{set_here[0]}: expected a default_delay of at most the max_delay that applies, "
            f"{plain_number(applied.max_delay_ms / 1000)} s, got {plain_number(applied.default_delay_ms / 1000)}",
            set_here[0],
        )


def _check_dead_to(scope: PolicyScope, changed: Policies) -> None:
    """Check where the dead tasks of a scope move now, and on from there, so that none comes back. Raises Refused.

    A topic that is met again on the way is that of the scope, or the one that a namespace names, because each earlier
    change was checked, too.
    """
    is_topic, own = scope.level is Level.TOPIC, changed.settings_at(scope).fields.get("dead_to")
    target = _topic_of_namespace(scope, "dead_to", changed)
    passed, topic = dict[str, None](), scope.name if is_topic else target
    while topic:
        passed[topic] = None
        died_in, topic = topic, changed.dead_letter_topic(topic)
        if topic in passed:
            raise Refused(
                f"dead_to: expected a topic from which no dead task comes back, got {format_value(own)}: "
                f"tasks that die in {died_in} move to {topic}",
                "dead_to",
            )


def _topic_of_namespace(scope: PolicyScope, field: str, changed: Policies) -> str:
    """Return the topic that the scope itself names in a field; "" for none.

    Raises:
        Refused: it is the scope's own topic, or one of another namespace.
    """
    is_topic, target = scope.level is Level.TOPIC, str(changed.settings_at(scope).fields.get(field) or "")
    namespace = namespace_from_topic(scope.name) if is_topic else scope.name
    if target and (namespace_from_topic(target) != namespace or (is_topic and target == scope.name)):
        kind = "another topic" if is_topic else "a topic"
        raise Refused(f"{field}: expected {kind} of the namespace {namespace}, got {format_value(target)}", field)
    return target
