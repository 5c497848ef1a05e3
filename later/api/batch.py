"""Many tasks in one call: each item is judged by itself, and what is good is done in one round trip.

A job counts what its batches came to, exactly, though a batch may have to be sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import TypeVar

import msgspec
import structlog
from aiohttp import web
from msgspec import UNSET, UnsetType

from later.api.batch_body import split_items
from later.api.load_shedding import PendingWrites
from later.api.problems import ErrorBody, error_body, problem_response
from later.api.schemas import (
    CreateResponse,
    DeleteResponse,
    TaskView,
    batch_create_result,
    body_too_large,
    json_response,
    parse_id,
    parse_switch,
    read_body,
    task_view,
)
from later.core.admit import admit
from later.core.drafts import parse_draft
from later.core.errors import Conflict, LaterError, NotFound, Refused, StoreDown, StoreFault
from later.core.task import Task, new_id
from later.core.validation import EXPECTED, check_id, describe
from later.metrics import Metrics
from later.store.open import Store
from later.store.types import JobBatch

MAX_BATCH_BYTES = 16 * 1024 * 1024
ITEMS_PER_TURN = 500
"""How many items are judged before others get a turn: a whole batch would hold up every other call."""

log = structlog.get_logger()

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class BatchItemError(msgspec.Struct, frozen=True):
    """An item that came to nothing."""

    error: ErrorBody


class BatchCreateResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `/create/batch`; `failed` is how many could not be stored now."""

    created: int
    existing: int
    refused: int
    failed: int
    results: list[CreateResponse | BatchItemError]


class BatchQueryResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `/query/batch`."""

    found: int
    missing: int
    refused: int
    failed: int
    results: list[TaskView | BatchItemError]


class BatchDeleteResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `/delete/batch`; `kept` is how many are dead and were left, where only pending ones were meant."""

    deleted: int
    missing: int
    kept: int | UnsetType = UNSET
    refused: int
    failed: int
    results: list[DeleteResponse | BatchItemError]


class JobResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What a job has come to."""

    job: str
    created: int
    existing: int
    refused: int


class BatchHandlers:
    """Handlers for many tasks at a time. `on_create` is told when a ticker must take up the earliest of them."""

    def __init__(
        self,
        *,
        store: Store,
        metrics: Metrics,
        max_body: int,
        remember_ms: int,
        pending_writes: PendingWrites,
        on_create: Callable[[int], None],
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._max_body = max_body
        self._remember_ms = remember_ms
        self._pending_writes = pending_writes
        self._on_create = on_create

    async def create(self, request: web.Request) -> web.StreamResponse:
        """`POST /create/batch`. With `dry_run`, only what would be refused is told, and nothing is stored."""
        job, dry_run = _job_of(request), parse_switch(request.query, "dry_run")
        body = await read_body(request, MAX_BATCH_BYTES)
        with self._pending_writes.reserve():
            policies = await self._store.policies.current()
        now = (await self._store.now()).high
        judged = await self._validate(request, body, lambda item: admit(parse_draft(item), policies, now, new_id()))
        if dry_run:
            return json_response(_dry_run_response(judged))
        batch = _counted(job, body, judged, now + self._remember_ms) if job else None
        answers = await self._call(judged, lambda tasks: self._store.tasks.create(tasks, batch))
        if batch is not None:
            await self._recount(batch, answers)
        return json_response(self._report_created(judged, answers))

    async def query(self, request: web.Request) -> web.StreamResponse:
        """`POST /query/batch`."""
        ids = await self._validate(request, await read_body(request, MAX_BATCH_BYTES), parse_id)
        answers = await self._call(ids, self._store.lookup.query)
        missing, refused, failed = _count_errors(answers)
        results = [_result(answer, task_view) for answer in answers]
        found = len(answers) - missing - refused - failed
        return json_response(
            BatchQueryResponse(found=found, missing=missing, refused=refused, failed=failed, results=results)
        )

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """`POST /delete/batch`. With `pending`, what is dead or has ended is left as it is."""
        pending = parse_switch(request.query, "pending")
        ids = await self._validate(request, await read_body(request, MAX_BATCH_BYTES), parse_id)
        answers = await self._call(ids, self._store.edits.delete_pending if pending else self._store.edits.delete)
        missing, refused, failed = _count_errors(answers)
        return json_response(
            BatchDeleteResponse(
                deleted=sum(isinstance(answer, str) for answer in answers),
                missing=missing,
                kept=sum(isinstance(answer, Conflict) for answer in answers) if pending else UNSET,
                refused=refused,
                failed=failed,
                results=[_result(answer, DeleteResponse) for answer in answers],
            )
        )

    async def job(self, request: web.Request) -> web.StreamResponse:
        """`GET /jobs/{id}`."""
        job = _checked_job(request.match_info["id"])
        try:
            counts = await self._store.bulk_jobs.counts(job)
        except NotFound:
            return problem_response(ErrorBody(status=404, detail=f'nothing is counted under the job "{job}"'))
        return json_response(
            JobResponse(job=job, created=counts.created, existing=counts.existing, refused=counts.refused)
        )

    async def _validate(
        self, request: web.Request, body: bytes, validate: Callable[[bytes], Item]
    ) -> list[Item | Refused]:
        """What each item of the body asks for, or why it is refused."""
        items = split_items(body, request.content_type)
        judged: list[Item | Refused] = []
        for start in range(0, len(items), ITEMS_PER_TURN):
            judged += [self._validate_one(item, validate) for item in items[start : start + ITEMS_PER_TURN]]
            await asyncio.sleep(0)
        return judged

    def _validate_one(self, item: bytes, validate: Callable[[bytes], Item]) -> Item | Refused:
        try:
            if len(item) > self._max_body:
                raise body_too_large(self._max_body)
            return validate(item)
        except Refused as error:
            return error

    def _report_created(
        self, validated: Sequence[Task | Refused], answers: Sequence[bool | LaterError]
    ) -> BatchCreateResponse:
        """Tell the figures, and the tickers, of what was created."""
        pairs = list(zip(validated, answers, strict=True))
        _, refused, failed = _count_errors(answers)
        created = [task for task, answer in pairs if isinstance(task, Task) and answer is True]
        existing = len(answers) - refused - failed - len(created)
        self._metrics.tasks_created.inc(len(created))
        self._metrics.tasks_duplicate.inc(existing)
        self._metrics.tasks_refused.inc(refused)
        if created:
            self._on_create(min(task.execute_at for task in created))
        results = [_create_result(task, answer) for task, answer in pairs]
        return BatchCreateResponse(
            created=len(created), existing=existing, refused=refused, failed=failed, results=results
        )

    async def _call(
        self,
        validated: Sequence[Item | Refused],
        verb: Callable[[list[Item]], Awaitable[list[Answer | LaterError]]],
    ) -> list[Answer | LaterError]:
        """Answers to all items: the verb's for the good ones, for the others their refusal."""
        good = [item for item in validated if not isinstance(item, Refused)]
        with self._pending_writes.reserve(len(good)):
            answers = iter(await verb(good))
        return [item if isinstance(item, Refused) else next(answers) for item in validated]

    async def _recount(self, batch: JobBatch, answers: Sequence[bool | LaterError]) -> None:
        """Take back what was counted of items that failed: they are sent again, perhaps in another batch."""
        failed = sum(isinstance(answer, LaterError) and not isinstance(answer, Refused) for answer in answers)
        if failed:
            with suppress(StoreDown):
                await self._store.bulk_jobs.count_batch(batch, len(answers) - batch.refused - failed)


