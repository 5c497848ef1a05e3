"""`/claim`, `/ack`, `/nack`, `/release` and `/extend`: what consumers send, get, and are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from later.core.clock import rfc3339
from later.core.errors import StoreDown
from later.core.policy import Deliver, Policy
from later.core.task import Task, pack_id
from later.store.scripts import Command
from tests.api.api_fixture import ApiFixture, id_per_shard, ok, refusals, serve_api
from tests.api.callers import NamedCallers, Tenant
from tests.builders import NOW, a_task
from tests.cases import each_case

PULLED = Policy(deliver=Deliver.PULL)
NOTHING = ok(tasks=[], lost=[])
EARLIER = NOW - 1000


@pytest.fixture
async def api() -> AsyncIterator[ApiFixture]:
    """The API on an empty store of two shards, in which every topic is pulled."""
    async with serve_api(policy=PULLED, shards=2) as built:
        yield built


def a_pulled_task(**changes: Any) -> Task:
    """Return a task that was due a second ago."""
    return a_task(**{"callback": "", "topic": "jobs", "created_at": EARLIER, **changes})


async def put(api: ApiFixture, *tasks: Task) -> None:
    assert await api.store.tasks.create(tasks) == [True] * len(tasks)


async def claim(api: ApiFixture, **fields: Any) -> list[dict[str, Any]]:
    """Claim tasks of the topic `jobs`, and return them."""
    status, answer = await api.post("/claim", {"topic": "jobs", "max": 10, **fields})
    assert (status, answer["lost"]) == (200, []), answer
    return list(answer["tasks"])


async def state_of(api: ApiFixture, id: str) -> str:
    status, answer = await api.post("/query", {"id": id})
    return str(answer["state"]) if status == 200 else "gone"


async def test_a_claimed_task_has_what_a_consumer_needs(api: ApiFixture) -> None:
    await put(api, a_pulled_task(id="a", content="hello", headers={"X-A": "1"}, max_retry=5))
    [task] = await claim(api)
    lease = task.pop("lease")
    assert task == {
        "id": "a", "topic": "jobs", "content": "hello", "headers": {"X-A": "1"}, "attempt": 1,
        "due_at": rfc3339(EARLIER), "created_at": rfc3339(EARLIER), "last_error": None, "failures": 0, "max_retry": 5,
        "context": None, "lease_until": rfc3339(api.store.clock.now().low + 30_000),
    }  # fmt: skip
    assert await state_of(api, "a") == "unack"
    assert await api.post("/ack", {"leases": [lease]}) == ok(acked=1, lost=[])
    assert await state_of(api, "a") == "gone"
    assert await api.post("/ack", {"leases": [lease]}) == ok(acked=0, lost=[lease])


async def test_where_nothing_is_due_a_claim_is_empty(api: ApiFixture) -> None:
    assert await api.post("/claim", {"topic": "jobs"}) == NOTHING
    await put(api, a_pulled_task(delay=60))
    assert await api.post("/claim", {"topic": "jobs"}) == NOTHING


async def test_tasks_come_by_due_time_and_as_many_as_asked_for(api: ApiFixture) -> None:
    await put(api, *(a_pulled_task(id=f"t{n}", created_at=EARLIER - n) for n in range(5)))
    assert [task["id"] for task in await claim(api, max=2)] == ["t4", "t3"]
    assert [task["id"] for task in await claim(api, max=500)] == ["t2", "t1", "t0"]


async def test_the_first_topic_comes_first(api: ApiFixture) -> None:
    for topic in ("low", "high"):
        await put(api, *(a_pulled_task(id=f"{topic}{n}", topic=topic, created_at=EARLIER + n) for n in range(2)))
    _, answer = await api.post("/claim", {"topics": ["high", "low"], "max": 3})
    assert [task["id"] for task in answer["tasks"]] == ["high0", "high1", "low0"]
    _, answer = await api.post("/claim", {"topics": {"empty": 5, "low": 1}})
    assert [task["id"] for task in answer["tasks"]] == ["low1"]


async def test_a_lease_is_as_long_as_the_claim_says_and_can_be_extended(api: ApiFixture) -> None:
    await put(api, a_pulled_task(id="a"))
    now = api.store.clock.now().low
    [task] = await claim(api, lease=2.5)
    assert task["lease_until"] == rfc3339(now + 2500)
    assert await api.post("/extend", {"leases": [task["lease"]], "lease": 600}) == ok(extended=1, lost=[])
    assert (await api.post("/query", {"id": "a"}))[1]["due_at"] == rfc3339(now + 600_000)
    assert await api.post("/extend", {"leases": [task["lease"]]}) == ok(extended=1, lost=[])
    assert (await api.post("/query", {"id": "a"}))[1]["due_at"] == rfc3339(now + 30_000)
    assert await api.post("/ack", {"leases": [task["lease"]]}) == ok(acked=1, lost=[])
    assert await api.post("/extend", {"leases": [task["lease"]]}) == ok(extended=0, lost=[task["lease"]])


async def test_a_released_task_is_due_as_before_and_has_spent_no_attempt(api: ApiFixture) -> None:
    await put(api, a_pulled_task(id="a"))
    [task] = await claim(api)
    assert await api.post("/release", {"leases": [task["lease"]]}) == ok(released=1, lost=[])
    [again] = await claim(api)
    assert (again["attempt"], again["due_at"]) == (1, rfc3339(EARLIER))
    assert await api.post("/release", {"leases": [task["lease"]]}) == ok(released=0, lost=[task["lease"]])


async def test_a_nack_says_why_and_when_again(api: ApiFixture) -> None:
    await put(api, a_pulled_task(id="a"))
    [task] = await claim(api)
    nack = {"leases": [task["lease"]], "delay": 100, "message": "x" * 500, "reason": "no_disk"}
    assert await api.post("/nack", nack) == ok(nacked=1, lost=[])
    shown = (await api.post("/query", {"id": "a"}))[1]
    assert (shown["state"], shown["due_at"]) == ("error", rfc3339(NOW + 100_000))
    assert shown["last_error"] == {
        "reason": "no_disk", "status": None, "message": "x" * 500, "at": rfc3339(NOW)
    }  # fmt: skip
    assert await api.post("/nack", nack) == ok(nacked=0, lost=[task["lease"]])


async def test_a_task_dies_after_its_retries_or_at_once_if_its_consumer_says_so(api: ApiFixture) -> None:
    await put(api, a_pulled_task(id="spent", max_retry=0), a_pulled_task(id="wrong"))
    leases = {task["id"]: task["lease"] for task in await claim(api)}
    await api.post("/nack", {"leases": [leases["spent"]], "message": "disk full"})
    await api.post("/nack", {"leases": [leases["wrong"]], "dead": True, "message": "no such user"})
    deaths = {id: (await api.post("/query", {"id": id}))[1] for id in leases}
    assert {id: (task["state"], task["last_error"]["reason"]) for id, task in deaths.items()} == {
        "spent": ("dead", "exhausted"), "wrong": ("dead", "rejected"),
    }  # fmt: skip
    assert deaths["wrong"]["last_error"]["message"] == "no such user"


async def test_a_busy_consumer_spends_no_retry(api: ApiFixture) -> None:
    await put(api, a_pulled_task(id="a", max_retry=0))
    [task] = await claim(api)
    await api.post("/nack", {"leases": [task["lease"]], "busy": True, "delay": 5})
    assert await state_of(api, "a") == "error"


async def test_a_loop_brings_back_what_is_done_with_its_next_claim(api: ApiFixture) -> None:
    await put(api, *(a_pulled_task(id=f"t{n}") for n in range(9)))
    done: list[str] = []
    failed: list[dict[str, Any]] = []
    rounds = []
    while True:
        tasks = await claim(api, max=4, done=done, failed=failed)
        if not tasks:
            break
        rounds.append(len(tasks))
        done = [task["lease"] for task in tasks[1:]]
        failed = [{"lease": tasks[0]["lease"], "delay": 60, "message": "later"}]
    assert rounds == [4, 4, 1]
    _, answer = await api.post("/list", {"topic": "jobs", "state": "pending"})
    assert [task["state"] for task in answer["tasks"]] == ["error"] * 3
    _, answer = await api.post("/claim", {"topic": "jobs", "done": done, "failed": failed})
    assert answer == {"tasks": [], "lost": [failed[0]["lease"]]}


async def test_a_lease_named_twice_counts_once(api: ApiFixture) -> None:
    await put(api, a_pulled_task(id="a"))
    [task] = await claim(api)
    assert await api.post("/ack", {"leases": [task["lease"]] * 2}) == ok(acked=1, lost=[])


async def test_an_expired_task_is_dead_instead_of_claimed(api: ApiFixture) -> None:
    await put(api, a_pulled_task(id="a", expires_at=NOW - 1))
    assert await claim(api) == []
    assert (await api.post("/query", {"id": "a"}))[1]["last_error"]["reason"] == "expired"
    assert api.metrics.registry.get_sample_value("later_topic_dead_total", {"topic": "jobs", "reason": "expired"}) == 1


async def test_a_pushed_topic_cannot_be_claimed() -> None:
    async with serve_api() as api:
        assert await api.post("/claim", {"topic": "order"}) == (
            409,
            {
                "type": "/problems/pushed-topic", "title": "The topic's tasks are not claimed", "status": 409,
                "detail": "the tasks of the topic 'order' are delivered to their callbacks: its policy's deliver is "
                "push, not pull",
            },
        )  # fmt: skip


async def test_limits_of_deliveries_are_none_of_claims() -> None:
    policy = Policy(deliver=Deliver.PULL, rate=1, concurrency=1, ramp_ms=60_000)
    async with serve_api(policy=policy) as api:
        await api.store.tasks.create([a_task(topic="jobs", callback="", created_at=NOW - 1000) for _ in range(3)])
        answers = [await api.post("/claim", {"topic": "jobs", "max": 2}) for _ in range(2)]
        assert [len(answer["tasks"]) for _, answer in answers] == [2, 1]


async def test_nothing_is_claimed_of_a_paused_topic() -> None:
    async with serve_api(policy=Policy(deliver=Deliver.PULL, paused=True)) as api:
        await put(api, a_pulled_task())
        assert await api.post("/claim", {"topic": "jobs"}) == NOTHING


async def test_one_answer_holds_8_mib_of_contents_but_one_task_always(api: ApiFixture) -> None:
    sizes = [9 << 20, 5 << 20, 4 << 20, 1]
    await put(api, *(a_pulled_task(content="x" * size, created_at=EARLIER + n) for n, size in enumerate(sizes)))
    assert [len(task["content"]) for task in await claim(api)] == [9 << 20]
    assert [len(task["content"]) for task in await claim(api)] == [5 << 20]


TOPIC = "a string of 1 to 255 bytes without control characters or empty parts"
TOPICS = "an array of 1 to 32 topics, or an object of topics and how many tasks of each"
SECONDS = "a number of seconds from 1 to 43200"
DONE = "an array of up to 500 leases, as /claim answers them"
LEASES = "an array of up to 10000 leases, as /claim answers them"
FAILED = "an array of up to 500 objects, each with a lease"
NO_LEASE = "expected leases as /claim answers them, got something else"
REASON = "1 to 32 characters of a-z and _"
MESSAGE = "a string of at most 500 characters"


async def test_a_wrong_field_of_a_claim_is_named(api: ApiFixture) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, f"topic: expected {TOPIC}, got nothing"),
        ({"topic": ""}, f'topic: expected {TOPIC}, got ""'),
        ({"topic": 5}, f"topic: expected {TOPIC}, got 5"),
        ({"topic": "a", "topics": ["b"]}, "topics: expected either topic or topics, got both"),
        ({"topics": []}, f"topics: expected {TOPICS}, got 0"),
        ({"topics": [str(n) for n in range(33)]}, f"topics: expected {TOPICS}, got 33"),
        ({"topics": "a"}, f'topics: expected {TOPICS}, got "a"'),
        ({"topics": [5]}, f"topics: expected {TOPICS}, got 5"),
        ({"topics": {"a": "5"}}, f'topics: expected {TOPICS}, got "5"'),
        ({"topics": {"a": 0}}, "topics: expected an integer from 1 to 500, got 0"),
        ({"topic": "a", "max": 0}, "max: expected an integer from 1 to 500, got 0"),
        ({"topic": "a", "max": 501}, "max: expected an integer from 1 to 500, got 501"),
        ({"topic": "a", "max": 1.5}, "max: expected an integer from 1 to 500, got 1.5"),
        ({"topic": "a", "lease": 0.9}, f"lease: expected {SECONDS}, got 0.9"),
        ({"topic": "a", "lease": 43_201}, f"lease: expected {SECONDS}, got 43201"),
        ({"topic": "a", "wait": -1}, "wait: expected a number of seconds from 0 to 60, got -1"),
        ({"topic": "a", "wait": 61}, "wait: expected a number of seconds from 0 to 60, got 61"),
        ({"topic": "a", "wait": "1"}, 'wait: expected a number of seconds from 0 to 60, got "1"'),
        ({"topic": "a", "done": "x"}, f'done: expected {DONE}, got "x"'),
        ({"topic": "a", "done": ["x"]}, f"done: {NO_LEASE}"),
        ({"topic": "a", "done": ["x"] * 501}, f"done: expected {DONE}, got 501"),
        ({"topic": "a", "failed": ["x"]}, f"failed: expected {FAILED}, got an array"),
        ({"topic": "a", "failed": [{}]}, "failed: lease: expected a lease, as /claim answers it, got nothing"),
        (
            {"topic": "a", "failed": [{"lease": "x"}]},
            "failed: expected leases as /claim answers them, got something else",
        ),
        (
            {"topic": "a", "failed": [{"lease": "x", "delay": "5"}]},
            'failed: delay: expected a number of seconds ≥ 0, got "5"',
        ),
        ({"topic": "a", "failed": [{"lease": "x", "delai": 5}]}, "failed: delai: unknown field; did you mean delay?"),
        ({"topic": "a", "limit": 5}, "limit: unknown field"),
    ]
    answers = [await api.post("/claim", body) for body, _ in wrong]
    assert answers == refusals(wrong)


async def test_a_wrong_field_of_a_call_about_leases_is_named(api: ApiFixture) -> None:
    await put(api, a_pulled_task())
    [task] = await claim(api)
    leases = [task["lease"]]
    wrong: list[tuple[str, dict[str, Any], str]] = [
        *((path, {}, f"leases: expected {LEASES}, got nothing") for path in ("/ack", "/nack", "/release", "/extend")),
        ("/ack", {"leases": leases[0]}, f'leases: expected {LEASES}, got "{leases[0]}"'),
        ("/ack", {"leases": [5]}, f"leases: expected {LEASES}, got 5"),
        ("/ack", {"leases": leases * 10_001}, f"leases: expected {LEASES}, got 10001"),
        ("/ack", {"leases": [*leases, "x"]}, f"leases: {NO_LEASE}"),
        ("/ack", {"leases": leases, "delay": 5}, "delay: unknown field"),
        ("/nack", {"leases": leases, "delay": -1}, "delay: expected a number of seconds ≥ 0, got -1"),
        ("/nack", {"leases": leases, "delay": 4e8}, "delay: expected a time at most ten years ahead, got 400000000"),
        ("/nack", {"leases": leases, "message": "x" * 501}, f"message: expected {MESSAGE}, got 501"),
        ("/nack", {"leases": leases, "message": 5}, f"message: expected {MESSAGE}, got 5"),
        ("/nack", {"leases": leases, "dead": "yes"}, 'dead: expected true or false, got "yes"'),
        ("/nack", {"leases": leases, "dead": True, "busy": True}, "dead: expected either dead or busy, got both"),
        ("/nack", {"leases": leases, "dead": True, "delay": 5}, "dead: expected either dead or delay, got both"),
        (
            "/nack",
            {"leases": leases, "reason": "No disk"},
            'reason: expected 1 to 32 characters of a-z and _, got "No disk"',
        ),
        ("/extend", {"leases": leases, "lease": 0}, f"lease: expected {SECONDS}, got 0"),
    ]
    answers = [await api.post(path, body) for path, body, _ in wrong]
    assert answers == refusals([(body, detail) for _, body, detail in wrong])
    assert await api.post("/ack", {"leases": leases}) == ok(acked=1, lost=[])


async def test_no_lease_at_all_is_done_at_once(api: ApiFixture) -> None:
    assert await api.post("/ack", {"leases": []}) == ok(acked=0, lost=[])
    assert await api.post("/nack", {"leases": []}) == ok(nacked=0, lost=[])


async def test_a_bound_caller_claims_of_its_own_topics_and_others_leases_are_lost_to_it() -> None:
    async with serve_api(policy=PULLED, authorization=NamedCallers(), shards=2) as api:
        team, other, operator = (Tenant(api, name) for name in ("team", "other", "operator"))
        names = {"team": "team/jobs", "other": "other/jobs"}
        await put(api, *(a_pulled_task(id=f"{name}/a", topic=topic) for name, topic in names.items()))
        for field, body in (("topic", {"topic": "other/jobs"}), ("topic", {"topics": ["team/jobs", "other/jobs"]})):
            status, problem = await team.post("/claim", body)
            assert (status, problem["detail"]) == (403, f"{field}: this key is for the namespace team")
        [own] = (await team.post("/claim", {"topic": "team/jobs"}))[1]["tasks"]
        [foreign] = (await other.post("/claim", {"topic": "other/jobs"}))[1]["tasks"]
        assert (own["id"], foreign["id"]) == ("team/a", "other/a")
        unknown = own["lease"]
        await api.post("/ack", {"leases": [unknown]})
        for path in ("/ack", "/nack", "/release", "/extend"):
            _, answer = await team.post(path, {"leases": [foreign["lease"], unknown]})
            assert answer["lost"] == [foreign["lease"], unknown]
        _, answer = await team.post("/claim", {"topic": "team/jobs", "done": [foreign["lease"]]})
        assert answer == {"tasks": [], "lost": [foreign["lease"]]}
        assert await operator.post("/ack", {"leases": [foreign["lease"]]}) == ok(acked=1, lost=[])


async def test_after_a_shard_that_is_away_the_same_call_finds_the_rest(api: ApiFixture) -> None:
    ids = id_per_shard(api)
    await put(api, *(a_pulled_task(id=id) for id in ids))
    leases = [task["lease"] for task in await claim(api)]
    api.client.shards_down = [1]
    status, problem = await api.post("/ack", {"leases": leases})
    assert (status, problem["type"], problem["unknown"]) == (503, "/problems/store-away", True)
    api.client.shards_down = []
    status, answer = await api.post("/ack", {"leases": leases})
    assert (status, answer["acked"], len(answer["lost"])) == (200, 1, 1)


@each_case(
    "policy, wait, fails_at",
    [({}, 5, 2), ({"on_done": "events"}, 0, 1), ({}, 0, 0)],
    ids=["the look while it waits", "the look after an ack of its own", "the ack itself"],
)
async def test_a_claim_that_fails_after_its_acks_says_that_they_may_have_been_carried_out(
    policy: dict[str, object], wait: float, fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ack that was not carried out is none: the store refused the connection."""
    async with serve_api(policy=PULLED, shards=1) as api:
        if policy:
            await api.request("PATCH", "/topics/jobs/policy", policy)
        await put(api, a_pulled_task(id="a"))
        [task] = await claim(api)
        execute, claims = api.client.execute_each, 0

        async def fail(verb: str, commands: Sequence[Command]) -> list[Any]:
            nonlocal claims
            claims += verb == "claim"
            if verb == "claim" and claims >= fails_at:
                raise StoreDown("the store cannot be reached: connection refused")
            return await execute(verb, commands)

        with monkeypatch.context() as patch:
            patch.setattr(api.client, "execute_each", fail)
            status, problem = await api.post("/claim", {"topic": "jobs", "done": [task["lease"]], "wait": wait})
        assert (status, problem.get("unknown", False)) == (503, fails_at > 0)
        assert await state_of(api, "a") == ("gone" if fails_at else "unack")


