"""The policy of a topic: its fields, how each is written in JSON, and what it allows.

In JSON, fields have the units of the HTTP interface: durations are seconds. A `Policy` holds durations in ms.
`policy_scopes` decides which policy applies to a topic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from later.core.durability import Durability
from later.core.errors import Refused
from later.core.field_names import suggest_field
from later.core.validation import (
    EXPECTED,
    MAX_AHEAD_MS,
    MAX_RETRY,
    MAX_TTL_MS,
    escape_name,
    format_value,
    parse_topic,
    to_milliseconds,
)

PolicyValue = bool | int | float | str
"""A field's value as it is written in JSON."""

MAX_TIMEOUT_MS = 120_000
MAX_CLAIM_LEASE_MS = 43_200_000
MAX_LIMIT = 1_000_000
"""Highest `rate` and `concurrency`. A higher limit would have no effect."""
MIN_RATE = 0.0001
"""Lowest `rate` besides 0: one delivery in three hours. Pause a topic that should rest longer."""


class DelayMode(StrEnum):
    """The treatment of a task's own delay if its topic has no default delay: honored, or ignored as in Zaqar."""

    HONOR = "honor"
    QUEUE = "queue"


class Ack(StrEnum):
    """The way to confirm a delivery: by the answer's `code` if there is one (auto), only by it, or by its status."""

    AUTO = "auto"
    CODE = "code"
    STATUS = "status"


class Sign(StrEnum):
    """The secret by which deliveries are signed: none, or one for each namespace, topic, or origin of a namespace."""

    OFF = "off"
    NAMESPACE = "namespace"
    TOPIC = "topic"
    ORIGIN = "origin"


class Deliver(StrEnum):
    """The way of tasks to their receivers: the daemon calls callbacks (push), or consumers claim tasks (pull)."""

    PUSH = "push"
    PULL = "pull"


PULL = Deliver.PULL
"""The member by a name of its own: on the way of every task, the lookup in its class would take three times as long."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy that applies to a topic. 0 means no limit for `max_delay_ms`, `ttl_ms`, `rate` and `concurrency`.

    `rate` is in deliveries a second. `callback` is for tasks without one of their own; if it is "", they need one.
    `claim_lease_ms` and `max_claims` are for topics whose tasks consumers claim: a `max_claims` of 0 means as many as
    deliveries may lose their leases in a row. A task that dies moves to the topic `dead_to`, with a ttl of
    `dead_ttl_ms` (0: without one); if that is "", it is kept in the bucket `dead`. When a task dies, or is done, the
    topic `on_dead`, or `on_done`, gets a follow-up task ("": none does). A write is acknowledged at the level
    `durability`.
    """

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
    sign: Sign = Sign.NAMESPACE
    deliver: Deliver = Deliver.PUSH
    callback: str = ""
    claim_lease_ms: int = 30_000
    max_claims: int = 0
    dead_to: str = ""
    dead_ttl_ms: int = 0
    remember_ms: int = 604_800_000
    on_dead: str = ""
    on_done: str = ""
    durability: Durability = Durability.PRIMARY

    @property
    def is_held(self) -> bool:
        """True if workers claim nothing: the topic is paused, or consumers claim its tasks."""
        return self.paused or self.deliver is Deliver.PULL

    def remember_until(self, ended_at: int, own_ms: int | None) -> int | None:
        """Return until when (ms) the id of a task that has ended is remembered; None: not at all.

        `own_ms` is the task's own `remember_ms`.
        """
        duration_ms = self.remember_ms if own_ms is None else own_ms
        return ended_at + duration_ms if duration_ms else None

    @property
    def may_lack_callbacks(self) -> bool:
        """True if tasks may be created without a callback."""
        return self.deliver is Deliver.PULL or bool(self.callback)

    @property
    def called_by_default(self) -> str:
        """The callback to call for tasks without one of their own; "" if there is none, or consumers claim them."""
        return "" if self.deliver is PULL else self.callback

    def retry_pause_ms(self, failures: int, random: float) -> int:
        """Return the pause after the n-th failure in a row; `random` in [0, 1) is for the jitter.

        The pause doubles with each failure, up to the cap. `retry_jitter` lengthens it by up to that share of itself,
        so that tasks that failed together are not retried together. `max_delay_ms` does not limit it, so that a retry
        can always be scheduled.
        """
        doublings = min(max(failures, 1) - 1, 62)  # the cap is reached; more would only make a longer integer
        pause = min(self.retry_base_ms << doublings, self.retry_cap_ms)
        return pause + int(pause * self.retry_jitter * random)