def _dry_run_response(judged: Sequence[Task | Refused]) -> BatchCreateResponse:
    """What would come of a batch, but for what is known already: nobody has looked."""
    refused = sum(isinstance(item, Refused) for item in judged)
    results = [_create_result(item, False) for item in judged]
    return BatchCreateResponse(created=0, existing=0, refused=refused, failed=0, results=results)


def _counted(job: str, body: bytes, judged: Sequence[object], forget_at: int) -> JobBatch:
    refused = sum(isinstance(item, Refused) for item in judged)
    return JobBatch(job, blake2b(body, digest_size=12).digest(), refused, forget_at)


def _count_errors(answers: Sequence[object]) -> tuple[int, int, int]:
    """How many are missing, refused and failed.

    Raises:
        LaterError: the first failure, where nothing else came of it: then the whole batch may be sent again.
    """
    missing = sum(isinstance(answer, NotFound) for answer in answers)
    refused = sum(isinstance(answer, Refused) for answer in answers)
    failures = [a for a in answers if isinstance(a, LaterError) and not isinstance(a, NotFound | Refused | Conflict)]
    if failures and len(failures) + refused == len(answers):
        raise failures[0]
    faults = [failure for failure in failures if isinstance(failure, StoreFault)]
    if faults:
        log.error("batch items failed", items=len(faults), reason=str(faults[0]))
    return missing, refused, len(failures)


def _result(answer: Answer | LaterError, view: Callable[[Answer], Item]) -> Item | BatchItemError:
    return BatchItemError(error_body(answer)) if isinstance(answer, LaterError) else view(answer)


def _create_result(task: Task | Refused, answer: bool | LaterError) -> CreateResponse | BatchItemError:
    if isinstance(task, Refused):
        return BatchItemError(error_body(task))
    return BatchItemError(error_body(answer)) if isinstance(answer, LaterError) else batch_create_result(task, answer)


def _job_of(request: web.Request) -> str:
    """The job that the batch counts into, "" where there is none. Raises Refused."""
    job = request.query.get("job")
    return "" if job is None else _checked_job(job)


def _checked_job(job: str) -> str:
    try:
        return check_id(job)
    except Refused:
        raise Refused(f"job: expected {EXPECTED['id']}, got {describe(job)}", "job") from None
