"""Claims that wait for tasks: the queues of the topics that they name, and what wakes them.

A claim first looks for due tasks. Where there are none, it waits in the queues of its topics, in order of arrival. It
looks again when a topic is signaled: when this process or another one has made a task due there, and when the next
task that an earlier look has seen is due. A look at all topics each second finds the tasks whose signal was lost.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import islice
from typing import Any, NoReturn

from later.api.claim_requests import MAX_WAIT_S, WantedTasks
from later.core.errors import LaterError, TooManyWaiters
from later.store.pull_plan import PulledTask, PullResult

LOOK_EVERY_S = 1.0
MEASURE_EVERY_S = 0.2
"""How often the store's time is measured while claims wait. A task is created due at the high end of what is known of
that time, and claimed at the low end: each second since the last measurement keeps a claim waiting for 2 ms more."""
MAX_WOKEN = 32
"""Claims that look again at a time where nobody knows how many tasks are due. The tasks are dealt evenly to them."""
MIN_PAUSE_S = 0.05
"""The shortest pause after a look that got none of the tasks that are due: others are claiming them."""
CANCEL_AGAIN_S = 0.1

Pull = Callable[[WantedTasks], asyncio.Future[PullResult]]
Watch = Callable[[Callable[[], None]], AbstractContextManager[object]]
"""A block in which a function is called when nobody waits for an answer any more."""

Listen = Callable[[Callable[[str, int], None], Callable[[], None]], Coroutine[Any, Any, NoReturn]]


class Waiter:
    """A claim that waits: the tasks that it asks for, and the future of those that it gets."""

    def __init__(self, wanted: WantedTasks) -> None:
        self.wanted = wanted
        self.answer: asyncio.Future[Sequence[PulledTask]] = asyncio.get_running_loop().create_future()
        self.is_looking = False
        self.is_signaled = False
        """True if it was signaled while it looked: it has to look again."""
        self.is_left = False
        """True if nobody waits for it any more: it ends with the look that is under way."""

    def end(self, tasks: Sequence[PulledTask] = ()) -> None:
        if not self.answer.done():
            self.answer.set_result(tasks)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def leave(self) -> None:
        """End the wait: if it is looking, with what that finds. Its caller gives that back before it stops."""
        self.is_left = True
        if not self.is_looking:
            self.end()


class TopicQueue:
    """The claims that wait for tasks of one topic, in order of arrival."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.waiters: dict[Waiter, None] = {}
        self.users = 0
        self.signals = 0
        """The number of its signals: a claim that looked before a signal must look again before it waits."""
        self.timer: asyncio.TimerHandle | None = None

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class ClaimQueues:
    """The queues of all topics that are being claimed in this process.

    `pull` claims due tasks, and `give_back` takes those that nobody takes. `reserve` returns the block in which a
    request waits for the store. `find_due` returns those topics, of some, that have due tasks, or that are not pulled
    any more. `listen` tells, until it is cancelled, of the topics and due times (ms) of tasks that other processes have
    made due, and of each time from which on it does. `now` returns the store's time (ms, the low end, with its
    fraction), and `measure` measures it. At most `most` claims wait at a time.
    """

    def __init__(
        self,
        *,
        pull: Pull,
        reserve: Callable[[], AbstractContextManager[None]],
        give_back: Callable[[Sequence[PulledTask]], None],
        find_due: Callable[[Collection[str]], Awaitable[Collection[str]]],
        listen: Listen,
        now: Callable[[], float],
        measure: Callable[[], Awaitable[object]],
        most: int,
    ) -> None:
        self._pull = pull
        self._reserve = reserve
        self._give_back = give_back
        self._find_due = find_due
        self._listen = listen
        self._now = now
        self._measure = measure
        self._most = most
        self._queues: dict[str, TopicQueue] = {}
        self._waiters: set[Waiter] = set()
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def waiters(self) -> int:
        """How many claims wait."""
        return len(self._waiters)

    @property
    def is_empty(self) -> bool:
        """True if no topic is being claimed, so that nobody needs to be told of new tasks."""
        return not self._queues

    def __contains__(self, topic: str) -> bool:
        return topic in self._queues

    def signal(self, topic: str, due_at: int | None = None, tasks: int = MAX_WOKEN) -> None:
        """Let claims look for so many tasks of a topic, which are due at `due_at` (ms), or now."""
        queue = self._queues.get(topic)
        if queue is None:
            return
        queue.signals += 1
        pause_s = 0.0 if due_at is None else (due_at - self._now()) / 1000
        if pause_s > 0:
            self._set_timer(queue, pause_s)
        else:
            self._wake(queue, tasks)

    async def close(self) -> None:
        """Answer all claims that wait, with nothing or with what they find just now; from now on none waits."""
        self._is_closed = True
        for waiter in self._waiters:
            waiter.leave()
        if self._looking is not None:
            await _cancel(self._looking)

    async def claim(self, wanted: WantedTasks, watch: Watch = nullcontext) -> Sequence[PulledTask]:
        """Claim due tasks, or the first that are due within the time that the claim waits.

        It waits in a block of `watch`, which gets a function that ends the wait with nothing.

        Raises:
            TooManyWaiters: nothing is due, and too many claims wait already.
            PushedTopic: the tasks of a topic are not claimed.
            StoreDown: whether anything was claimed is not known.
        """
        if not wanted.wait_s or self._is_closed:
            with self._reserve():
                return (await self._pull(wanted)).tasks
        with self._use(wanted.topics) as queues:
            signals = sum(queue.signals for queue in queues)
            with self._reserve():
                result = await self._pull(wanted)
            if result.tasks or self._is_closed:
                return result.tasks
            if self.waiters >= self._most:
                raise TooManyWaiters(f"{self.waiters} claims wait already (--waiters {self._most})")
            waiter = Waiter(wanted)
            for queue in queues:
                queue.waiters[waiter] = None
            self._note_next_due(wanted, result)
            if sum(queue.signals for queue in queues) != signals:
                self._look_again(waiter)
            try:
                with watch(waiter.leave):
                    return await self._wait(waiter)
            finally:
                for queue in queues:
                    queue.waiters.pop(waiter, None)

    @contextmanager
    def _use(self, topics: Collection[str]) -> Iterator[list[TopicQueue]]:
        """Keep the queues of these topics until the block ends, so that their signals are noticed."""
        queues = []
        for topic in topics:
            queue = self._queues.get(topic)
            if queue is None:
                queue = self._queues[topic] = TopicQueue(topic)
            queue.users += 1
            queues.append(queue)
        try:
            yield queues
        finally:
            for queue in queues:
                queue.users -= 1
                if not queue.users:
                    queue.stop_timer()
                    del self._queues[queue.topic]

    async def _wait(self, waiter: Waiter) -> Sequence[PulledTask]:
        self._waiters.add(waiter)
        timer = asyncio.get_running_loop().call_later(waiter.wanted.wait_s, waiter.end)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look_while_claims_wait())
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            if waiter.answer.done() and not waiter.answer.cancelled() and waiter.answer.exception() is None:
                self._give_back(waiter.answer.result())
            raise
        finally:
            timer.cancel()
            self._waiters.discard(waiter)

    def _wake(self, queue: TopicQueue, tasks: int) -> None:
        """Let the first claims of a queue look again, one for each task.

        Unless that is all of them, each looks for one task: none gets two before all have one.
        """
        waiting = (waiter for waiter in queue.waiters if not waiter.answer.done() and not waiter.is_looking)
        woken = list(islice(waiting, tasks))
        most = None if len(woken) == len(queue.waiters) else 1
        for waiter in woken:
            self._look_again(waiter, most)
        if len(woken) < tasks:  # those that are looking may have looked too early
            for waiter in islice(queue.waiters, tasks):
                waiter.is_signaled = waiter.is_looking

    def _look_again(self, waiter: Waiter, most: int | None = None) -> None:
        """Let a claim look for tasks, for `most` at most; if it is looking already, when it has found nothing."""
        if waiter.is_looking:
            waiter.is_signaled = True
            return
        waiter.is_signaled = False
        try:
            pulled = self._pull(waiter.wanted if most is None else waiter.wanted._replace(limit=most))
        except LaterError as error:
            waiter.fail(error)
            return
        waiter.is_looking = True
        pulled.add_done_callback(partial(self._on_pulled, waiter))

    def _on_pulled(self, waiter: Waiter, pulled: asyncio.Future[PullResult]) -> None:
        """Answer a claim with what its look has found; what comes after its end is given back."""
        waiter.is_looking = False
        if pulled.cancelled():
            if waiter.is_left:
                waiter.end()
            return
        error = pulled.exception()
        if isinstance(error, Exception):
            waiter.fail(error)
            return
        result = pulled.result()
        if result.tasks and waiter.answer.done():
            self._give_back(result.tasks)
        elif result.tasks:
            waiter.end(result.tasks)
            for topic in waiter.wanted.topics:
                if (queue := self._queues.get(topic)) is not None:
                    queue.waiters.pop(waiter, None)
        elif waiter.is_left:
            waiter.end()
        elif waiter.is_signaled and not waiter.answer.done():
            queues = (self._queues[topic] for topic in waiter.wanted.topics if topic in self._queues)
            self._look_again(waiter, most=1 if any(len(queue.waiters) > 1 for queue in queues) else None)
        self._note_next_due(waiter.wanted, result)

    def _note_next_due(self, wanted: WantedTasks, result: PullResult) -> None:
        """Let claims of these topics look again when the next task is due that a look has seen."""
        if result.next_due_at is None:
            return
        pause_s = (result.next_due_at - self._now()) / 1000
        for topic in wanted.topics:
            queue = self._queues.get(topic)
            if queue is not None and queue.waiters:
                if result.tasks and pause_s <= 0:
                    self._wake(queue, MAX_WOKEN)
                else:
                    self._set_timer(queue, pause_s if pause_s > 0 else MIN_PAUSE_S)

    def _set_timer(self, queue: TopicQueue, pause_s: float) -> None:
        """Wake a queue after a pause, unless its timer ends before that.

        The loop of uvloop has a clock of whole ms: by that alone a timer may end too early, and the look then finds
        nothing. Its time itself may be another one than `monotonic`, which macOS does not count on while it sleeps. And
        a timer without a pause would be no timer, which can be asked when it ends.
        """
        if pause_s > MAX_WAIT_S:
            return  # no claim of today waits for so long
        loop = asyncio.get_running_loop()
        since_whole_ms = time.monotonic() * 1000 % 1
        pause_s = max(math.ceil(since_whole_ms + pause_s * 1000), 1) / 1000
        if queue.timer is None or queue.timer.when() > loop.time() + pause_s:
            queue.stop_timer()
            queue.timer = loop.call_later(pause_s, self._on_timer, queue)

    def _on_timer(self, queue: TopicQueue) -> None:
        queue.timer = None
        queue.signals += 1
        self._wake(queue, MAX_WOKEN)

    async def _look_while_claims_wait(self) -> None:
        """Look at all topics for which claims wait, each second and when the store can be listened to again."""
        subscribed = asyncio.Event()
        listening = asyncio.create_task(self._listen(partial(self.signal, tasks=1), subscribed.set))
        measuring = asyncio.create_task(self._measure_while_claims_wait())
        try:
            while self._waiters and not self._is_closed:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await subscribed.wait()
                subscribed.clear()
                await self.look()
        finally:
            self._looking = None
            await _cancel(listening, measuring)

    async def _measure_while_claims_wait(self) -> NoReturn:
        """Measure the store's time from time to time, until cancelled."""
        while True:
            with suppress(LaterError):
                await self._measure()
            await asyncio.sleep(MEASURE_EVERY_S)

    async def look(self) -> None:
        """Wake the queues of those topics that have due tasks."""
        topics = [queue.topic for queue in self._queues.values() if queue.waiters]
        try:
            due = await self._find_due(topics)
        except LaterError:
            return  # the store is away: the next look comes in a second
        for topic in due:
            self.signal(topic)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until they have ended: one that waits with a timeout may take the cancellation for its end."""
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=CANCEL_AGAIN_S)
