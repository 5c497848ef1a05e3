"""The handlers of a module or of a whole application, by their topics."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import FrameType
from typing import Any, Concatenate, NamedTuple, Protocol, TypeVar, overload

from later.client.answers import Info
from later.client.schedule_calls import CatchUpValue
from later.core.durations import Seconds, to_seconds
from later.core.errors import HandlerExists, NotConfigured
from later.core.validation import DEFAULT_NAMESPACE, check_namespace, parse_topic
from later.handlers.declared_schedules import NO_PAYLOAD, declare_schedule
from later.handlers.handler import Enqueuer, Handler
from later.handlers.payload_codec import Codec, JsonCodec
from later.handlers.task import Task

Payload = TypeVar("Payload")
Scheduled = TypeVar("Scheduled")

CallNext = Callable[[Task[Any]], Awaitable[object]]
Middleware = Callable[[Task[Any], CallNext], Awaitable[object]]
"""A function around each run of a handler: it awaits `call_next(task)`, which returns what the handler returned."""

DEFAULT_CONCURRENCY = 16


class Register(Protocol):
    """The decorator that `handler(topic, …)` returns."""

    @overload
    def __call__(self, function: Callable[[], Any], /) -> Handler[None]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Payload, ...], Any], /) -> Handler[Payload]: ...


class DeclareSchedule(Protocol):
    """The decorator that `every(…)` and `cron(…)` return without a payload: of a function or of its handler."""

    @overload
    def __call__(self, handler: Handler[Payload], /) -> Handler[Payload]: ...  # type: ignore[overload-overlap]  # a handler can be called, too: it comes first
    @overload
    def __call__(self, function: Callable[[], Any], /) -> Handler[None]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Payload, ...], Any], /) -> Handler[Payload]: ...


class DeclarePayloadSchedule(Protocol[Scheduled]):
    """The decorator that they return with a payload: of what takes this payload."""

    @overload
    def __call__(self, handler: Handler[Scheduled], /) -> Handler[Scheduled]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Scheduled, ...], Any], /) -> Handler[Scheduled]: ...


class Entry(NamedTuple):
    """A handler, and the middlewares around its runs: the outermost module's first."""

    handler: Handler[Any]
    middlewares: tuple[list[Middleware], ...]