DEFAULT_POLICY = Policy()


# Fields


class ValueKind(StrEnum):
    """A kind of value, by which the command line chooses how a field is written and shown."""

    DURATION = "duration"
    INTEGER = "integer"
    FRACTION = "fraction"
    RATE = "rate"
    SWITCH = "switch"
    CHOICE = "choice"
    TOPIC = "topic"
    URL = "url"


class PolicyField(NamedTuple):
    """A field of a policy: its name in JSON, its kind and limits, and its description for the command line.

    `expected` states the accepted values, as a refusal does. `minimum` and `maximum` are in JSON's units; `enum`
    has a choice's values. `zero` is what 0 means, if that is more than the number.
    """

    name: str
    kind: ValueKind
    expected: str
    help: str
    zero: str = ""
    minimum: float = 0
    maximum: float = 0
    enum: type[StrEnum] = StrEnum

    @property
    def attribute(self) -> str:
        """The name of the field's attribute in `Policy`."""
        return f"{self.name}_ms" if self.kind is ValueKind.DURATION else self.name

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a choice."""
        return tuple(self.enum)

    def parse(self, value: object) -> Any:
        """Convert a JSON value to the attribute's value.

        Raises:
            ValueError: the field does not take this value.
            Refused: it is a URL that no callback can have; the text says why, and shows no password.
        """
        match value:
            case bool() if self.kind is ValueKind.SWITCH:
                return value
            case str() if self.kind is ValueKind.CHOICE:
                return self.enum(value)
            case str() if self.kind in (ValueKind.TOPIC, ValueKind.URL):
                return _parse_topic_or_url(self.kind, value)
            case bool():
                raise ValueError
            case int() | float() if (
                self.kind is ValueKind.INTEGER and 0 <= value <= self.maximum and value == int(value)
            ):
                return int(value)
            case int() | float() if self.kind is ValueKind.DURATION and self.minimum <= value <= self.maximum:
                return to_milliseconds(value)
            case int() | float() if self.kind in (ValueKind.FRACTION, ValueKind.RATE):
                if value == 0 or self.minimum <= value <= self.maximum:
                    return float(value or 0)
        raise ValueError

    def format(self, value: Any) -> PolicyValue:
        """Convert the attribute's value to JSON: the inverse of `parse`. No topic or URL is "": null inherits."""
        match self.kind:
            case ValueKind.DURATION:
                return plain_number(value / 1000)
            case ValueKind.FRACTION | ValueKind.RATE:
                return plain_number(value)
            case ValueKind.CHOICE:
                return str(value)
            case _:
                return value  # type: ignore[no-any-return]  # an integer or a boolean


def _parse_topic_or_url(kind: ValueKind, text: str) -> str:
    """Return the canonical name of a topic, or a callback's URL; "" for none. Raises as `PolicyField.parse`."""
    if not text:
        return ""
    if kind is ValueKind.URL:
        from later.core.callback_url import check_callback  # noqa: PLC0415  # an executor of Spark needs no yarl

        return check_callback(text)
    try:
        return parse_topic(text)
    except Refused as error:
        raise ValueError from error


def plain_number(number: float) -> int | float:
    """Return a whole number as an integer: `15` rather than `15.0`."""
    return int(number) if number == math.floor(number) else number


MAX_AHEAD_S = MAX_AHEAD_MS // 1000
MAX_TTL_S = MAX_TTL_MS // 1000
MAX_TIMEOUT_S = MAX_TIMEOUT_MS // 1000
MAX_CLAIM_LEASE_S = MAX_CLAIM_LEASE_MS // 1000

