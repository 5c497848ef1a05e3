"""The verbs of consumers: claim tasks of pulled topics, and ack, nack, release or extend them by their leases.

A pulled topic is held for the workers until its policy changes, so only these verbs take its tasks. Every verb takes
the items of many callers and makes few round trips, so that a `GroupCommit` can stand in front of it:

- `claim`: one round trip, or two if there are several shards, topics to choose from, or leases of several lengths: the
  first looks at the due times, so that the order is right over all of them. The caller leaves out paused topics. The
  first round trip acks the tasks that the requests bring back, before it looks or claims; where these have follow-ups,
  they are acked before, as by `ack`.
- `ack`, `release`, `extend`: one. `nack`: two, because the task says how many retries it has. So does an `ack` of tasks
  that have follow-ups, which say what the tasks were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from later.core.clock import Interval
from later.core.dead_letter_topic import move_dead
from later.core.errors import LaterError, NodeDown, NotFound, unknown_after
from later.core.lease import Lease, lease_of
from later.core.policy_scopes import Policies
from later.core.retry import Nack, Verdict, encode_failure, judge_nack, judge_unreadable, judge_unsent
from later.core.task import Task, pack_id
from later.store import scripts
from later.store.acks import Acks
from later.store.client import StoreClient
from later.store.codec import pairs
from later.store.dead_letter_topics import DeadLetterTopics, TopicChange
from later.store.due_notices import DueNotices
from later.store.expiry import Expiry
from later.store.fanout import LeadingCommands, fan_out, parse_flags
from later.store.follow_ups import FollowUps
from later.store.keys import Bucket, Keys, ShardTopic
from later.store.lookup import Lookup
from later.store.policies import PolicyBook
from later.store.pull_plan import MAX_ANSWER_BYTES, Demand, PulledTask, PullRequest, PullResult, Share, deal, plan_pull
from later.store.scripts import MAX_TASKS, Command
from later.store.tasks import MAX_CLAIM_BYTES, SettleArguments, Tasks, settle_answers, settle_arguments
from later.store.types import Claim, ClaimRequest, ClaimResult, Settlement

TOPICS_OF_EXISTS = 32
"""Topics of one command that counts those with a bucket. Where it counts any, each of them is looked at."""
MAX_LOOKS = 10
"""How often one call looks for tasks, if others claim those that it saw, or if those that it claims are dead."""


class LeaseNack(NamedTuple):
    """A consumer's word that it could not do the task of a lease."""

    lease: Lease
    nack: Nack


