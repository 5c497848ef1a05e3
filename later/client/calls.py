"""The calls of tasks, each made of arguments: pure functions that the sync and the async client share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

import msgspec
from msgspec import UNSET, UnsetType

from later.client.answers import Deleted, DueTask, Enqueued, Explained, Info, JobTotals
from later.client.batch_call import BatchItem, Results
from later.client.call import Call, encode_json, given
from later.client.call_fields import PAGE_SIZE, Page, decoder, format_time, plain_seconds, quote_name, scope_path
from later.core.durations import Seconds
from later.core.errors import LaterError, Refused
from later.core.ordered_ids import order_id
from later.core.task import Draft, new_id
from later.core.validation import utf8_size

IfExistsValue = Literal["keep", "update", "error"]
DurabilityValue = Literal["primary", "disk", "replica", "replica-disk"]
State = Literal["pending", "delay", "unack", "error", "dead"]
REMEMBER_S = 900.0
"""How long the daemon is to remember an id that the client has made: until then a create whose answer was lost may be
sent again."""
CHUNK_SIZE = 5000
"""Tasks that one call purges or redrives: so few that its answer comes quickly."""


class MovedTasks(NamedTuple):
    """The number of tasks that one call has purged or redriven, and the call that goes on; None if none are left."""

    moved: int
    next: Call[MovedTasks] | None


# Creates


def draft(
    topic: str,
    content: str = "",
    *,
    callback: str | None = None,
    delay: Seconds | None = None,
    at: datetime | None = None,
    id: str | None = None,
    if_exists: IfExistsValue = "keep",
    retry: int | None = None,
    ttl: Seconds | None = None,
    headers: Mapping[str, str] | None = None,
    context: Mapping[str, str] | None = None,
    remember: Seconds | None = None,
    durability: DurabilityValue | None = None,
) -> Draft:
    """Return a task to create, as `create` takes it.

    Raises:
        Refused: both `delay` and `at` are given, `at` has no zone, or a duration is none.
    """
    if delay is not None and at is not None:
        raise Refused("at: expected either delay or at, got both", "at")
    return Draft(
        topic=topic,
        content=content,
        callback=callback,
        delay=plain_seconds("delay", delay),
        execute_time=format_time("at", at),
        id=id,
        if_exists=None if if_exists == "keep" else if_exists,
        retry=retry,
        ttl=plain_seconds("ttl", ttl),
        headers=None if headers is None else dict(headers),
        context=None if context is None else dict(context),
        remember=plain_seconds("remember", remember),
        durability=durability,
    )


def create(item: BatchItem[Enqueued]) -> Call[Enqueued]:
    """The call that creates one task."""
    call = Call("/create", item.decode, safe=not item.exclusive)
    call.body = item.body
    return call


def create_item(draft: Draft, now: int) -> BatchItem[Enqueued]:
    """Return the item that creates a task, alone or in a batch.

    If its caller chose no id, it gets one: with an id a create may be sent again. Such ids sort in the order in which
    they were made, because tasks of one due time are claimed in the order of their ids.
    """
    if draft.id is not None or draft.if_exists is not None:
        return BatchItem(_encode_draft(draft), _read_enqueued, draft.id or "", exclusive=draft.if_exists == "error")
    id, remember = order_id(new_id(), now), REMEMBER_S if draft.remember is None else draft.remember
    sent = msgspec.structs.replace(draft, id=id, remember=remember)
    return BatchItem(_encode_draft(sent), _read_new, id)


_read_enqueued = decoder(Enqueued)


def _read_new(body: bytes) -> Enqueued:
    """Decode the answer to a create under an id that nobody else has: if it is there, an earlier attempt made it."""
    return msgspec.structs.replace(_read_enqueued(body), created=True)


def with_errors(answers: Results[Enqueued], errors: Mapping[int, LaterError]) -> Results[Enqueued]:
    """Return the results of all items: the errors of those that were not sent, by position, and the answers."""
    rest = iter(answers)
    return [errors[position] if position in errors else next(rest) for position in range(len(answers) + len(errors))]


def _encode_draft(draft: Draft) -> bytes:
    fields = {name: getattr(draft, name) for name in Draft.__struct_fields__}
    try:
        return encode_json(given(**fields))
    except Refused:
        for name, value in fields.items():
            if isinstance(value, str):
                utf8_size(name, value)  # raises Refused, which names the field
        raise


# Single tasks


def query(id: str) -> Call[Info]:
    return Call("/query", _read_info, {"id": id}, safe=True, task_id=id)


def query_item(id: str) -> BatchItem[Info]:
    return BatchItem(encode_json({"id": id}), _read_info, id)


_read_info = decoder(Info)


def delete(id: str, durability: DurabilityValue | None = None) -> Call[Deleted]:
    return Call("/delete", _read_deleted, given(id=id, durability=durability), safe=True, task_id=id)


def delete_item(id: str) -> BatchItem[Deleted]:
    return BatchItem(encode_json({"id": id}), _read_deleted, id)


def delete_batch_path(durability: DurabilityValue | None) -> str:
    return "/delete/batch" if durability is None else f"/delete/batch?durability={durability}"


_read_deleted = decoder(Deleted)


def update(
    id: str,
    *,
    delay: Seconds | None = None,
    at: datetime | None = None,
    content: str | None = None,
    callback: str | None = None,
    headers: Mapping[str, str] | None = None,
    retry: int | None = None,
    ttl: Seconds | UnsetType | None = UNSET,
    durability: DurabilityValue | None = None,
) -> Call[Info]:
    if delay is not None and at is not None:
        raise Refused("at: expected either delay or at, got both", "at")
    fields = given(
        id=id,
        delay=plain_seconds("delay", delay),
        execute_time=format_time("at", at),
        content=content,
        callback=callback,
        headers=None if headers is None else dict(headers),
        retry=retry,
        durability=durability,
    )
    if ttl is not UNSET:
        fields["ttl"] = plain_seconds("ttl", ttl)
    return Call("/update", _read_info, fields, safe=True, task_id=id)


def run_now(id: str, durability: DurabilityValue | None = None) -> Call[Info]:
    return Call("/run-now", _read_info, given(id=id, durability=durability), task_id=id)


def due_item(id: str) -> BatchItem[DueTask]:
    """The item of a call that makes several tasks due."""
    return BatchItem(encode_json(id), _read_due_task, id)


_read_due_task = decoder(DueTask)


# Many tasks


class _TasksPage(msgspec.Struct):
    tasks: list[Info]
    cursor: str | None


_read_tasks_page = decoder(_TasksPage)


def list_tasks(
    topic: str,
    *,
    state: State | None,
    due_after: datetime | None,
    due_before: datetime | None,
    reason: str | None,
) -> Call[Page[Info]]:
    fields = given(
        topic=topic,
        state=state,
        due_after=format_time("due_after", due_after),
        due_before=format_time("due_before", due_before),
        reason=reason,
        limit=PAGE_SIZE,
    )
    return _list_from(fields)


def _list_from(fields: dict[str, Any]) -> Call[Page[Info]]:
    def read(body: bytes) -> Page[Info]:
        page = _read_tasks_page(body)
        return Page(page.tasks, None if page.cursor is None else _list_from({**fields, "cursor": page.cursor}))

    return Call("/list", read, fields, safe=True)


class _MoveAnswer(msgspec.Struct):
    purged: int = 0
    redriven: int = 0
    more: bool = False
    cursor: str | None = None


_read_moved = decoder(_MoveAnswer)


def redrive(
    *,
    id: str | None,
    topic: str | None,
    reason: str | None,
    died_after: datetime | None,
    died_before: datetime | None,
    rate: float | None,
    durability: DurabilityValue | None,
    now: int,
) -> Call[MovedTasks]:
    """The call that redrives one task, or the first of a topic's dead tasks, at `now` (ms).

    The calls that go on leave what has died since: else a task that dies again would be redriven without end. The first
    one does not say the time, because the daemon's clock may be ahead of this one.
    """
    if topic is None:
        return Call("/redrive", _read_moved_once, given(id=id, durability=durability), task_id=id)
    fields = given(id=id, topic=topic, rate=rate, **_deaths(reason, died_after, died_before), limit=CHUNK_SIZE)
    fields |= given(durability=durability)
    return _move("/redrive", fields, {"died_before": format_time("died_before", _end_of_ms(now))})


def _end_of_ms(now: int) -> datetime:
    """Return the time before which lies what has happened by `now` (ms)."""
    return datetime.fromtimestamp((now + 1) / 1000, UTC)


def purge(
    topic: str,
    *,
    states: Sequence[str] | None,
    reason: str | None,
    died_after: datetime | None,
    died_before: datetime | None,
) -> Call[MovedTasks]:
    """The call that removes the first of a topic's tasks."""
    fields = given(
        states=None if states is None else [*states], **_deaths(reason, died_after, died_before), limit=CHUNK_SIZE
    )
    return _move(scope_path(topic) + "/purge", fields)