def round_trips(api: ApiFixture) -> float:
    """Return how many round trips to the store there were."""
    name = "later_store_round_trip_duration_seconds_count"
    samples = (sample for metric in api.metrics.registry.collect() for sample in metric.samples)
    return sum(sample.value for sample in samples if sample.name == name)


@each_case("shards, expected", [(1, 1), (2, 2)])
async def test_a_claim_acks_what_is_done_in_its_own_round_trip(shards: int, expected: int) -> None:
    """With several shards, a claim takes a second one."""
    async with serve_api(policy=PULLED, shards=shards) as api:
        await put(api, *(a_pulled_task(id=f"t{n}", created_at=EARLIER + n) for n in range(6)))
        first = await claim(api, max=3)
        leases = [task["lease"] for task in first]
        before = round_trips(api)
        assert [task["id"] for task in await claim(api, max=2, done=leases)] == ["t3", "t4"]
        assert round_trips(api) - before == expected
        assert [await state_of(api, task["id"]) for task in first] == ["gone"] * 3
        before = round_trips(api)
        _, answer = await api.post("/claim", {"topic": "jobs", "done": leases[:1]})
        assert ([task["id"] for task in answer["tasks"]], answer["lost"]) == (["t5"], leases[:1])
        assert await api.post("/claim", {"topic": "jobs", "done": leases[:1]}) == ok(tasks=[], lost=leases[:1])
        assert round_trips(api) - before <= 2 * expected
        assert api.metric("later_acked_total") == 3


