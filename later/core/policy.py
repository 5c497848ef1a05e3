"""What a topic allows: its policy, field by field, from the lowest of three levels that sets it.

The levels are the topic, its namespace and the daemon's configuration. A level sets some fields, in the units of the
HTTP interface; what follows from all three for one topic is a `Policy`, in those of the house.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, NoReturn

import msgspec

from later.core.errors import Refused
from later.core.retry import Backoff
from later.core.validation import DEFAULT_NAMESPACE, MAX_AHEAD_MS, MAX_RETRY, MAX_TTL_MS, describe, to_milliseconds

PolicyValue = bool | int | float | str
"""Of a field, as it is written in JSON: durations in seconds."""

MAX_TIMEOUT_MS = 120_000
MAX_LIMIT = 1_000_000
"""Of `rate` and `concurrency`: more is no limit that anybody would notice."""
MIN_RATE = 0.0001
"""But 0: one delivery in three hours. A topic that is to rest longer is better paused."""


class DelayMode(StrEnum):
    """What becomes of a task's own delay where the topic has no default one: it is honored, or ignored as in Zaqar."""

    HONOR = "honor"
    QUEUE = "queue"


class Ack(StrEnum):
    """How a receiver says that it is done: by `code` where it gives one (auto), by `code` alone, or by the status."""

    AUTO = "auto"
    CODE = "code"
    STATUS = "status"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic allows. `max_delay_ms`, `ttl_ms`, `rate` (a second) and `concurrency` 0 mean no limit."""

    default_delay_ms: int = 0
    max_delay_ms: int = 0
    delay_mode: DelayMode = DelayMode.HONOR
    delays: bool = True
    ttl_ms: int = 0
    timeout_ms: int = 15_000
    retry: int = 3
    retry_base_ms: int = 10_000
    retry_cap_ms: int = 3_600_000
    retry_jitter: float = 0.0
    ack: Ack = Ack.AUTO
    rate: float = 0.0
    concurrency: int = 0
    paused: bool = False
    ramp_ms: int = 10_000
    dead_keep_ms: int = 2_592_000_000

    @property
    def backoff(self) -> Backoff:
        """The pauses between tries. No limit on delays touches them: a retry can always be booked."""
        return _backoff(self.retry_base_ms, self.retry_cap_ms, self.retry_jitter)


@lru_cache(maxsize=256)
def _backoff(base_ms: int, cap_ms: int, jitter: float) -> Backoff:
    """Made once: it is wanted with each delivery."""
    return Backoff(base_ms=base_ms, cap_ms=cap_ms, jitter=jitter)


DEFAULT = Policy()


# The fields


class ValueKind(StrEnum):
    """A kind of value, by which the command line chooses how a field is written and shown."""

    DURATION = "duration"
    INTEGER = "integer"
    SHARE = "share"
    RATE = "rate"
    SWITCH = "switch"
    CHOICE = "choice"


class PolicyField(NamedTuple):
    """One field of a policy: how it is written, what it takes, and which attribute of `Policy` it is.

    `parse` converts a JSON value to the attribute's value, or raises ValueError; `format` is its inverse. `help` is
    its description for the command line; `zero` is what 0 means where it means more than 0.
    """

    name: str
    attribute: str
    kind: ValueKind
    expected: str
    parse: Callable[[object], Any]
    format: Callable[[Any], PolicyValue]
    help: str
    zero: str = ""
    choices: tuple[str, ...] = ()


def _duration(name: str, least_ms: int, most_ms: int, help: str, zero: str = "") -> PolicyField:
    if (least_ms, most_ms) == (0, MAX_TTL_MS):
        takes = "a number of seconds ≥ 0"
    else:
        takes = f"a number of seconds from {least_ms // 1000} to {most_ms // 1000}"

    def read(value: object) -> int:
        return to_milliseconds(_number(value, least_ms / 1000, most_ms / 1000))

    return PolicyField(name, f"{name}_ms", ValueKind.DURATION, takes, read, lambda ms: _plain(ms / 1000), help, zero)


def _integer(name: str, most: int, help: str, zero: str = "") -> PolicyField:
    def read(value: object) -> int:
        return int(_number(value, 0, most)) if isinstance(value, int) else _wrong()

    return PolicyField(name, name, ValueKind.INTEGER, f"an integer from 0 to {most}", read, int, help, zero)


def _fraction(
    name: str, kind: ValueKind, most: int, what: str, help: str, zero: str = "", least: float = 0
) -> PolicyField:
    def read(value: object) -> float:
        return float(0 if value == 0 else _number(value, least, most)) if _is_number(value) else _wrong()

    lowest = f"0, or {what} from {least:g}" if least else f"{what} from 0"
    return PolicyField(name, name, kind, f"{lowest} to {most}", read, _plain, help, zero)


def _switch(name: str, help: str) -> PolicyField:
    def read(value: object) -> bool:
        return value if isinstance(value, bool) else _wrong()

    return PolicyField(name, name, ValueKind.SWITCH, "true or false", read, bool, help)


def _choice(name: str, kind: type[StrEnum], help: str) -> PolicyField:
    def read(value: object) -> StrEnum:
        return kind(value) if isinstance(value, str) else _wrong()

    words = [f'"{word.value}"' for word in kind]
    takes = f"{', '.join(words[:-1])} or {words[-1]}"
    return PolicyField(name, name, ValueKind.CHOICE, takes, read, str, help, choices=tuple(kind))


def _number(value: object, least: float, most: float) -> float:
    if isinstance(value, int | float) and _is_number(value) and least <= value <= most:
        return value
    return _wrong()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wrong() -> NoReturn:
    raise ValueError


def _plain(number: float) -> int | float:
    """`15`, not `15.0`."""
    return int(number) if number == math.floor(number) else number


FIELDS = {
    field.name: field
    for field in (
        _duration("default_delay", 0, MAX_AHEAD_MS, "Delay of a task that sets neither a delay nor an execution time."),
        _duration("max_delay", 0, MAX_TTL_MS, "Longest delay that a task may request; 0: no limit.", "no limit"),
        _choice("delay_mode", DelayMode,
                "honor: a task's own delay overrides the default. queue: it is ignored if there is no default delay."),
        _switch("delays", "off rejects tasks that are not due at once."),
        _duration("ttl", 0, MAX_TTL_MS,
                  "Age at which a task that sets no ttl expires undelivered; 0: no limit.", "no limit"),
        _duration("timeout", 1000, MAX_TIMEOUT_MS,
                  "Deadline of a delivery, from name lookup to the last byte of the answer: 1s to 120s."),
        _integer("retry", MAX_RETRY, "Retries after the first attempt, for a task that does not set their number."),
        _duration("retry_base", 0, MAX_AHEAD_MS,
                  "Pause after the first failure; it doubles with each further failure."),
        _duration("retry_cap", 0, MAX_AHEAD_MS, "Longest pause between two attempts."),
        _fraction("retry_jitter", ValueKind.SHARE, 1, "a number",
                  "Jitter: each pause is lengthened at random by up to this share of itself, 0 to 1."),
        _choice("ack", Ack, "How a receiver confirms a delivery: by the code in its answer if there is one (auto), "
                "only by the code, or by the HTTP status."),
        _fraction("rate", ValueKind.RATE, MAX_LIMIT, "a number of deliveries a second",
                  "Deliveries that a topic may start per second, over all instances; 0: no limit.", "no limit",
                  MIN_RATE),
        _integer("concurrency", MAX_LIMIT,
                 "Deliveries that a topic may have in flight, over all instances; 0: no limit.", "no limit"),
        _switch("paused", "on stops deliveries; tasks are still accepted."),
        _duration("ramp", 0, MAX_AHEAD_MS,
                  "Time to return to full speed after a pause, a hold or a raised limit; 0: at once.", "at once"),
        _duration("dead_keep", 0, MAX_TTL_MS, "How long a dead task is kept."),
    )
}  # fmt: skip
"""Every field of a policy, in the order in which it is told of."""


def parse_fields(given: Mapping[str, object]) -> dict[str, PolicyValue | None]:
    """The fields that somebody wrote, checked each by itself; None for one that is to be inherited.

    Raises:
        Refused: with the name of the first that is unknown or wrong.
    """
    return {name: _checked(name, value) for name, value in given.items()}


def _checked(name: str, value: object) -> PolicyValue | None:
    field = FIELDS.get(name)
    if field is None:
        printable = repr(name[:80])[1:-1]
        raise Refused(f"{printable}: no field of a policy; there are {', '.join(FIELDS)}", printable)
    if value is None:
        return None
    try:
        return field.format(field.parse(value))
    except (ValueError, OverflowError):
        raise Refused(f"{name}: expected {field.expected}, or null to inherit, got {describe(value)}", name) from None


# The levels


class Level(StrEnum):
    """Where a field may be set, the lowest first."""

    TOPIC = "topic"
    NAMESPACE = "namespace"
    DAEMON = "daemon"


class PolicyScope(NamedTuple):
    """A topic or a namespace: what may have settings of its own."""

    level: Level
    name: str

    @property
    def parent(self) -> PolicyScope | None:
        """The namespace of a topic; above a namespace there is the daemon alone."""
        return PolicyScope(Level.NAMESPACE, namespace_from_topic(self.name)) if self.level is Level.TOPIC else None


def topic_scope(name: str) -> PolicyScope:
    return PolicyScope(Level.TOPIC, name)


def namespace_scope(name: str) -> PolicyScope:
    return PolicyScope(Level.NAMESPACE, name)


def namespace_from_topic(topic: str) -> str:
    """The part before the first `/`, if there is one."""
    namespace, slash, _ = topic.partition("/")
    return namespace if slash else DEFAULT_NAMESPACE


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one topic or namespace sets. `tick_time_ms` means nothing here; it is kept for those who ask for it."""

    fields: dict[str, PolicyValue] = {}  # a field's default: msgspec copies it
    tick_time_ms: int | None = None

    def merge(self, fields: Mapping[str, PolicyValue | None]) -> Settings:
        """With these fields set, and those that are None inherited (RFC 7396)."""
        merged = {**self.fields, **fields}
        in_order = {name: merged[name] for name in [*FIELDS, *merged] if name in merged}
        return Settings({name: value for name, value in in_order.items() if value is not None}, self.tick_time_ms)

    def replace(self, fields: Mapping[str, PolicyValue | None]) -> Settings:
        """With these fields and no others."""
        return Settings(tick_time_ms=self.tick_time_ms).merge(fields)


