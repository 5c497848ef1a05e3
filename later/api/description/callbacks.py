"""The calls that the daemon makes of receivers: what it sends, and what each answer means."""

from __future__ import annotations

from typing import Any

from later.api.description.json_schema import (
    TIME,
    Schema,
    choice,
    integer,
    mapping,
    nullable,
    number,
    string,
    structure,
)
from later.core.operator_event import EventType


def callback_operation(id: str) -> dict[str, Any]:
    """Return the operation object of a delivery. A document needs an id for each place in which it stands."""
    body = structure(
        {"id": string(), "topic": string(), "content": string(), "context": mapping(string())},
        ["id", "topic", "content"],
    )
    return _call_operation(id, "Deliver a task that is due, with the headers that it was created with.", body)


def event_operation(id: str) -> dict[str, Any]:
    """Return the operation object of an event for operators, which goes to the URL of `--events`."""
    data = structure(
        {
            "topic": nullable(string()),
            "namespace": string(),
            "reason": string(),
            "count": integer(1),
            "first_id": string(),
            "lateness_s": number(0),
            "due": integer(0),
            "memory": integer(0),
            "max_memory": integer(0),
            "since": TIME,
        },
        ["since"],
    )
    body = structure(
        {"type": choice([type.value for type in EventType]), "timestamp": TIME, "data": data},
        ["type", "timestamp", "data"],
    )
    return _call_operation(id, "Tell operators of dead tasks, late or paused topics, or a nearly full store.", body)


def _call_operation(id: str, summary: str, body: Schema) -> dict[str, Any]:
    headers = [
        {"name": name, "in": "header", "description": text, "schema": string()} for name, text in _HEADERS.items()
    ]
    return {
        "operationId": id,
        "summary": summary,
        "parameters": headers,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            **{status: {"description": text} for status, text in _ANSWERS.items()},
            "200": {
                "description": _DONE,
                "content": {"application/json": {"schema": structure({"code": integer()})}},
            },
        },
    }


_HEADERS = {
    "webhook-id": "the task's id, the same in each attempt",
    "webhook-timestamp": "when this attempt was made, in Unix seconds",
    "webhook-signature": "signatures by Standard Webhooks, if deliveries are signed",
    "later-attempt": "the number of this attempt",
    "later-due": "when the task was due, RFC 3339",
    "later-created": "when the task was created, RFC 3339",
    "later-timeout": "seconds that the receiver has for its answer",
    "later-failures": "how many attempts have failed",
    "later-max-retry": "how many failures are followed by another attempt",
}
_DONE = (
    "The task is done, unless the body has a `code`: 100 is done, 101 is not yet, any other has failed. "
    "`ack` in the policy says which of the two counts."
)
_ANSWERS = {
    "410": "The task is dead: the receiver wants no further attempt.",
    "429": "Not now: the attempt spends no retry. `Retry-After` holds the topic's calls to this receiver.",
    "503": "Not now: the attempt spends no retry. `Retry-After` holds the topic's calls to this receiver, "
    "`later-after` puts off this task alone.",
    "default": "The attempt has failed. Another follows after a pause, or `later-after`, until `retry` is used up.",
}
