"""The virtual clock: a daemon in memory, whose time is moved by the test of an application."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar, overload

import msgspec

from later.application import Later
from later.client import machine_clock
from later.client.answers import Info
from later.client.topic_calls import policy_value
from later.core.durations import Seconds, to_seconds
from later.core.errors import ConfigError, Refused, Unavailable
from later.core.policy import parse_policy_fields
from later.core.policy_scopes import topic_scope
from later.core.retry import Outcome
from later.core.task_view import DEAD, task_view
from later.core.validation import parse_topic, refusal, to_milliseconds
from later.handlers.handler import Handler
from later.testing.virtual_api import VirtualApi
from later.testing.virtual_backend import VirtualBackend
from later.testing.virtual_delivery import VirtualDeliverer
from later.testing.virtual_schedules import VirtualSchedules
from later.testing.virtual_store import DELAY, ERROR, UNACK, VirtualStore, VirtualTask

Payload = TypeVar("Payload")

URL = "http://virtual-clock.invalid"
CALLBACK = "http://application.invalid/later"
"""The callback of an application that has none, while it is on a clock."""
MAX_DELIVERIES = 1000


class Delivery(NamedTuple):
    """An attempt at a task: its time, its payload and its outcome, which has a message if the task was not done."""

    id: str
    topic: str
    payload: Any
    attempt: int
    at: datetime
    outcome: Outcome


class VirtualClock:
    """A daemon in memory, whose time stands still until it is moved. `virtual_clock` puts an application on it.

    What comes due while time is moved is delivered in the order of the due times, each at its own time, one after the
    other; tasks that handlers create take part. A test awaits `advance`, `advance_to` or `run_all`, in whatever event
    loop it runs; without one, it calls them with `_sync`.
    """

    def __init__(self, tasks: Later, callback: str, now: int) -> None:
        self._store = VirtualStore()
        self._schedules = VirtualSchedules(self._store)
        self._api = VirtualApi(self._store, self._schedules, lambda: self._now)
        self._deliverer = VirtualDeliverer(tasks, self._store, callback)
        self._now = now
        self._is_moving = False
        self._traveller: Any = None
        self.backend = VirtualBackend(self._api)
        """The backend that the clients of the application call."""

    # Time

    @property
    def now(self) -> datetime:
        """The time, with its zone (UTC)."""
        return datetime.fromtimestamp(self._now / 1000, UTC)

    async def advance(self, by: Seconds) -> None:
        """Move time by a duration, and deliver what comes due until then. Raises Refused: it is none, or negative."""
        seconds = to_seconds("by", by)
        if not 0 <= seconds < float("inf"):
            raise refusal("by", seconds, "a duration that is not negative")
        await self._move(self._now + to_milliseconds(seconds))

    async def advance_to(self, at: datetime) -> None:
        """Move time to this one, and deliver what comes due until then. Raises Refused: it is past, or has no zone."""
        if at.tzinfo is None:
            raise refusal("at", at.isoformat(), "a time with its zone")
        end = to_ms(at)
        if end < self._now:
            raise Refused(f"at: expected {self.now.isoformat()} or later, got {at.isoformat()}", "at")
        await self._move(end)

    async def run_all(self, limit: int = MAX_DELIVERIES) -> None:
        """Move time until nothing waits that will be delivered. Schedules fire on the way, and are not waited for.

        Raises:
            RuntimeError: it does not end within `limit` deliveries. The text names the handler that had most of them.
        """
        await self._move(None, limit)

    def advance_sync(self, by: Seconds) -> None:
        """Do as `advance`, in a thread without an event loop. Raises RuntimeError: one runs in it."""
        self._run(self.advance(by))

    def advance_to_sync(self, at: datetime) -> None:
        """Do as `advance_to`, in a thread without an event loop. Raises RuntimeError: one runs in it."""
        self._run(self.advance_to(at))

    def run_all_sync(self, limit: int = MAX_DELIVERIES) -> None:
        """Do as `run_all`, in a thread without an event loop. Raises RuntimeError: one runs in it."""
        self._run(self.run_all(limit))

    # Tasks

    @overload
    def pending(self, of: Handler[Payload]) -> list[Payload]: ...
    @overload
    def pending(self, of: str) -> list[str]: ...
    def pending(self, of: Handler[Any] | str) -> list[Any]:
        """Return the payloads of a handler's tasks, or the contents of a topic's, that are neither dead nor done.

        They are in the order of their due times. A content that the handler cannot read stays as it is, here and below.
        """
        return self._payloads(of, DELAY, UNACK, ERROR)

    @overload
    def dead(self, of: Handler[Payload]) -> list[Payload]: ...
    @overload
    def dead(self, of: str) -> list[str]: ...
    def dead(self, of: Handler[Any] | str) -> list[Any]:
        """Return the payloads of the dead tasks, in the order in which they died. `tasks` has the reasons."""
        return self._payloads(of, DEAD)

    @overload
    def done(self, of: Handler[Payload]) -> list[Payload]: ...
    @overload
    def done(self, of: str) -> list[str]: ...
    def done(self, of: Handler[Any] | str) -> list[Any]:
        """Return the payloads of the tasks that are done, in the order in which they ended."""
        return [_decode(of, task.task.content) for task in self._store.done if task.topic in _topics(of)]

    @overload
    def delivered(self, of: Handler[Payload]) -> list[Payload]: ...
    @overload
    def delivered(self, of: str) -> list[str]: ...
    def delivered(self, of: Handler[Any] | str) -> list[Any]:
        """Return the payload of each attempt, whatever became of it."""
        return [delivery.payload for delivery in self.deliveries(of)]

    def deliveries(self, of: Handler[Any] | str) -> list[Delivery]:
        """Return all attempts, each with its time and its outcome."""
        return [
            Delivery(task.id, task.topic, _decode(of, task.content), number, _time(at), outcome)
            for task, number, at, outcome in self._deliverer.attempts
            if task.topic in _topics(of)
        ]

    def tasks(self, of: Handler[Any] | str, state: str | None = None) -> list[Info]:
        """Return the tasks that are not done, or those in a state, as `Later.get` does: dead ones with their reason."""
        self._store.move_time(self._now)
        states = (DELAY, UNACK, ERROR, DEAD) if state is None else (state,)
        found = [task for topic in _topics(of) for task in self._store.select(topic, states)]
        return [_decode_info(msgspec.json.encode(task_view(task))) for task in found]

    # The daemon

    def policy(self, of: Handler[Any] | str, **fields: object) -> None:
        """Set fields of a topic's policy, such as `retry=5` or `max_delay="7d"`; None lets one be inherited.

        Raises:
            Refused: there is no such field, or it does not take the value.
        """
        [name, *_] = _topics(of)
        scope = topic_scope(name)
        plain = {field: policy_value(field, value) for field, value in fields.items()}
        self._api.change_settings(scope, self._store.policies.settings_at(scope).merge(parse_policy_fields(plain)))

    def fail_next(self, count: int = 1, error: Unavailable | type[Unavailable] = Unavailable) -> None:
        """Let the next calls of the application fail, as if the daemon did not answer. They are not tried again."""
        failure = error if isinstance(error, Unavailable) else error("the virtual clock lets this call fail")
        self.backend.failures.extend([failure] * count)

    # Steps

    async def _move(self, end: int | None, limit: int | None = None) -> None:
        """Deliver what comes due until `end` (ms; None: until nothing more does), and let it be that time then."""
        if self._is_moving:
            raise RuntimeError("the clock is being moved already: a handler cannot move it")
        self._is_moving = True
        try:
            count = 0
            while (event := self._next_event(end)) is not None:
                if count == limit:
                    raise self._endless(count)
                at, task = event
                self._set_time(max(at, self._now))
                if task is None:
                    self._schedules.fire(self._now)
                else:
                    count += 1
                    await self._happen(task)
            if end is not None:
                self._set_time(end)
        finally:
            self._is_moving = False

    def _next_event(self, end: int | None) -> tuple[int, VirtualTask | None] | None:
        """Return what happens next until `end`: when, and to which task. None in place of the task: schedules fire.

        Without an end, schedules fire only until a task is due.
        """
        event, fires_at = self._store.next_event(self._deliverer.is_served), self._schedules.next_at()
        times = [at for at in (end, None if event is None else event[0]) if at is not None]
        if fires_at is not None and times and fires_at <= max(min(times), self._now):
            return fires_at, None
        return event if event is not None and event[0] == min(times) else None

    async def _happen(self, task: VirtualTask) -> None:
        """Deliver a task, or let it die whose ttl has ended."""
        if task.task.expires_at is not None and task.task.expires_at <= self._now:
            self._store.expire(task, self._now)
        else:
            await self._deliverer.deliver(task, self._now)

    def _set_time(self, now: int) -> None:
        self._now = now
        self._store.move_time(now)
        if self._traveller is not None:
            self._traveller.move_to(self.now)

    def _endless(self, count: int) -> RuntimeError:
        topics = Counter(attempt.task.topic for attempt in self._deliverer.attempts[-count:])
        [(topic, most)] = topics.most_common(1) or [("no topic", 0)]
        return RuntimeError(
            f"tasks still wait after {count} deliveries, {most} of them to the handler for {topic}: "
            "does it create tasks without end? (limit= allows more)"
        )

    def _payloads(self, of: Handler[Any] | str, *states: str) -> list[Any]:
        self._store.move_time(self._now)
        found = [task for topic in _topics(of) for task in self._store.select(topic, states)]
        found.sort(key=lambda task: (task.due_at, task.number))
        return [_decode(of, task.task.content) for task in found]

    def _run(self, coroutine: Any) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(coroutine)
            return
        coroutine.close()
        raise RuntimeError("this would block the event loop: await the method without _sync")

    @contextmanager
    def travelling(self) -> Iterator[None]:
        """Let the `datetime` and `time` of Python follow the clock. Raises ConfigError: time-machine is missing."""
        if find_spec("time_machine") is None:
            raise ConfigError("travel=True needs time-machine: pip install 'later[testing]'")
        travel = import_module("time_machine").travel(self.now, tick=False)
        self._traveller = travel.start()
        try:
            yield
        finally:
            self._traveller = None
            travel.stop()


@contextmanager
def virtual_clock(
    tasks: Later,
    *,
    start: datetime | None = None,
    travel: bool = False,
    policies: Mapping[str, Mapping[str, object]] | None = None,
) -> Iterator[VirtualClock]:
    """Put an application on a virtual clock, in sync and in async tests: `with virtual_clock(tasks) as clock`.

    The clock begins at `start`, or now. Meanwhile all that the application does by its client acts on the clock's own
    tasks, which are forgotten in the end; it needs no URL, no network and no daemon. `policies` are fields of policies
    by topics. With `travel`, `datetime.now()` and `time.time()` follow the clock.

    Raises:
        Refused: `start` has no zone, or a policy is wrong.
        ConfigError: `travel` needs time-machine, which is not installed.
    """
    if start is not None and start.tzinfo is None:
        raise refusal("start", start.isoformat(), "a time with its zone")
    callback = tasks.callback or CALLBACK
    clock = VirtualClock(tasks, callback, machine_clock.wall_ms() if start is None else to_ms(start))
    for topic, fields in (policies or {}).items():
        clock.policy(topic, **fields)
    with ExitStack() as stack:
        if travel:
            stack.enter_context(clock.travelling())
        stack.enter_context(tasks.using_backend(clock.backend, URL, callback))
        yield clock


def to_ms(time: datetime) -> int:
    """Return a time with a zone in ms since the Unix epoch, rounded up."""
    return to_milliseconds(time.timestamp())


_decode_info = msgspec.json.Decoder(Info).decode


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _topics(of: Handler[Any] | str) -> tuple[str, ...]:
    return of.topics if isinstance(of, Handler) else (parse_topic(of),)


def _decode(of: Handler[Any] | str, content: str) -> Any:
    """Return the payload that a content is for a handler; a topic has contents."""
    if not isinstance(of, Handler):
        return content
    try:
        return next(iter(of.decode(content).values()), None)
    except Exception:  # a codec may raise anything; a test can look at what the handler could not read
        return content
