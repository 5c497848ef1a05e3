"""`?job=ID` and `GET /jobs/{id}`: what a job has come to, whatever was sent twice."""

from __future__ import annotations

import pytest

from later.core.errors import StoreDown
from later.store.bulk_jobs import BulkJobs
from tests.api.frontend import DAY_MS, Frontend, bad, came_to, ids_of_shards, named, serve_frontend
from tests.builders import NOW


async def test_a_batch_is_counted_into_its_job(frontend: Frontend) -> None:
    await frontend.post("/create/batch?job=j:1&other=x", [*named("a", "b", "a"), {}])
    assert await frontend.get("/jobs/j:1") == came_to(job="j:1", created=2, existing=1, refused=1)


async def test_what_is_sent_twice_counts_once(frontend: Frontend) -> None:
    for _ in range(3):
        await frontend.post("/create/batch?job=j", [*named("a", "b", "a"), {}])
    await frontend.post("/create/batch?job=j", named("b", "c"))
    assert await frontend.get("/jobs/j") == came_to(job="j", created=3, existing=2, refused=1)


async def test_a_batch_that_failed_in_part_is_counted_exactly_once_it_got_through() -> None:
    async with serve_frontend(shards=2) as frontend:
        here, gone = ids_of_shards(frontend)
        job = here
        batch = [*named(here, gone), {}]
        frontend.client.away = [1]
        assert (await frontend.post(f"/create/batch?job={job}", batch))[1]["failed"] == 1
        frontend.client.away = []
        assert await frontend.get(f"/jobs/{job}") == came_to(job=job, created=1, existing=0, refused=1)
        assert (await frontend.post(f"/create/batch?job={job}", batch))[1]["created"] == 1
        assert await frontend.get(f"/jobs/{job}") == came_to(job=job, created=2, existing=0, refused=1)


async def test_a_batch_that_was_stored_is_no_503_where_its_failed_items_cannot_be_counted_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def count(*_: object) -> None:
        raise StoreDown("the store is gone")

    async with serve_frontend(shards=2) as frontend:
        here, gone = ids_of_shards(frontend)
        frontend.client.away = [1]
        monkeypatch.setattr(BulkJobs, "count_batch", count)
        status, answer = await frontend.post("/create/batch?job=j", named(here, gone))
    assert (status, answer["created"], answer["failed"]) == (200, 1, 1)


async def test_it_is_kept_as_long_as_ids_are_remembered(frontend: Frontend) -> None:
    await frontend.post("/create/batch?job=j", named("a"))
    score = await frontend.client.execute("test", ("ZSCORE", frontend.keys.shards[0].jobs, "j"))
    assert int(float(score)) == NOW + 7 * DAY_MS


async def test_a_batch_without_a_job_is_counted_nowhere(frontend: Frontend) -> None:
    await frontend.post("/create/batch", named("a"))
    assert await frontend.client.execute("test", ("ZCARD", frontend.keys.shards[0].jobs)) == 0


async def test_a_job_that_is_none_is_404(frontend: Frontend) -> None:
    detail = 'nothing is counted under the job "j"'
    problem = {"type": "about:blank", "title": "Not Found", "status": 404, "detail": detail}
    assert await frontend.get("/jobs/j") == (404, problem)


@pytest.mark.parametrize(("job", "shown"), [("", '""'), ("a%20b", '"a b"'), ("%C3%A9", '"é"')])
async def test_a_jobs_name_is_made_like_an_id(frontend: Frontend, job: str, shown: str) -> None:
    refusal = bad(f"job: expected 1 to 128 characters of A-Za-z0-9._~:-, got {shown}", "job")
    assert await frontend.post(f"/create/batch?job={job}", named("a")) == refusal
    assert (await frontend.post("/query", {"id": "a"}))[0] == 404
    if job:
        assert await frontend.get(f"/jobs/{job}") == refusal