_SECONDS = f"a number of seconds from 0 to {MAX_TTL_S}"
_SECONDS_AHEAD = f"a number of seconds from 0 to {MAX_AHEAD_S}"
_SWITCH = "true or false"
_TOPIC_OR_NONE = 'a topic of the same namespace, or "" for none'

POLICY_FIELDS = {
    field.name: field
    for field in (
        PolicyField(
            "default_delay",
            ValueKind.DURATION,
            _SECONDS_AHEAD,
            "Delay of a task that sets neither a delay nor an execution time.",
            maximum=MAX_AHEAD_S,
        ),
        PolicyField(
            "max_delay",
            ValueKind.DURATION,
            _SECONDS,
            "Longest delay that a task may request; 0: no limit.",
            "no limit",
            maximum=MAX_TTL_S,
        ),
        PolicyField(
            "delay_mode",
            ValueKind.CHOICE,
            '"honor" or "queue"',
            "honor: a task's own delay overrides the default. "
            "queue: without a default delay, a task's own delay is ignored.",
            enum=DelayMode,
        ),
        PolicyField("delays", ValueKind.SWITCH, _SWITCH, "off rejects tasks that are not due at once."),
        PolicyField(
            "ttl",
            ValueKind.DURATION,
            _SECONDS,
            "Age at which a task that sets no ttl expires undelivered; 0: no limit.",
            "no limit",
            maximum=MAX_TTL_S,
        ),
        PolicyField(
            "timeout",
            ValueKind.DURATION,
            f"a number of seconds from 1 to {MAX_TIMEOUT_S}",
            "Deadline of a delivery, from name lookup to the last byte of the answer: 1s to 120s.",
            minimum=1,
            maximum=MAX_TIMEOUT_S,
        ),
        PolicyField(
            "retry",
            ValueKind.INTEGER,
            f"an integer from 0 to {MAX_RETRY}",
            "Retries after the first attempt, for a task that does not set its own number.",
            maximum=MAX_RETRY,
        ),
        PolicyField(
            "retry_base",
            ValueKind.DURATION,
            _SECONDS_AHEAD,
            "Pause after the first failure; it doubles with each further failure.",
            maximum=MAX_AHEAD_S,
        ),
        PolicyField(
            "retry_cap", ValueKind.DURATION, _SECONDS_AHEAD, "Longest pause between two attempts.", maximum=MAX_AHEAD_S
        ),
        PolicyField(
            "retry_jitter",
            ValueKind.FRACTION,
            "a number from 0 to 1",
            "Longest random extension of a pause, as a share of it: 0 to 1.",
            maximum=1,
        ),
        PolicyField(
            "ack",
            ValueKind.CHOICE,
            '"auto", "code" or "status"',
            "How a receiver confirms a delivery. auto: by the code in its answer, or else by the status; "
            "code: only by the code; status: only by the HTTP status.",
            enum=Ack,
        ),
        PolicyField(
            "rate",
            ValueKind.RATE,
            f"0, or a number of deliveries a second from {MIN_RATE:g} to {MAX_LIMIT}",
            "Deliveries that a topic may start per second, over all instances; 0: no limit.",
            "no limit",
            MIN_RATE,
            MAX_LIMIT,
        ),
        PolicyField(
            "concurrency",
            ValueKind.INTEGER,
            f"an integer from 0 to {MAX_LIMIT}",
            "Deliveries that a topic may have in flight, over all instances; 0: no limit.",
            "no limit",
            maximum=MAX_LIMIT,
        ),
        PolicyField("paused", ValueKind.SWITCH, _SWITCH, "on stops deliveries; tasks are still accepted."),
        PolicyField(
            "ramp",
            ValueKind.DURATION,
            _SECONDS_AHEAD,
            "Time to return to full speed after a pause, a Retry-After or a raised limit; 0: at once.",
            "at once",
            maximum=MAX_AHEAD_S,
        ),
        PolicyField("dead_keep", ValueKind.DURATION, _SECONDS, "How long a dead task is kept.", maximum=MAX_TTL_S),
        PolicyField(
            "sign",
            ValueKind.CHOICE,
            '"off", "namespace", "topic" or "origin"',
            "What has a signing secret of its own: each namespace, each topic, or each origin that a namespace calls "
            "(for receivers that must not know each other's secret); off: deliveries are not signed.",
            enum=Sign,
        ),
        PolicyField(
            "deliver",
            ValueKind.CHOICE,
            '"push" or "pull"',
            "push: tasks have a callback, which is called. pull: tasks have none, and consumers claim them.",
            enum=Deliver,
        ),
        PolicyField(
            "callback",
            ValueKind.URL,
            f'{EXPECTED["callback"]}, or "" for none',
            'URL to POST to for tasks without a callback of their own, as it is when they are due; "": there is none.',
        ),
        PolicyField(
            "claim_lease",
            ValueKind.DURATION,
            f"a number of seconds from 1 to {MAX_CLAIM_LEASE_S}",
            "How long a consumer may hold a claimed task, if its claim does not say: 1s to 12h.",
            minimum=1,
            maximum=MAX_CLAIM_LEASE_S,
        ),
        PolicyField(
            "max_claims",
            ValueKind.INTEGER,
            f"an integer from 0 to {MAX_LIMIT}",
            "Claims of a task by consumers, after which it is dead; 0: 16 leases lost in a row.",
            maximum=MAX_LIMIT,
        ),
        PolicyField(
            "dead_to",
            ValueKind.TOPIC,
            _TOPIC_OR_NONE,
            'Topic of the same namespace to which a task moves when it dies, due at once; "": it is kept as dead.',
        ),
        PolicyField(
            "dead_ttl",
            ValueKind.DURATION,
            _SECONDS,
            "A task's ttl from its move to dead_to; 0: none.",
            "none",
            0,
            MAX_TTL_S,
        ),
        PolicyField(
            "remember",
            ValueKind.DURATION,
            _SECONDS,
            "How long an id chosen by the caller is remembered after its task has ended; 0: not at all.",
            "not at all",
            maximum=MAX_TTL_S,
        ),
        PolicyField(
            "on_dead",
            ValueKind.TOPIC,
            _TOPIC_OR_NONE,
            'Topic of the same namespace that gets a task when one dies, due at once; "": none does.',
        ),
        PolicyField(
            "on_done",
            ValueKind.TOPIC,
            _TOPIC_OR_NONE,
            'Topic of the same namespace that gets a task when one is done, due at once; "": none does.',
        ),
        PolicyField(
            "durability",
            ValueKind.CHOICE,
            EXPECTED["durability"],
            "Where a write is before it is acknowledged: the primary as it is, its disk, also a replica, or also a "
            "replica's disk. The highest counts of what the daemon, a policy and a request say.",
            enum=Durability,
        ),
    )
}
"""Every field of a policy, in the order in which it is shown."""


