"""The calls for many tasks: each item is validated by itself, and the valid items share one round trip.

A bulk job counts what its batches created exactly, even if a batch has to be sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec
from aiohttp import web
from msgspec import UNSET

from later.api.authorization import CALLER
from later.api.batch_body import split_items
from later.api.batch_levels import CreateLevels, confirm_deletes
from later.api.callback_check import CallbackCheck
from later.api.due_signals import DueSignals
from later.api.durable_writes import DurableWrites
from later.api.item_results import change_result, count_errors, item_result, stored_item_error
from later.api.json_response import json_response
from later.api.load_shedding import PendingWrites
from later.api.problems import error_body
from later.api.requests import body_too_large, parse_id, parse_switch, read_body
from later.api.response_schemas import (
    BatchCreateResponse,
    BatchDeleteResponse,
    BatchItemError,
    BatchQueryResponse,
    CreateResponse,
    StoredItemError,
    created_warning,
    deletion_view,
    due_time,
)
from later.api.routes import AUTHORIZATION
from later.api.task_answers import ANSWER_FULL, BytesInAnswers, TaskAnswer, send
from later.api.task_creation import carry_out
from later.api.trace_headers import context_of, context_to_keep
from later.core.admit import admit
from later.core.clock import rfc3339
from later.core.durability import PRIMARY, Durability, parse_durability
from later.core.errors import Conflict, Denied, LaterError, NotDurable, PolicyRefusal, Refused, StoreDown
from later.core.if_exists import Creation, creation_of
from later.core.json_body import parse_draft
from later.core.policy_scopes import Policies
from later.core.task import Task, new_id
from later.core.validation import check_id
from later.metrics import Metrics
from later.store.bulk_jobs import batch_digest
from later.store.open import Store
from later.store.types import CreateResult, Deletion, JobBatch, UpdatedTask

if TYPE_CHECKING:
    from later.tracing.spans import CreateSpan, SpanRecorder

MAX_BATCH_BYTES = 16 * 1024 * 1024
ITEMS_PER_TURN = 500
"""Items validated before other requests get a turn. A whole batch at once would delay every other call."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class BatchHandlers:
    """Handlers of calls for many tasks."""

    def __init__(
        self,
        *,
        store: Store,
        metrics: Metrics,
        callback_check: CallbackCheck,
        max_body: int,
        remember_ms: int,
        pending_writes: PendingWrites,
        bytes_in_answers: BytesInAnswers,
        signals: DueSignals,
        durable_writes: DurableWrites,
        keeps_trace_context: bool,
        span_recorder: SpanRecorder | None,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._check_callback = callback_check.check
        self._max_body = max_body
        self._remember_ms = remember_ms
        self._pending_writes = pending_writes
        self._bytes_in_answers = bytes_in_answers
        self._signals = signals
        self._durable_writes = durable_writes
        self._keeps_trace_context = keeps_trace_context
        self._span_recorder = span_recorder

    async def create(self, request: web.Request) -> web.StreamResponse:
        """`POST /create/batch`. With `dry_run`, answer what would be refused and store nothing.

        With `job`, count the batch into that job; with `run`, also into that run of it.
        """
        if self._span_recorder is None or parse_switch(request.query, "dry_run"):
            return await self._create_all(request, None)
        span = self._span_recorder.begin_create(context_of(request), is_kept=self._keeps_trace_context)
        try:
            return await self._create_all(request, span)
        finally:
            span.end()

    async def _create_all(self, request: web.Request, span: CreateSpan | None) -> web.StreamResponse:
        """Create the tasks of a batch, within the span if there is one."""
        caller, query = request[CALLER], request.query
        job = caller.own_job(query["job"]) if "job" in query else None
        run = check_id(query["run"], "run") if "run" in query else None
        if run is not None and job is None:
            raise Refused("run: expected the parameter job with it", "run")
        dry_run, levels = parse_switch(query, "dry_run"), CreateLevels(self._durable_writes, query.get("durability"))
        items = await _read_items(request)
        with self._pending_writes.reserve(len(items)):
            policies = await self._store.policies.current()
            now = (await self._store.time.now()).high
            trace = context_to_keep(request) if self._keeps_trace_context else b""
            others = dict[int, Creation]()  # those that do not keep what is there, by the identities of their tasks

            def admit_item(policies: Policies, item: bytes) -> Task:
                draft = levels.with_asked(parse_draft(item))
                task = self._store.away_shards.draw(
                    lambda: admit(draft, policies, now, draft.id or new_id(), caller, trace_context=trace)
                )
                self._check_callback(task.callback)
                if span is not None:
                    task = span.join(task)
                creation = creation_of(draft, task, policies, in_job=job is not None)
                if creation is not task:
                    others[id(task)] = creation
                levels.note(draft, task, policies)
                return task

            tasks = await self._admit(items, policies, admit_item)
            for denial in [task for task in tasks if isinstance(task, Denied)]:
                request.app[AUTHORIZATION].note_denial(request, denial)
            refused = sum(isinstance(task, Refused) for task in tasks)
            await levels.begin()
            if dry_run:
                results: list[CreateResponse | BatchItemError | StoredItemError] = list(map(_preview, tasks))
                return json_response(
                    BatchCreateResponse(created=0, existing=0, refused=refused, failed=0, results=results)
                )
            batch, counted = None, levels.as_counted(tasks)
            if job is not None:
                batch = JobBatch(job, batch_digest(items, counted), refused, now + self._remember_ms, run)
            create = partial(self._carry_out, others) if others else partial(self._create, batch)
            answers = await _call_for_valid(tasks, create)
        if span is not None:
            span.note_stored()
        reached, confirmed = await levels.confirm(tasks, answers)
        if batch is not None:
            with suppress(StoreDown):
                await self._store.bulk_jobs.uncount_failed(batch, items, counted, confirmed)
        return json_response(self._finish_create(tasks, answers, confirmed, reached))

    async def _create(self, batch: JobBatch | None, tasks: Sequence[Task]) -> list[CreateResult | LaterError]:
        """Store tasks, count them into the job of the batch, and signal the new ones."""
        results = await self._store.tasks.create(tasks, batch)
        if created := [task for task, result in zip(tasks, results, strict=True) if result is True]:
            self._signals.tasks_created(created)
        return results

    async def _carry_out(
        self, others: Mapping[int, Creation], tasks: Sequence[Task]
    ) -> list[CreateResult | LaterError]:
        """Store tasks, each as its create says."""
        return await carry_out(self._store, self._signals, [others.get(id(task), task) for task in tasks])

    async def query(self, request: web.Request) -> web.StreamResponse:
        """`POST /query/batch`."""
        items = await _read_items(request)
        with self._bytes_in_answers.open_answer() as task_answer:
            with self._pending_writes.reserve(len(items)):
                ids = await self._validate(items, partial(parse_id, caller=request[CALLER]))
                known = await self._query([id for id in ids if isinstance(id, str)], task_answer)
            answers = _answers_of_items(ids, known, task_answer)
            errors = count_errors(answers)
            left_out = answers.count(None)
            response = BatchQueryResponse(
                found=len(answers) - sum(errors) - left_out,
                missing=errors.missing,
                refused=errors.refused,
                failed=errors.failed,
                left_out=left_out or UNSET,
                results=[
                    BatchItemError(ANSWER_FULL) if a is None else item_result(a, lambda raw: raw) for a in answers
                ],
            )
            return await send(request, json_response(response))

    async def _query(self, ids: Sequence[str], task_answer: TaskAnswer) -> dict[str, msgspec.Raw | LaterError | None]:
        """Return the task as JSON, None if it does not fit, or an error, by id. A full answer ends the reading."""
        known: dict[str, msgspec.Raw | LaterError | None] = {}
        async with aclosing(self._store.lookup.query_in_slices(ids)) as slices:
            async for records in slices:
                for id, record in records.items():
                    known[id] = record if isinstance(record, LaterError) else task_answer.add(record)
                if any(known[id] is None for id in records):
                    break
        return known

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """`POST /delete/batch`. With `pending`, leave tasks that are dead or have ended; with `dry_run`, leave all."""
        pending, edits = parse_switch(request.query, "pending"), self._store.edits
        asked, is_preview = parse_durability(request.query.get("durability")), parse_switch(request.query, "dry_run")
        changes = await self._durable_writes.begin_change(asked)
        if is_preview:
            call = edits.preview_delete_pending if pending else edits.preview_delete
        else:
            call = edits.delete_pending if pending else edits.delete
        names, answers = await self._call_by_name(request, call)
        reached = PRIMARY
        if not is_preview:
            reached, answers = await confirm_deletes(self._durable_writes, names, answers, asked, changes)
        errors = count_errors(answers)
        deletions = [answer for answer in answers if isinstance(answer, Deletion)]
        ended = sum(deletion.ended for deletion in deletions)
        return json_response(
            BatchDeleteResponse(
                deleted=len(deletions) - ended,
                in_flight=sum(deletion.in_flight for deletion in deletions),
                ended=ended,
                missing=errors.missing,
                kept=sum(isinstance(answer, Conflict) for answer in answers) if pending else UNSET,
                refused=errors.refused,
                failed=errors.failed,
                durability=UNSET if reached is PRIMARY else reached,
                results=[change_result(answer, deletion_view) for answer in answers],
            )
        )

    async def _call_by_name(
        self, request: web.Request, call: Callable[[list[str]], Awaitable[list[Answer | LaterError]]]
    ) -> tuple[list[str | Refused], list[Answer | LaterError]]:
        """Call the store with the names of a batch; return them, and an answer or an error for each item."""
        items = await _read_items(request)
        with self._pending_writes.reserve(len(items)):
            names = await self._validate(items, partial(parse_id, caller=request[CALLER]))
            return names, await _call_for_valid(names, call)

    async def _admit(
        self, items: Sequence[bytes], policies: Policies, admit_item: Callable[[Policies, bytes], Task]
    ) -> list[Task | Refused]:
        """Return each item as a task, or its refusal; those that a policy refuses are judged again by one read anew."""
        tasks = await self._validate(items, partial(admit_item, policies))
        refused = [position for position, task in enumerate(tasks) if isinstance(task, PolicyRefusal)]
        if refused and (reread := await self._store.policies.reread()) is not policies:
            again = await self._validate([items[position] for position in refused], partial(admit_item, reread))
            for position, task in zip(refused, again, strict=True):
                tasks[position] = task
        return tasks

    async def _validate(self, items: Sequence[bytes], parse: Callable[[bytes], Item]) -> list[Item | Refused]:
        """Return each item parsed, or its refusal."""
        validated: list[Item | Refused] = []
        for number, item in enumerate(items, start=1):
            try:
                if len(item) > self._max_body:
                    raise body_too_large(self._max_body)
                validated.append(parse(item))
            except Refused as error:
                validated.append(error)
            if number % ITEMS_PER_TURN == 0:
                await asyncio.sleep(0)
        return validated

    def _finish_create(
        self,
        tasks: Sequence[Task | Refused],
        answers: Sequence[CreateResult | LaterError],
        confirmed: Sequence[CreateResult | LaterError],
        reached: Durability,
    ) -> BatchCreateResponse:
        """Count the items in the metrics, and return the answer; those that missed their level count as failed."""
        others = [answer for answer in confirmed if answer is not True]
        created = len(answers) - len(others)
        errors = count_errors(others, created)
        conflicts = sum(isinstance(answer, Conflict) for answer in others)
        existing = len(answers) - errors.refused - errors.failed - conflicts - created
        self._metrics.count_created(
            task.topic
            for task, answer in zip(tasks, answers, strict=True)
            if answer is True and not isinstance(task, Refused)
        )
        self._metrics.tasks_duplicate.inc(existing + conflicts)
        self._metrics.tasks_refused.inc(errors.refused)
        return BatchCreateResponse(
            created=created,
            existing=existing,
            updated=sum(isinstance(answer, UpdatedTask) for answer in others) or UNSET,
            refused=errors.refused + conflicts,
            failed=errors.failed,
            durability=UNSET if reached is PRIMARY else reached,
            results=[
                _create_result(task, answer)
                if answer is confirmed_answer
                else _missed_result(task, answer, confirmed_answer)
                for task, answer, confirmed_answer in zip(tasks, answers, confirmed, strict=True)
            ],
        )


async def _read_items(request: web.Request) -> list[bytes]:
    """Return the items of a batch, which count against the rate of the caller's key. Raises Refused."""
    items = split_items(await read_body(request, MAX_BATCH_BYTES), request.content_type)
    request.app[AUTHORIZATION].charge_batch(request[CALLER], len(items))
    return items


async def _call_for_valid(
    items: Sequence[Item | Refused], call: Callable[[list[Item]], Awaitable[list[Answer]]]
) -> list[Answer | Refused]:
    """Call the store with the valid items, and return an answer or an error for each item."""
    answers = iter(await call([item for item in items if not isinstance(item, Refused)]))
    return [item if isinstance(item, Refused) else next(answers) for item in items]


def _answers_of_items(
    ids: Sequence[str | Refused], known: Mapping[str, msgspec.Raw | LaterError | None], task_answer: TaskAnswer
) -> list[msgspec.Raw | LaterError | None]:
    """Return the task, None if it does not fit in the answer, or an error, for each item of a batch."""
    answers: list[msgspec.Raw | LaterError | None] = []
    placed = set[str]()
    for id in ids:
        answer = id if isinstance(id, Refused) else known.get(id)
        if isinstance(id, str) and isinstance(answer, msgspec.Raw):
            if id in placed and not task_answer.reserve(answer):
                answer = None  # an id that stands twice is in the answer twice
            placed.add(id)
        answers.append(answer)
    return answers


def _preview(task: Task | Refused) -> CreateResponse | BatchItemError:
    """Return the result of an item of a dry run."""
    if isinstance(task, Refused):
        return BatchItemError(error_body(task))
    return CreateResponse(
        id=task.id, due_at=rfc3339(task.execute_at), created=False, warning=created_warning(task, created=True)
    )


def _missed_result(
    task: Task | Refused, answer: CreateResult | LaterError, error: CreateResult | LaterError
) -> StoredItemError:
    """Return the result of an item that has not reached its durability."""
    assert isinstance(task, Task)
    assert isinstance(error, NotDurable)
    return stored_item_error(error, task.id, created=answer is True)


def _create_result(task: Task | Refused, answer: CreateResult | LaterError) -> CreateResponse | BatchItemError:
    if isinstance(task, Refused):
        return BatchItemError(error_body(task))
    if isinstance(answer, LaterError):
        return BatchItemError(error_body(answer))
    created = answer is True
    return CreateResponse(
        id=task.id,
        due_at=due_time(task, answer),
        created=created,
        updated=isinstance(answer, UpdatedTask) or UNSET,
        warning=created_warning(task, created),
    )
