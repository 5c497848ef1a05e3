"""The list of bulk jobs: by the time at which they are forgotten, the latest first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from later.store import job_list
from later.store.types import JobBatch, JobCounts, JobPage, JobPosition, ListedJob
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.store_fixture import StoreFixture


async def count(store: StoreFixture, job: str, forget_at: int = NOW, *, run: str | None = None, tasks: int = 1) -> None:
    created = [a_task(id=f"{job.replace('/', ':')}:{run}:{n}", own_id=True) for n in range(tasks)]
    await store.tasks.create(created, JobBatch(job, b"digest", 0, forget_at, run))


async def read_pages(store: StoreFixture, limit: int, prefix: str = "") -> list[list[str]]:
    """Return the jobs of each page."""
    pages: list[list[str]] = []
    after: JobPosition | None = None
    while True:
        page = await store.job_list.page(limit, after, prefix)
        pages.append([job.job for job in page.jobs])
        after = page.read_to
        if after is None:
            return pages


def flat(pages: Sequence[Sequence[str]]) -> list[str]:
    return [job for page in pages for job in page]


async def test_a_job_is_listed_with_its_counts_and_when_it_is_forgotten(store: StoreFixture) -> None:
    await count(store, "a", tasks=20)
    await count(store, "a", NOW + 5, run="1")
    assert await store.job_list.page(10) == JobPage([ListedJob("a", NOW + 5, JobCounts(21, 0, 0))], None)


async def test_without_jobs_the_list_is_empty(store: StoreFixture) -> None:
    assert await store.job_list.page(10) == JobPage([], None)


@each_case("limit", [1, 2, 3, 7, 100])
async def test_pages_follow_one_another_from_the_latest_on(store: StoreFixture, limit: int) -> None:
    expected = [f"j{n}" for n in reversed(range(8))]
    for number, job in enumerate(reversed(expected)):
        await count(store, job, NOW + number // 2, run=f"r{number}", tasks=10)
    pages = await read_pages(store, limit)
    assert flat(pages) == expected
    assert all(len(page) == limit for page in pages[:-1])


async def test_a_namespace_has_its_own_jobs_alone(store: StoreFixture) -> None:
    for number, job in enumerate(("a", "team/a", "teams/b", "other/c", "team/d", "team")):
        await count(store, job, NOW + number, run="run")
    assert flat(await read_pages(store, 1, "team/")) == ["team/d", "team/a"]
    assert flat(await read_pages(store, 2)) == ["team", "team/d", "other/c", "teams/b", "team/a", "a"]


async def test_a_page_looks_past_runs_and_jobs_of_others(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_list, "ENTRIES_PER_CALL", 3)
    await count(store, "team/old", NOW)
    for number in range(30):
        await count(store, "other/new", NOW + 1 + number, run=f"{number}")
    assert await read_pages(store, 5, "team/") == [["team/old"]]


async def test_a_page_ends_when_it_has_examined_enough(store: StoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_list, "ENTRIES_PER_CALL", 3)
    monkeypatch.setattr(job_list, "MAX_EXAMINED", 6)
    await count(store, "team/old", NOW)
    for number in range(30):
        await count(store, "other/new", NOW + 1 + number, run=f"{number}")
    await count(store, "team/new", NOW + 100)
    pages = await read_pages(store, 5, "team/")
    assert (pages[0], pages[-1], flat(pages)) == (["team/new"], ["team/old"], ["team/new", "team/old"])
    assert len(pages) > 3


async def test_a_position_stays_valid_when_its_job_moves_or_is_forgotten(store: StoreFixture) -> None:
    for number, job in enumerate("abc"):
        await count(store, job, NOW + number)
    page = await store.job_list.page(1)
    await count(store, "c", NOW + 100, run="again")
    assert [job.job for job in (await store.job_list.page(9, page.read_to)).jobs] == ["b", "a"]
    page = await store.job_list.page(1, page.read_to)
    await store.maintenance.trim(NOW + 1, 100)
    await count(store, "d", NOW)
    assert [job.job for job in (await store.job_list.page(9, page.read_to)).jobs] == ["d"]


@pytest.mark.one_server
async def test_a_page_costs_a_script_for_each_shard_and_the_counts(store: StoreFixture) -> None:
    for number in range(20):
        await count(store, f"j{number}", NOW + number)
    await store.redis.config_resetstat()
    await store.job_list.page(10)
    commands = {name: stats["calls"] for name, stats in (await store.redis.info("commandstats")).items()}
    shards = len(store.keys.shards)
    assert commands["cmdstat_evalsha"] <= 3 * shards
    assert commands["cmdstat_hget"] == 10 * shards
