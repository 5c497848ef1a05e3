"""The store is full, read-only, unresponsive, down or empty of scripts: errors come in time, and work goes on later."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis.exceptions as errors

from later.core.clock import Clock
from later.core.errors import LaterError, StoreDown, StoreFault, StoreMismatch
from later.store.client import StoreClient, translate
from later.store.connections import connect
from later.store.doctor import Doctor
from later.store.keys import Bucket
from later.store.schema import check_store
from later.store.types import Claim, Deletion, JobBatch
from tests.builders import NOW, a_task
from tests.cases import each_case
from tests.servers import SERVERS, run_server
from tests.store.inspection import (
    LEASE_MS,
    ask,
    assert_sound,
    claim_due,
    died,
    done,
    failed,
    read_contents,
    release_due,
)
from tests.store_fixture import StoreFixture, open_store

TIMEOUT_S = 10.0
"""Longer than any answer of a working store takes, even on a busy machine."""
SHORT_TIMEOUT_S = 0.5
"""The timeout for a store that does not answer."""
SLACK_S = 3.0
"""How much longer than the timeout a failure may take on a busy machine."""
Server = tuple[str, subprocess.Popen[bytes]]


@pytest.fixture(scope="module", params=sorted(SERVERS))
def own_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the test's own, which it may stop and block."""
    with run_server(request.param, tmp_path_factory.mktemp("own")) as server:
        yield server


@pytest.fixture
async def store(own_server: Server) -> AsyncIterator[StoreFixture]:
    async with open_store(own_server[0], shards=2, timeout_s=TIMEOUT_S) as built:
        yield built


@pytest.fixture
async def full(store: StoreFixture) -> AsyncIterator[StoreFixture]:
    """A store with tasks in all buckets that has reached maxmemory."""
    await store.tasks.create([a_task(id=f"t{n}", own_id=True, delay=n) for n in range(40)])
    claims = await claim_due(store, NOW + 20_000)
    await store.tasks.settle([failed(claim, NOW + 20_000) for claim in claims[:5]])
    await store.tasks.settle([died(claim) for claim in claims[5:10]])
    await ask(store, [("CONFIG", "SET", "maxmemory", "100000")])
    yield store
    await ask(store, [("CONFIG", "SET", "maxmemory", "0")])


def fresh_client(store: StoreFixture, url: str) -> StoreClient:
    """Return a client as a daemon has it that starts now."""
    clock = Clock(time.monotonic, time.time)
    redis = connect(url, clock, TIMEOUT_S)
    return StoreClient(
        redis,
        clock,
        timeout_s=TIMEOUT_S,
        check=lambda run: check_store(run, "later", len(store.keys.shards)),
    )


async def ids_in(store: StoreFixture, bucket: Bucket) -> set[str]:
    return set((await read_contents(store)).buckets.get((bucket, "order"), {}))


def all_true(answers: Sequence[object]) -> bool:
    return len(answers) > 0 and all(answer is True for answer in answers)


def reasons(answers: Sequence[object]) -> set[str]:
    assert all(isinstance(answer, StoreDown) for answer in answers)
    return {str(answer) for answer in answers}


