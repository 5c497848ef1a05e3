"""Bulk jobs: the counts of one, and the list of them."""

from __future__ import annotations

from aiohttp import web
from msgspec import UNSET

from later.api.authorization import CALLER
from later.api.json_response import json_response
from later.api.load_shedding import PendingWrites
from later.api.paging import decode_cursor, encode_cursor, parse_cursor_id, parse_page_size
from later.api.problem_types import NO_SUCH_JOB
from later.api.problems import ErrorBody, problem_response
from later.api.requests import EXPECTED
from later.api.response_schemas import JobResponse, JobsResponse, ListedJobView
from later.core.caller import Caller
from later.core.clock import rfc3339
from later.core.errors import NotFound, Refused
from later.core.task_names import id_of, name_prefix
from later.core.validation import check_id, refusal
from later.store.open import Store
from later.store.types import JobPosition

MAX_TIME_MS = 2**53
"""A store keeps times exactly up to this."""


class JobHandlers:
    """Handlers of bulk jobs."""

    def __init__(self, store: Store, pending_writes: PendingWrites) -> None:
        self._store = store
        self._pending_writes = pending_writes

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET /jobs/{id}`. With `run`, answer the counts of that run alone."""
        job = request[CALLER].job_name(request.match_info["id"])
        run = check_id(request.query["run"], "run") if "run" in request.query else None
        try:
            counts = await self._store.bulk_jobs.counts(job, run)
        except NotFound:
            of_run = "" if run is None else f' and the run "{run}"'
            missing = ErrorBody(status=404, detail=f'nothing is counted under the job "{id_of(job)}"{of_run}')
            return problem_response(missing, NO_SUCH_JOB)
        return json_response(JobResponse(job=job, run=run or UNSET, **counts._asdict()))

    async def list_jobs(self, request: web.Request) -> web.StreamResponse:
        """`GET /jobs`: the job that is forgotten last first. A bound caller gets those of its namespace."""
        query, caller = request.query, request[CALLER]
        limit = parse_page_size(query.get("limit"))
        after = _parse_cursor(query["cursor"], caller) if "cursor" in query else None
        prefix = "" if caller.namespace is None else name_prefix(caller.namespace)
        with self._pending_writes.reserve():
            page = await self._store.job_list.page(limit, after, prefix)
        jobs = [
            ListedJobView(job=job.job, forgotten_at=rfc3339(job.forget_at), **job.counts._asdict()) for job in page.jobs
        ]
        return json_response(JobsResponse(jobs=jobs, cursor=page.read_to and _encode_position(page.read_to)))


def _encode_position(position: JobPosition) -> str:
    return encode_cursor(f"{position.forget_at} {position.name}")


def _parse_cursor(cursor: str, caller: Caller) -> JobPosition:
    """Return the position after which the next page begins.

    Raises:
        Refused: no answer to this caller had this cursor.
    """
    text, _, name = decode_cursor(cursor).partition(" ")
    try:
        position = JobPosition(int(text), name)
        if name:
            parse_cursor_id(name, caller)
    except (ValueError, Refused):
        raise refusal("cursor", cursor, EXPECTED["cursor"]) from None
    if _encode_position(position) != cursor or not 0 <= position.forget_at < MAX_TIME_MS:
        raise refusal("cursor", cursor, EXPECTED["cursor"])
    return position