class Pulls:
    """Claims of consumers, and the ends of their leases."""

    def __init__(
        self,
        client: StoreClient,
        keys: Keys,
        *,
        tasks: Tasks,
        lookup: Lookup,
        dead_letter_topics: DeadLetterTopics,
        follow_ups: FollowUps,
        policies: PolicyBook,
        due_notices: DueNotices,
        keep_failures: int,
    ) -> None:
        self._client = client
        self._keys = keys
        self._tasks = tasks
        self._keep_failures = keep_failures
        self._lookup = lookup
        self._dead_letter_topics = dead_letter_topics
        self._follow_ups = follow_ups
        self._acks = Acks(keys, tasks, lookup, follow_ups, policies)
        self._policies = policies
        self._due_notices = due_notices
        self._expiry = Expiry(client, keys)

    async def claim(self, requests: Sequence[PullRequest], now: Interval) -> list[PullResult | LaterError]:
        """Claim due tasks, delay → unack, and deal them evenly. Tasks that must not be handed out are dead then.

        The tasks that the requests say are done are acked first, as by `ack`.

        Raises:
            StoreDown: whether anything was claimed or acked is not known; what was claimed is requeued when its lease
                ends, and acking again is safe.
        """
        shares = [Share(request=request) for request in requests]
        acks: LeadingCommands | None = None
        acked: list[bool | LaterError] = []
        done = [lease for request in requests for lease in request.done]
        if self._acks.need_reads(done):
            acked = await self._acks.ack(done, now.high)
        elif done:
            groups, commands = self._acks.commands(done, now.high)
            acks = LeadingCommands(commands)
        missed = shares
        for look in range(MAX_LOOKS):
            try:
                await self._claim_once(missed, now, None if look else acks)
            except LaterError as error:
                if not look:
                    with unknown_after(True in acked or (acks is not None and bool(acks.answers))):
                        raise
                for share in missed:
                    share.error = error
            missed = [share for share in missed if share.is_missed(now.low)]
            if not missed:
                break
        if acks is not None:
            acked = settle_answers(groups, acks.answers, len(done))
        answers = iter(acked)
        for share in shares:
            share.acked = [next(answers) for _ in share.request.done]
        return [share.result() for share in shares]

    async def due_topics(self, topics: Sequence[str], now: int) -> list[str]:
        """Return those of the topics that have a task that is due at `now` (ms). Raises StoreDown.

        What cannot be read of a topic or shard is left out, so that it does not stop the others. Most topics of which
        consumers wait for tasks have none in delay: one command tells that of many topics.
        """
        delays = [
            [(topic, shard.bucket(Bucket.DELAY, topic.encode())) for topic in topics[start : start + TOPICS_OF_EXISTS]]
            for start in range(0, len(topics), TOPICS_OF_EXISTS)
            for shard in self._keys.shards
        ]
        exist: list[Command] = [("EXISTS", *(delay for _, delay in some)) for some in delays]
        counts = await self._client.execute_each("due_topics", exist)
        targets = [
            target
            for some, count in zip(delays, counts, strict=True)
            if count and not isinstance(count, LaterError)
            for target in some
        ]
        ranges: list[Command] = [("ZRANGE", delay, 0, 0, "WITHSCORES") for _, delay in targets]
        answers = await self._client.execute_each("due_topics", ranges)
        firsts = ((topic, first) for (topic, _), first in zip(targets, answers, strict=True) if first)
        due = (topic for topic, first in firsts if not isinstance(first, LaterError) and float(first[1]) <= now)
        return list(dict.fromkeys(due))

    async def ack(self, leases: Sequence[Lease], now: int) -> list[bool | LaterError]:
        """Remove tasks that are done at `now` (ms, the high end of the store's time); False if the lease was lost.

        Their follow-up tasks are made. Ids that their callers chose are remembered, as the tasks say or the policies.

        Raises:
            StoreDown: whether anything was removed is not known. Doing it again is safe.
        """
        return await self._acks.ack(leases, now)

    async def nack(
        self, nacks: Sequence[LeaseNack], policies: Policies, now: int, random: Callable[[], float]
    ) -> list[Verdict | LaterError | None]:
        """Let tasks wait for their next attempt, or die: unack → error, dead or the delay of a dead-letter topic.

        Returns the verdicts; None if the lease was lost. `random` is for the jitter of pauses.

        Raises:
            StoreDown: whether anything was moved is not known. Doing it again is safe.
        """
        records = await self._lookup.query([lease.name for lease, _ in nacks])
        results: list[Verdict | LaterError | None] = [None] * len(nacks)
        judged: list[tuple[int, Lease, Verdict]] = []
        for position, ((lease, nack), record) in enumerate(zip(nacks, records, strict=True)):
            if isinstance(record, LaterError):
                results[position] = None if isinstance(record, NotFound) else record
                continue
            if record.topic != lease.topic or record.state is not Bucket.UNACK:
                continue
            policy, failure = policies.for_topic(lease.topic), record.failure
            if isinstance(record.task, Task):
                verdict = judge_nack(
                    record.task, record.attempts, failure, nack, now, policy, random(), keep=self._keep_failures
                )
                verdict = move_dead(verdict, record.task, policies)
            else:
                verdict = judge_unreadable(record.attempts, record.task, now)
            judged.append((position, lease, self._follow_ups.plan(record, verdict, policies)))

        async def settle(numbers: Sequence[int]) -> list[bool | LaterError]:
            some = [judged[number][1:] for number in numbers]
            targets = self._acks.targets([lease for lease, _ in some])
            follow_ups = [verdict.follow_up for _, verdict in some]
            return await self._follow_ups.settle_leases(targets, [_nack_arguments(*item) for item in some], follow_ups)

        changes = [TopicChange.by_verdict(lease.topic, lease.fence, verdict) for _, lease, verdict in judged]
        answers = await self._dead_letter_topics.change_or_settle(changes, settle)
        for (position, _, verdict), answer in zip(judged, answers, strict=True):
            results[position] = answer if isinstance(answer, LaterError) else verdict if answer else None
        return results

    async def release(self, leases: Sequence[Lease], more: Sequence[Command] = ()) -> list[bool | LaterError]:
        """Give tasks back, unack → delay, due as before and without an attempt; False if the lease was lost.

        After that, `more` commands are run in the same round trip.

        Raises:
            StoreDown: whether anything was given back is not known. Doing it again is safe.
        """
        due = {lease.topic.encode(): (lease.due_at, self._keys.shard_of(lease.id)) for lease in leases}
        return await self._tasks.give_back_leases(
            [(self._keys.shard_of(lease.id), lease.topic.encode()) for lease in leases],
            [(pack_id(lease.id), lease.fence, lease.due_at, "") for lease in leases],
            [*(self._due_notices.command(topic, *notice) for topic, notice in due.items()), *more],
        )

    async def extend(self, leases: Sequence[Lease], lease_end: int) -> list[bool | LaterError]:
        """Let leases last until `lease_end` (ms), be that later or sooner; False if the lease was lost.

        Raises:
            StoreDown: whether anything was extended is not known. Doing it again is safe.
        """

        def build(target: ShardTopic, some: list[Lease]) -> Command:
            shard, topic = target
            keys = [shard.attempts, shard.bucket(Bucket.UNACK, topic), shard.wakes[Bucket.UNACK]]
            fences = [argument for lease in some for argument in (pack_id(lease.id), lease.fence)]
            return scripts.EXTEND.call(keys, [topic, lease_end, *fences])

        return await fan_out(self._client, "extend", leases, self._locate, build, parse_flags)

    def _locate(self, lease: Lease) -> ShardTopic:
        return ShardTopic(self._keys.shard_of(lease.id), lease.topic.encode())

    async def _claim_once(self, shares: Sequence[Share], now: Interval, acks: LeadingCommands | None) -> None:
        """Look, claim and deal once; the first round trip begins with the acks, if there are any."""
        topics = {topic.name: topic.lease_ms for share in shares for topic in share.request.topics}
        next_due: dict[tuple[str, int], int | LaterError | None] = {}
        due: dict[str, Iterator[int]] = {topic: repeat(0, MAX_TASKS) for topic in topics}
        is_simple = all(
            len(share.request.topics) == 1 and topics[topic.name] == topic.lease_ms
            for share in shares
            for topic in share.request.topics
        )
        if len(self._keys.shards) > 1 or not is_simple:
            limit = min(sum(share.request.limit for share in shares), MAX_TASKS)
            due, next_due = await self._look(list(topics), limit, now.low, acks)
            acks = None
        demands = plan_pull(shares, due)
        while demands:  # of one topic, those with leases of another length come in another round
            round_of = {demand.topic.name: demand for demand in demands}
            demands = [demand for demand in demands if round_of[demand.topic.name] is not demand]
            await self._claim_round(shares, list(round_of.values()), next_due, now, acks)
            acks = None
        first_due: dict[str, int] = {}
        errors: dict[str, LaterError] = {}
        there = {name for (name, _), at in next_due.items() if not isinstance(at, NodeDown)}
        for (name, _), at in next_due.items():
            if isinstance(at, NodeDown) and name in there:
                continue  # what the other shards have is handed out
            if isinstance(at, LaterError):
                errors[name] = at
            elif at is not None:
                first_due[name] = min(at, first_due.get(name, at))
        for share in shares:
            names = [topic.name for topic in share.request.topics]
            share.next_due_at = min((first_due[name] for name in names if name in first_due), default=None)
            share.error = next((errors[name] for name in names if name in errors), None)

    async def _look(
        self, topics: Sequence[str], limit: int, now: int, acks: LeadingCommands | None
    ) -> tuple[dict[str, Iterator[int]], dict[tuple[str, int], int | LaterError | None]]:
        """Return each topic's due tasks as their shards, in order, and when the first task of each shard is due.

        A shard in which a topic cannot be read has the error instead; that does not stop the other topics.
        """
        commands: list[Command] = []
        targets = [(topic, shard) for topic in topics for shard in self._keys.shards]
        for topic, shard in targets:
            delay = shard.bucket(Bucket.DELAY, topic.encode())
            commands.append(("ZRANGE", delay, "-inf", now, "BYSCORE", "LIMIT", 0, limit, "WITHSCORES"))
            commands.append(("ZRANGE", delay, 0, 0, "WITHSCORES"))
        if acks is None:
            answers = await self._client.execute_each("due_topics", commands)
        else:
            answers = await acks.execute_with(self._client, "claim", commands)
        seen: dict[str, list[tuple[float, bytes, int]]] = {topic: [] for topic in topics}
        next_due: dict[tuple[str, int], int | LaterError | None] = {}
        for (topic, shard), entries, first in zip(targets, answers[::2], answers[1::2], strict=True):
            if isinstance(entries, LaterError):
                next_due[topic, shard.index] = entries
                continue
            seen[topic] += [(float(score), id, shard.index) for id, score in pairs(entries)]
            next_due[topic, shard.index] = int(float(first[1])) if first else None
        return {topic: iter([shard for *_, shard in sorted(found)]) for topic, found in seen.items()}, next_due

    async def _claim_round(
        self,
        shares: Sequence[Share],
        demands: Sequence[Demand],
        next_due: dict[tuple[str, int], int | LaterError | None],
        now: Interval,
        acks: LeadingCommands | None,
    ) -> None:
        """Claim what these demands ask for, no topic twice, and deal it; note when the next tasks are due."""
        requests: list[ClaimRequest] = []
        for demand in demands:
            name, lease_ms, record = demand.topic.name, demand.topic.lease_ms, shares[0].request.record
            if record is not None:
                record = record._replace(claim_id=self._keys.claim_id(record.claim_id, demand.by_shard))
            requests += [
                ClaimRequest(name, shard, count, lease_ms, is_pull=True, record=record)
                for shard, count in demand.by_shard.items()
            ]
        max_bytes = min(MAX_ANSWER_BYTES * len(shares), MAX_CLAIM_BYTES)
        results = await self._tasks.claim(requests, now.low, now.low, max_bytes, acks)
        answers: dict[str, list[tuple[ClaimRequest, ClaimResult | LaterError]]] = {}
        for request, result in zip(requests, results, strict=True):
            answers.setdefault(request.topic, []).append((request, result))
            next_due[request.topic, request.shard] = result.wake_at if isinstance(result, ClaimResult) else result
        for demand in demands:
            await self._deal(shares, demand, answers[demand.topic.name], now)

    async def _deal(
        self,
        shares: Sequence[Share],
        demand: Demand,
        answers: Sequence[tuple[ClaimRequest, ClaimResult | LaterError]],
        now: Interval,
    ) -> None:
        """Deal what was claimed for a demand, and give back what is not its turn yet.

        If a shard has given less than it has, because of the limit on bytes, what is due later in the others must wait.
        """
        takers = [shares[index] for index, _ in demand.takers]
        claims: list[Claim] = []
        first_left: float = math.inf
        for request, result in answers:
            if isinstance(result, LaterError):
                continue
            claims += result.claims
            takers[0].orphans += result.orphans
            if len(result.claims) < request.limit and result.wake_at is not None and result.wake_at <= now.low:
                first_left = min(first_left, result.wake_at)
        if too_early := [claim for claim in claims if claim.due_at > first_left]:
            await self._tasks.give_back(too_early)
            claims = [claim for claim in claims if claim.due_at <= first_left]
        if left := deal(shares, demand, await self._bury(claims, demand, takers[0], now.high)):
            await self.release([pulled.lease for pulled in left])

    async def _bury(self, claims: Sequence[Claim], demand: Demand, share: Share, now: int) -> list[PulledTask]:
        """Let tasks die that are expired, unreadable or were claimed too often; return the others in order.

        A verdict that the store does not take leaves its task until its lease ends.
        """
        live: list[PulledTask] = []
        deaths: list[Settlement] = []
        if share.request.has_grace:
            claims = await self._expiry.move_ends(claims, now)
        for claim in sorted(claims, key=lambda claim: (claim.due_at, claim.packed)):
            task, attempt, failure = claim.task, claim.attempt, claim.failure
            verdict = (
                judge_unsent(task, attempt, failure, now, demand.topic.max_claims, self._keep_failures)
                if isinstance(task, Task)
                else judge_unreadable(attempt, task, now)
            )
            if verdict is not None:
                verdict = self._dead_letter_topics.plan(claim, verdict, self._policies.latest)
                deaths.append(Settlement(claim, verdict, None))
            elif isinstance(task, Task):
                lease = lease_of(task, claim.fence, claim.due_at)
                live.append(PulledTask(task, lease, claim.lease_end, claim.due_at, attempt, failure, claim.claim_id))
        if deaths:
            answers = await self._dead_letter_topics.settle(deaths)
            share.deaths += [death for death, answer in zip(deaths, answers, strict=True) if answer is True]
        return live


def _nack_arguments(lease: Lease, verdict: Verdict) -> SettleArguments:
    failure = b"" if verdict.failure is None else encode_failure(verdict.failure)
    return settle_arguments(pack_id(lease.id), lease.fence, verdict.target, verdict.at, failure, lease.has_ttl)