def parse_policy_fields(values: Mapping[str, object]) -> dict[str, PolicyValue | None]:
    """Check the fields of a request, each by itself, and return them in canonical form; None means "inherit".

    Raises:
        Refused: with the name of the first field that is unknown or wrong.
    """
    fields: dict[str, PolicyValue | None] = {}
    for name, value in values.items():
        field = POLICY_FIELDS.get(name)
        if field is None:
            shown = escape_name(name)
            meant = suggest_field(name, POLICY_FIELDS)
            question = f"; did you mean {meant}?" if meant else ""
            raise Refused(f"{shown}: no field of a policy; there are {', '.join(POLICY_FIELDS)}{question}", shown)
        try:
            fields[name] = None if value is None else field.format(field.parse(value))
        except (ValueError, OverflowError):
            expected = f"{field.expected}, or null to inherit"
            raise Refused(f"{name}: expected {expected}, got {format_value(value)}", name) from None
    return fields


def format_policy(policy: Policy) -> dict[str, PolicyValue | None]:
    """Return the value of every field, as it is written in JSON. None stands for no topic or URL."""
    shown: dict[str, PolicyValue | None] = {}
    for field in POLICY_FIELDS.values():
        value = field.format(getattr(policy, field.attribute))
        shown[field.name] = None if value == "" else value
    return shown
