"""Messages of Zaqar's API: what a post asks for, checked as Zaqar checks it, and a task as it is shown as a message.

A message whose body is a string is a task with that content; any other body is the content as the client wrote it, and
the task says that it is JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from later.api.zaqar.error_answers import ROOT, ZaqarError, invalid_body, invalid_request
from later.api.zaqar.protocol import ZaqarCall, parse_json
from later.core.admit import admit
from later.core.clock import Interval
from later.core.errors import LaterError, StoreDown
from later.core.policy import Policy, plain_number
from later.core.policy_scopes import Policies
from later.core.queue_metadata import DEFAULT_MESSAGE_TTL_S, MAX_MESSAGE_TTL_S, MIN_MESSAGE_TTL_S
from later.core.task import Draft, Task, new_id
from later.core.validation import MAX_AHEAD_MS
from later.store.keys import Bucket
from later.store.open import Store
from later.store.types import TaskRecord

# Posting


class PostedMessage(NamedTuple):
    """A message as it was posted: its content, and what it says of its ttl and delay (None: nothing)."""

    content: str
    is_json: bool
    ttl_s: int | None
    delay_s: int | None


class _RawMessage(msgspec.Struct):
    """A message whose body is not decoded."""

    body: msgspec.Raw


class _RawPost(msgspec.Struct):
    """The messages of a post, whose bodies are not decoded."""

    messages: list[_RawMessage]


_decode_bodies = msgspec.json.Decoder(_RawPost).decode
_encode = msgspec.json.Encoder().encode


def parse_post(body: bytes) -> list[PostedMessage]:
    """Return the messages in the body of a post. Raises ZaqarError."""
    if not body:
        raise invalid_body("Request body can not be empty")
    document = parse_json(body)
    if not isinstance(document, dict) or "messages" not in document:
        raise invalid_request("No messages were found in the request body.")
    items = document["messages"]
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise invalid_body("Document type not supported.")
    checked = [(_integer(item, "ttl"), _value(item, "body"), _integer(item, "delay")) for item in items]
    if not checked:
        raise invalid_request("No messages to enqueu.")  # as Zaqar spells it
    messages: list[PostedMessage] = []
    for (ttl_s, value, delay_s), raw in zip(checked, _decode_bodies(body).messages, strict=True):
        content = value if isinstance(value, str) else bytes(raw.body).decode()
        messages.append(PostedMessage(content, not isinstance(value, str), ttl_s, delay_s))
    return messages


def _integer(item: Mapping[str, object], field: str) -> int | None:
    """Return an integer of a message; None if it is absent. Raises ZaqarError."""
    if field not in item:
        return None
    value = item[field]
    if type(value) is not int:  # true is no number
        raise invalid_body(f'The value of the "{field}" field must be a int.')
    return value


def _value(item: Mapping[str, object], field: str) -> object:
    if field not in item:
        raise invalid_body(f'Missing "{field}" field.')
    return item[field]


def check_post_size(size: int, limit: int, own_limit: object) -> None:
    """Check the bytes of a post; `own_limit` is what the queue's metadata say, if they do. Raises ZaqarError."""
    if isinstance(own_limit, int) and size > min(own_limit, limit):
        raise invalid_request(
            f"Message collection size is too large. The max size for current queue is {min(own_limit, limit)}. It is "
            f"calculated by max size = min(max_messages_post_size_config: {limit}, max_messages_post_size_queue: "
            f"{own_limit})."
        )
    if size > limit:
        raise post_too_large(limit)


def post_too_large(limit: int) -> ZaqarError:
    return invalid_request(f"Message collection size is too large. Max size {limit}")


def admit_messages(
    messages: Sequence[PostedMessage],
    call: ZaqarCall,
    policies: Policies,
    now: Interval,
    at_once: int,
    draw: Callable[[Callable[[], Task]], Task],
) -> list[Task]:
    """Return the tasks that messages become, posted at `now`, in the order of the post.

    A message without a delay is due, and created, at `at_once` (ms): see `due_at_once`. `draw` chooses among the ids
    that a task may get: see `AwayShards`.

    Raises:
        ZaqarError: the ttl or delay of one of them is out of bounds.
        Refused: the policy of the queue allows no delays.
    """
    policy = policies.for_topic(call.topic)
    for message in messages:
        _check_times(message, policy)
    default_ttl_s = None if policy.ttl_ms else DEFAULT_MESSAGE_TTL_S
    tasks: list[Task] = []
    for content, is_json, ttl_s, delay_s in messages:
        draft = Draft(topic=call.topic, content=content, ttl=default_ttl_s if ttl_s is None else ttl_s, delay=delay_s)
        task = draw(partial(_admit, draft, call, policies, now.high))
        at = at_once if task.execute_at == now.high else task.created_at
        earlier_ms = task.created_at - at
        tasks.append(
            msgspec.structs.replace(
                task,
                created_at=at,
                execute_at=task.execute_at - earlier_ms,
                expires_at=None if task.expires_at is None else task.expires_at - earlier_ms,
                client=call.client_id,
                is_json=is_json,
            )
        )
    return tasks