class TestFull:
    async def test_it_takes_no_new_tasks_and_says_why(self, full: StoreFixture) -> None:
        before = await read_contents(full)
        answers = await full.tasks.create([a_task() for _ in range(5)])
        assert reasons(answers) == {"the store's memory is full (maxmemory)"}
        assert await read_contents(full) == before

    async def test_it_goes_on_delivering(self, full: StoreFixture) -> None:
        claims = await claim_due(full, NOW + 30_000)
        settlements = [[done(claim, NOW), failed(claim, NOW), died(claim)][n % 3] for n, claim in enumerate(claims)]
        assert all_true(await full.tasks.settle(settlements))
        await assert_sound(full, NOW + 30_000)

    async def test_it_takes_leases_back_and_releases(self, full: StoreFixture) -> None:
        claims = await claim_due(full, NOW + 30_000)
        assert all_true(await full.tasks.give_back(claims[:2]))
        assert await release_due(full, Bucket.ERROR, NOW + 30_000) == 5
        assert await release_due(full, Bucket.UNACK, NOW + 10**6) == 11 + len(claims) - 2
        await assert_sound(full, NOW + 10**6)

    @pytest.mark.parametrize("bucket", Bucket)
    async def test_it_deletes_from_every_bucket(self, full: StoreFixture, bucket: Bucket) -> None:
        ids = sorted(await ids_in(full, bucket))
        assert await full.edits.delete(ids) == [
            Deletion(id, in_flight=bucket is Bucket.UNACK, topic="order") for id in ids
        ]
        await assert_sound(full, NOW + 20_000)

    async def test_moving_nothing_is_no_error(self, full: StoreFixture) -> None:
        [stale] = (await claim_due(full, NOW + 21_000, limit=1))[:1]
        await full.tasks.settle([done(stale)])
        assert await full.tasks.settle([done(stale)]) == [False]
        assert await full.tasks.give_back([stale]) == [False]
        due = (await full.tasks.due_topics(Bucket.UNACK, 9)).topics
        assert not any(isinstance(answer, LaterError) for answer in await full.tasks.release(Bucket.UNACK, due, NOW))
        assert await claim_due(full, NOW) == []
        assert await full.maintenance.trim(NOW, 10) == 0

    async def test_it_forgets_ids(self, full: StoreFixture) -> None:
        await full.tasks.settle([done(claim, NOW) for claim in await claim_due(full, NOW + 30_000)])
        assert await full.maintenance.trim(NOW, 100) > 0

    async def test_its_scripts_are_loaded_anew(self, full: StoreFixture) -> None:
        await ask(full, [("SCRIPT", "FLUSH")])
        assert all_true(await full.tasks.settle([done(claim) for claim in await claim_due(full, NOW + 30_000)]))

    async def test_the_doctor_repairs_it(self, full: StoreFixture) -> None:
        for n, id in enumerate(sorted(await ids_in(full, Bucket.DELAY))):
            shard = full.keys.shard_of(id)
            await ask(full, [("ZREM", shard.bucket(Bucket.DELAY, b"order"), id)] if n % 2 else [])
        doctor = Doctor(full.client, full.keys)
        repairs = [await doctor.repair(finding, NOW) async for finding in doctor.examine(NOW + 30_000)]
        assert repairs == [True] * len(repairs) != []
        await assert_sound(full, NOW + 30_000)

    async def test_a_daemon_that_starts_now_can_deliver_too(self, full: StoreFixture, own_server: Server) -> None:
        client = fresh_client(full, own_server[0])
        await client.open()
        await client.aclose()


class TestReadOnly:
    @pytest.fixture(autouse=True)
    async def demoted(self, store: StoreFixture) -> AsyncIterator[Claim]:
        await store.tasks.create([a_task(id="a", own_id=True), a_task(id="b", own_id=True)])
        claim = (await claim_due(store, limit=1))[0]
        await ask(store, [("REPLICAOF", "127.0.0.1", "1")])
        yield claim
        await ask(store, [("REPLICAOF", "NO", "ONE")])

    async def test_every_verb_that_moves_tasks_says_why_it_cannot(self, store: StoreFixture, demoted: Claim) -> None:
        why = {"the store is a read-only replica"}
        tasks = store.tasks
        assert reasons(await tasks.create([a_task()])) == why
        assert reasons(await tasks.settle([done(demoted)])) == why
        assert reasons(await tasks.give_back([demoted])) == why
        with pytest.raises(StoreDown, match="read-only"):
            await store.client.execute("x", ("DEL", "x"))
        [deleted] = await store.edits.delete(["a"])
        assert isinstance(deleted, StoreDown)

    async def test_it_works_again_when_it_is_promoted(self, store: StoreFixture, demoted: Claim) -> None:
        await store.tasks.create([a_task()])
        await ask(store, [("REPLICAOF", "NO", "ONE")])
        assert await store.tasks.settle([done(demoted)]) == [True]
        await assert_sound(store)

    async def test_connections_are_dropped_because_the_new_primary_may_be_elsewhere(self, store: StoreFixture) -> None:
        before = await store.client.execute("ask", ("CLIENT", "ID"))
        await store.tasks.create([a_task()])
        assert await store.client.execute("ask", ("CLIENT", "ID")) != before


