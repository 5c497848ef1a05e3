"""Random sequences of verbs: the store holds what a plain model of it holds, to the millisecond.

The model knows nothing of Redis: it is a dict of tasks, the remembered ids, and the wake times.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from later.core.edit import TaskChanges, edit, renew_ttl
from later.core.errors import Conflict, NotFound
from later.core.policy import Policy
from later.core.policy_scopes import Policies
from later.core.retry import Failure, SettleTarget, Verdict, encode_failure, expiry_failure
from later.core.task import Task, pack_id
from later.store.dead_letters import PURGEABLE
from later.store.keys import Bucket
from later.store.types import (
    BucketRange,
    Claim,
    ClaimRequest,
    DueTopic,
    MoveResult,
    ReleaseResult,
    Settlement,
    TaskEdit,
    TaskRecord,
)
from tests.builders import NOW, a_task
from tests.servers import run_server
from tests.store.inspection import findings, read_contents, unwrap_claim
from tests.store_fixture import StoreFixture, open_store

TOPICS = st.sampled_from(["order", "mail/eu"])
OWN_IDS = st.sampled_from("abcd")
PAUSES = st.integers(0, 3000)
MAX_LEASE = 4000
LEASES = st.integers(1, MAX_LEASE)
FATES = st.sampled_from(SettleTarget)
NO_POLICIES = Policies(Policy())
CHANGES = st.sampled_from(
    [
        TaskChanges(delay=0),
        TaskChanges(delay=1.5, ttl=2.5),
        TaskChanges(delay=0.2, content="later", retry=7),
        TaskChanges(execute_time=NOW / 1000 + 2),
        TaskChanges(content="other", headers={"X-A": "b"}),
        TaskChanges(callback="http://127.0.0.1:8888/other"),
        TaskChanges(ttl=3),
        TaskChanges(ttl=None),
    ]
)
PICKS = st.lists(st.integers(0, 99), min_size=1, max_size=5)
Lane = tuple[int, str]


@dataclass(kw_only=True, slots=True)
class ModelTask:
    """A task in the model."""

    task: Task
    lane: Lane
    bucket: Bucket
    score: int
    begun: int = 0
    fence: int | None = None
    failure: Failure | None = None


class Model:
    """The expected contents of the store."""

    def __init__(self) -> None:
        self.tasks: dict[str, ModelTask] = {}
        self.done: dict[str, int] = {}
        self.expiry: dict[tuple[str, str], int] = {}
        self.delay_wakes: dict[Lane, int] = {}

    def create(self, task: Task, shard: int) -> bool:
        if task.own_id and (task.id in self.tasks or task.id in self.done):
            return False
        lane = (shard, task.topic)
        self.tasks[task.id] = ModelTask(task=task, lane=lane, bucket=Bucket.DELAY, score=task.execute_at)
        self._wake_by(lane, self.tasks[task.id].score)
        if task.expires_at is not None:
            self.expiry[task.topic, task.id] = task.expires_at
        return True

    def due(self, lane: Lane, now: int, limit: int) -> list[ModelTask]:
        waiting = [task for task in self.within(Bucket.DELAY, lane) if task.score <= now]
        return sorted(waiting, key=lambda living: (living.score, pack_id(living.task.id)))[:limit]

    def claim(self, living: ModelTask, claim: Claim) -> None:
        living.bucket, living.score = Bucket.UNACK, claim.lease_end
        living.begun, living.fence = living.begun + 1, claim.fence

    def served(self, lane: Lane, now: int) -> int | None:
        """Note, after a claim, that a topic with due tasks left waits for its next turn."""
        self._wake_at_first(lane)
        if lane in self.delay_wakes and self.delay_wakes[lane] <= now:
            self.delay_wakes[lane] = now
        return self.delay_wakes.get(lane)

    def held(self, claim: Claim) -> ModelTask | None:
        living = self.tasks.get(claim.id)
        holds = living is not None and living.bucket is Bucket.UNACK and living.fence == claim.fence
        return living if holds else None

    def settle(self, settlement: Settlement) -> bool:
        claim, verdict, remember_until = settlement
        living = self.held(claim)
        if living is None:
            return False
        if verdict.target is not SettleTarget.ERROR:
            self.expiry.pop((claim.topic, claim.id), None)
        if verdict.target is SettleTarget.DONE:
            del self.tasks[claim.id]
            if remember_until is not None:
                self.done[claim.id] = remember_until
        else:
            living.bucket = Bucket.DEAD if verdict.target is SettleTarget.DEAD else Bucket.ERROR
            living.score, living.failure = verdict.at, verdict.failure
        return True

    def give_back(self, claim: Claim) -> bool:
        living = self.held(claim)
        if living is None:
            return False
        living.bucket, living.score, living.begun = Bucket.DELAY, claim.due_at, living.begun - 1
        self._wake_by(living.lane, claim.due_at)
        return True

    def release(self, bucket: Bucket, lane: Lane, now: int) -> int:
        over = [living for living in self.within(bucket, lane) if living.score <= now]
        for living in over:
            living.bucket, living.score = Bucket.DELAY, now
            self._wake_by(lane, now)
        return len(over)

    def delete(self, id: str) -> bool:
        self.done.pop(id, None)
        living = self.tasks.pop(id, None)
        if living is not None:
            self.expiry.pop((living.lane[1], id), None)
        if living is not None and living.bucket is Bucket.DELAY:
            self._keep_the_turn(living.lane)
        return living is not None

    def update(self, id: str, changes: TaskChanges, now: int) -> str:
        """Return "edited", or the bucket of a task that cannot be edited."""
        living = self.tasks.get(id)
        if living is None or living.bucket in (Bucket.UNACK, Bucket.DEAD):
            return "gone" if living is None else living.bucket
        living.task = edit(living.task, changes, NO_POLICIES, now)
        self._age(living)
        if changes.sets_due_time:
            before, living.bucket, living.score = living.bucket, Bucket.DELAY, living.task.execute_at
            if before is Bucket.DELAY:
                self._keep_the_turn(living.lane)
            self._wake_by(living.lane, living.score)
        return "edited"

    def run_now(self, id: str, now: int) -> bool:
        living = self.tasks.get(id)
        if living is None or living.bucket is Bucket.UNACK:
            return False
        if living.bucket is Bucket.DEAD:
            return self.redrive(living, now, now)
        living.score = min(living.score, now) if living.bucket is Bucket.DELAY else now
        living.bucket = Bucket.DELAY
        self._wake_by(living.lane, now)
        return True

    def redrive(self, living: ModelTask, due_at: int, now: int) -> bool:
        living.bucket, living.score, living.begun, living.failure = Bucket.DELAY, due_at, 0, None
        living.task = renew_ttl(living.task, now)
        self._age(living)
        self._wake_by(living.lane, due_at)
        return True

    def redrive_dead(self, topic: str, rate: float, now: int, limit: int) -> int:
        dead = sorted(
            [living for living in self.of(topic) if living.bucket is Bucket.DEAD and living.score < now],
            key=lambda living: (living.score, pack_id(living.task.id)),
        )
        for place, living in enumerate(dead[:limit]):
            self.redrive(living, now + int(place * 1000 / rate), now)
        return len(dead)

    def purge(self, topic: str, buckets: list[Bucket]) -> int:
        gone = [living for living in self.of(topic) if living.bucket in buckets]
        for living in gone:
            self.delete(living.task.id)
        return len(gone)

    def of(self, topic: str) -> list[ModelTask]:
        return [living for living in self.tasks.values() if living.lane[1] == topic]

    def _age(self, living: ModelTask) -> None:
        self.expiry.pop((living.task.topic, living.task.id), None)
        if living.task.expires_at is not None:
            self.expiry[living.task.topic, living.task.id] = living.task.expires_at

    def expire(self, now: int) -> dict[str, Failure]:
        """Let waiting tasks whose ttl has ended die; return them."""
        died: dict[str, Failure] = {}
        for (topic, id), _ in [entry for entry in self.expiry.items() if entry[1] <= now]:
            living = self.tasks[id]
            if living.bucket is Bucket.UNACK:
                self.expiry[topic, id] = now + 1000
                continue
            before, living.bucket, living.score = living.bucket, Bucket.DEAD, now
            living.failure = died[id] = expiry_failure(living.failure, now)
            del self.expiry[topic, id]
            if before is Bucket.DELAY:
                self._keep_the_turn(living.lane)
        return died

    def sweep(self, topic: str, latest: int, remember_until: int) -> int:
        gone = [
            id
            for id, living in self.tasks.items()
            if living.bucket is Bucket.DEAD and living.lane[1] == topic and living.score <= latest
        ]
        for id in gone:
            if self.tasks.pop(id).task.own_id:
                self.done[id] = remember_until
        return len(gone)

    def trim(self, now: int) -> int:
        over = [id for id, until in self.done.items() if until <= now]
        for id in over:
            del self.done[id]
        return len(over)

    def within(self, bucket: Bucket, lane: Lane) -> list[ModelTask]:
        return [living for living in self.tasks.values() if living.bucket is bucket and living.lane == lane]

    def first(self, bucket: Bucket, lane: Lane) -> int | None:
        return min((living.score for living in self.within(bucket, lane)), default=None)

    def wakes(self) -> dict[tuple[Bucket, int, str], int]:
        others = {
            (living.bucket, *living.lane): self.first(living.bucket, living.lane) or 0
            for living in self.tasks.values()
            if living.bucket is not Bucket.DELAY
        }
        return others | {(Bucket.DELAY, *lane): at for lane, at in self.delay_wakes.items()}

    def buckets(self) -> dict[tuple[Bucket, str], dict[str, int]]:
        buckets: dict[tuple[Bucket, str], dict[str, int]] = {}
        for id, living in self.tasks.items():
            buckets.setdefault((living.bucket, living.lane[1]), {})[id] = living.score
        return buckets

    def _wake_by(self, lane: Lane, at: int) -> None:
        self.delay_wakes[lane] = min(self.delay_wakes.get(lane, at), at)

    def _wake_at_first(self, lane: Lane) -> None:
        first = self.first(Bucket.DELAY, lane)
        self.delay_wakes.pop(lane, None)
        if first is not None:
            self.delay_wakes[lane] = first

    def _keep_the_turn(self, lane: Lane) -> None:
        first = self.first(Bucket.DELAY, lane)
        if first is None or lane not in self.delay_wakes or first > self.delay_wakes[lane]:
            self._wake_at_first(lane)


class StoreMachine(RuleBasedStateMachine):
    """Each rule does one thing to the store and the same to the model, and compares what they answer."""

    url: str
    shards: int

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.opening = open_store(self.url, self.shards)
        self.store: StoreFixture = self.run(self.opening.__aenter__)
        self.model = Model()
        self.now = NOW
        self.fence = dict.fromkeys(range(self.shards), 0)
        self.claims: list[Claim] = []
        self.made = 0

    def run(self, verb: Callable[..., Awaitable[Any]], *arguments: object) -> Any:
        async def call() -> Any:
            return await verb(*arguments)

        return self.runner.run(call())

    def teardown(self) -> None:
        try:
            assert self.run(findings, self.store, self.now) == []
        finally:
            self.run(self.opening.__aexit__, None, None, None)
            self.runner.close()

    @initialize(topic=TOPICS, delays=st.lists(PAUSES, max_size=8))
    def begin(self, topic: str, delays: list[int]) -> None:
        self._create([self._made_task(topic, delay) for delay in delays])

    @rule(ids=st.lists(OWN_IDS, max_size=4), topic=TOPICS, delay=PAUSES, ttl=st.none() | st.integers(1, 3000))
    def create(self, ids: list[str], topic: str, delay: int, ttl: int | None) -> None:
        tasks = [
            a_task(id=id, own_id=True, topic=topic, created_at=self.now, delay=delay / 1000, ttl=ttl and ttl / 1000)
            for id in ids
        ]
        self._create([*tasks, self._made_task(topic, delay)])

    @rule(pause=PAUSES)
    def pass_time(self, pause: int) -> None:
        self.now += pause

    @rule(topic=TOPICS, limit=st.integers(1, 4), lease=LEASES, behind=st.integers(0, 20))
    def claim(self, topic: str, limit: int, lease: int, behind: int) -> None:
        """Claim as a worker whose clock may be a little behind the others'."""
        now = self.now - behind
        lanes = [(shard, topic) for shard in range(self.shards)]
        wants = [ClaimRequest(topic, shard, limit) for shard, _ in lanes]
        for lane, answer in zip(lanes, self.run(self.store.tasks.claim, wants, now, now + lease), strict=True):
            expected = self.model.due(lane, now, limit)
            claims = unwrap_claim(answer)
            assert [claim.task for claim in claims.claims] == [living.task for living in expected]
            for claim, living in zip(claims.claims, expected, strict=True):
                self._check_claim(claim, living, now + lease)
                self.model.claim(living, claim)
            assert (claims.wake_at, claims.orphans) == (self.model.served(lane, now), 0)
            self.claims += claims.claims

    @rule(picks=PICKS, fate=FATES, pause=PAUSES, remember=st.booleans())
    def settle(self, picks: list[int], fate: SettleTarget, pause: int, remember: bool) -> None:
        """Settle old and new claims, some of them lost long ago, some twice."""
        settlements = []
        for claim in self._picked(picks):
            failure = Failure(claim.attempt, "status", 500, "answered 500", self.now, None, claim.attempt)
            verdict = Verdict(fate, self.now + (pause if fate is SettleTarget.ERROR else 0), failure)
            until = self.now + pause if remember and fate is SettleTarget.DONE else None
            settlements.append(Settlement(claim, verdict, until))
        answers = self.run(self.store.tasks.settle, settlements)
        assert answers == [self.model.settle(settlement) for settlement in settlements]

    @rule(picks=PICKS)
    def give_back(self, picks: list[int]) -> None:
        claims = self._picked(picks)
        answers = self.run(self.store.tasks.give_back, claims)
        assert answers == [self.model.give_back(claim) for claim in claims]

    @rule(bucket=st.sampled_from([Bucket.UNACK, Bucket.ERROR]), topic=TOPICS)
    def release(self, bucket: Bucket, topic: str) -> None:
        wakes = [DueTopic(self.now, topic, shard) for shard in range(self.shards)]
        answers = self.run(self.store.tasks.release, bucket, wakes, self.now)
        lanes = [(shard, topic) for shard in range(self.shards)]
        moved = [self.model.release(bucket, lane, self.now) for lane in lanes]
        left = [self.model.first(bucket, lane) for lane in lanes]
        assert answers == [ReleaseResult(*pair) for pair in zip(moved, left, strict=True)]

    @rule()
    def expire(self) -> None:
        found = self.run(self.store.expiry.expired_tasks, self.now)
        deaths = [(task, expiry_failure(task.failure, self.now)) for task in found]
        answers = self.run(self.store.expiry.expire, deaths, self.now)
        died = {task.id: death for (task, death), answer in zip(deaths, answers, strict=True) if answer}
        assert died == self.model.expire(self.now)

    @rule(topic=TOPICS, keep=PAUSES, pause=PAUSES)
    def sweep(self, topic: str, keep: int, pause: int) -> None:
        latest, until, swept = self.now - keep, self.now + pause, 0
        for shard in range(self.shards):
            dead = self.run(self.store.expiry.dead_tasks, DueTopic(0, topic, shard), latest)
            swept += sum(self.run(self.store.expiry.sweep, dead, latest, until))
        assert swept == self.model.sweep(topic, latest, until)

    @rule(topic=TOPICS)
    def lose_leases(self, topic: str) -> None:
        """Let leases expire and claim again at once, so that the first claims are lost."""
        self.now += MAX_LEASE
        self.release(bucket=Bucket.UNACK, topic=topic)
        self.claim(topic=topic, limit=3, lease=MAX_LEASE, behind=0)

    @rule(topic=TOPICS, fate=st.sampled_from([SettleTarget.DEAD, SettleTarget.ERROR]), pause=PAUSES)
    def fail(self, topic: str, fate: SettleTarget, pause: int) -> None:
        """Let all due deliveries fail, so that there are dead tasks to redrive."""
        self.claims.clear()
        self.now += pause
        self.claim(topic=topic, limit=8, lease=MAX_LEASE, behind=0)
        self.settle(picks=list(range(len(self.claims[-8:]))), fate=fate, pause=pause, remember=False)

    @rule(ids=st.lists(OWN_IDS, min_size=1, max_size=3, unique=True))
    def delete(self, ids: list[str]) -> None:
        answers = self.run(self.store.edits.delete, ids)
        assert [not isinstance(answer, NotFound) for answer in answers] == [self.model.delete(id) for id in ids]

    @rule(picks=PICKS, changes=CHANGES)
    def update(self, picks: list[int], changes: TaskChanges) -> None:
        ids = self._picked_ids(picks)
        answers = self.run(self.store.edits.update, [TaskEdit(id, changes, NO_POLICIES, self.now) for id in ids])
        for id, answer in zip(ids, answers, strict=True):
            came = self.model.update(id, changes, self.now)
            if came != "edited":
                assert type(answer) is (NotFound if came == "gone" else Conflict)
        self._check_found(ids, answers)

    @rule(picks=PICKS)
    def run_now(self, picks: list[int]) -> None:
        ids = self._picked_ids(picks)
        answers = self.run(self.store.edits.run_now, ids, self.now)
        assert [isinstance(answer, TaskRecord) for answer in answers] == [
            self.model.run_now(id, self.now) for id in ids
        ]
        self._check_found(ids, answers)

    @rule(pick=st.integers(0, 99))
    def redrive(self, pick: int) -> None:
        [id] = self._picked_ids([pick])
        living = self.model.tasks.get(id)
        [answer] = self.run(self.store.edits.redrive, [id], self.now)
        if living is None or living.bucket is not Bucket.DEAD:
            assert type(answer) is (NotFound if living is None else Conflict)
        else:
            self.model.redrive(living, self.now, self.now)
            self._check_found([id], [answer])

    @rule(topic=TOPICS, rate=st.sampled_from([0.5, 3, 1000]), limit=st.integers(1, 4))
    def redrive_dead(self, topic: str, rate: float, limit: int) -> None:
        there = self.model.redrive_dead(topic, rate, self.now, limit)
        dead = BucketRange(topic, Bucket.DEAD)
        answer = self.run(partial(self.store.dead_letters.redrive, dead, now=self.now, rate=rate, limit=limit))
        assert answer == MoveResult(min(there, limit), there > limit)

    @rule(topic=TOPICS, buckets=st.lists(st.sampled_from(PURGEABLE), min_size=1, unique=True))
    def purge(self, topic: str, buckets: list[Bucket]) -> None:
        answer = self.run(self.store.dead_letters.purge, [BucketRange(topic, bucket) for bucket in buckets])
        assert answer == MoveResult(self.model.purge(topic, buckets), more=False)

    @rule(ids=st.lists(OWN_IDS, min_size=1, max_size=4, unique=True))
    def query(self, ids: list[str]) -> None:
        for id, found in zip(ids, self.run(self.store.lookup.query, ids), strict=True):
            living = self.model.tasks.get(id)
            if living is None:
                assert isinstance(found, NotFound)
                assert found.ended == (id in self.model.done)
            else:
                assert found == TaskRecord(
                    id, living.lane[1], living.task, living.bucket, living.score, living.begun, living.failure
                )

    @rule()
    def trim_and_examine(self) -> None:
        assert self.run(self.store.tasks.trim, self.now, 1000) == self.model.trim(self.now)
        assert self.run(findings, self.store, self.now) == []

    @invariant()
    def store_and_model_agree(self) -> None:
        sight = self.run(read_contents, self.store)
        tasks = self.model.tasks
        assert sight.pool == tasks.keys()
        assert sight.buckets == self.model.buckets()
        assert sight.wakes == self.model.wakes()
        assert sight.done == self.model.done
        assert sight.expiry == self.model.expiry
        assert sight.attempts == {id: f"{task.begun} {task.fence}" for id, task in tasks.items() if task.begun}
        assert sight.outcome == {id: encode_failure(task.failure) for id, task in tasks.items() if task.failure}

    def _check_found(self, ids: list[str], answers: list[Any]) -> None:
        """Check that each task is where a query found it. Of an id that is asked for twice the last answer counts."""
        for id, found in dict(zip(ids, answers, strict=True)).items():
            if isinstance(found, TaskRecord):
                self.query([id])
                assert self.run(self.store.lookup.query, [id]) == [found]

    def _create(self, tasks: list[Task]) -> None:
        answers = self.run(self.store.tasks.create, tasks)
        assert answers == [self.model.create(task, self.store.keys.shard_of(task.id).index) for task in tasks]

    def _made_task(self, topic: str, delay: int) -> Task:
        """Return a task with an id of later's own form, but the same in each run."""
        self.made += 1
        id = str(uuid.UUID(int=self.made * 0x9E3779B97F4A7C15, version=4))
        return a_task(id=id, topic=topic, created_at=self.now, delay=delay / 1000)

    def _picked(self, picks: list[int]) -> list[Claim]:
        """Return some of the latest claims: enough of them are lost, or settled already."""
        latest = self.claims[-8:]
        return [latest[pick % len(latest)] for pick in picks] if latest else []

    def _picked_ids(self, picks: list[int]) -> list[str]:
        """Return ids of existing tasks, or of one that may be gone."""
        ids = ["a", *sorted(self.model.tasks)]
        return [ids[pick % len(ids)] for pick in picks]

    def _check_claim(self, claim: Claim, living: ModelTask, lease_end: int) -> None:
        shard, topic = living.lane
        assert claim.fence > self.fence[shard]
        self.fence[shard] = claim.fence
        assert claim == Claim(
            living.task.id, topic, shard, living.task, living.score, living.begun + 1, claim.fence,
            living.failure, lease_end,
        )  # fmt: skip


@pytest.fixture(scope="module")
def one_server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of one server: other tests run each script on both."""
    with run_server("valkey", tmp_path_factory.mktemp("life")) as (url, _):
        yield url


@pytest.mark.parametrize("shards", [1, 4])
def test_the_store_holds_what_the_model_holds(one_server_url: str, shards: int) -> None:
    machine = type("Machine", (StoreMachine,), {"url": one_server_url, "shards": shards})
    bounded = settings(
        max_examples=100,
        stateful_step_count=40,
        phases=[Phase.reuse, Phase.generate],  # making a failure shorter would take minutes
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=bounded)
