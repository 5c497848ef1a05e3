"""`?job=ID` and `GET /jobs/{id}`: the exact counts of a bulk job, even if batches are sent twice."""

from __future__ import annotations

from base64 import b64decode

import pytest

from later.core.clock import rfc3339
from later.core.errors import StoreDown
from later.store.bulk_jobs import BulkJobs
from tests.api.api_fixture import DAY_MS, ApiFixture, bad_request, create_bodies, id_per_shard, ok, serve_api
from tests.api.callers import NamedCallers, Tenant
from tests.builders import NOW
from tests.cases import each_case


async def test_a_batch_is_counted_into_its_job(api: ApiFixture) -> None:
    await api.post("/create/batch?job=j:1", [*create_bodies("a", "b", "a"), {}])
    assert await api.get("/jobs/j:1") == ok(job="j:1", created=2, existing=1, refused=1)


async def test_a_batch_sent_twice_counts_once(api: ApiFixture) -> None:
    for _ in range(3):
        await api.post("/create/batch?job=j", [*create_bodies("a", "b", "a"), {}])
    await api.post("/create/batch?job=j", create_bodies("b", "c"))
    assert await api.get("/jobs/j") == ok(job="j", created=3, existing=2, refused=1)


async def test_a_partly_failed_batch_is_counted_exactly_after_it_succeeds() -> None:
    async with serve_api(shards=2) as api:
        up, down = id_per_shard(api)
        job = up
        batch = [*create_bodies(up, down), {}]
        api.client.shards_down = [1]
        assert (await api.post(f"/create/batch?job={job}", batch))[1]["failed"] == 1
        api.client.shards_down = []
        assert await api.get(f"/jobs/{job}") == ok(job=job, created=1, existing=0, refused=1)
        assert (await api.post(f"/create/batch?job={job}", batch))[1]["created"] == 1
        assert await api.get(f"/jobs/{job}") == ok(job=job, created=2, existing=0, refused=1)


async def test_existing_items_count_once_after_a_partial_failure() -> None:
    """The failed items are sent again alone, and then the whole batch."""
    async with serve_api(shards=2) as api:
        up, down = id_per_shard(api)
        await api.post("/create/batch", create_bodies(up, down))
        api.client.shards_down = [1]
        assert (await api.post(f"/create/batch?job={up}", create_bodies(up, down)))[1]["failed"] == 1
        api.client.shards_down = []
        for ids in ([down], [up, down], [down]):
            await api.post(f"/create/batch?job={up}", create_bodies(*ids))
            assert await api.get(f"/jobs/{up}") == ok(job=up, created=0, existing=2, refused=0)


@each_case("job", [".", ".."])
async def test_a_job_that_no_path_can_name_is_refused(api: ApiFixture, job: str) -> None:
    refused = f"job: expected one other than . and .., which no path of a URL can end in, got '{job}'"
    assert await api.post(f"/create/batch?job={job}", create_bodies("a")) == bad_request(refused, "job")


async def test_a_run_has_counts_of_its_own(api: ApiFixture) -> None:
    await api.post("/create/batch?job=j&run=1", create_bodies("a", "b"))
    await api.post("/create/batch?job=j&run=2", create_bodies("b", "c"))
    assert await api.get("/jobs/j?run=1") == ok(job="j", run="1", created=2, existing=0, refused=0)
    assert await api.get("/jobs/j?run=2") == ok(job="j", run="2", created=1, existing=1, refused=0)
    assert await api.get("/jobs/j") == ok(job="j", created=3, existing=1, refused=0)
    assert (await api.get("/jobs/j?run=3"))[1]["detail"] == 'nothing is counted under the job "j" and the run "3"'


async def test_a_run_without_a_job_or_with_a_wrong_name_is_refused(api: ApiFixture) -> None:
    refusal = bad_request("run: expected the parameter job with it", "run")
    assert await api.post("/create/batch?run=1", create_bodies("a")) == refusal
    refusal = bad_request('run: expected 1 to 128 characters of A-Za-z0-9._~:-, got "a/b"', "run")
    assert await api.post("/create/batch?job=j&run=a/b", create_bodies("a")) == refusal
    assert (await api.post("/query", {"id": "a"}))[0] == 404


async def test_a_stored_batch_is_not_503_if_its_failed_items_cannot_be_uncounted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def count(*_: object) -> None:
        raise StoreDown("the store is gone")

    async with serve_api(shards=2) as api:
        up, down = id_per_shard(api)
        api.client.shards_down = [1]
        monkeypatch.setattr(BulkJobs, "count_batch", count)
        status, answer = await api.post("/create/batch?job=j", create_bodies(up, down))
    assert (status, answer["created"], answer["failed"]) == (200, 1, 1)