class TestUnreachable:
    async def test_a_store_that_is_not_there_is_down(self, tmp_path: Path) -> None:
        clock = Clock(time.monotonic, time.time)
        redis = connect(f"unix://{tmp_path}/nobody.sock", clock, TIMEOUT_S)
        client = StoreClient(redis, clock, timeout_s=TIMEOUT_S)
        with pytest.raises(StoreDown, match="cannot be reached"):
            await client.execute("ping", ("PING",))

    async def test_a_port_that_refuses_is_down(self) -> None:
        clock = Clock(time.monotonic, time.time)
        redis = connect("redis://127.0.0.1:1/0", clock, TIMEOUT_S)
        client = StoreClient(redis, clock, timeout_s=TIMEOUT_S)
        with pytest.raises(StoreDown, match="cannot be reached"):
            await client.execute("ping", ("PING",))

    async def test_an_unresponsive_store_is_down_in_time(self, store: StoreFixture, own_server: Server) -> None:
        await store.stats.ping()
        with unresponsive(store, own_server):
            await assert_down_in_time(store, calls=1)
        await store.stats.ping()

    async def test_an_unresponsive_store_is_down_in_time_for_more_callers_than_connections(
        self, store: StoreFixture, own_server: Server
    ) -> None:
        await store.stats.ping()
        with unresponsive(store, own_server):
            await assert_down_in_time(store, calls=100)
        await asyncio.gather(*(store.stats.ping() for _ in range(100)))

    async def test_a_store_that_was_unresponsive_from_the_start_is_down_in_time_for_all(
        self, store: StoreFixture, own_server: Server
    ) -> None:
        with unresponsive(store, own_server):
            await assert_down_in_time(store, calls=100)
        await asyncio.gather(*(store.stats.ping() for _ in range(100)))

    async def test_a_late_answer_is_not_read_by_the_next_command(self, store: StoreFixture, own_server: Server) -> None:
        await store.tasks.create([a_task(id="a", own_id=True)])
        with unresponsive(store, own_server):
            await assert_down_in_time(store, calls=30)
        answers = await asyncio.gather(*(store.client.execute("x", ("ECHO", str(n))) for n in range(50)))
        assert answers == [str(n).encode() for n in range(50)]


@contextmanager
def unresponsive(store: StoreFixture, server: Server) -> Iterator[None]:
    """Let the server accept connections but answer nothing, and the client time out soon."""
    store.client.timeout_s = SHORT_TIMEOUT_S
    server[1].send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server[1].send_signal(signal.SIGCONT)
        store.client.timeout_s = TIMEOUT_S


async def assert_down_in_time(store: StoreFixture, calls: int) -> None:
    started = time.monotonic()
    answers = await asyncio.gather(*(store.stats.ping() for _ in range(calls)), return_exceptions=True)
    assert time.monotonic() - started < SHORT_TIMEOUT_S + SLACK_S
    assert {str(answer) for answer in answers if isinstance(answer, StoreDown)} == {
        "the store did not answer within 0.5 s"
    }
    assert len([answer for answer in answers if isinstance(answer, StoreDown)]) == calls


class TestLostScripts:
    @pytest.mark.parametrize("server", sorted(SERVERS))
    async def test_a_store_that_was_killed_and_started_again_is_used_again(self, server: str, tmp_path: Path) -> None:
        options = ("--appendonly", "yes", "--appendfsync", "always")
        with run_server(server, tmp_path, *options) as (url, process):
            async with open_store(url, shards=2) as store:
                await store.tasks.create([a_task(id=f"t{n}", own_id=True) for n in range(9)])
                claims = await claim_due(store)
                process.kill()
                process.wait()
                with pytest.raises(StoreDown):
                    await store.tasks.settle([done(claims[0])])
                with run_server(server, tmp_path, *options):
                    assert await store.tasks.settle([done(claim) for claim in claims]) == [True] * 9
                    assert await store.tasks.create([a_task()]) == [True]
                    await assert_sound(store)

    async def test_a_store_without_its_scripts_creates_once(self, store: StoreFixture) -> None:
        await ask(store, [("SCRIPT", "FLUSH")])
        tasks = [a_task(topic=f"topic-{n % 3}") for n in range(30)]
        assert await store.tasks.create(tasks, JobBatch("job", b"digest", 0, NOW)) == [True] * 30
        assert (await assert_sound(store)).pool == {task.id for task in tasks}
        assert (await store.bulk_jobs.counts("job")).created == 30

    async def test_a_store_that_loses_its_scripts_between_any_two_verbs_goes_on(self, store: StoreFixture) -> None:
        await store.tasks.create([a_task(id="a", own_id=True)])
        for settlement in (failed, died):
            await ask(store, [("SCRIPT", "FLUSH")])
            [claim] = await claim_due(store, NOW + LEASE_MS)
            await ask(store, [("SCRIPT", "FLUSH")])
            assert await store.tasks.settle([settlement(claim, NOW + LEASE_MS)]) == [True]
            await ask(store, [("SCRIPT", "FLUSH")])
            await release_due(store, Bucket.ERROR, NOW + LEASE_MS)
        await ask(store, [("SCRIPT", "FLUSH")])
        assert await store.edits.delete(["a"]) == [Deletion("a", topic="order")]


