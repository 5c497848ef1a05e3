"""The memory: one method for each thing that can happen to a task.

Methods take many tasks at once and make one round trip. Where single tasks can fail on their own, the answers say so
one by one: a `LaterError` in the place of an answer is what that task's caller is to be told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from later.core.clock import Clock, Interval
from later.core.errors import LaterError, NotFound, StoreDown, StoreFault
from later.core.task import Task, encode, pack_id
from later.store import scripts
from later.store.client import Client
from later.store.jobs import count_call
from later.store.keys import Bucket, Keys, Shard
from later.store.reading import (
    Body,
    claims_of,
    decoded,
    each_once,
    first_time,
    found_of,
    pairs,
    settle_arguments,
    time_of,
    yes,
)
from later.store.records import Around, Batch, Claim, Claims, Found, Look, Released, Settlement, Wake, Want
from later.store.scripts import MAX_TASKS, Argument, Command, Script

MAX_STARTS = 20
"""How often a verb that knows only an id starts over when the id changes hands under it."""

MAX_BODIES = 200
"""How many bodies are read in one round trip: each may be as large as a request."""

MAX_SCORES = 2000
"""How many scores are read in one round trip."""

MAX_CLAIM_BYTES = 32 * 1024 * 1024
"""How much one claim may answer, all its topics together: more might not come through in the store's timeout."""

Item = TypeVar("Item")