async def test_a_job_is_kept_as_long_as_ids_are_remembered(api: ApiFixture) -> None:
    await api.post("/create/batch?job=j", create_bodies("a"))
    score = await api.client.execute("test", ("ZSCORE", api.keys.shards[0].jobs, "j"))
    assert int(float(score)) == NOW + 7 * DAY_MS


async def test_a_batch_without_a_job_is_not_counted(api: ApiFixture) -> None:
    await api.post("/create/batch", create_bodies("a"))
    assert await api.client.execute("test", ("ZCARD", api.keys.shards[0].jobs)) == 0


async def test_an_unknown_job_is_404(api: ApiFixture) -> None:
    detail = 'nothing is counted under the job "j"'
    problem = {"type": "/problems/no-such-job", "title": "No such job", "status": 404, "detail": detail}
    assert await api.get("/jobs/j") == (404, problem)


@each_case(("job", "shown"), [("", '""'), ("a%20b", '"a b"'), ("%C3%A9", '"é"')])
async def test_a_jobs_name_has_the_form_of_an_id(api: ApiFixture, job: str, shown: str) -> None:
    refusal = bad_request(f"job: expected 1 to 128 characters of A-Za-z0-9._~:-, got {shown}", "job")
    assert await api.post(f"/create/batch?job={job}", create_bodies("a")) == refusal
    assert (await api.post("/query", {"id": "a"}))[0] == 404
    if job:
        assert await api.get(f"/jobs/{job}") == refusal


async def test_jobs_are_listed_with_their_counts(api: ApiFixture) -> None:
    await api.post("/create/batch?job=first", [*create_bodies("a", "b", "a"), {}])
    await api.post("/create/batch?job=second&run=1", create_bodies("b", "c"))
    assert await api.get("/jobs") == ok(
        jobs=[
            {"job": "second", "created": 1, "existing": 1, "refused": 0, "forgotten_at": rfc3339(NOW + 7 * DAY_MS)},
            {"job": "first", "created": 2, "existing": 1, "refused": 1, "forgotten_at": rfc3339(NOW + 7 * DAY_MS)},
        ],
        cursor=None,
    )


async def test_a_cursor_leads_to_the_next_jobs(api: ApiFixture) -> None:
    for job in ("a", "b", "c"):
        await api.post(f"/create/batch?job={job}", create_bodies(f"task-{job}"))
    _, first = await api.get("/jobs?limit=2")
    status, second = await api.get(f"/jobs?limit=2&cursor={first['cursor']}")
    assert [job["job"] for job in first["jobs"]] == ["c", "b"]
    assert (status, [job["job"] for job in second["jobs"]], second["cursor"]) == (200, ["a"], None)


async def test_a_bound_caller_is_shown_the_jobs_of_its_namespace_alone() -> None:
    async with serve_api(authorization=lambda store, metrics: NamedCallers(), shards=2) as api:
        for caller in ("operator", "team", "teams"):
            for job in ("a", "b"):
                body = {**create_bodies(f"{caller}-{job}")[0], "topic": f"{caller}/order"}
                await Tenant(api, caller).post(f"/create/batch?job={job}&run=1", [body])
        _, everything = await Tenant(api, "operator").get("/jobs")
        assert {job["job"] for job in everything["jobs"]} == {"a", "b", "team/a", "team/b", "teams/a", "teams/b"}
        _, first = await Tenant(api, "team").get("/jobs?limit=1")
        assert b64decode(first["cursor"] + "==").decode().endswith(f" /{first['jobs'][0]['job']}")
        _, second = await Tenant(api, "team").get(f"/jobs?cursor={first['cursor']}")
        assert [job["job"] for job in first["jobs"] + second["jobs"]] == ["team/b", "team/a"]
        assert (await Tenant(api, "teams").get(f"/jobs?cursor={first['cursor']}"))[0] == 400


@each_case("cursor", ["", "x", "MQ", "MSAv", "LTEgYQ", "MDEgYQ", "OTk5OTk5OTk5OTk5OTk5OTkgYQ", "9" * 300, "MSBhL2I"])
async def test_a_cursor_of_no_answer_is_refused(api: ApiFixture, cursor: str) -> None:
    status, problem = await api.get(f"/jobs?cursor={cursor}")
    assert (status, problem["field"]) == (400, "cursor")
    assert (await api.get("/jobs?limit=0"))[0] == 400