def _deaths(reason: str | None, died_after: datetime | None, died_before: datetime | None) -> dict[str, object]:
    return {
        "reason": reason,
        "died_after": format_time("died_after", died_after),
        "died_before": format_time("died_before", died_before),
    }


def _move(path: str, fields: dict[str, Any], following: Mapping[str, Any] | None = None) -> Call[MovedTasks]:
    """The call is safe: tasks that it has moved are no longer where it looks. Then the count is too small.

    If its tasks are known to have missed their level, it is not sent again: each attempt would move some of the others,
    at a rate that begins anew.

    Calls that go on have the fields `following`, too, unless this one has them.
    """

    def read(body: bytes) -> MovedTasks:
        moved = _read_moved(body)
        count = moved.purged + moved.redriven
        if not moved.more or not (count or moved.cursor):
            return MovedTasks(count, None)
        return MovedTasks(count, _move(path, {**(following or {}), **fields} | given(cursor=moved.cursor)))

    return Call(path, read, fields, safe=True, counted=True)


def _read_moved_once(body: bytes) -> MovedTasks:
    return MovedTasks(_read_moved(body).redriven, None)


def job(id: str, run: str | None) -> Call[JobTotals]:
    query = "" if run is None else "?" + urlencode({"run": run})
    return Call(f"/jobs/{quote_name(id)}{query}", _read_job, method="GET", safe=True)


_read_job = decoder(JobTotals)


def explain(*, id: str | None, topic: str | None) -> Call[Explained]:
    return Call("/explain", _read_explained, given(id=id, topic=topic), safe=True, task_id=id)


def _read_explained(body: bytes) -> Explained:
    details = _read_object(body)
    sentence = details.pop("sentence", None)
    if not isinstance(sentence, str):
        raise msgspec.ValidationError("expected a sentence")
    return Explained(sentence=sentence, details=details)


_read_object = decoder(dict[str, Any])
