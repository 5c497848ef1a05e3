"""Random sequences of verbs: the store holds what a plain model of it holds, to the millisecond.

The model knows nothing of Redis: it is a dict of tasks, the remembered ids, the wake times and the holds.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from later.core.dead_letter_topic import move_back, move_dead
from later.core.edit import TaskChanges, edit, renew_ttl
from later.core.errors import Conflict, InFlight, NotFound
from later.core.held import Held
from later.core.if_exists import Upsert
from later.core.lease import lease_of
from later.core.policy import Policy
from later.core.policy_scopes import Policies, Settings, topic_scope
from later.core.retry import Failure, SettleTarget, Verdict, encode_failure, expiry_failure
from later.core.task import Task, pack_id
from later.store.dead_letters import PURGEABLE
from later.store.keys import Bucket
from later.store.types import (
    BucketRange,
    Claim,
    ClaimRequest,
    CreateResult,
    Deletion,
    DueTopic,
    ExistingTask,
    MoveResult,
    PutBack,
    ReleaseResult,
    Settlement,
    TaskEdit,
    TaskRecord,
    UpdatedTask,
)
from tests.builders import NOW, a_task
from tests.servers import run_server
from tests.store.inspection import PAUSED, findings, no_names, read_contents, unwrap_claim
from tests.store_fixture import StoreFixture, hold_topic, open_store

TOPICS = st.sampled_from(["order", "mail/eu"])
OWN_IDS = st.sampled_from("abcd")
PAUSES = st.integers(0, 3000)
MAX_LEASE = 4000
LEASES = st.integers(1, MAX_LEASE)
TARGETS = st.sampled_from(SettleTarget)
NO_POLICIES = Policies(Policy())
DEAD_TO_EACH_OTHER = Policies(
    Policy(),
    {
        topic_scope("order"): Settings({"dead_to": "mail/eu", "dead_ttl": 1.5}),
        topic_scope("mail/eu"): Settings({"dead_to": "order"}),
    },
)
"""Policies that no daemon takes: tasks that die in one topic move to the other one."""
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
LIMITS = st.dictionaries(TOPICS, st.integers(1, 4), min_size=1)
"""How many tasks to claim of some topics; more than nine are read in another way."""
PICKS = st.lists(st.integers(0, 99), min_size=1, max_size=5)
ShardTopic = tuple[int, str]


@dataclass(kw_only=True, slots=True)
class ModelTask:
    """A task in the model."""

    task: Task
    shard_topic: ShardTopic
    bucket: Bucket
    score: int
    begun: int = 0
    fence: int | None = None
    failure: Failure | None = None
    first_due: int | None = None
    """When a task was first due that was put back until later."""
    put_back_for: Held = Held.ORIGIN

    @property
    def attempts(self) -> str | None:
        """Its entry in `attempts`."""
        if self.first_due is not None:
            return f"{self.begun} {'00' if self.put_back_for is Held.FAULT else '0'}{self.first_due}"
        return f"{self.begun} {self.fence}" if self.begun else None


class Model:
    """The expected contents of the store."""

    def __init__(self) -> None:
        self.tasks: dict[str, ModelTask] = {}
        self.done: dict[str, int] = {}
        self.expiry: dict[tuple[str, str], int] = {}
        self.delay_wakes: dict[ShardTopic, int] = {}
        """A hold is below zero: `PAUSED`, or the moment at which it ends, negated."""

    def create(self, task: Task, shard: int) -> CreateResult:
        if task.own_id and (task.id in self.tasks or task.id in self.done):
            existing = self.tasks.get(task.id)
            return ExistingTask(None if existing is None or existing.bucket is Bucket.DEAD else existing.score)
        shard_topic = (shard, task.topic)
        self.tasks[task.id] = ModelTask(task=task, shard_topic=shard_topic, bucket=Bucket.DELAY, score=task.execute_at)
        self._lower_wake(shard_topic, self.tasks[task.id].score)
        if task.expires_at is not None:
            self.expiry[task.topic, task.id] = task.expires_at
        return True

    def due(self, shard_topic: ShardTopic, now: int, limit: int) -> list[ModelTask]:
        return [] if self.is_held(shard_topic, now) else self.pulled(shard_topic, now, limit)

    def pulled(self, shard_topic: ShardTopic, now: int, limit: int) -> list[ModelTask]:
        """Return what a consumer gets, whom no hold stops."""
        waiting = [task for task in self.tasks_in(Bucket.DELAY, shard_topic) if task.score <= now]
        return sorted(waiting, key=lambda model_task: (model_task.score, pack_id(model_task.task.id)))[:limit]

    def claim(self, model_task: ModelTask, claim: Claim) -> None:
        model_task.bucket, model_task.score = Bucket.UNACK, claim.lease_end
        model_task.begun, model_task.fence = model_task.begun + 1, claim.fence
        model_task.first_due = None

    def is_held(self, shard_topic: ShardTopic, now: int) -> bool:
        return -self.delay_wakes.get(shard_topic, 0) > now

    def hold(self, shard_topic: ShardTopic, entry: int) -> None:
        """Of two holds the longer one counts."""
        self.delay_wakes[shard_topic] = min(self.delay_wakes.get(shard_topic, 0), entry)

    def resume(self, shard_topic: ShardTopic, at: int) -> None:
        if self.delay_wakes.get(shard_topic) == PAUSED:
            self.delay_wakes[shard_topic] = -at

    def wake_after_claim(self, shard_topic: ShardTopic, now: int) -> int | None:
        """Note, after a claim, that a topic with due tasks left waits for its next turn."""
        if self.is_held(shard_topic, now):
            until = -self.delay_wakes[shard_topic]
            return None if until == -PAUSED else until
        self._refresh_wake(shard_topic)
        if shard_topic in self.delay_wakes and self.delay_wakes[shard_topic] <= now:
            self.delay_wakes[shard_topic] = now
        return self.delay_wakes.get(shard_topic)

    def extend(self, claim: Claim, lease_end: int) -> bool:
        model_task = self.claimed_task(claim)
        if model_task is None:
            return False
        model_task.score = lease_end
        return True

    def claimed_task(self, claim: Claim) -> ModelTask | None:
        model_task = self.tasks.get(claim.id)
        holds = model_task is not None and model_task.bucket is Bucket.UNACK and model_task.fence == claim.fence
        return model_task if holds else None

    def settle(self, settlement: Settlement) -> bool:
        claim, verdict, remember_until = settlement
        model_task = self.claimed_task(claim)
        if model_task is None:
            return False
        if verdict.moved is not None:
            self.change_topic(model_task, verdict.moved, verdict.at)
            return True
        if verdict.target is not SettleTarget.ERROR:
            self.expiry.pop((claim.topic, claim.id), None)
        if verdict.target is SettleTarget.DONE:
            del self.tasks[claim.id]
            if remember_until is not None:
                self.done[claim.id] = remember_until
        else:
            model_task.bucket = Bucket.DEAD if verdict.target is SettleTarget.DEAD else Bucket.ERROR
            model_task.score, model_task.failure = verdict.at, verdict.failure
        return True

    def put_back(self, claim: Claim, due_at: int, reason: Held = Held.ORIGIN) -> bool:
        model_task = self.claimed_task(claim)
        if model_task is None:
            return False
        model_task.bucket, model_task.score, model_task.begun = Bucket.DELAY, due_at, model_task.begun - 1
        model_task.first_due = claim.due_at if due_at > claim.due_at else None
        model_task.put_back_for = reason
        self._lower_wake(model_task.shard_topic, due_at)
        return True

    def release(self, bucket: Bucket, shard_topic: ShardTopic, now: int) -> int:
        ended = [model_task for model_task in self.tasks_in(bucket, shard_topic) if model_task.score <= now]
        for model_task in ended:
            model_task.bucket, model_task.score = Bucket.DELAY, now
            self._lower_wake(shard_topic, now)
        return len(ended)

    def delete(self, id: str) -> Deletion | None:
        """Return what was deleted, or None if there is neither a task nor a remembered id."""
        has_ended = self.done.pop(id, None) is not None
        model_task = self.tasks.pop(id, None)
        if model_task is not None:
            self.expiry.pop((model_task.shard_topic[1], id), None)
        if model_task is not None and model_task.bucket is Bucket.DELAY:
            self._refresh_wake_keeping_turn(model_task.shard_topic)
        if model_task is not None:
            return Deletion(id, in_flight=model_task.bucket is Bucket.UNACK, topic=model_task.task.topic)
        return Deletion(id, ended=True) if has_ended else None

    def update(self, id: str, changes: TaskChanges, now: int) -> str:
        """Return "edited", "missing", or the bucket of a task that cannot be edited."""
        model_task = self.tasks.get(id)
        if model_task is None or model_task.bucket in (Bucket.UNACK, Bucket.DEAD):
            return "missing" if model_task is None else model_task.bucket
        expired_at, model_task.task = model_task.task.expires_at, edit(model_task.task, changes, NO_POLICIES, now)
        if model_task.task.expires_at != expired_at:  # else its entry stays, which `expire` may have put off in flight
            self._refresh_expiry(model_task)
        if changes.sets_due_time:
            before, model_task.bucket, model_task.score = model_task.bucket, Bucket.DELAY, model_task.task.execute_at
            if model_task.first_due is not None:
                model_task.first_due, model_task.fence = None, 0
            if before is Bucket.DELAY:
                self._refresh_wake_keeping_turn(model_task.shard_topic)
            self._lower_wake(model_task.shard_topic, model_task.score)
        return "edited"

    def upsert(self, task: Task, changes: TaskChanges, shard: int) -> CreateResult | Conflict:
        model_task, now = self.tasks.get(task.id), task.created_at
        if model_task is not None and model_task.bucket is Bucket.UNACK:
            return InFlight("")
        if model_task is not None and model_task.bucket is not Bucket.DEAD:
            death = model_task.task.death
            if model_task.task.topic == task.topic:
                self.update(task.id, changes, now)
                return UpdatedTask(model_task.score)
            if death is None or death.topic != task.topic:
                return Conflict("")
        self.delete(task.id)
        return self.create(task, shard)

    def run_now(self, id: str, now: int) -> bool:
        model_task = self.tasks.get(id)
        if model_task is None or model_task.bucket is Bucket.UNACK:
            return False
        if model_task.bucket is Bucket.DEAD:
            return self.redrive(model_task, now, now)
        model_task.score = min(model_task.score, now) if model_task.bucket is Bucket.DELAY else now
        model_task.bucket = Bucket.DELAY
        self._lower_wake(model_task.shard_topic, now)
        return True

    def change_topic(self, model_task: ModelTask, task: Task, due_at: int) -> None:
        before, bucket, (shard, topic) = model_task.shard_topic, model_task.bucket, model_task.shard_topic
        self.expiry.pop((topic, task.id), None)
        self.tasks[task.id] = ModelTask(task=task, shard_topic=(shard, task.topic), bucket=Bucket.DELAY, score=due_at)
        self._refresh_expiry(self.tasks[task.id])
        if bucket is Bucket.DELAY:
            self._refresh_wake_keeping_turn(before)
        self._lower_wake((shard, task.topic), due_at)

    def redrive(self, model_task: ModelTask, due_at: int, now: int) -> bool:
        model_task.bucket, model_task.score, model_task.begun, model_task.failure = Bucket.DELAY, due_at, 0, None
        model_task.first_due = None
        model_task.task = renew_ttl(model_task.task, now)
        self._refresh_expiry(model_task)
        self._lower_wake(model_task.shard_topic, due_at)
        return True

    def redrive_dead(self, topic: str, rate: float, now: int, limit: int) -> int:
        dead = sorted(
            [
                model_task
                for model_task in self.tasks_of(topic)
                if model_task.bucket is Bucket.DEAD and model_task.score < now
            ],
            key=lambda model_task: (model_task.score, pack_id(model_task.task.id)),
        )
        for place, model_task in enumerate(dead[:limit]):
            self.redrive(model_task, now + int(place * 1000 / rate), now)
        return len(dead)

    def purge(self, topic: str, buckets: list[Bucket]) -> int:
        removed = [model_task for model_task in self.tasks_of(topic) if model_task.bucket in buckets]
        for model_task in removed:
            self.delete(model_task.task.id)
        return len(removed)

    def tasks_of(self, topic: str) -> list[ModelTask]:
        return [model_task for model_task in self.tasks.values() if model_task.shard_topic[1] == topic]

    def _refresh_expiry(self, model_task: ModelTask) -> None:
        self.expiry.pop((model_task.task.topic, model_task.task.id), None)
        if model_task.task.expires_at is not None:
            self.expiry[model_task.task.topic, model_task.task.id] = model_task.task.expires_at

    def expire(self, now: int, policies: Policies) -> dict[str, Failure]:
        """Let waiting tasks whose ttl has ended die, or move to their dead-letter topics; return them."""
        died: dict[str, Failure] = {}
        for (topic, id), _ in [entry for entry in self.expiry.items() if entry[1] <= now]:
            model_task = self.tasks[id]
            if model_task.bucket is Bucket.UNACK:
                self.expiry[topic, id] = now + 1000
                continue
            died[id] = expiry_failure(model_task.failure, now)
            verdict = move_dead(Verdict(SettleTarget.DEAD, now, died[id]), model_task.task, policies)
            if verdict.moved is not None:
                self.change_topic(model_task, verdict.moved, now)
                continue
            before, model_task.bucket, model_task.score = model_task.bucket, Bucket.DEAD, now
            model_task.failure = died[id]
            del self.expiry[topic, id]
            if before is Bucket.DELAY:
                self._refresh_wake_keeping_turn(model_task.shard_topic)
        return died

    def sweep(self, topic: str, latest: int, remember_until: int) -> int:
        removed = [
            id
            for id, model_task in self.tasks.items()
            if model_task.bucket is Bucket.DEAD and model_task.shard_topic[1] == topic and model_task.score <= latest
        ]
        for id in removed:
            if self.tasks.pop(id).task.own_id:
                self.done[id] = remember_until
        return len(removed)

    def trim(self, now: int) -> int:
        ended = [id for id, until in self.done.items() if until <= now]
        for id in ended:
            del self.done[id]
        return len(ended)

    def tasks_in(self, bucket: Bucket, shard_topic: ShardTopic) -> list[ModelTask]:
        return [
            model_task
            for model_task in self.tasks.values()
            if model_task.bucket is bucket and model_task.shard_topic == shard_topic
        ]

    def first(self, bucket: Bucket, shard_topic: ShardTopic) -> int | None:
        return min((model_task.score for model_task in self.tasks_in(bucket, shard_topic)), default=None)

    def wakes(self) -> dict[tuple[Bucket, int, str], int]:
        others = {
            (model_task.bucket, *model_task.shard_topic): self.first(model_task.bucket, model_task.shard_topic) or 0
            for model_task in self.tasks.values()
            if model_task.bucket is not Bucket.DELAY
        }
        return others | {(Bucket.DELAY, *shard_topic): at for shard_topic, at in self.delay_wakes.items()}

    def buckets(self) -> dict[tuple[Bucket, str], dict[str, int]]:
        buckets: dict[tuple[Bucket, str], dict[str, int]] = {}
        for id, model_task in self.tasks.items():
            buckets.setdefault((model_task.bucket, model_task.shard_topic[1]), {})[id] = model_task.score
        return buckets

    def _lower_wake(self, shard_topic: ShardTopic, at: int) -> None:
        self.delay_wakes[shard_topic] = min(self.delay_wakes.get(shard_topic, at), at)

    def _refresh_wake(self, shard_topic: ShardTopic) -> None:
        first = self.first(Bucket.DELAY, shard_topic)
        self.delay_wakes.pop(shard_topic, None)
        if first is not None:
            self.delay_wakes[shard_topic] = first

    def _refresh_wake_keeping_turn(self, shard_topic: ShardTopic) -> None:
        if self.delay_wakes.get(shard_topic, 0) < 0:
            return  # a hold, which stays even after its end
        first = self.first(Bucket.DELAY, shard_topic)
        if first is None or shard_topic not in self.delay_wakes or first > self.delay_wakes[shard_topic]:
            self._refresh_wake(shard_topic)


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
        self.fences: set[int] = set()
        self.claims: list[Claim] = []
        self.ids_made = 0

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
        self._create([self._new_task(topic, delay) for delay in delays])

    @rule(ids=st.lists(OWN_IDS, max_size=4), topic=TOPICS, delay=PAUSES, ttl=st.none() | st.integers(1, 3000))
    def create(self, ids: list[str], topic: str, delay: int, ttl: int | None) -> None:
        tasks = [
            a_task(id=id, own_id=True, topic=topic, created_at=self.now, delay=delay / 1000, ttl=ttl and ttl / 1000)
            for id in ids
        ]
        self._create([*tasks, self._new_task(topic, delay)])

    @rule(pause=PAUSES)
    def pass_time(self, pause: int) -> None:
        self.now += pause

    @rule(limits=LIMITS, lease=LEASES, behind=st.integers(0, 20))
    def claim(self, limits: dict[str, int], lease: int, behind: int) -> None:
        """Claim from some topics in one call, as a worker whose clock may be a little behind the others'."""
        now = self.now - behind
        requests = [
            ClaimRequest(topic, shard, limit, lease_extra_ms=extra)
            for extra, (topic, limit) in enumerate(limits.items())
            for shard in range(self.shards)
        ]
        for request, answer in zip(requests, self.run(self.store.tasks.claim, requests, now, now + lease), strict=True):
            shard_topic = (request.shard, request.topic)
            expected = self.model.due(shard_topic, now, request.limit)
            claims = unwrap_claim(answer)
            assert [claim.task for claim in claims.claims] == [model_task.task for model_task in expected]
            for claim, model_task in zip(claims.claims, expected, strict=True):
                self._check_claim(claim, model_task, now + lease + request.lease_extra_ms)
                self.model.claim(model_task, claim)
            assert (claims.wake_at, claims.orphans) == (self.model.wake_after_claim(shard_topic, now), 0)
            self.claims += claims.claims

    @rule(limits=LIMITS, lease=LEASES)
    def pull(self, limits: dict[str, int], lease: int) -> None:
        """Claim from some topics in one call, as consumers do."""
        requests = [
            ClaimRequest(topic, shard, limit, is_pull=True)
            for topic, limit in limits.items()
            for shard in range(self.shards)
        ]
        results = self.run(self.store.tasks.claim, requests, self.now, self.now + lease)
        for request, answer in zip(requests, results, strict=True):
            shard_topic = (request.shard, request.topic)
            expected = self.model.pulled(shard_topic, self.now, request.limit)
            claims = unwrap_claim(answer)
            assert [claim.task for claim in claims.claims] == [model_task.task for model_task in expected]
            for claim, model_task in zip(claims.claims, expected, strict=True):
                self._check_claim(claim, model_task, self.now + lease)
                self.model.claim(model_task, claim)
            if expected:
                self.model.hold(shard_topic, PAUSED)
            assert (claims.wake_at, claims.orphans) == (self.model.first(Bucket.DELAY, shard_topic), 0)
            self.claims += claims.claims

    @rule(picks=PICKS, pause=PAUSES)
    def extend(self, picks: list[int], pause: int) -> None:
        claims = self._pick_claims(picks)
        leases = [lease_of(claim.task, claim.fence, claim.due_at) for claim in claims if isinstance(claim.task, Task)]
        answers = self.run(self.store.pulls.extend, leases, self.now + pause)
        assert answers == [self.model.extend(claim, self.now + pause) for claim in claims]

    @rule(picks=PICKS, settle_target=TARGETS, pause=PAUSES, remember=st.booleans(), moves=st.booleans())
    def settle(
        self, picks: list[int], settle_target: SettleTarget, pause: int, remember: bool, moves: bool = False
    ) -> None:
        """Settle old and new claims, some of them lost long ago, some twice."""
        settlements = []
        for claim in self._pick_claims(picks):
            failure = Failure(claim.attempt, "status", 500, "answered 500", self.now, None, claim.attempt)
            verdict = Verdict(settle_target, self.now + (pause if settle_target is SettleTarget.ERROR else 0), failure)
            until = self.now + pause if remember and settle_target is SettleTarget.DONE else None
            if moves and isinstance(claim.task, Task):
                verdict = move_dead(verdict, claim.task, DEAD_TO_EACH_OTHER)
            settlements.append(Settlement(claim, verdict, until))
        answers = self.run(self.store.dead_letter_topics.settle, settlements)
        assert answers == [self.model.settle(settlement) for settlement in settlements]

    @rule(picks=PICKS)
    def give_back(self, picks: list[int]) -> None:
        claims = self._pick_claims(picks)
        answers = self.run(self.store.tasks.give_back, claims)
        assert answers == [self.model.put_back(claim, claim.due_at) for claim in claims]

    @rule(picks=PICKS, pause=st.integers(-200, 3000), reason=st.sampled_from([Held.ORIGIN, Held.FAULT]))
    def put_back(self, picks: list[int], pause: int, reason: Held) -> None:
        """Put claims back until later; also until before they were due, if a store's clock was set back."""
        put_backs = [
            PutBack(claim, self.now + pause + pick, reason)
            for pick, claim in zip(picks, self._pick_claims(picks), strict=False)
        ]
        answers = self.run(self.store.tasks.put_back, put_backs)
        assert answers == [self.model.put_back(*put_back) for put_back in put_backs]

    @rule(topic=TOPICS, pause=st.none() | PAUSES)
    def hold(self, topic: str, pause: int | None) -> None:
        """Hold a topic for a while, or (None) until it is resumed."""
        if pause is None:
            self.run(self.store.permits.hold_paused, [(topic, shard) for shard in range(self.shards)])
        else:
            self.run(hold_topic, self.store, topic, self.now + pause)
        for shard in range(self.shards):
            self.model.hold((shard, topic), PAUSED if pause is None else -(self.now + pause))

    @rule(topic=TOPICS)
    def resume(self, topic: str) -> None:
        self.run(self.store.permits.resume, {topic: (self.now, None)}, self.now)
        for shard in range(self.shards):
            self.model.resume((shard, topic), self.now)

    @rule(bucket=st.sampled_from([Bucket.UNACK, Bucket.ERROR]), topic=TOPICS)
    def release(self, bucket: Bucket, topic: str) -> None:
        wakes = [DueTopic(self.now, topic, shard) for shard in range(self.shards)]
        answers = self.run(self.store.tasks.release, bucket, wakes, self.now)
        shard_topics = [(shard, topic) for shard in range(self.shards)]
        moved = [self.model.release(bucket, shard_topic, self.now) for shard_topic in shard_topics]
        left = [self.model.first(bucket, shard_topic) for shard_topic in shard_topics]
        assert answers == [ReleaseResult(*pair) for pair in zip(moved, left, strict=True)]

    @rule(policies=st.sampled_from([NO_POLICIES, DEAD_TO_EACH_OTHER]))
    def expire(self, policies: Policies) -> None:
        found = self.run(self.store.expiry.expired_tasks, self.now)
        deaths = [(task, expiry_failure(task.failure, self.now)) for task in found]
        answers = self.run(self.store.dead_letter_topics.expire, deaths, self.now, policies)
        died = {task.id: death for (task, death), answer in zip(deaths, answers, strict=True) if answer}
        assert died == self.model.expire(self.now, policies)

    @rule(topic=TOPICS, keep=PAUSES, pause=PAUSES)
    def sweep(self, topic: str, keep: int, pause: int) -> None:
        latest, policy, swept = self.now - keep, Policy(remember_ms=pause + 1), 0
        for shard in range(self.shards):
            dead = self.run(self.store.expiry.dead_tasks, DueTopic(0, topic, shard), latest, self.now, policy)
            swept += sum(self.run(self.store.expiry.sweep, dead, latest))
        assert swept == self.model.sweep(topic, latest, self.now + pause + 1)

    @rule(topic=TOPICS)
    def lose_leases(self, topic: str) -> None:
        """Let leases expire and claim again at once, so that the first claims are lost."""
        self.now += MAX_LEASE
        self.release(bucket=Bucket.UNACK, topic=topic)
        self.claim(limits={topic: 3}, lease=MAX_LEASE, behind=0)

    @rule(topic=TOPICS, settle_target=st.sampled_from([SettleTarget.DEAD, SettleTarget.ERROR]), pause=PAUSES)
    def fail(self, topic: str, settle_target: SettleTarget, pause: int) -> None:
        """Let all due deliveries fail, so that there are dead tasks to redrive."""
        self.claims.clear()
        self.now += pause
        self.claim(limits={topic: 8}, lease=MAX_LEASE, behind=0)
        self.settle(picks=list(range(len(self.claims[-8:]))), settle_target=settle_target, pause=pause, remember=False)

    @rule(ids=st.lists(OWN_IDS, min_size=1, max_size=3, unique=True))
    def delete(self, ids: list[str]) -> None:
        answers = self.run(self.store.edits.delete, ids)
        deletions = [None if isinstance(answer, NotFound) else answer for answer in answers]
        assert deletions == [self.model.delete(id) for id in ids]

    @rule(picks=PICKS, changes=CHANGES)
    def update(self, picks: list[int], changes: TaskChanges) -> None:
        ids = self._pick_ids(picks)
        answers = self.run(self.store.edits.update, [TaskEdit(id, changes, NO_POLICIES, self.now) for id in ids])
        for id, answer in zip(ids, answers, strict=True):
            result = self.model.update(id, changes, self.now)
            if result != "edited":
                assert isinstance(answer, NotFound if result == "missing" else Conflict)
        self._check_records(ids, answers)

    @rule(ids=st.lists(OWN_IDS, min_size=1, max_size=4), topic=TOPICS, changes=CHANGES, ttl=st.none() | st.just(1))
    def upsert(self, ids: list[str], topic: str, changes: TaskChanges, ttl: int | None) -> None:
        tasks = [a_task(id=id, own_id=True, topic=topic, created_at=self.now, delay=0.7, ttl=ttl) for id in ids]
        answers = self.run(self.store.upserts.upsert, [Upsert(task, changes, NO_POLICIES) for task in tasks])
        for task, answer in zip(tasks, answers, strict=True):
            expected = self.model.upsert(task, changes, self.store.keys.shard_of(task.id).index)
            if isinstance(expected, Conflict):
                assert type(answer) is type(expected)
            else:
                assert answer == expected

    @rule(picks=PICKS)
    def run_now(self, picks: list[int]) -> None:
        ids = self._pick_ids(picks)
        answers = self.run(self.store.edits.run_now, ids, self.now)
        assert [isinstance(answer, TaskRecord) for answer in answers] == [
            self.model.run_now(id, self.now) for id in ids
        ]
        self._check_records(ids, answers)

    @rule(pick=st.integers(0, 99))
    def redrive(self, pick: int) -> None:
        [id] = self._pick_ids([pick])
        model_task = self.model.tasks.get(id)
        [answer] = self.run(self.store.edits.redrive, [id], self.now)
        death = None if model_task is None else model_task.task.death
        if model_task is not None and model_task.bucket is Bucket.DEAD:
            self.model.redrive(model_task, self.now, self.now)
            self._check_records([id], [answer])
        elif model_task is not None and model_task.bucket is not Bucket.UNACK and death is not None:
            self.model.change_topic(model_task, move_back(model_task.task, death, self.now), self.now)
            self._check_records([id], [answer])
        else:
            assert isinstance(answer, NotFound if model_task is None else Conflict)

    @rule(topic=TOPICS, rate=st.sampled_from([0.5, 3, 1000]), limit=st.integers(1, 4))
    def redrive_dead(self, topic: str, rate: float, limit: int) -> None:
        there = self.model.redrive_dead(topic, rate, self.now, limit)
        dead = BucketRange(topic, Bucket.DEAD)
        answer = self.run(partial(self.store.dead_letters.redrive, dead, now=self.now, rate=rate, limit=limit))
        assert (answer.moved, answer.more) == (min(there, limit), there > limit)

    @rule(topic=TOPICS, buckets=st.lists(st.sampled_from(PURGEABLE), min_size=1, unique=True))
    def purge(self, topic: str, buckets: list[Bucket]) -> None:
        answer = self.run(self.store.dead_letters.purge, [BucketRange(topic, bucket) for bucket in buckets])
        assert answer == MoveResult(self.model.purge(topic, buckets), more=False)

    @rule(ids=st.lists(OWN_IDS, min_size=1, max_size=4, unique=True))
    def query(self, ids: list[str]) -> None:
        for id, found in zip(ids, self.run(self.store.lookup.query, ids), strict=True):
            model_task = self.model.tasks.get(id)
            if model_task is None:
                assert isinstance(found, NotFound)
                assert found.ended == (id in self.model.done)
            else:
                assert isinstance(found, TaskRecord)
                assert msgspec.structs.replace(found, fence=0) == TaskRecord(
                    id,
                    model_task.shard_topic[1],
                    model_task.task,
                    model_task.bucket,
                    model_task.score,
                    model_task.begun,
                    model_task.failure,
                    *(
                        (model_task.first_due, model_task.put_back_for)
                        if model_task.bucket is Bucket.DELAY and model_task.first_due is not None
                        else (None, None)
                    ),
                )

    @rule()
    def trim_and_examine(self) -> None:
        assert self.run(self.store.maintenance.trim, self.now, 1000) == self.model.trim(self.now)
        assert self.run(findings, self.store, self.now) == []

    @rule()
    def list_topics(self) -> None:
        """List topics, and check the whole index."""
        page = self.run(partial(self.store.topic_index.page, no_names, self.now, limit=9))
        assert [*page] == sorted({task.task.topic for task in self.model.tasks.values()})
        for _ in range(self.shards * (1 + len(Bucket))):
            self.run(self.store.maintenance.trim, 0, 1)
        contents = self.run(read_contents, self.store)
        assert contents.topics == {(shard, topic) for _, shard, topic in contents.wakes}

    @invariant()
    def store_and_model_agree(self) -> None:
        contents = self.run(read_contents, self.store)
        tasks = self.model.tasks
        assert contents.pool == tasks.keys()
        assert contents.buckets == self.model.buckets()
        assert contents.wakes == self.model.wakes()
        assert contents.done == self.model.done
        assert contents.expiry == self.model.expiry
        assert contents.attempts == {id: task.attempts for id, task in tasks.items() if task.attempts}
        assert contents.outcome == {id: encode_failure(task.failure) for id, task in tasks.items() if task.failure}
        assert {(shard, topic) for _, shard, topic in contents.wakes} <= contents.topics

    @invariant()
    def only_a_further_attempt_follows_a_failure(self) -> None:
        """Otherwise claims would not read the failure, and settles would leave it behind."""
        for task in self.model.tasks.values():
            if task.failure is not None and task.bucket is not Bucket.DEAD:
                assert task.begun > (task.bucket is Bucket.UNACK)

    def _check_records(self, ids: list[str], answers: list[Any]) -> None:
        """Check that each task is where a query found it. Of an id that is asked for twice the last answer counts."""
        for id, found in dict(zip(ids, answers, strict=True)).items():
            if isinstance(found, TaskRecord):
                self.query([id])
                assert self.run(self.store.lookup.query, [id]) == [found]

    def _create(self, tasks: list[Task]) -> None:
        answers = self.run(self.store.tasks.create, tasks)
        assert answers == [self.model.create(task, self.store.keys.shard_of(task.id).index) for task in tasks]

    def _new_task(self, topic: str, delay: int) -> Task:
        """Return a task with an id of later's own form, but the same in each run."""
        self.ids_made += 1
        id = str(uuid.UUID(int=self.ids_made * 0x9E3779B97F4A7C15, version=4))
        return a_task(id=id, topic=topic, created_at=self.now, delay=delay / 1000)

    def _pick_claims(self, picks: list[int]) -> list[Claim]:
        """Return some of the latest claims: enough of them are lost, or settled already."""
        latest = self.claims[-8:]
        return [latest[pick % len(latest)] for pick in picks] if latest else []

    def _pick_ids(self, picks: list[int]) -> list[str]:
        """Return ids of existing tasks, or of one that may have been removed."""
        ids = ["a", *sorted(self.model.tasks)]
        return [ids[pick % len(ids)] for pick in picks]

    def _check_claim(self, claim: Claim, model_task: ModelTask, lease_end: int) -> None:
        shard, topic = model_task.shard_topic
        assert claim.fence not in self.fences
        self.fences.add(claim.fence)
        assert claim == Claim(
            model_task.task.id, pack_id(model_task.task.id), topic, shard, model_task.task,
            model_task.score if model_task.first_due is None else model_task.first_due,
            model_task.begun + 1, claim.fence, model_task.failure, lease_end,
            None if model_task.first_due is None else model_task.put_back_for,
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
        stateful_step_count=40,
        phases=[Phase.reuse, Phase.generate],  # making a failure shorter would take minutes
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=bounded)
