"""The schemas of requests: of each field, from the limits by which it is checked, and of the bodies made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from later.api.batch_body import MAX_ITEMS
from later.api.claim_requests import (
    EXPECTED_OF_CLAIM,
    EXPECTED_OF_LEASES,
    MAX_LEASE_S,
    MAX_LEASES,
    MAX_TOPICS,
    MAX_WAIT_S,
    ClaimBody,
    ExtendBody,
    FailureBody,
    LeasesBody,
    NackBody,
)
from later.api.clock_moves import EXPECTED_OF_CLOCK, MAX_SETTLE_S, ClockMoveRequest
from later.api.description.json_schema import (
    BOOLEAN,
    Schema,
    array,
    choice,
    either,
    integer,
    mapping,
    nullable,
    number,
    reference,
    string,
    structure,
)
from later.api.pulsar import ACTIVE, MAX_DELAY, TICK_TIME
from later.api.requests import (
    EXPECTED,
    EXPECTED_PAGE_SIZE,
    MAX_IDS,
    MAX_PAGE_SIZE,
    DeleteRequest,
    ExplainRequest,
    IdRequest,
    ListRequest,
    PurgeRequest,
    RedriveRequest,
    RunNowRequest,
)
from later.api.rotation import RotationRequest
from later.api.sign_in import MAX_KEY_CHARS
from later.core.cron import MAX_CRON_CHARS
from later.core.durability import Durability
from later.core.edit import TaskChanges
from later.core.if_exists import IfExists
from later.core.lease import MAX_CLAIMED, MAX_TOKEN_CHARS
from later.core.policy import MAX_TTL_S, MIN_RATE, POLICY_FIELDS, PolicyField, ValueKind
from later.core.retry import DEATH_REASONS, MAX_NACK_CHARS
from later.core.schedule import EXPECTED_SCHEDULE, MIN_EVERY_MS, CatchUp, ScheduleDraft
from later.core.signing import MAX_OVERLAP_S
from later.core.task import Draft
from later.core.validation import (
    ID_PATTERN,
    MAX_AHEAD_MS,
    MAX_CALLBACK_CHARS,
    MAX_CONTEXT_BYTES,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_RETRY,
    MAX_TOPIC_BYTES,
)

MAX_CONTENT_CHARS = 1_048_576
"""As many as the default --max-body allows."""
MAX_CURSOR_CHARS = 4096

_SEGMENT = r"[^/\x00-\x1f\x7f-\x9f]+"
TOPIC = string(1, MAX_TOPIC_BYTES, pattern=f"^{_SEGMENT}(/{_SEGMENT})*$")
NAMESPACE = string(1, MAX_TOPIC_BYTES, pattern=f"^{_SEGMENT}$")
ID = string(1, 128, pattern=f"^{ID_PATTERN}$")
CALLBACK = string(1, MAX_CALLBACK_CHARS, format="uri", pattern="^[Hh][Tt][Tt][Pp][Ss]?://")
MOMENT: Schema = {
    "anyOf": [
        number(-(2**53), 1e12, exclusiveMaximum=1e12),
        string(20, 64, format="date-time"),
    ]
}
SECONDS_AHEAD = number(0, MAX_AHEAD_MS / 1000)
CURSOR = string(1, MAX_CURSOR_CHARS)
LEASE = string(0, MAX_TOKEN_CHARS)

_FIELDS: Mapping[str, Schema] = {
    "topic": TOPIC,
    "callback": CALLBACK,
    "delay": SECONDS_AHEAD,
    "execute_time": MOMENT,
    "retry": integer(0, MAX_RETRY),
    "content": string(0, MAX_CONTENT_CHARS),
    "headers": mapping(string(0, MAX_HEADER_BYTES), MAX_HEADERS),
    "context": mapping(string(0, MAX_CONTEXT_BYTES)),
    "ttl": number(exclusiveMinimum=0),
    "id": ID,
    "remember": number(0),
    "if_exists": choice([*IfExists]),
    "durability": choice([*Durability]),
    "state": choice(["delay", "unack", "error", "dead", "pending"]),
    "due_after": MOMENT,
    "due_before": MOMENT,
    "died_after": MOMENT,
    "died_before": MOMENT,
    "reason": choice(DEATH_REASONS),
    "rate": number(MIN_RATE),
    "states": array(choice(["delay", "error", "dead"]), most=MAX_PAGE_SIZE),
    "limit": integer(1),
    "cursor": CURSOR,
    "dry_run": BOOLEAN,
    "overlap": number(0, MAX_OVERLAP_S),
    "ids": array(ID, 1, MAX_IDS),
}
_SCHEDULE_FIELDS: Mapping[str, Schema] = {
    **_FIELDS,
    "cron": string(1, MAX_CRON_CHARS),
    "every": number(MIN_EVERY_MS / 1000, MAX_AHEAD_MS / 1000),
    "zone": string(1, 100),
    "start": MOMENT,
    "end": MOMENT,
    "catch_up": choice([*CatchUp]),
    "jitter": SECONDS_AHEAD,
    "paused": BOOLEAN,
}
_FAILURE_FIELDS: Mapping[str, Schema] = {
    "delay": SECONDS_AHEAD,
    "message": string(0, MAX_NACK_CHARS),
    "dead": BOOLEAN,
    "busy": BOOLEAN,
    "reason": string(1, 32, pattern="^[a-z_]{1,32}$"),
    "lease": LEASE,
}
_CLAIM_FIELDS: Mapping[str, Schema] = {
    "topic": TOPIC,
    "topics": {
        "anyOf": [array(TOPIC, 1, MAX_TOPICS), {**mapping(integer(1, MAX_CLAIMED), MAX_TOPICS), "minProperties": 1}]
    },
    "max": integer(1, MAX_CLAIMED),
    "lease": number(1, MAX_LEASE_S),
    "wait": number(0, MAX_WAIT_S),
    "done": array(LEASE, most=MAX_CLAIMED),
    "failed": array(reference("Failure"), most=MAX_CLAIMED),
}
_LEASES_FIELDS: Mapping[str, Schema] = {
    **_FAILURE_FIELDS,
    "leases": array(LEASE, most=MAX_LEASES),
    "lease": number(1, MAX_LEASE_S),
}
_CLOCK_FIELDS: Mapping[str, Schema] = {
    "advance": number(0),
    "to": MOMENT,
    "settle": {"anyOf": [BOOLEAN, number(0, MAX_SETTLE_S)]},
    "step": BOOLEAN,
}
_EXPECTED_OF_FAILURE = {
    name.removeprefix("failed."): text for name, text in EXPECTED_OF_CLAIM.items() if name.startswith("failed.")
}


def policy_field_schema(field: PolicyField) -> Schema:
    """Return the schema of a value that a field of a policy takes."""
    match field.kind:
        case ValueKind.SWITCH:
            schema = BOOLEAN
        case ValueKind.CHOICE:
            schema = choice(field.choices)
        case ValueKind.TOPIC | ValueKind.URL:
            schema = string(0, MAX_TOPIC_BYTES if field.kind is ValueKind.TOPIC else MAX_CALLBACK_CHARS)
        case ValueKind.INTEGER:
            schema = integer(0, int(field.maximum))
        case ValueKind.RATE:
            schema = {"anyOf": [{"type": "number", "const": 0}, number(field.minimum, field.maximum)]}
        case _:
            schema = number(field.minimum, field.maximum)
    return schema


def request_schemas() -> dict[str, Schema]:
    """Return the schemas of all bodies of requests, by the names of their components."""
    pulsar_ms = nullable(integer(0, MAX_TTL_S * 1000))
    policy = {
        name: {**nullable(policy_field_schema(field)), "description": field.help}
        for name, field in POLICY_FIELDS.items()
    }
    return {
        "CreateRequest": _body(Draft, _FIELDS, EXPECTED, ["topic"]),
        "TaskIdRequest": _body(IdRequest, _FIELDS, EXPECTED, ["id"]),
        "DeleteRequest": _body(DeleteRequest, _FIELDS, EXPECTED, ["id"]),
        "UpdateRequest": _body(TaskChanges, _FIELDS, EXPECTED, ["id"], minProperties=2),
        "ListRequest": _body(
            ListRequest,
            {**_FIELDS, "limit": integer(1, MAX_PAGE_SIZE)},
            EXPECTED | {"limit": EXPECTED_PAGE_SIZE},
            ["topic"],
        ),
        "ExplainRequest": _body(ExplainRequest, _FIELDS, EXPECTED, oneOf=either("id", "topic")),
        "RunNowRequest": _body(RunNowRequest, _FIELDS, EXPECTED, oneOf=either("id", "ids")),
        "RedriveRequest": _body(RedriveRequest, _FIELDS, EXPECTED, oneOf=either("id", "ids", "topic")),
        "PurgeRequest": _body(PurgeRequest, _FIELDS, EXPECTED),
        "RotationRequest": _body(RotationRequest, _FIELDS, EXPECTED),
        "ClaimRequest": _body(ClaimBody, _CLAIM_FIELDS, EXPECTED_OF_CLAIM, oneOf=either("topic", "topics")),
        "Failure": _body(FailureBody, _FAILURE_FIELDS, _EXPECTED_OF_FAILURE, ["lease"]),
        "LeasesRequest": _body(LeasesBody, _LEASES_FIELDS, EXPECTED_OF_LEASES, ["leases"]),
        "NackRequest": _body(NackBody, _LEASES_FIELDS, EXPECTED_OF_LEASES, ["leases"]),
        "ExtendRequest": _body(ExtendBody, _LEASES_FIELDS, EXPECTED_OF_LEASES, ["leases"]),
        "PolicyRequest": structure(policy, additionalProperties=False),
        "DelayedDeliveryRequest": structure(
            {ACTIVE: nullable(BOOLEAN), TICK_TIME: pulsar_ms, MAX_DELAY: pulsar_ms}, additionalProperties=False
        ),
        "ScheduleRequest": _body(
            ScheduleDraft, _SCHEDULE_FIELDS, EXPECTED_SCHEDULE, ["topic"], oneOf=either("cron", "every")
        ),
        "ClockRequest": _body(
            ClockMoveRequest,
            _CLOCK_FIELDS,
            EXPECTED_OF_CLOCK,
            oneOf=either("advance", "to"),
        ),
        "SignInRequest": structure({"key": string(1, MAX_KEY_CHARS)}, ["key"], additionalProperties=False),
        "EmptyRequest": structure({}, additionalProperties=False),
        "TaskIdsRequest": array(reference("TaskIdRequest"), most=MAX_ITEMS),
        "CreatesRequest": array(reference("CreateRequest"), most=MAX_ITEMS),
    }


def _body(
    schema: type[msgspec.Struct],
    fields: Mapping[str, Schema],
    expected: Mapping[str, str],
    required: Sequence[str] = (),
    **keywords: Any,
) -> Schema:
    """Return the schema of a body whose fields are those of this struct, each with what a refusal says that it takes.

    A field that may be left out may be null, which means the same.
    """
    properties = {
        name: {**(fields[name] if name in required else nullable(fields[name])), "description": expected[name]}
        for name in schema.__struct_fields__
    }
    return structure(properties, required, additionalProperties=False, **keywords)
