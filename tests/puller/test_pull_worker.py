"""The worker of an application, with claims that a test hands out."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from later.core.errors import LaterError, NotAllowed, PushedTopic, Refused, Unavailable
from later.core.retry import Outcome, OutcomeKind
from later.handlers.dispatch import HandlerDispatcher
from later.handlers.handler import Handler
from later.handlers.registry import Handlers
from later.puller import pull_worker
from later.puller.claim_source import HandlerClaim, LeaseDeadline
from later.puller.pull_worker import PullWorker
from tests.cases import each_case
from tests.handlers.tasks import task_of


class FakeClaims:
    """A source of claims in this process, whose calls can be made to fail."""

    def __init__(self, lease_s: float = 60) -> None:
        self.lease_s = lease_s
        self.waiting: dict[str, list[str]] = {}
        self.limits: list[int] = []
        self.settled: dict[str, Outcome] = {}
        self.given_back: list[str] = []
        self.extended: Counter[str] = Counter()
        self.lost: set[str] = set()
        self.failures = 0
        self.open = 0
        self.most_open = 0
        """Claims that wait now, and at a time."""
        self.refused: dict[str, LaterError] = {}
        self._changed = asyncio.Event()

    def add(self, topic: str, *ids: str) -> None:
        self.waiting.setdefault(topic, []).extend(ids)
        self.notify()

    def notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, condition: Any) -> None:
        """Wait until a condition on what this source was told is true."""
        async with asyncio.timeout(20):
            while not condition():
                await self._changed.wait()

    async def claim(self, topics: Sequence[str], limit: int, wait_s: float) -> list[HandlerClaim]:
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            return await self._wait_for_tasks(topics, limit, wait_s)
        finally:
            self.open -= 1

    async def _wait_for_tasks(self, topics: Sequence[str], limit: int, wait_s: float) -> list[HandlerClaim]:
        self._fail()
        self.limits.append(limit)
        self.notify()
        self.notify()
        while True:
            for topic in topics:
                if topic in self.refused:
                    raise self.refused[topic]
            for topic in topics:
                ids = self.waiting.get(topic, [])[:limit]
                if ids:
                    del self.waiting[topic][: len(ids)]
                    return [self._claim(topic, id) for id in ids]
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                return []

    def _claim(self, topic: str, id: str) -> HandlerClaim:
        deadline = LeaseDeadline(self, id, time.monotonic())
        return HandlerClaim(task_of(topic, id=id, deadline=deadline), "", id)

    async def settle(self, lease: str, outcome: Outcome) -> bool:
        self._fail()
        self.settled[lease] = outcome
        self.notify()
        return lease not in self.lost

    async def extend(self, leases: Sequence[str]) -> Sequence[str]:
        self._fail()
        self.extended.update(leases)
        self.notify()
        return [lease for lease in leases if lease in self.lost]

    async def give_back(self, lease: str) -> None:
        self.given_back.append(lease)
        self.notify()

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            self.notify()
            raise Unavailable("the daemon is away")


def nothing() -> None: ...


@asynccontextmanager
async def working(handlers: Handlers, claims: FakeClaims, drain_s: float = 0) -> AsyncIterator[asyncio.Task[None]]:
    dispatcher = HandlerDispatcher(handlers)
    task = asyncio.create_task(PullWorker(list(handlers), dispatcher, claims).run(drain_s))
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    dispatcher.close()


@contextmanager
def logged(lines: list[str]) -> Iterator[None]:
    """Add what the worker logs meanwhile."""
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]  # it keeps nothing else
    pull_worker.log.addHandler(handler)
    pull_worker.log.setLevel(logging.INFO)
    try:
        yield
    finally:
        pull_worker.log.removeHandler(handler)
        pull_worker.log.setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_worker, "RETRY_S", 0.001)
    monkeypatch.setattr(pull_worker, "RECHECK_S", 0.001)


async def test_a_stuck_handler_holds_one_task_and_no_other_topic() -> None:
    handlers, claims = Handlers(), FakeClaims()

    @handlers.handler(concurrency=1)
    async def stuck() -> None:
        await asyncio.Event().wait()

    @handlers.handler(aliases=["old"])
    async def well() -> None: ...

    claims.add("stuck", *(f"s{n}" for n in range(10)))
    claims.add("well", *(f"w{n}" for n in range(30)))
    claims.add("old", "o")
    async with working(handlers, claims):
        await claims.wait(lambda: len(claims.settled) == 31)
        assert claims.waiting["stuck"] == [f"s{n}" for n in range(1, 10)]
        assert (max(claims.limits), min(claims.limits)) == (16, 1)
    assert claims.given_back == ["s0"]


async def test_a_slot_that_comes_free_is_asked_for_at_once() -> None:
    handlers, claims, ends = Handlers(), FakeClaims(), [asyncio.Event() for _ in range(4)]
    begun: list[int] = []

    @handlers.handler(concurrency=2)
    async def work() -> None:
        begun.append(len(begun))
        claims.notify()
        await ends[begun[-1]].wait()

    async with working(handlers, claims):
        claims.add("work", "a", "b", "c", "d")
        await claims.wait(lambda: len(begun) == 2)
        assert claims.waiting["work"] == ["c", "d"]
        ends[1].set()
        await claims.wait(lambda: len(begun) == 3)
        for end in ends:
            end.set()
        await claims.wait(lambda: len(claims.settled) == 4)


async def test_a_thread_that_outlives_its_timeout_keeps_its_slot_and_then_the_next_task_is_claimed() -> None:
    handlers, claims, end = Handlers(), FakeClaims(), threading.Event()

    @handlers.handler(concurrency=1, timeout=0.01)
    def work() -> None:
        end.wait(20)

    claims.add("work", "a", "b")
    async with working(handlers, claims):
        await claims.wait(lambda: "a" in claims.settled)
        await asyncio.sleep(0)
        assert (work.slots.free, claims.waiting["work"]) == (0, ["b"])
        end.set()
        await claims.wait(lambda: "b" in claims.settled)
    assert claims.settled["a"].reason == "timeout"


async def test_a_slot_that_a_receiver_has_taken_is_asked_for_when_it_is_free() -> None:
    handlers, claims = Handlers(), FakeClaims()
    work: Handler[Any] = handlers.handler("work", concurrency=1)(lambda: None)
    claims.add("work", "a")
    assert await work.slots.acquire()
    async with working(handlers, claims):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert claims.limits == []
        work.slots.release()
        await claims.wait(lambda: claims.settled)


async def test_a_handler_that_is_removed_gets_nothing_more_and_ends_what_it_runs() -> None:
    handlers, claims, begun, end = Handlers(), FakeClaims(), asyncio.Event(), asyncio.Event()

    @handlers.handler(concurrency=2)
    async def order() -> None:
        begun.set()
        await end.wait()

    async with working(handlers, claims):
        claims.add("order", "1")
        await begun.wait()
        await claims.wait(lambda: claims.limits == [2, 1])  # the claim for the second one waits
        assert handlers.remove(order)
        assert not handlers.remove(order)
        claims.add("order", "2")
        await claims.wait(lambda: claims.given_back == ["2"])
        end.set()
        await claims.wait(lambda: "1" in claims.settled)
        claims.add("order", "3")
        await asyncio.sleep(0)
    assert (claims.waiting["order"], claims.limits, [*claims.settled]) == (["3"], [2, 1], ["1"])


async def test_a_claim_that_ends_empty_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_worker, "POLL_S", 0.01)
    handlers, claims = Handlers(), FakeClaims()
    handlers.handler("order")(nothing)
    async with working(handlers, claims):
        await claims.wait(lambda: len(claims.limits) >= 3)
        claims.add("order", "1")
        await claims.wait(lambda: "1" in claims.settled)


async def test_each_handler_has_one_claim_at_a_time_also_after_three_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pull_worker, "RETRY_S", 0)
    handlers, claims = Handlers(), FakeClaims()
    for topic in ("a", "b", "c"):
        handlers.handler(topic)(nothing)
    claims.failures = 9
    async with working(handlers, claims):
        await claims.wait(lambda: claims.open == 3)
        for topic in ("a", "b", "c"):
            claims.add(topic, f"{topic}1", f"{topic}2")
        await claims.wait(lambda: len(claims.settled) == 6)
        await claims.wait(lambda: claims.open == 3)
    assert claims.most_open == 3


async def test_no_more_is_claimed_than_slots_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers, claims, running, ends = Handlers(), FakeClaims(), 0, asyncio.Semaphore(0)

    @handlers.handler(concurrency=3)
    async def order() -> None:
        nonlocal running
        running += 1
        assert running <= 3
        await ends.acquire()
        running -= 1

    claims.add("order", *map(str, range(10)))
    async with working(handlers, claims):
        for number in range(10):
            await claims.wait(lambda: 10 - len(claims.waiting["order"]) == min(number + 3, 10))  # noqa: B023  # at once
            ends.release()
            await claims.wait(lambda: len(claims.settled) == number + 1)  # noqa: B023
    assert claims.limits[0] == 3
    assert max(claims.limits[1:]) <= 3


async def test_a_claim_that_fails_while_a_handler_runs_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_worker, "POLL_S", 0.01)
    monkeypatch.setattr(pull_worker, "RETRY_S", 0)
    handlers, claims, begun, end = Handlers(), FakeClaims(), asyncio.Event(), asyncio.Event()

    @handlers.handler(concurrency=2)
    async def order() -> None:
        begun.set()
        await end.wait()

    claims.add("order", "1")
    async with working(handlers, claims):
        await begun.wait()
        claims.failures = 3
        await claims.wait(lambda: claims.failures == 0)
        end.set()
        await claims.wait(lambda: "1" in claims.settled)
        claims.add("order", "2")
        await claims.wait(lambda: "2" in claims.settled)
    assert {outcome.kind for outcome in claims.settled.values()} == {OutcomeKind.DONE}


async def test_outcomes_are_told_again_until_the_source_takes_them(caplog: pytest.LogCaptureFixture) -> None:
    handlers, claims = Handlers(), FakeClaims()
    claims.failures = 3

    @handlers.handler
    async def work() -> None:
        claims.failures = 3

    with caplog.at_level(logging.INFO):
        async with working(handlers, claims):
            claims.add("work", "a")
            await claims.wait(lambda: claims.settled)
            claims.add("work", "b")
            await claims.wait(lambda: len(claims.settled) == 2)
    assert {outcome.kind for outcome in claims.settled.values()} == {OutcomeKind.DONE}
    assert "later does not answer, trying on: the daemon is away" in caplog.text
    assert caplog.text.count("later answers again") == 2


async def test_an_outcome_that_is_refused_is_not_told_again(caplog: pytest.LogCaptureFixture) -> None:
    handlers, claims, refused = Handlers(), FakeClaims(), 0
    handler: Handler[Any] = handlers.handler("work", concurrency=1)(lambda: None)

    async def settle(lease: str, outcome: Outcome) -> bool:
        nonlocal refused
        refused += 1
        claims.notify()
        raise Refused("message: expected a string of at most 500 characters, got 501", "message")

    claims.settle = settle  # type: ignore[method-assign]  # a daemon that does not take it
    async with working(handlers, claims):
        claims.add("work", "a", "b")
        await claims.wait(lambda: refused == 2)
    assert handler.slots.free == 1
    assert caplog.text.count("was refused, it comes again: message: expected") == 2


async def test_an_extension_that_failed_is_tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers, claims, pauses = Handlers(), FakeClaims(lease_s=3600), list[float]()
    extend = claims.extend

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    async def fail_twice(leases: Sequence[str]) -> Sequence[str]:
        claims.failures = 1 if len(pauses) < 2 else 0
        return await extend(leases)

    @handlers.handler
    async def work() -> None:
        pauses.clear()
        await asyncio.Event().wait()

    claims.extend = fail_twice  # type: ignore[method-assign]  # a daemon that is away for a moment
    monkeypatch.setattr(pull_worker, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    async with working(handlers, claims):
        claims.add("work", "a")
        await claims.wait(lambda: claims.extended["a"] == 2)
    assert pauses[:3] == [0.001, 0.001, 1200]


async def test_leases_are_extended_while_handlers_run_longer_than_they_last() -> None:
    handlers, claims, end = Handlers(), FakeClaims(lease_s=0.03), asyncio.Event()

    @handlers.handler
    async def work() -> None:
        await end.wait()

    async with working(handlers, claims):
        claims.add("work", "a", "b")
        await claims.wait(lambda: claims.extended["a"] >= 4 and claims.extended["b"] >= 4)
        end.set()
        await claims.wait(lambda: len(claims.settled) == 2)
    assert claims.given_back == []


async def test_a_handler_whose_lease_was_lost_is_cancelled_and_nothing_is_told() -> None:
    handlers, claims, cancelled = Handlers(), FakeClaims(lease_s=0.03), asyncio.Event()
    claims.lost.add("a")

    @handlers.handler
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with working(handlers, claims):
        claims.add("work", "a")
        async with asyncio.timeout(20):
            await cancelled.wait()
    assert (claims.settled, claims.given_back) == ({}, [])


async def test_an_outcome_whose_lease_was_lost_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    handlers, claims = Handlers(), FakeClaims()
    claims.lost.add("a")
    handlers.handler("work")(lambda: None)
    async with working(handlers, claims):
        claims.add("work", "a")
        await claims.wait(lambda: claims.settled)
    assert "the lease on task a was lost" in caplog.text


async def test_a_stop_lets_what_runs_end_and_claims_nothing_more() -> None:
    handlers, claims, end, begun = Handlers(), FakeClaims(), asyncio.Event(), asyncio.Event()

    @handlers.handler
    async def work() -> None:
        begun.set()
        await end.wait()

    async with working(handlers, claims, drain_s=20) as worker:
        claims.add("work", "a")
        await begun.wait()
        worker.cancel()
        await asyncio.sleep(0)
        claims.add("work", "b")
        end.set()
        await asyncio.gather(worker, return_exceptions=True)
    assert (list(claims.settled), claims.waiting["work"], claims.given_back) == (["a"], ["b"], [])


async def test_a_stop_gives_back_what_does_not_end_but_not_what_a_thread_still_does() -> None:
    handlers, claims, end = Handlers(), FakeClaims(), threading.Event()
    begun: list[str] = []

    @handlers.handler
    async def on_the_loop() -> None:
        begun.append("loop")
        claims.notify()
        await asyncio.Event().wait()

    loop = asyncio.get_running_loop()

    @handlers.handler
    def in_a_thread() -> None:
        begun.append("thread")
        loop.call_soon_threadsafe(claims.notify)
        end.wait(20)

    class Callable:
        async def __call__(self) -> None:
            await on_the_loop.function()

    handlers.handler("an_object")(Callable())
    async with working(handlers, claims) as worker:
        claims.add("on_the_loop", "a")
        claims.add("in_a_thread", "b")
        claims.add("an_object", "c")
        await claims.wait(lambda: len(begun) == 3)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        end.set()
    assert (claims.settled, sorted(claims.given_back)) == ({}, ["a", "c"])


async def test_an_outcome_that_is_being_told_at_a_stop_is_not_given_back() -> None:
    handlers, claims = Handlers(), FakeClaims()
    handler: Handler[Any] = handlers.handler("work")(lambda: None)

    async def settle(lease: str, outcome: Outcome) -> bool:
        claims.settled[lease] = outcome
        claims.notify()
        await asyncio.Event().wait()
        return True

    claims.settle = settle  # type: ignore[method-assign]  # an answer that never comes
    async with working(handlers, claims):
        claims.add("work", "a")
        await claims.wait(lambda: claims.settled)
        assert handler.slots.free == handler.concurrency
    assert claims.given_back == []


@each_case(
    ("error", "warning"),
    [
        (
            PushedTopic("old"),
            "the topic old is pushed, so its tasks are not claimed: later topics set old --deliver pull",
        ),
        (NotAllowed("not this key", reason="namespace"), "tasks of the topic old cannot be claimed: not this key"),
    ],
)
async def test_a_topic_that_cannot_be_claimed_is_named_once_and_holds_up_no_other_of_its_handler(
    error: LaterError, warning: str
) -> None:
    handlers, claims, lines = Handlers(), FakeClaims(), list[str]()
    handlers.handler("work", aliases=["old", "older"])(lambda: None)
    claims.refused["old"] = error
    with logged(lines):
        async with working(handlers, claims):
            claims.add("old", "o")
            claims.add("work", "a")
            claims.add("older", "b")
            await claims.wait(lambda: len(claims.settled) == 2)
            claims.add("work", *map(str, range(50)))
            await claims.wait(lambda: len(claims.settled) == 52)
            assert claims.waiting["old"] == ["o"]
            del claims.refused["old"]
            await claims.wait(lambda: "o" in claims.settled)
    assert lines == [warning, "tasks of the topic old can be claimed now"]


async def test_claims_that_fail_for_a_minute_are_followed_by_others_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handlers, claims = Handlers(), FakeClaims()
    handlers.handler("work")(lambda: None)
    claims.failures = 60  # one a second
    claims.add("work", "a")
    async with working(handlers, claims):
        await claims.wait(lambda: claims.settled)
    assert claims.failures == 0
    assert [message for message in caplog.messages if "does not answer" in message] == [
        "later does not answer, trying on: the daemon is away"
    ]


async def test_a_claim_that_found_nothing_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_worker, "POLL_S", 0.001)
    handlers, claims = Handlers(), FakeClaims()
    handlers.handler("work")(lambda: None)
    async with working(handlers, claims):
        await claims.wait(lambda: len(claims.limits) >= 5)
        claims.add("work", "a")
        await claims.wait(lambda: claims.settled)


async def test_no_more_is_claimed_than_there_are_free_runs() -> None:
    handlers, claims, end = Handlers(), FakeClaims(), asyncio.Event()

    @handlers.handler(concurrency=3)
    async def work() -> None:
        await end.wait()

    claims.add("work", "a")
    async with working(handlers, claims):
        await claims.wait(lambda: not claims.waiting["work"])
        claims.add("work", *"bcdefgh")
        end.set()
        await claims.wait(lambda: len(claims.settled) == 8)
    assert claims.limits[0] == 3
    assert max(claims.limits) == 3
