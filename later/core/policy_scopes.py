"""The levels on which a policy is set, and the policy that results for one topic.

Each field is taken from the lowest level that sets it: the topic, its namespace, or the daemon's configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import cached_property, partial, reduce
from typing import Any, NamedTuple, TypeAlias

import msgspec

from later.core.durability import Durability, highest
from later.core.errors import Refused
from later.core.parted_map import Part, PartedMap, PartedMapBuilder
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


class Settings(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):  # there may be a million, without cycles
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
        if "durability" in values:  # a topic asks for more than its namespace, never for less
            values["durability"] = highest(values["durability"], policy.durability)
        return msgspec.structs.replace(policy, **values)


NO_SETTINGS = Settings()


class SettingsSummary(NamedTuple):
    """The facts about the settings of some topics, or namespaces, by which it is decided what is looked up at all."""

    has_limits: bool
    """True if any is paused, or has a limit on rate or concurrency."""
    pulled_namespaces: frozenset[str]
    """The namespaces in which consumers claim the tasks of any."""
    queues: list[str]
    """The topics with a setting `deliver` of their own, in the order of their bytes."""
    dead_letter_topics: frozenset[str]
    """The topics to which their dead tasks move."""
    follow_up_scopes: frozenset[PolicyScope]
    """The topics that get a task when one of theirs ends, and the namespaces of these topics."""
    durabilities: frozenset[str]
    """The levels of durability that they ask for."""
    durabilities_in: frozenset[tuple[str, str]]
    """The namespaces in which any asks for a level of durability, each with that level."""
    shortest_dead_keep_ms: int | None
    """The shortest time that any of them keeps its dead tasks; None if none says so."""


def _summarize(level: Level, values: Mapping[str, Settings]) -> SettingsSummary:
    with_fields = [(name, settings.fields) for name, settings in values.items()]
    pulled = [name for name, fields in with_fields if fields.get("deliver") == Deliver.PULL]
    follow_ups = {str(fields[field]) for _, fields in with_fields for field in FOLLOW_UP_FIELDS if fields.get(field)}
    topics = [topic_scope(topic) for topic in follow_ups]
    keeps = [_dead_keep_ms(fields["dead_keep"]) for _, fields in with_fields if "dead_keep" in fields]
    durable = [(name, str(fields["durability"])) for name, fields in with_fields if "durability" in fields]
    return SettingsSummary(
        has_limits=any(fields.get(name) for _, fields in with_fields for name in _LIMIT_FIELDS),
        pulled_namespaces=frozenset(pulled if level is Level.NAMESPACE else map(namespace_from_topic, pulled)),
        queues=sorted(name for name, fields in with_fields if "deliver" in fields),
        dead_letter_topics=frozenset(str(fields["dead_to"]) for _, fields in with_fields if fields.get("dead_to")),
        follow_up_scopes=frozenset(topics).union(namespace_scope(namespace_from_topic(topic)) for topic in follow_ups),
        durabilities=frozenset(asked for _, asked in durable),
        durabilities_in=frozenset(
            (name if level is Level.NAMESPACE else namespace_from_topic(name), asked) for name, asked in durable
        ),
        shortest_dead_keep_ms=min((keep for keep in keeps if keep is not None), default=None),
    )


def _dead_keep_ms(value: PolicyValue) -> int | None:
    """Return the time that settings say; None for a value that this version does not know."""
    with suppress(ValueError, OverflowError, Refused):
        return int(POLICY_FIELDS["dead_keep"].parse(value))
    return None


ScopeMap: TypeAlias = PartedMap[Settings, SettingsSummary]
ScopePart: TypeAlias = Part[Settings, SettingsSummary]


class SettingsMap(Mapping[PolicyScope, Settings]):
    """The settings of all topics and namespaces that have any. It never changes."""

    def __init__(self, maps: Mapping[Level, ScopeMap] | None = None) -> None:
        levels = (Level.TOPIC, Level.NAMESPACE)
        self.maps = maps or {level: PartedMap(partial(_summarize, level)) for level in levels}
        self._size = sum(map(len, self.maps.values()))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[PolicyScope]:
        return (PolicyScope(level, name) for level, names in self.maps.items() for name in names)

    def __getitem__(self, scope: PolicyScope) -> Settings:
        settings = self.maps[scope.level].get(scope.name)
        if settings is None:
            raise KeyError(scope)
        return settings

    def changed(self, changes: Iterable[tuple[PolicyScope, Settings | None]]) -> SettingsMap:
        """Return a copy with other settings in these scopes; None removes them."""
        builder = SettingsBuilder(self)
        builder.update(changes)
        return builder.build()

    @property
    def parts(self) -> Iterator[ScopePart]:
        return (part for names in self.maps.values() for part in names.parts)

    def without(self, others: SettingsMap) -> Iterator[tuple[PolicyScope, Settings]]:
        """Yield the settings that `others` does not have, or not so. They may share all parts but a few."""
        for level, names in self.maps.items():
            same = {*others.maps[level].parts}
            for part in names.parts:
                if part not in same:
                    changed = (name for name, own in part.values.items() if others.maps[level].get(name) != own)
                    yield from ((PolicyScope(level, name), part.values[name]) for name in changed)

    def scopes_where(self, is_wanted: Callable[[SettingsSummary], bool]) -> Iterator[PolicyScope]:
        """Yield all scopes of the parts of which `is_wanted` is true: of few where few are looked for."""
        for level, names in self.maps.items():
            for part in names.parts:
                if is_wanted(part.summary):
                    yield from (PolicyScope(level, name) for name in part.names)


class SettingsBuilder:
    """Settings that are being put together, from others or from nothing."""

    def __init__(self, base: SettingsMap) -> None:
        self._builders = {level: PartedMapBuilder(names) for level, names in base.maps.items()}

    def update(self, changes: Iterable[tuple[PolicyScope, Settings | None]]) -> None:
        """Set the settings of these scopes; None removes them."""
        for scope, settings in changes:
            self._builders[scope.level].set(scope.name, settings)

    def build(self) -> SettingsMap:
        return SettingsMap({level: builder.build() for level, builder in self._builders.items()})


class Policies:
    """An immutable snapshot of the settings of all levels, so that one decision never mixes two versions."""

    def __init__(self, daemon: Policy, settings: Mapping[PolicyScope, Settings] | None = None) -> None:
        self.daemon = daemon
        self.settings = (
            settings if isinstance(settings, SettingsMap) else SettingsMap().changed((settings or {}).items())
        )
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
        settings = self.settings.maps[scope.level].get(scope.name)
        if settings is None:
            return inherited  # not cached: there is no limit to the number of such topics
        applied = self._applied[scope] = settings.apply_to(inherited)
        return applied

    @property
    def topics(self) -> list[str]:
        """The topics that have settings of their own, in the order of their bytes."""
        return [*self.settings.maps[Level.TOPIC]]

    def topics_between(self, start: str, end: str, limit: int) -> list[str]:
        """Return the first `limit` of `topics` after `start` and before `end` ("": no end)."""
        return self.settings.maps[Level.TOPIC].names_between(start, end, limit, lambda part: part.names)

    def queues_between(self, start: str, end: str, limit: int) -> list[str]:
        """Return the first `limit` of `queues` after `start` and before `end` ("": no end)."""
        return self.settings.maps[Level.TOPIC].names_between(start, end, limit, lambda part: part.summary.queues)

    @property
    def queues(self) -> Iterator[str]:
        """The topics that say themselves how their tasks are delivered, as queues do, in the order of their bytes."""
        return (topic for part in self.settings.maps[Level.TOPIC].parts for topic in part.summary.queues)

    @property
    def queue_count(self) -> int:
        return sum(len(part.summary.queues) for part in self.settings.maps[Level.TOPIC].parts)

    def settings_at(self, scope: PolicyScope) -> Settings:
        """Return the scope's own settings."""
        return self.settings.maps[scope.level].get(scope.name) or NO_SETTINGS

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
        changed = Policies(self.daemon, self.settings.changed([(scope, settings)]))
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
        return any(part.summary.follow_up_scopes for part in self.settings.parts)

    @cached_property
    def leave_tasks(self) -> bool:
        """True if any task lives on in another topic after its end, or makes one; otherwise none need be looked up."""
        if self.daemon.dead_to or self.has_follow_ups:
            return True
        return any(part.summary.dead_letter_topics for part in self.settings.parts)

    @cached_property
    def dead_letter_topics(self) -> frozenset[str]:
        """The topics to which dead tasks of others move."""
        named = (part.summary.dead_letter_topics for part in self.settings.parts)
        return frozenset({self.daemon.dead_to}).union(*named) - {""}

    @cached_property
    def has_limits(self) -> bool:
        """True if any topic is paused or has a limit on rate or concurrency; otherwise no limit need be checked."""
        if self.daemon.rate or self.daemon.concurrency or self.daemon.paused:
            return True
        return any(part.summary.has_limits for part in self.settings.parts)

    @cached_property
    def highest_durability(self) -> Durability:
        """The highest level that any policy asks for. While that is `primary`, none need be looked up for it."""
        return reduce(highest, self.durabilities)

    @cached_property
    def durabilities(self) -> list[Durability]:
        """The levels that any policy of a topic or a namespace asks for, or the daemon."""
        asked = frozenset({str(self.daemon.durability)}).union(*(p.summary.durabilities for p in self.settings.parts))
        return [level for level in Durability if level in asked]

    def durabilities_in(self, namespace: str) -> list[Durability]:
        """Return the levels that any policy asks for that applies in a namespace."""
        return [
            level
            for level in self.durabilities
            if level is self.daemon.durability
            or any((namespace, level) in part.summary.durabilities_in for part in self.settings.parts)
        ]

    @cached_property
    def has_pulled(self) -> bool:
        """True if consumers claim the tasks of any topic."""
        if self.daemon.deliver is Deliver.PULL:
            return True
        return any(part.summary.pulled_namespaces for part in self.settings.parts)

    def has_pulled_in(self, namespace: str) -> bool:
        """Return True if consumers claim the tasks of any topic of this namespace."""
        if self.for_scope(namespace_scope(namespace)).deliver is Deliver.PULL:
            return True
        return any(namespace in part.summary.pulled_namespaces for part in self.settings.maps[Level.TOPIC].parts)

    @property
    def can_hold(self) -> bool:
        """True if policies hold any topic, or may: otherwise none need be looked up for that."""
        return self.has_limits or self.has_pulled

    @cached_property
    def shortest_dead_keep_ms(self) -> int:
        """The shortest time that any topic keeps its dead tasks: no task that died later can be due for removal."""
        keeps = (part.summary.shortest_dead_keep_ms for part in self.settings.parts)
        return min([self.daemon.dead_keep_ms, *(keep for keep in keeps if keep is not None)])


FOLLOW_UP_FIELDS = ("on_dead", "on_done")
_LIMIT_FIELDS = ("rate", "concurrency", "paused")
_DELAY_FIELDS = ("default_delay", "max_delay")


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