async def test_what_a_claim_brings_back_counts_also_where_nothing_can_be_claimed(api: ApiFixture) -> None:
    await put(api, *(a_pulled_task(id=f"t{n}") for n in range(3)))
    a, b, c = [task["lease"] for task in await claim(api)]
    await api.request("PATCH", "/topics/mail/policy", {"deliver": "push"})
    assert (await api.post("/claim", {"topic": "mail", "done": [a]}))[0] == 409
    await api.request("PATCH", "/topics/mail/policy", {"deliver": "pull", "paused": True})
    assert await api.post("/claim", {"topic": "mail", "done": [b]}) == NOTHING
    both = {"done": [c], "failed": [{"lease": c}]}
    assert await api.post("/claim", {"topic": "jobs", **both}) == ok(tasks=[], lost=[c])
    assert [await state_of(api, f"t{n}") for n in range(3)] == ["gone"] * 3


async def test_tasks_that_were_claimed_beside_an_ack_that_failed_are_given_back(api: ApiFixture) -> None:
    ids = id_per_shard(api)
    await put(api, *(a_pulled_task(id=id) for id in ids))
    leases = [task["lease"] for task in await claim(api)]
    await put(api, *(a_pulled_task() for _ in range(20)))
    api.client.shards_down = [1]
    status, problem = await api.post("/claim", {"topic": "jobs", "max": 20, "done": leases})
    assert (status, problem["type"]) == (503, "/problems/store-away")
    api.client.shards_down = []
    _, answer = await api.post("/claim", {"topic": "jobs", "max": 20, "done": leases})
    assert len(answer["lost"]) == 1
    assert [task["attempt"] for task in answer["tasks"]] == [1] * 20


async def test_entries_without_a_task_that_a_claim_meets_are_counted(api: ApiFixture) -> None:
    await put(api, a_pulled_task(id="a"))
    await api.client.execute("break", ("HDEL", api.keys.shard_of("a").pool, pack_id("a")))
    assert await claim(api) == []
    assert api.metric("later_orphan_entries_total") == 1


async def test_too_many_leases_that_wait_for_the_store_are_answered_503() -> None:
    async with serve_api(policy=PULLED, max_pending_writes=1) as api:
        await put(api, a_pulled_task(), a_pulled_task())
        leases = [task["lease"] for task in await claim(api)]
        api.client.resume = asyncio.Event()
        first = asyncio.create_task(api.post("/ack", {"leases": leases}))
        await asyncio.sleep(0.05)
        assert (await api.post("/claim", {"topic": "jobs"}))[1]["type"] == "/problems/too-many-waiting"
        api.client.resume.set()
        assert await first == ok(acked=2, lost=[])
