"""By the store itself: the same `admit` as the API's, the same scripts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

from later.client.transport import BatchResult, Counts, ItemError, TaskStatus, Unavailable
from later.core.admit import admit
from later.core.clock import Clock
from later.core.errors import Conflict, LaterError, NotFound, Refused, StoreDown, TooLarge
from later.core.parsing import parse_draft
from later.core.task import Task, new_id
from later.store.keys import Bucket
from later.store.open import open_existing_store
from later.store.settings import StoreSettings
from later.store.types import JobBatch, TaskRecord

REMEMBER_MS = 7 * 86_400_000
"""How long a job's counts are kept."""
MAX_BODY = 1024 * 1024
"""As large as a body may be where nobody says otherwise."""

Result = TypeVar("Result")


class StoreTransport:
    """Writes to the store at `place` for one job. Tasks are judged by the policies that are set in the store, and

    below them by later's own defaults: what a daemon was told by its flags is not known here.
    """

    def __init__(self, place: StoreSettings, job: str) -> None:
        self._job = job
        self._runner = asyncio.Runner()
        try:
            self._store = self._run(open_existing_store(place, Clock(time.monotonic, time.time)))
        except BaseException:
            self._runner.close()
            raise

    def create(self, bodies: Sequence[bytes]) -> BatchResult:
        return self._run(self._create(bodies))

    def judge(self, bodies: Sequence[bytes]) -> BatchResult:
        judged = self._run(self._judge(bodies))
        return BatchResult(0, 0, {i: _wrong(error) for i, error in enumerate(judged) if isinstance(error, Refused)})

    def find(self, ids: Sequence[str]) -> list[TaskStatus | ItemError]:
        return [_found(answer) for answer in self._run(self._store.lookup.query(ids))]

    def cancel(self, ids: Sequence[str]) -> list[TaskStatus | ItemError]:
        return [_cancelled(answer) for answer in self._run(self._store.edits.delete_pending(ids))]

    def counts(self) -> Counts:
        try:
            return Counts(*self._run(self._store.bulk_jobs.counts(self._job)))
        except NotFound:
            return Counts()

    def close(self) -> None:
        try:
            self._run(self._store.aclose())
        finally:
            self._runner.close()

    async def _judge(self, bodies: Sequence[bytes]) -> list[Task | Refused]:
        policies = await self._store.policies.current()
        await self._store.measure_time()  # or what is known of it grows vaguer, and tasks later, by the minute
        now = self._store.clock.now().high
        return [_judged(body, lambda draft: admit(draft, policies, now, new_id())) for body in bodies]

    async def _create(self, bodies: Sequence[bytes]) -> BatchResult:
        judged = await self._judge(bodies)
        tasks = [task for task in judged if isinstance(task, Task)]
        batch = self._batch(bodies, len(bodies) - len(tasks))
        answers = iter(await self._store.tasks.create(tasks, batch))
        results = [next(answers) if isinstance(task, Task) else task for task in judged]
        wrong = {i: _wrong(result) for i, result in enumerate(results) if isinstance(result, LaterError)}
        failed = sum(fault.may_pass for fault in wrong.values())
        if failed:
            await self._store.bulk_jobs.count_batch(batch, len(tasks) - failed)
        return BatchResult(sum(result is True for result in results), sum(result is False for result in results), wrong)

    def _batch(self, bodies: Sequence[bytes], refused: int) -> JobBatch:
        digest = blake2b(b"\n".join(bodies), digest_size=12).digest()
        return JobBatch(self._job, digest, refused, self._store.clock.now().high + REMEMBER_MS)

    def _run(self, call: Awaitable[Result]) -> Result:
        async def waited() -> Result:
            return await call

        work: Coroutine[Any, Any, Result] = waited()
        try:
            return self._runner.run(work)
        except StoreDown as error:
            raise Unavailable(str(error)) from error


def _judged(body: bytes, judge: Callable[[Any], Task]) -> Task | Refused:
    try:
        if len(body) > MAX_BODY:
            raise TooLarge(f"expected a body of at most {MAX_BODY} bytes")
        return judge(parse_draft(body))
    except Refused as error:
        return error


def _wrong(error: LaterError) -> ItemError:
    match error:
        case Refused():
            return ItemError(413 if isinstance(error, TooLarge) else 400, error.field, error.detail)
        case StoreDown():
            return ItemError(503, None, str(error))
        case _:
            return ItemError(500, None, str(error))


def _found(answer: TaskRecord | LaterError) -> TaskStatus | ItemError:
    if isinstance(answer, TaskRecord):
        return TaskStatus.DEAD if answer.state is Bucket.DEAD else TaskStatus.PENDING
    return _absent(answer)


def _cancelled(answer: str | LaterError) -> TaskStatus | ItemError:
    if isinstance(answer, str):
        return TaskStatus.PENDING
    return TaskStatus.DEAD if isinstance(answer, Conflict) else _absent(answer)


def _absent(error: LaterError) -> TaskStatus | ItemError:
    if isinstance(error, NotFound):
        return TaskStatus.ENDED if error.ended else TaskStatus.MISSING
    return _wrong(error)