class Store:
    """Tasks in the store. `clock` is the store's own, kept up by each new connection and by `now`."""

    def __init__(self, client: Client, keys: Keys, clock: Clock) -> None:
        self._client = client
        self._keys = keys
        self._clock = clock

    @property
    def timeout_s(self) -> float:
        """How long the store may take to answer."""
        return self._client.timeout_s

    async def now(self) -> Interval:
        """The store's time now, measured again where this machine's clocks disagree.

        Raises:
            StoreDown: it would have to be measured, and the store cannot be reached.
        """
        if not self._clock.steady():
            await self.measure_time()
        return self._clock.now()

    async def measure_time(self) -> None:
        """Ask the store for its time. Raises StoreDown."""
        await self._timed("time", [])

    async def _timed(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        """The commands' answers, and the store's time measured by the way."""
        sent = self._clock.monotonic()
        (seconds, micros), *answers = await self._client.all(verb, [("TIME",), *commands])
        self._clock.observe(int(seconds) * 1_000_000 + int(micros), sent, self._clock.monotonic())
        return answers

    async def create(self, tasks: Sequence[Task], batch: Batch | None = None) -> list[bool | LaterError]:
        """Store new tasks, each into pool and delay at once; False where the caller's id is known already.

        With a `batch`, they are counted into its job: what is created in the same step, the batch in the same round
        trip. Raises StoreDown: nobody can know.
        """
        job, forget_job_at = ("", 0) if batch is None else (batch.job, batch.forget_at)

        def call(shard: Shard, topic: bytes, some: list[Task]) -> Command:
            keys = [shard.pool, shard.done, shard.bucket(Bucket.DELAY, topic), shard.wakes[Bucket.DELAY]]
            arguments: list[Argument] = [topic, job, forget_job_at]
            if job:
                keys += [shard.job(job), shard.jobs]
            for task in some:
                arguments += [pack_id(task.id), encode(task), task.look_at(task.execute_at), int(task.own_id)]
            return scripts.CREATE.call(keys, arguments)

        count = [] if batch is None else [count_call(self._keys, batch, len(tasks))]
        answers = await self._each(
            "create", tasks, lambda task: (self._keys.shard_of(task.id), task.topic), call, count
        )
        return [answer if isinstance(answer, LaterError) else bool(answer) for answer in answers]

    async def look(self, bucket: Bucket, limit: int) -> Look:
        """The `limit` earliest wake entries of each shard. Raises StoreDown."""
        return self._look_of(limit, await self._client.all("look", self._look(bucket, limit)))

    async def look_around(self, limit: int) -> Around:
        """The same of delay, and when the first topics of unack and error are to be looked at. Raises StoreDown.

        One round trip for all that a worker has to know each tick, with the store's time in it.
        """
        heads = [*self._look(Bucket.UNACK, 1), *self._look(Bucket.ERROR, 1)]
        answers = await self._timed("look", [*self._look(Bucket.DELAY, limit), *heads])
        shards = len(self._keys.shards)
        delay, unack, error = (answers[start : start + shards] for start in range(0, 3 * shards, shards))
        return Around(self._look_of(limit, delay), first_time(unack), first_time(error))

    def _look(self, bucket: Bucket, limit: int) -> list[Command]:
        return [("ZRANGE", shard.wakes[bucket], 0, limit - 1, "WITHSCORES") for shard in self._keys.shards]

    def _look_of(self, limit: int, answers: Sequence[list[bytes]]) -> Look:
        wakes, cut_at = list[Wake](), list[int]()
        for shard, answer in zip(self._keys.shards, answers, strict=True):
            wakes += [Wake(int(float(at)), topic.decode(), shard.index) for topic, at in pairs(answer)]
            if len(answer) >= 2 * limit:
                cut_at.append(wakes[-1].at)
        return Look(sorted(wakes), min(cut_at, default=None))

    async def claim(self, wants: Sequence[Want], now: int, lease_end: int) -> list[Claims | LaterError]:
        """Take due tasks in hand, delay → unack, each want at most 500. Raises StoreDown: nobody can know.

        Large tasks come a few at a time: of each topic at least one, but no more than its part of `MAX_CLAIM_BYTES`.
        """
        max_bytes = MAX_CLAIM_BYTES // max(len(wants), 1)
        commands = [self._claim(want, now, lease_end, max_bytes) for want in wants]
        answers = await self._client.run("claim", commands)
        return [
            answer if isinstance(answer, LaterError) else claims_of(want, answer, lease_end)
            for want, answer in zip(wants, answers, strict=True)
        ]

    def _claim(self, want: Want, now: int, lease_end: int, max_bytes: int) -> Command:
        shard, topic = self._keys.shards[want.shard], want.topic.encode()
        keys = [
            shard.bucket(Bucket.DELAY, topic),
            shard.bucket(Bucket.UNACK, topic),
            shard.pool,
            shard.attempts,
        ]
        keys += [shard.outcome, shard.fence, shard.wakes[Bucket.DELAY], shard.wakes[Bucket.UNACK]]
        return scripts.CLAIM.call(keys, [topic, now, min(want.limit, MAX_TASKS), lease_end, max_bytes])

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool | LaterError]:
        """Carry out verdicts: unack → gone, error or dead; False where the lease is another's by now.

        Raises StoreDown: nobody can know; it may be settled again, for only the first one counts.
        """

        def call(shard: Shard, topic: bytes, some: list[Settlement]) -> Command:
            _, unack, error, dead = shard.buckets(topic)
            keys = [shard.pool, shard.attempts, shard.outcome, shard.done, unack, error, dead]
            keys += [shard.wakes[Bucket.UNACK], shard.wakes[Bucket.ERROR], shard.wakes[Bucket.DEAD]]
            arguments: list[Argument] = [topic]
            for settlement in some:
                arguments += settle_arguments(settlement)
            return scripts.SETTLE.call(keys, arguments)

        return yes(await self._each("settle", settlements, lambda s: self._lane(s.claim), call))

    async def give_back(self, claims: Sequence[Claim]) -> list[bool | LaterError]:
        """Return claims that were not delivered, unack → delay; False where the lease is another's by now."""

        def call(shard: Shard, topic: bytes, some: list[Claim]) -> Command:
            delay, unack, _, _ = shard.buckets(topic)
            keys = [shard.attempts, delay, unack, shard.wakes[Bucket.DELAY], shard.wakes[Bucket.UNACK]]
            arguments: list[Argument] = [topic]
            for claim in some:
                arguments += [pack_id(claim.id), claim.fence, claim.due_at]
            return scripts.GIVE_BACK.call(keys, arguments)

        return yes(await self._each("give_back", claims, self._lane, call))

    async def release(self, bucket: Bucket, wakes: Sequence[Wake], now: int) -> list[Released | LaterError]:
        """Move what has waited long enough, unack or error → delay, at most 500 of each topic. Raises StoreDown."""
        commands = []
        for _, name, index in wakes:
            shard, topic = self._keys.shards[index], name.encode()
            keys = [shard.bucket(bucket, topic), shard.bucket(Bucket.DELAY, topic)]
            keys += [shard.wakes[bucket], shard.wakes[Bucket.DELAY]]
            commands.append(scripts.RELEASE.call(keys, [topic, now, MAX_TASKS]))
        answers = await self._client.run("release", commands)
        return [
            answer if isinstance(answer, LaterError) else Released(answer[1], time_of(answer[0])) for answer in answers
        ]

    async def trim(self, now: int, limit: int) -> int:
        """Forget ids that were remembered long enough, at most `limit` of each shard; how many. Raises StoreDown."""
        commands = [scripts.TRIM.call([shard.done], [now, limit]) for shard in self._keys.shards]
        return sum(await self._client.all("trim", commands))

    async def query(self, ids: Sequence[str]) -> list[Found | LaterError]:
        """Where tasks are; `NotFound` for one that is not there. Raises StoreDown."""
        return await self._by_id("query", scripts.QUERY, ids, found_of)

    async def delete(self, ids: Sequence[str]) -> list[str | LaterError]:
        """Remove tasks from whatever bucket and forget their ids; `NotFound` for one that is not there.

        An id that had ended is forgotten too. Raises StoreDown: nobody can know.
        """
        answers: list[str | LaterError] = await self._by_id(
            "delete", scripts.DELETE, ids, lambda body, answer: body.id if answer else None
        )
        ended = [error.task_id for error in answers if isinstance(error, NotFound) and error.ended]
        await self._client.all("forget", [("ZREM", self._keys.shard_of(id).done, pack_id(id)) for id in ended])
        return each_once(ids, answers)

    async def _by_id(
        self,
        verb: str,
        script: Script,
        ids: Sequence[str],
        read: Callable[[Body, Any], Item | LaterError | None],
    ) -> list[Item | LaterError]:
        """Run a verb that knows only ids: read their bodies, call its script with them, and start over for those

        whose body is another by then. `read` makes a result of an answer, None where it must start over.
        """
        once = list(dict.fromkeys(ids))
        results: dict[str, Item | LaterError] = {}
        for start in range(0, len(once), MAX_BODIES):
            some = once[start : start + MAX_BODIES]
            try:
                results |= await self._some_by_id(verb, script, some, read)
            except StoreDown as error:
                if not start:
                    raise
                results |= dict.fromkeys(some, error)  # what came before is known
        return [results[id] for id in ids]

    async def _some_by_id(
        self,
        verb: str,
        script: Script,
        left: list[str],
        read: Callable[[Body, Any], Item | LaterError | None],
    ) -> dict[str, Item | LaterError]:
        results: dict[str, Item | LaterError] = {}
        for _ in range(MAX_STARTS):
            bodies = await self._bodies(left)
            results |= {id: body for id, body in zip(left, bodies, strict=True) if isinstance(body, LaterError)}
            found = [body for body in bodies if isinstance(body, Body)]
            answers = await self._each(
                verb, found, lambda body: (body.shard, body.topic), lambda *some: _with_bodies(script, *some)
            )
            for body, answer in zip(found, answers, strict=True):
                result = answer if isinstance(answer, LaterError) else read(body, answer)
                if result is not None:
                    results[body.id] = result
            left = [id for id in left if id not in results]
            if not left:
                break
        return results | dict.fromkeys(left, StoreFault("the task changed each time it was looked at"))

    async def _bodies(self, ids: Sequence[str]) -> list[Body | LaterError]:
        raws = await self._values("HMGET", lambda shard: shard.pool, ids)
        missing = [id for id, raw in zip(ids, raws, strict=True) if raw is None]
        ended = iter(await self._values("ZMSCORE", lambda shard: shard.done, missing) if missing else ())
        return [
            raw if isinstance(raw, LaterError)
            else _not_found(id, next(ended)) if raw is None
            else self._body(id, raw) or await self._unreadable_body(id, raw)
            for id, raw in zip(ids, raws, strict=True)
        ]  # fmt: skip

    async def _values(self, command: str, key: Callable[[Shard], bytes], ids: Sequence[str]) -> list[Any]:
        """What one key of each shard holds of the ids, by a command that takes many; a `LaterError` where it failed."""
        shards: dict[int, list[int]] = {}
        for position, id in enumerate(ids):
            shards.setdefault(self._keys.shard_of(id).index, []).append(position)
        commands: list[Command] = [
            (command, key(self._keys.shards[index]), *(pack_id(ids[position]) for position in positions))
            for index, positions in shards.items()
        ]
        values: list[Any] = [None] * len(ids)
        for positions, answer in zip(shards.values(), await self._client.run("read", commands), strict=True):
            _spread(values, positions, answer)
        return values

    def _body(self, id: str, raw: bytes) -> Body | None:
        """The task as the pool has it; None where it cannot be read."""
        task = decoded(id, raw)
        if not isinstance(task, Task):
            return None
        return Body(id, pack_id(id), self._keys.shard_of(id), task.topic.encode(), raw, task)

    async def _unreadable_body(self, id: str, raw: bytes) -> Body:
        shard, packed = self._keys.shard_of(id), pack_id(id)
        return Body(id, packed, shard, await self._topic_holding(shard, packed), raw, decoded(id, raw))

    async def _topic_holding(self, shard: Shard, packed: bytes) -> bytes:
        """The topic of a task whose body does not say it, found in the buckets. Slow, and rarely needed."""
        wakes = await self._client.all("read", [("ZRANGE", wake, 0, -1) for wake in shard.wakes.values()])
        topics = sorted({topic for answer in wakes for topic in answer})
        commands: list[Command] = [("ZSCORE", key, packed) for topic in topics for key in shard.buckets(topic)]
        scores: list[Any] = []
        for start in range(0, len(commands), MAX_SCORES):
            scores += await self._client.all("read", commands[start : start + MAX_SCORES])
        holding = [topics[i // len(Bucket)] for i, score in enumerate(scores) if score is not None]
        return holding[0] if holding else b""

    def _lane(self, claim: Claim) -> tuple[Shard, str]:
        return self._keys.shards[claim.shard], claim.topic

    async def _each(
        self,
        verb: str,
        items: Sequence[Item],
        place: Callable[[Item], tuple[Shard, str | bytes]],
        call: Callable[[Shard, bytes, list[Item]], Command],
        along: Sequence[Command] = (),
    ) -> list[Any]:
        """One script call for each shard and topic among the items; an answer for each item, in their order.

        What goes `along` is sent last; nobody waits for its answer.
        """
        lanes: dict[tuple[Shard, str | bytes], list[int]] = {}
        groups: list[tuple[Shard, str | bytes, list[int]]] = []
        for position, item in enumerate(items):
            lane = place(item)
            positions = lanes.get(lane)
            if positions is None or len(positions) == MAX_TASKS:
                positions = lanes[lane] = []
                groups.append((*lane, positions))
            positions.append(position)
        commands = [
            call(shard, topic if isinstance(topic, bytes) else topic.encode(), [items[p] for p in positions])
            for shard, topic, positions in groups
        ]
        answers: list[Any] = [None] * len(items)
        answered = await self._client.run(verb, [*commands, *along])
        for (_, _, positions), answer in zip(groups, answered[: len(commands)], strict=True):
            _spread(answers, positions, answer)
        return answers


def _spread(values: list[Any], positions: Sequence[int], answer: Any) -> None:
    """Put each part of one command's answer in its place; its error in all of them."""
    each = [answer] * len(positions) if isinstance(answer, LaterError) else answer
    for position, one in zip(positions, each, strict=True):
        values[position] = one


def _not_found(id: str, remembered: Any) -> LaterError:
    return remembered if isinstance(remembered, LaterError) else NotFound(id, ended=remembered is not None)


def _with_bodies(script: Script, shard: Shard, topic: bytes, bodies: list[Body]) -> Command:
    keys = [shard.pool, shard.attempts, shard.outcome, *shard.buckets(topic), *shard.wakes.values()]
    arguments: list[Argument] = [topic]
    for body in bodies:
        arguments += [body.packed, body.raw]
    return script.call(keys, arguments)
