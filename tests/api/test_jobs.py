"""`?job=ID` and `GET /jobs/{id}`: the exact counts of a bulk job, even if batches are sent twice."""

from __future__ import annotations

import pytest

from later.core.errors import StoreDown
from later.store.bulk_jobs import BulkJobs
from tests.api.frontend import DAY_MS, Frontend, bad_request, creates, ids_by_shard, ok, serve_frontend
from tests.builders import NOW


async def test_a_batch_is_counted_into_its_job(frontend: Frontend) -> None:
    await frontend.post("/create/batch?job=j:1&other=x", [*creates("a", "b", "a"), {}])
    assert await frontend.get("/jobs/j:1") == ok(job="j:1", created=2, existing=1, refused=1)


async def test_a_batch_sent_twice_counts_once(frontend: Frontend) -> None:
    for _ in range(3):
        await frontend.post("/create/batch?job=j", [*creates("a", "b", "a"), {}])
    await frontend.post("/create/batch?job=j", creates("b", "c"))
    assert await frontend.get("/jobs/j") == ok(job="j", created=3, existing=2, refused=1)


async def test_a_partly_failed_batch_is_counted_exactly_after_it_succeeds() -> None:
    async with serve_frontend(shards=2) as frontend:
        here, gone = ids_by_shard(frontend)
        job = here
        batch = [*creates(here, gone), {}]
        frontend.client.shards_down = [1]
        assert (await frontend.post(f"/create/batch?job={job}", batch))[1]["failed"] == 1
        frontend.client.shards_down = []
        assert await frontend.get(f"/jobs/{job}") == ok(job=job, created=1, existing=0, refused=1)
        assert (await frontend.post(f"/create/batch?job={job}", batch))[1]["created"] == 1
        assert await frontend.get(f"/jobs/{job}") == ok(job=job, created=2, existing=0, refused=1)


async def test_a_stored_batch_is_not_503_if_its_failed_items_cannot_be_uncounted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def count(*_: object) -> None:
        raise StoreDown("the store is gone")

    async with serve_frontend(shards=2) as frontend:
        here, gone = ids_by_shard(frontend)
        frontend.client.shards_down = [1]
        monkeypatch.setattr(BulkJobs, "count_batch", count)
        status, answer = await frontend.post("/create/batch?job=j", creates(here, gone))
    assert (status, answer["created"], answer["failed"]) == (200, 1, 1)


async def test_a_job_is_kept_as_long_as_ids_are_remembered(frontend: Frontend) -> None:
    await frontend.post("/create/batch?job=j", creates("a"))
    score = await frontend.client.execute("test", ("ZSCORE", frontend.keys.shards[0].jobs, "j"))
    assert int(float(score)) == NOW + 7 * DAY_MS


async def test_a_batch_without_a_job_is_not_counted(frontend: Frontend) -> None:
    await frontend.post("/create/batch", creates("a"))
    assert await frontend.client.execute("test", ("ZCARD", frontend.keys.shards[0].jobs)) == 0


async def test_an_unknown_job_is_404(frontend: Frontend) -> None:
    detail = 'nothing is counted under the job "j"'
    problem = {"type": "about:blank", "title": "Not Found", "status": 404, "detail": detail}
    assert await frontend.get("/jobs/j") == (404, problem)


@pytest.mark.parametrize(("job", "shown"), [("", '""'), ("a%20b", '"a b"'), ("%C3%A9", '"é"')])
async def test_a_jobs_name_has_the_form_of_an_id(frontend: Frontend, job: str, shown: str) -> None:
    refusal = bad_request(f"job: expected 1 to 128 characters of A-Za-z0-9._~:-, got {shown}", "job")
    assert await frontend.post(f"/create/batch?job={job}", creates("a")) == refusal
    assert (await frontend.post("/query", {"id": "a"}))[0] == 404
    if job:
        assert await frontend.get(f"/jobs/{job}") == refusal
