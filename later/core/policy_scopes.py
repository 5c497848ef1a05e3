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
from later.core.validation import DEFAULT_NAMESPACE


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
            with suppress(ValueError, OverflowError):  # one bad value must not stop every topic
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
        inherited = self.daemon if scope.parent is None else self.for_scope(scope.parent)
        if scope not in self.settings:
            return inherited  # not cached: there is no limit to the number of such topics
        applied = self._applied[scope] = self.settings[scope].apply_to(inherited)
        return applied

    @cached_property
    def topics(self) -> list[str]:
        """The topics that have settings of their own, in the order of their bytes."""
        return sorted(scope.name for scope in self.settings if scope.level is Level.TOPIC)

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
            Refused: the change sets a default delay above the limit on delays that applies. A conflict that exists
                already, through a change on a higher level, does not prevent changes of other fields.
        """
        changed = Policies(self.daemon, {**self.settings, scope: settings})
        before, applied = self.settings_at(scope).fields, changed.for_scope(scope)
        delay_fields = ("default_delay", "max_delay")
        set_here = [name for name in delay_fields if name in settings.fields]
        is_changed = any(settings.fields.get(name) != before.get(name) for name in delay_fields)
        if set_here and is_changed and 0 < applied.max_delay_ms < applied.default_delay_ms:
            raise Refused(
                f"{set_here[0]}: expected a default_delay of at most the max_delay that applies, "
                f"{plain_number(applied.max_delay_ms / 1000)} s, got {plain_number(applied.default_delay_ms / 1000)}",
                set_here[0],
            )
        return changed

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

    @property
    def can_hold(self) -> bool:
        """True if policies hold any topic, or may: otherwise none need be looked up for that."""
        return self.has_limits or self.has_pulled

    @cached_property
    def shortest_dead_keep_ms(self) -> int:
        """The shortest time that any topic keeps its dead tasks: no task that died later can be due for removal."""
        scopes = [scope for scope, settings in self.settings.items() if "dead_keep" in settings.fields]
        return min([self.daemon.dead_keep_ms, *(self.for_scope(scope).dead_keep_ms for scope in scopes)])