NO_SETTINGS = Settings()


class Policies:
    """Every level at one moment. It never changes: whoever judges by one judges by nothing older or newer.

    `timeout_ms` above the daemon's makes leases longer by as much.
    """

    def __init__(self, daemon: Policy, settings: Mapping[PolicyScope, Settings] | None = None) -> None:
        self.daemon = daemon
        self.settings = settings or {}
        self._applied: dict[PolicyScope, Policy] = {}

    def for_topic(self, topic: str) -> Policy:
        """What the topic (by its canonical name) allows."""
        return self.for_scope(PolicyScope(Level.TOPIC, topic)) if self.settings else self.daemon

    def for_scope(self, scope: PolicyScope) -> Policy:
        """What applies at a topic or a namespace."""
        own = self.settings.get(scope)
        if own is None:
            return self.daemon if scope.parent is None else self.for_scope(scope.parent)
        known = self._applied.get(scope)
        if known is None:
            known = self._applied[scope] = _apply(
                own, self.daemon if scope.parent is None else self.for_scope(scope.parent)
            )
        return known

    def settings_at(self, scope: PolicyScope) -> Settings:
        """What the place itself sets."""
        return self.settings.get(scope, NO_SETTINGS)

    def origin(self, scope: PolicyScope, field: str) -> Level:
        """The lowest level, from `place` up, that sets the field."""
        if field in self.settings_at(scope).fields:
            return scope.level
        return Level.DAEMON if scope.parent is None else self.origin(scope.parent, field)

    def with_settings(self, scope: PolicyScope, settings: Settings) -> Policies:
        """The same with other settings at one place.

        Raises:
            Refused: a default delay or a limit is set there that does not go with what applies of the other. (What
                was so before, by a change above, keeps nobody from changing other fields.)
        """
        changed = Policies(self.daemon, {**self.settings, scope: settings})
        before, applied = self.settings_at(scope).fields, changed.for_scope(scope)
        news = [name for name in ("default_delay", "max_delay") if settings.fields.get(name) != before.get(name)]
        sets_one = "default_delay" in settings.fields or "max_delay" in settings.fields
        if news and sets_one and 0 < applied.max_delay_ms < applied.default_delay_ms:
            field = "default_delay" if "default_delay" in settings.fields else "max_delay"
            raise Refused(
                f"{field}: expected a default_delay of at most the max_delay that applies, "
                f"{_plain(applied.max_delay_ms / 1000)} s, got {_plain(applied.default_delay_ms / 1000)}",
                field,
            )
        return changed

    @cached_property
    def has_limits(self) -> bool:
        """Is any topic paused, or limited in its rate or concurrency? Where none is, nobody need ask."""
        daemon = self.daemon
        if daemon.rate or daemon.concurrency or daemon.paused:
            return True
        return any(fields.get(name) for fields in self._all_fields() for name in ("rate", "concurrency", "paused"))

    @cached_property
    def shortest_dead_keep_ms(self) -> int:
        """Of all topics': nothing that died later than so long ago need be swept."""
        setting = [place for place, settings in self.settings.items() if "dead_keep" in settings.fields]
        return min([self.daemon.dead_keep_ms, *(self.for_scope(place).dead_keep_ms for place in setting)])

    def _all_fields(self) -> Iterable[dict[str, PolicyValue]]:
        return (settings.fields for settings in self.settings.values())


def _apply(settings: Settings, above: Policy) -> Policy:
    """What is set here, and the rest from above. What this version does not know, or take, is passed over."""
    read: dict[str, Any] = {}
    for name, value in settings.fields.items():
        field = FIELDS.get(name)
        with suppress(ValueError, OverflowError):  # or one bad value would stop everything that any topic does
            if field is not None:
                read[field.attribute] = field.parse(value)
    return msgspec.structs.replace(above, **read)


def format_policy(policy: Policy) -> dict[str, PolicyValue]:
    """Every field's value, as it is written in JSON."""
    return {field.name: field.format(getattr(policy, field.attribute)) for field in FIELDS.values()}
