"""A bulk job's counts are exact, even if batches are sent twice."""

from __future__ import annotations

import pytest

from later.core.errors import NotFound, Refused
from later.core.task import Task
from later.store.bulk_jobs import batch_digest
from later.store.types import JobBatch, JobCounts
from tests.builders import NOW, a_task
from tests.store.inspection import ask, claim_due, done
from tests.store_fixture import StoreFixture

FORGET_AT = NOW + 1000


def batch(*numbers: int) -> list[Task]:
    return [a_task(id=f"job:{n}", own_id=True) for n in numbers]


def job_batch(digest: str, *, refused: int = 0, run: str | None = None) -> JobBatch:
    return JobBatch("job", digest.encode(), refused, FORGET_AT, run)


async def send(store: StoreFixture, tasks: list[Task], refused: int = 0, *, forget_at: int = FORGET_AT) -> None:
    digest = repr([task.id for task in tasks]).encode()
    await store.tasks.create(tasks, JobBatch("job", digest, refused, forget_at))


async def test_a_job_counts_created_and_refused_items(store: StoreFixture) -> None:
    await send(store, batch(*range(50)), refused=2)
    await send(store, batch(*range(50, 60)), refused=1)
    assert await store.bulk_jobs.counts("job") == JobCounts(60, 0, 3)


async def test_tasks_that_existed_before_the_job_are_counted_as_existing(store: StoreFixture) -> None:
    await store.tasks.create(batch(1, 2))
    await send(store, batch(1, 2, 3))
    assert await store.bulk_jobs.counts("job") == JobCounts(1, 2, 0)


async def test_a_batch_sent_twice_counts_once(store: StoreFixture) -> None:
    for _ in range(3):
        await send(store, batch(*range(20)), refused=5)
    assert await store.bulk_jobs.counts("job") == JobCounts(20, 0, 5)


async def test_a_batch_sent_again_after_its_tasks_have_ended_counts_once(store: StoreFixture) -> None:
    await send(store, batch(*range(20)))
    await store.tasks.settle([done(claim, NOW + 1) for claim in await claim_due(store)])
    await send(store, batch(*range(20)))
    assert await store.bulk_jobs.counts("job") == JobCounts(20, 0, 0)


async def test_a_batch_that_went_through_in_part_counts_the_rest_when_it_is_sent_again(store: StoreFixture) -> None:
    await store.tasks.create(batch(1), job_batch("digest", refused=1))
    await store.tasks.create(batch(1, 2, 3), job_batch("digest", refused=1))
    assert await store.bulk_jobs.counts("job") == JobCounts(3, 0, 1)


async def test_failed_items_do_not_count_as_existing(store: StoreFixture) -> None:
    batch_of_three = job_batch("three")
    await store.tasks.create(batch(1), batch_of_three)
    await store.bulk_jobs.count_batch(batch_of_three, valid=3)
    await store.bulk_jobs.count_batch(batch_of_three, valid=1)
    await store.tasks.create(batch(2, 3), job_batch("rest"))
    assert await store.bulk_jobs.counts("job") == JobCounts(3, 0, 0)


async def fail_in_part(store: StoreFixture, digest: str, created: list[Task], valid: int, rest: str) -> None:
    """Store some tasks of a batch whose other valid items, the `rest`, failed."""
    failing = job_batch(digest)
    await store.tasks.create(created, failing)
    await store.bulk_jobs.count_batch(failing, valid)
    await store.bulk_jobs.count_batch(failing, len(created), rest.encode())


async def test_after_a_partial_failure_the_rest_and_the_whole_batch_sent_again_count_once(store: StoreFixture) -> None:
    await store.tasks.create(batch(1, 2, 3))
    await fail_in_part(store, "whole", batch(1), 3, "rest")
    assert await store.bulk_jobs.counts("job") == JobCounts(0, 1, 0)
    await store.tasks.create(batch(2, 3), job_batch("rest"))
    assert await store.bulk_jobs.counts("job") == JobCounts(0, 3, 0)
    for digest, tasks in (("whole", batch(1, 2, 3)), ("rest", batch(2, 3)), ("whole", batch(1, 2, 3))):
        await store.tasks.create(tasks, job_batch(digest))
        assert await store.bulk_jobs.counts("job") == JobCounts(0, 3, 0)