def _admit(draft: Draft, call: ZaqarCall, policies: Policies, now: int) -> Task:
    return admit(draft, policies, now, new_id(), call.caller)


def _check_times(message: PostedMessage, policy: Policy) -> None:
    """Check the ttl and the delay of a message. Raises ZaqarError."""
    if message.ttl_s is not None and not MIN_MESSAGE_TTL_S <= message.ttl_s <= MAX_MESSAGE_TTL_S:
        raise invalid_request(
            f"The TTL for a message may not exceed {MAX_MESSAGE_TTL_S} seconds, "
            f"and must be at least {MIN_MESSAGE_TTL_S} seconds long."
        )
    max_delay_s = plain_number((policy.max_delay_ms or MAX_AHEAD_MS) / 1000)
    if message.delay_s is not None and not 0 <= message.delay_s <= max_delay_s:
        raise invalid_request(  # without a space after the comma, as Zaqar has it
            f"The Delay TTL for a message may not exceed {max_delay_s} seconds,and must be at least 0 seconds long."
        )


def due_at_once(now: Interval, last: int) -> int:
    """Return when (ms) a message is due that is posted at `now` without a delay.

    Other processes know the store's time no better than this one, and its low end may be that much lower there: the
    message is to be there for a claim in any of them at once. It is not before `last`, that of the message before, so
    that the messages of this process keep their order.
    """
    return min(max(2 * now.low - now.high, last), now.low)


# Showing


def messages_href(queue: str) -> str:
    """Return the path of a queue's messages."""
    return f"{ROOT}/queues/{queue}/messages"


def message_href(queue: str, id: str) -> str:
    """Return the path of a message."""
    return f"{messages_href(queue)}/{quote(id, safe=':')}"


def message_view(
    task: Task, *, href: str, claim_id: str | None, claim_count: int, now: int, ttl_s: int
) -> dict[str, object]:
    """Return a task as Zaqar's API shows it; its clients take no further field.

    `href` is its path (see `message_href`), to which the claim that holds it is added: last, because clients take what
    follows the last `=`. `claim_count` is how many attempts have begun.
    """
    return {
        "id": task.id,
        "href": href if claim_id is None else f"{href}?claim_id={claim_id}",
        "ttl": ttl_s,
        "age": max(now - task.created_at, 0) // 1000,
        "body": msgspec.Raw(task.content.encode()) if task.is_json else task.content,
        "claim_count": claim_count,
    }


def shown_ttl_s(created_at: int, ends_at: int | None) -> int:
    """Return the ttl that a message shows: from its birth to its end (ms), or Zaqar's longest if it has no end.

    It is rounded down, as its age is: a message that is claimed at once shows the ttl and the grace of its claim.
    """
    return MAX_MESSAGE_TTL_S if ends_at is None else (ends_at - created_at) // 1000


class ShownMessage(NamedTuple):
    """A task that is shown as a message, and the message as JSON."""

    record: TaskRecord
    view: msgspec.Raw


async def show_messages(
    store: Store, call: ZaqarCall, records: Iterable[TaskRecord | LaterError], now: Interval
) -> list[ShownMessage]:
    """Return those of the tasks as messages that are messages of the call's queue: neither dead nor expired.

    A message that is claimed does not expire.

    Raises:
        StoreDown: some of them, or the ends of their ttls, could not be read.
    """
    found: list[TaskRecord] = []
    for record in records:
        if isinstance(record, StoreDown):
            raise record
        if isinstance(record, TaskRecord) and record.topic == call.topic and record.state is not Bucket.DEAD:
            found.append(record)
    ends = await store.claim_records.ends(found)
    shown: list[ShownMessage] = []
    for record in found:
        task, lease = record.task, record.lease(now.low)
        if not isinstance(task, Task):
            continue  # its body cannot be read: `later doctor` tells
        ends_at = ends.get(task.id)
        if lease is None and ends_at is not None and ends_at <= now.high:
            continue
        view = message_view(
            task,
            href=message_href(call.queue, task.id),
            claim_id=record.claim_id or None if lease is not None else None,
            claim_count=record.attempts,
            now=now.low,
            ttl_s=shown_ttl_s(task.created_at, ends_at),
        )
        shown.append(ShownMessage(record, msgspec.Raw(_encode(view))))
    return shown
