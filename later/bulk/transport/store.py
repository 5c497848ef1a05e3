"""The transport to the store itself: it admits tasks by the same code as the API, and runs the same scripts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import NamedTuple, TypeVar

from later.client.transport import BatchResult, CreateCounts, ItemError, TaskStatus
from later.core.admission_limits import AdmissionLimits
from later.core.admit import admit
from later.core.clock import Clock
from later.core.errors import Conflict, LaterError, NotFound, PolicyRefusal, Refused, StoreDown, TooLarge, Unavailable
from later.core.json_body import parse_draft
from later.core.policy_scopes import Policies
from later.core.task import Task, new_id
from later.store.admission import read_limits
from later.store.away_shards import AwayShards
from later.store.bulk_jobs import batch_digest
from later.store.keys import Bucket
from later.store.open import open_existing_store
from later.store.policies import PolicyBook
from later.store.settings import StoreSettings
from later.store.types import Deletion, ExistingTask, JobBatch, TaskRecord

Result = TypeVar("Result")


class _Admission(NamedTuple):
    """The daemons' limits, and the policies over theirs."""

    limits: AdmissionLimits
    policies: PolicyBook


class StoreTransport:
    """A `Transport` to the store with these settings, for one job, or for one run of it.

    Tasks are admitted by the policies set in the store and, below them, by the options of the daemon that wrote them
    into the store last.
    """

    def __init__(self, settings: StoreSettings, job: str, run: str | None = None) -> None:
        self._settings = settings
        self._job = job
        self._run_id = run
        self._admission: _Admission | None = None
        self._runner = asyncio.Runner()
        try:
            self._store = self._run(open_existing_store(settings, Clock(time.monotonic, time.time)))
        except BaseException:
            self._runner.close()
            raise

    def create(self, bodies: Sequence[bytes]) -> BatchResult:
        return self._run(self._create(bodies))

    def validate(self, bodies: Sequence[bytes]) -> BatchResult:
        items = self._run(self._admit(bodies))
        return BatchResult(0, [], {i: _item_error(item) for i, item in enumerate(items) if isinstance(item, Refused)})

    def query(self, ids: Sequence[str]) -> list[TaskStatus | ItemError]:
        return self._run(self._query(ids))

    def cancel(self, ids: Sequence[str]) -> list[TaskStatus | ItemError]:
        return [_task_status(answer) for answer in self._run(self._store.edits.delete_pending(ids))]

    def counts(self) -> CreateCounts:
        try:
            return CreateCounts(*self._run(self._store.bulk_jobs.counts(self._job, self._run_id)))
        except NotFound:
            return CreateCounts()

    def close(self) -> None:
        try:
            self._run(self._store.aclose())
        finally:
            self._runner.close()

    async def _read_admission(self) -> _Admission:
        """Return by what tasks are admitted. Raises LaterError if no daemon has written it into the store."""
        if self._admission is None:
            store = self._store
            limits = await read_limits(store.client.execute_each, self._settings.prefix)
            if limits is None:
                raise LaterError(
                    "no daemon has written into the store by which options it admits tasks: start `later up` or "
                    "`later serve` of this version on it once, or use the daemon's URL"
                )
            policies = PolicyBook(store.client, store.keys, limits.policy, store.clock.monotonic)
            self._admission = _Admission(limits, policies)
        return self._admission

    async def _query(self, ids: Sequence[str]) -> list[TaskStatus | ItemError]:
        statuses: dict[str, TaskStatus | ItemError] = {}
        async for found in self._store.lookup.query_in_slices(ids):
            statuses |= {id: _task_status(answer) for id, answer in found.items()}  # the bodies are not kept
        return [statuses[id] for id in ids]

    async def _admit(self, bodies: Sequence[bytes]) -> list[Task | Refused]:
        limits, book = await self._read_admission()
        policies = await book.current()
        await self._store.time.measure()  # otherwise its error would grow by the minute, and delay tasks by as much
        now = self._store.clock.now().high
        away_shards = self._store.away_shards
        items = [_admit_body(body, limits.max_body, policies, now, away_shards) for body in bodies]
        if any(isinstance(item, PolicyRefusal) for item in items) and (reread := await book.reread()) is not policies:
            items = [
                _admit_body(body, limits.max_body, reread, now, away_shards)
                if isinstance(item, PolicyRefusal)
                else item
                for body, item in zip(bodies, items, strict=True)
            ]
        return items

    async def _create(self, bodies: Sequence[bytes]) -> BatchResult:
        items = await self._admit(bodies)
        limits, _ = await self._read_admission()
        tasks = [item for item in items if isinstance(item, Task)]
        forget_at = self._store.clock.now().high + limits.remember_ms
        batch = JobBatch(self._job, batch_digest(bodies, items), len(bodies) - len(tasks), forget_at, self._run_id)
        answers = iter(await self._store.tasks.create(tasks, batch))
        results = [next(answers) if isinstance(item, Task) else item for item in items]
        await self._store.bulk_jobs.uncount_failed(batch, bodies, items, results)
        errors = {i: _item_error(result) for i, result in enumerate(results) if isinstance(result, LaterError)}
        existing = [i for i, result in enumerate(results) if isinstance(result, ExistingTask)]
        return BatchResult(sum(result is True for result in results), existing, errors)

    def _run(self, call: Awaitable[Result]) -> Result:
        async def wait() -> Result:
            return await call

        try:
            return self._runner.run(wait())
        except StoreDown as error:
            raise Unavailable(str(error)) from error


def _admit_body(body: bytes, max_body: int, policies: Policies, now: int, away_shards: AwayShards) -> Task | Refused:
    """Return the task that a body requests at `now` (ms), or its refusal."""
    try:
        if len(body) > max_body:
            raise TooLarge(f"expected a body of at most {max_body} bytes")
        draft = parse_draft(body)
        return away_shards.draw(lambda: admit(draft, policies, now, draft.id or new_id()))
    except Refused as error:
        return error


def _item_error(error: LaterError) -> ItemError:
    match error:
        case Refused():
            return ItemError(413 if isinstance(error, TooLarge) else 400, error.field, error.detail)
        case StoreDown():
            return ItemError(503, None, str(error))
        case _:
            return ItemError(500, None, str(error))


def _task_status(answer: TaskRecord | Deletion | LaterError) -> TaskStatus | ItemError:
    """Return the status from the answer to a query or to a deletion of a task that was pending."""
    match answer:
        case Deletion(in_flight=True):
            return TaskStatus.IN_FLIGHT
        case NotFound():
            return TaskStatus.ENDED if answer.ended else TaskStatus.MISSING
        case Conflict() | TaskRecord(state=Bucket.DEAD):
            return TaskStatus.DEAD
        case LaterError():
            return _item_error(answer)
        case _:
            return TaskStatus.PENDING