class TestPassword:
    @pytest.fixture
    async def guarded(self, store: StoreFixture) -> AsyncIterator[StoreFixture]:
        await store.stats.ping()
        await ask(store, [("CONFIG", "SET", "requirepass", "right")])
        yield store
        await ask(store, [("CONFIG", "SET", "requirepass", "")])

    @pytest.mark.parametrize("user", ["", ":wrong@", "nobody:right@"])
    async def test_a_wrong_one_is_refused_with_a_reason(
        self, guarded: StoreFixture, own_server: Server, user: str
    ) -> None:
        client = fresh_client(guarded, own_server[0].replace("unix://", f"unix://{user}"))
        with pytest.raises(StoreDown, match="the store refuses this user") as raised:
            await client.execute("ping", ("PING",))
        assert "wrong" not in str(raised.value).replace("wrong number", "")
        await client.aclose()

    async def test_the_right_one_is_taken(self, guarded: StoreFixture, own_server: Server) -> None:
        client = fresh_client(guarded, own_server[0].replace("unix://", "unix://:right@"))
        await client.execute("ping", ("PING",))
        await client.aclose()


@each_case(
    ("error", "reason"),
    [
        (errors.ResponseError("MISCONF Errors writing to the AOF file"), "the store takes no commands: MISCONF"),
        (errors.ResponseError("NOREPLICAS Not enough good replicas"), "the store takes no commands: NOREPLICAS"),
        (errors.ResponseError("BUSY Redis is busy running a script"), "the store takes no commands: BUSY"),
        (errors.ResponseError("MASTERDOWN Link with MASTER is down"), "the store takes no commands: MASTERDOWN"),
        (errors.MasterDownError("Link with MASTER is down"), "the store "),
        (errors.ClusterDownError("The cluster is down"), "the store takes no commands: "),
        (errors.TryAgainError("Multiple keys request during rehashing of slot"), "the store takes no commands: "),
        (errors.BusyLoadingError("Redis is loading the dataset in memory"), "the store is loading its data"),
        (errors.MaxConnectionsError("max number of clients reached"), "the store cannot be reached: max number"),
        (errors.NoPermissionError("no permissions to run 'evalsha'"), "the store refuses this user: no perm"),
        (ConnectionResetError(104, "Connection reset by peer"), "the store cannot be reached: "),
    ],
)
def test_a_store_in_trouble_is_down_for_a_reason(error: Exception, reason: str) -> None:
    translated = translate(error)
    assert isinstance(translated, StoreDown)
    assert str(translated).startswith(reason)


@each_case(
    "error",
    [
        errors.NoPermissionError("User api has no permissions to run the 'hscan' command"),
        errors.ResponseError("ACL failure in script: User api has no permissions to run the 'hlen' command script: …"),
        errors.ResponseError("The user executing the script can't run this command or subcommand script: c3664bd3…"),
    ],
)
def test_what_a_user_may_not_run_is_said_with_the_file_that_has_its_rules(error: Exception) -> None:
    translated = translate(error)
    assert isinstance(translated, StoreDown)
    assert str(error) in str(translated)
    assert str(translated).endswith(": give it the rules that deploy/redis.conf of this version has")


def test_an_unexpected_error_is_a_fault_of_later() -> None:
    assert isinstance(translate(errors.ResponseError("WRONGTYPE Operation against a key")), StoreFault)


@each_case(
    ("url", "shown"),
    [
        ("http://user:secret@host", "http://***@host"),
        ("redis+sentinel://host:1?sentinel_password=secret", "redis+sentinel://host:1?***"),
        ("redis+sentinel://host:1/a/b?sentinel_password=secret", "redis+sentinel://host:1/a/b?***"),
    ],
)
def test_an_invalid_url_is_reported_without_its_password(url: str, shown: str) -> None:
    with pytest.raises(StoreMismatch, match=re.escape(f"--redis {shown}: ")) as raised:
        connect(url, Clock(time.monotonic, time.time), TIMEOUT_S)
    assert "secret" not in str(raised.value)
