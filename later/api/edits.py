"""The calls that change tasks which are there: update, run-now, redrive and purge."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import structlog
from aiohttp import web

from later.api.load_shedding import PendingWrites
from later.api.schemas import body_parser, json_response, parse_id, parse_query, read_body, task_view
from later.api.topics import parse_topic_scope
from later.core.edit import TaskChanges
from later.core.errors import LaterError, Refused
from later.core.policy import MIN_RATE
from later.core.validation import EXPECTED, check_id, describe, parse_time, parse_topic, refusal
from later.store.dead_letters import PURGEABLE
from later.store.group_commit import GroupCommit
from later.store.keys import Bucket
from later.store.open import Store
from later.store.types import BucketRange, MoveResult, TaskEdit, TaskRecord

log = structlog.get_logger("later.edits")


class RedriveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who is to be brought back, every field as it came."""

    id: str | None = None
    topic: str | None = None
    died_after: float | str | None = None
    died_before: float | str | None = None
    reason: str | None = None
    rate: float | None = None
    limit: int | None = None


class PurgeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of a topic is to be removed, every field as it came."""

    states: list[str] | None = None
    died_after: float | str | None = None
    died_before: float | str | None = None
    reason: str | None = None
    limit: int | None = None


class EditHandlers:
    """Handlers. `on_create` is told when a ticker must take up a task that was moved."""

    def __init__(
        self,
        *,
        store: Store,
        max_body: int,
        pending_writes: PendingWrites,
        on_create: Callable[[int], None],
    ) -> None:
        self._store = store
        self._update = GroupCommit(store.edits.update, queue_timeout_s=store.client.timeout_s, size_of=_weight)
        self._run_now = GroupCommit(self._run_all_now, queue_timeout_s=store.client.timeout_s)
        self._redrive = GroupCommit(self._redrive_all, queue_timeout_s=store.client.timeout_s)
        self._max_body = max_body
        self._pending_writes = pending_writes
        self._on_create = on_create

    async def update(self, request: web.Request) -> web.StreamResponse:
        """`POST /update`."""
        changes = _changes(await read_body(request, self._max_body))
        with self._pending_writes.reserve():
            policies, now = await self._store.policies.current(), await self._store.now()
            found = await self._update(TaskEdit(changes.id or "", changes, policies, now.high))
        return self._tell(found)

    async def run_now(self, request: web.Request) -> web.StreamResponse:
        """`POST /run-now`."""
        id = parse_id(await read_body(request, self._max_body))
        with self._pending_writes.reserve():
            found = await self._run_now(id)
        return self._tell(found)

    async def redrive(self, request: web.Request) -> web.StreamResponse:
        """`POST /redrive`."""
        wanted = _read_redriving(await read_body(request, self._max_body))
        if wanted.id is None:
            return await self._redrive_dead(wanted)
        id = _only_id(wanted)
        with self._pending_writes.reserve():
            self._note(await self._redrive(id))
        return json_response({"redriven": 1})

    async def purge(self, request: web.Request) -> web.StreamResponse:
        """`POST /topics/{topic}/purge`."""
        parse_query(request)
        name = parse_topic_scope(request).name
        purging = _purging(await read_body(request, self._max_body))
        dead, limit = _dead(name, purging), _limit(purging.limit)
        if purging.reason is not None:
            moved = await self._store.dead_letters.purge_dead(dead, purging.reason, limit)
        else:
            moved = await self._store.dead_letters.purge(_stretches(dead, purging.states), limit)
        log.info("topic purged", topic=name, tasks=moved.moved)
        return _answer("purged", moved)

    async def _redrive_dead(self, wanted: RedriveRequest) -> web.StreamResponse:
        if wanted.topic is None:
            raise Refused("topic: expected an id or a topic, got neither", "topic")
        dead, rate, limit = _dead(parse_topic(wanted.topic), wanted), _rate(wanted.rate), _limit(wanted.limit)
        now = (await self._store.now()).high
        moved = await self._store.dead_letters.redrive(dead, now=now, reason=wanted.reason, rate=rate, limit=limit)
        if moved.moved:
            self._on_create(now)
        log.info("dead tasks redriven", topic=dead.topic, tasks=moved.moved)
        return _answer("redriven", moved)

    async def _run_all_now(self, ids: Sequence[str]) -> list[TaskRecord | LaterError]:
        return await self._store.edits.run_now(ids, (await self._store.now()).high)

    async def _redrive_all(self, ids: Sequence[str]) -> list[TaskRecord | LaterError]:
        return await self._store.edits.redrive(ids, (await self._store.now()).high)

    def _tell(self, found: TaskRecord) -> web.StreamResponse:
        self._note(found)
        return json_response(task_view(found))

    def _note(self, found: TaskRecord) -> None:
        if found.state is Bucket.DELAY:
            self._on_create(found.score)


_read_changes = body_parser(TaskChanges)
_read_redriving = body_parser(RedriveRequest)
_read_purging = body_parser(PurgeRequest)


def _changes(body: bytes) -> TaskChanges:
    changes = _read_changes(body)
    if changes.id is None:
        raise refusal("id", None)
    check_id(changes.id)
    changes.require_any()
    return changes


def _weight(edit: TaskEdit) -> int:
    return len(edit.changes.content or "")


def _only_id(wanted: RedriveRequest) -> str:
    """Raises Refused: there is no id, or something that goes with a topic."""
    for field in RedriveRequest.__struct_fields__:
        if field != "id" and getattr(wanted, field) is not None:
            raise Refused(f"{field}: expected either an id alone, or a topic, got both", field)
    return check_id(wanted.id or "")


def _dead(name: str, wanted: RedriveRequest | PurgeRequest) -> BucketRange:
    """The dead of a topic that died when it is wanted. Raises Refused."""
    return BucketRange(
        topic=name,
        bucket=Bucket.DEAD,
        since=None if wanted.died_after is None else parse_time("died_after", wanted.died_after),
        before=None if wanted.died_before is None else parse_time("died_before", wanted.died_before),
    )


def _rate(rate: float | None) -> float | None:
    if rate is not None and not rate >= MIN_RATE:
        raise refusal("rate", rate)
    return rate


def _limit(limit: int | None) -> int | None:
    if limit is not None and limit < 1:
        raise refusal("limit", limit)
    return limit


def _purging(body: bytes) -> PurgeRequest:
    """What is to be removed; without a body, all that may be. Raises Refused."""
    purging = _read_purging(body) if body.strip() else PurgeRequest()
    for state in purging.states or ():
        if state == Bucket.UNACK:
            raise Refused('states: expected none but "delay", "error" and "dead": what is in flight stays', "states")
        if state not in PURGEABLE:
            raise Refused(f"states: expected {EXPECTED['states']}, got {describe(state)}", "states")
    if purging.states == []:
        raise Refused(f"states: expected {EXPECTED['states']}, got none", "states")
    for field in ("died_after", "died_before", "reason"):
        if getattr(purging, field) is not None and {*(purging.states or ["dead"])} != {"dead"}:
            raise Refused(f'{field}: expected it with "states": ["dead"] alone, for only the dead have died', field)
    return purging


def _stretches(dead: BucketRange, states: Sequence[str] | None) -> list[BucketRange]:
    """What to remove, where no reason is given. Of the dead only the stretch, and then nothing else."""
    if states is None:
        whole = dead.since is None and dead.before is None
        states = [*PURGEABLE] if whole else [Bucket.DEAD]
    return [dead._replace(bucket=bucket) for bucket in PURGEABLE if bucket in states]


def _answer(done: str, moved: MoveResult) -> web.StreamResponse:
    return json_response({done: moved.moved, "more": True} if moved.more else {done: moved.moved})