async def test_a_rest_that_fails_in_part_and_its_own_rest_count_once(store: StoreFixture) -> None:
    await store.tasks.create(batch(1, 2, 3))
    await fail_in_part(store, "whole", batch(1), 3, "rest")
    await fail_in_part(store, "rest", batch(2), 2, "last")
    await store.tasks.create(batch(3), job_batch("last"))
    assert await store.bulk_jobs.counts("job") == JobCounts(0, 3, 0)
    await store.tasks.create(batch(1, 2, 3), job_batch("whole"))
    assert await store.bulk_jobs.counts("job") == JobCounts(0, 3, 0)


async def test_a_batch_that_fails_in_part_again_counts_its_rest_again(store: StoreFixture) -> None:
    await store.tasks.create(batch(1, 2, 3))
    for _ in range(2):
        await fail_in_part(store, "whole", batch(1), 3, "rest")
        assert await store.bulk_jobs.counts("job") == JobCounts(0, 1, 0)
        await store.tasks.create(batch(2, 3), job_batch("rest"))
        assert await store.bulk_jobs.counts("job") == JobCounts(0, 3, 0)


async def test_two_runs_of_one_job_at_once_each_count_what_they_created(store: StoreFixture) -> None:
    await store.tasks.create(batch(*range(0, 30)), job_batch("a", run="one", refused=1))
    await store.tasks.create(batch(*range(20, 50)), job_batch("b", run="two"))
    for _ in range(2):
        await store.tasks.create(batch(*range(0, 30)), job_batch("a", run="two", refused=1))
    assert await store.bulk_jobs.counts("job", "one") == JobCounts(30, 0, 1)
    assert await store.bulk_jobs.counts("job", "two") == JobCounts(20, 40, 1)
    assert await store.bulk_jobs.counts("job") == JobCounts(50, 10, 1)


async def test_a_run_is_forgotten_as_its_job_is(store: StoreFixture) -> None:
    await store.tasks.create(batch(*range(40)), job_batch("a", run="one"))
    await store.maintenance.trim(FORGET_AT, 1)
    for run in (None, "one"):
        with pytest.raises(NotFound):
            await store.bulk_jobs.counts("job", run)
    assert (await ask(store, [("KEYS", "*job*")]))[0] == []


async def test_a_batch_is_known_by_its_ids_whatever_its_other_fields() -> None:
    texts = [b"one", b"two", b"three"]
    refused = Refused("delay: no")
    digest = batch_digest(texts, [a_task(id="j:1", own_id=True), a_task(id="x"), refused])
    later_one = a_task(id="j:1", own_id=True, delay=77)
    assert batch_digest([b"other", *texts[1:]], [later_one, a_task(id="y"), refused]) == digest
    assert batch_digest([b"other", *texts[1:]], [refused, a_task(id="x"), refused]) != digest
    assert batch_digest(texts[:2], [later_one, a_task(id="x")]) != digest


async def test_an_unknown_job_is_not_found(store: StoreFixture) -> None:
    with pytest.raises(NotFound):
        await store.bulk_jobs.counts("job")


async def test_a_job_with_nothing_but_refusals_is_known(store: StoreFixture) -> None:
    await store.tasks.create([], job_batch("digest", refused=4))
    assert await store.bulk_jobs.counts("job") == JobCounts(0, 0, 4)


async def test_a_job_is_forgotten_whole_when_its_time_has_come(store: StoreFixture) -> None:
    await send(store, batch(*range(40)))
    await store.tasks.create([], JobBatch("refused", b"digest", 4, FORGET_AT))
    await store.maintenance.trim(FORGET_AT - 1, 1)
    assert await store.bulk_jobs.counts("job") == JobCounts(40, 0, 0)
    await store.maintenance.trim(FORGET_AT, 1)
    with pytest.raises(NotFound):
        await store.bulk_jobs.counts("job")
    assert (await ask(store, [("KEYS", "*job*")]))[0] == []


async def test_a_job_that_goes_on_is_kept(store: StoreFixture) -> None:
    await send(store, batch(1))
    await send(store, batch(1), forget_at=FORGET_AT + 5)
    await store.maintenance.trim(FORGET_AT, 1)
    assert await store.bulk_jobs.counts("job") == JobCounts(1, 0, 0)


async def test_tasks_without_a_job_count_nowhere(store: StoreFixture) -> None:
    await store.tasks.create(batch(1, 2))
    assert (await ask(store, [("KEYS", "*job*")]))[0] == []