class Handlers:
    """Handlers without a connection: those of a library, or of one module of an application.

    Raises:
        Refused: `namespace` is no namespace.
    """

    def __init__(self, *, namespace: str | None = None) -> None:
        self.namespace = None if namespace is None else check_namespace(namespace)
        self.middlewares: list[Middleware] = []
        """The first one is the outermost."""
        self._entries: dict[str, Entry] = {}
        """The handlers by topic, those of included modules, too."""
        self._parents: list[Handlers] = []
        """The handlers that include these."""

    @overload
    def handler(self, function: Callable[[], Any], /) -> Handler[None]: ...
    @overload
    def handler(self, function: Callable[Concatenate[Payload, ...], Any], /) -> Handler[Payload]: ...
    @overload
    def handler(
        self,
        topic: str | None = None,
        /,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        timeout: Seconds | None = None,
        aliases: Sequence[str] = (),
        strict: bool = False,
        codec: Codec | None = None,
        policy: Mapping[str, object] | None = None,
    ) -> Register: ...
    def handler(
        self,
        topic: Any = None,
        /,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        timeout: Seconds | None = None,
        aliases: Sequence[str] = (),
        strict: bool = False,
        codec: Codec | None = None,
        policy: Mapping[str, object] | None = None,
    ) -> Any:
        """Make a function the handler of a topic: of the one that is given, or of the function's own name.

        A topic without a namespace is in that of these handlers.

        Raises:
            HandlerExists: one of the topics has a handler already.
            TypeError: the function cannot be a handler; the text says why.
            Refused: a topic or `timeout` is not valid.
            ValueError: `concurrency` or `timeout` is out of range.
        """
        if callable(topic):
            return self._register(topic, None, _local_names(topic, sys._getframe(1)))
        if isinstance(aliases, str):
            raise TypeError(f"aliases: expected a list of topics, got the text {aliases!r}")

        def register(function: Callable[..., Any]) -> Handler[Any]:
            return self._register(
                function,
                topic,
                _local_names(function, sys._getframe(1)),
                concurrency=concurrency,
                timeout=timeout,
                aliases=aliases,
                strict=strict,
                codec=codec,
                policy=policy,
            )

        return register

    @overload
    def every(
        self,
        period: Seconds,
        /,
        *,
        id: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        catch_up: CatchUpValue | None = None,
        jitter: Seconds | None = None,
    ) -> DeclareSchedule: ...
    @overload
    def every(
        self,
        period: Seconds,
        /,
        *,
        payload: Scheduled,
        id: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        catch_up: CatchUpValue | None = None,
        jitter: Seconds | None = None,
    ) -> DeclarePayloadSchedule[Scheduled]: ...
    def every(
        self,
        period: Seconds,
        /,
        *,
        payload: Any = NO_PAYLOAD,
        id: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        catch_up: CatchUpValue | None = None,
        jitter: Seconds | None = None,
    ) -> Any:
        """Declare that a handler runs each `period`, counted from `start`. A function becomes a handler first.

        The schedule is put by `apply_schedules` and `later handlers apply`, never by itself. Its `id` is the topic,
        with `:` for `/`, unless it is given. `catch_up` decides on the times that it missed, `jitter` is how much later
        than its time a task is due, at most.

        Raises:
            Refused: a duration is none, or a time has no zone.
            ValueError: the id is none, or that of another schedule of this handler; or the period is under a second.
        """
        timing = {"every": period, "start": start, "end": end, "catch_up": catch_up, "jitter": jitter}
        return self._declare(id, payload, timing)

    @overload
    def cron(
        self,
        expression: str,
        /,
        *,
        zone: str | None = None,
        id: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        catch_up: CatchUpValue | None = None,
        jitter: Seconds | None = None,
    ) -> DeclareSchedule: ...
    @overload
    def cron(
        self,
        expression: str,
        /,
        *,
        payload: Scheduled,
        zone: str | None = None,
        id: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        catch_up: CatchUpValue | None = None,
        jitter: Seconds | None = None,
    ) -> DeclarePayloadSchedule[Scheduled]: ...
    def cron(
        self,
        expression: str,
        /,
        *,
        payload: Any = NO_PAYLOAD,
        zone: str | None = None,
        id: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        catch_up: CatchUpValue | None = None,
        jitter: Seconds | None = None,
    ) -> Any:
        """Declare that a handler runs by a cron expression, in the time of `zone` (UTC without one), as by `every`.

        Raises:
            Refused: a duration is none, or a time has no zone.
            ValueError: the id is none, or that of another schedule of this handler.
        """
        timing = {
            "cron": expression, "zone": zone, "start": start, "end": end, "catch_up": catch_up, "jitter": jitter,
        }  # fmt: skip
        return self._declare(id, payload, timing)

    def middleware(self, function: Middleware) -> Middleware:
        """Put a function around each run of these handlers, inside of those that were added before."""
        self.middlewares.append(function)
        return function

    def include(self, other: Handlers) -> None:
        """Add the handlers of another module, also those that it adds later, each within that module's middlewares.

        Raises:
            HandlerExists: one of the topics has a handler already; then none is added.
            ValueError: the other one includes this one.
        """
        if other is self or other in self._including():
            raise ValueError("these handlers include each other")
        self._check_free(list(other._entries))
        other._parents.append(self)
        for topic, entry in other._entries.items():
            self._insert(topic, entry)

    def remove(self, handler: Handler[Any]) -> bool:
        """Remove a handler: no further task is given to it, and what runs ends. Return True if it was there."""
        topics = [topic for topic, entry in self._entries.items() if entry.handler is handler]
        for topic in topics:
            del self._entries[topic]
        for parent in self._parents:
            parent.remove(handler)
        return bool(topics)

    def find(self, topic: str) -> Entry | None:
        """Return the handler of a topic, if it has one, with its middlewares."""
        return self._entries.get(topic)

    @property
    def topics(self) -> list[str]:
        """The topics that have a handler, aliases too, in the order of their registration."""
        return list(self._entries)

    def __iter__(self) -> Iterator[Handler[Any]]:
        """Return each handler once, in the order of their registration."""
        return iter(dict.fromkeys(entry.handler for entry in self._entries.values()))

    def add_follower(self, handler: Handler[Any], topic: str, function: Callable[..., Any]) -> Handler[Info]:
        """Add the handler of a topic that gets a task for each dead one of another handler; its payload is an Info.

        Raises:
            HandlerExists: the topic has a handler already.
            TypeError: the function cannot be a handler.
        """
        local_names = _local_names(function, sys._getframe(2))
        full_name = topic if "/" in topic else f"{DEFAULT_NAMESPACE}/{topic}"
        return self._register(function, full_name, local_names, codec=JsonCodec(Info), follows=handler)

    def check(self) -> None:
        """Resolve the types of all handlers and of their dependencies.

        Raises:
            TypeError: one cannot be resolved, or has no codec; the text names the handler.
        """
        for handler in self:
            handler.check()

    def _declare(self, id: str | None, payload: Any, timing: Mapping[str, Any]) -> Callable[[Any], Handler[Any]]:
        """Return the decorator that declares a schedule of a handler, or of a function, which becomes one."""

        def declare(function: Any) -> Handler[Any]:
            is_handler = isinstance(function, Handler)
            handler = (
                function if is_handler else self._register(function, None, _local_names(function, sys._getframe(1)))
            )
            handler.add_schedule(declare_schedule(handler.topic, id=id, payload=payload, **timing))
            return handler

        return declare

    def _register(
        self,
        function: Callable[..., Any],
        topic: str | None,
        local_names: Mapping[str, Any],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        timeout: Seconds | None = None,
        aliases: Sequence[str] = (),
        strict: bool = False,
        codec: Codec | None = None,
        policy: Mapping[str, object] | None = None,
        follows: Handler[Any] | None = None,
    ) -> Handler[Any]:
        handler: Handler[Any] = Handler(
            function,
            self._full_name(topic or getattr(function, "__name__", None)),
            concurrency=concurrency,
            timeout_s=None if timeout is None else to_seconds("timeout", timeout),
            aliases=tuple(self._full_name(alias) for alias in aliases),
            strict=strict,
            codec=codec,
            policy=dict(policy or {}),
            local_names=local_names,
            registry=self,
            follows=follows,
        )
        self._add(handler)
        return handler

    def _add(self, handler: Handler[Any]) -> None:
        topics = handler.topics
        if len(set(topics)) < len(topics):
            raise HandlerExists(f"{handler.topic}: an alias is named twice, or is its topic")
        self._check_free(topics)
        for topic in topics:
            self._insert(topic, Entry(handler, ()))

    def _check_free(self, topics: Sequence[str]) -> None:
        for registry in (self, *self._including()):
            for topic in topics:
                if topic in registry._entries:
                    raise HandlerExists(f"the topic {topic} has a handler already: {registry._entries[topic].handler}")

    def _insert(self, topic: str, entry: Entry) -> None:
        own = Entry(entry.handler, (self.middlewares, *entry.middlewares))
        self._entries[topic] = own
        for parent in self._parents:
            parent._insert(topic, own)

    def find_application(self) -> Enqueuer:
        """Return the application that these handlers belong to. Raises NotConfigured: there is none, or several."""
        applications = list(
            {id(found): found for found in (parent.find_application() for parent in self._parents)}.values()
        )
        if len(applications) == 1:
            return applications[0]
        if not applications:
            raise NotConfigured("these handlers belong to no application: add them with Later(…).include(handlers)")
        raise NotConfigured("these handlers belong to several applications: use the `enqueue` of one of them")

    def _including(self) -> list[Handlers]:
        """Return the handlers that include these, directly or not."""
        return [found for parent in self._parents for found in (parent, *parent._including())]

    def _full_name(self, topic: str | None) -> str:
        if topic is None:
            raise TypeError("this function has no name: give the handler a topic")
        return parse_topic(topic if self.namespace is None or "/" in topic else f"{self.namespace}/{topic}")


def _local_names(function: Callable[..., Any], frame: FrameType) -> Mapping[str, Any]:
    """Return the names where a function within another one is defined: its annotations may be texts that name them."""
    return dict(frame.f_locals) if "<locals>" in getattr(function, "__qualname__", "") else {}
