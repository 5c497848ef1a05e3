"""A handler: a topic, the function that does its tasks, and what is known of both."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, Concatenate, Generic, NamedTuple, Protocol, TypeVar, cast

from later.client.answers import Enqueued, Info
from later.client.calls import IfExistsValue
from later.core.durations import Seconds
from later.core.errors import Refused
from later.core.task import Draft
from later.handlers.declared_schedules import NO_PAYLOAD, DeclaredSchedule
from later.handlers.dependencies import check_dependencies
from later.handlers.parameters import Parameters, read_parameters, resolve_parameters
from later.handlers.payload_codec import Codec, make_codec
from later.handlers.slots import Slots

Payload = TypeVar("Payload")

KEY_ID_PREFIX = "k-"
KEY_ID_CHARS = 32
ON_DEAD_SUFFIX = ".on_dead"


class Enqueuer(Protocol):
    """The application that creates the tasks of its handlers."""

    def build_draft(self, handler: Handler[Any], payload: Any, options: EnqueueOptions) -> Draft:
        """Return the task of a payload. Raises TypeError, Refused."""
        ...

    async def send_draft(self, draft: Draft) -> Enqueued:
        """Create a task. Raises LaterError."""
        ...

    def send_draft_sync(self, draft: Draft) -> Enqueued:
        """Create a task in this thread. Raises LaterError; RuntimeError: an event loop runs in it."""
        ...


class HandlerRegistry(Protocol):
    """The handlers that a handler is among."""

    def find_application(self) -> Enqueuer:
        """Return the application to which they belong. Raises NotConfigured: there is none, or several."""
        ...

    def add_follower(self, handler: Handler[Any], topic: str, function: Callable[..., Any]) -> Handler[Info]:
        """Add the handler of a topic that gets a task for each dead one of another handler.

        Raises:
            HandlerExists: the topic has a handler already.
            TypeError: the function cannot be a handler.
        """
        ...


class EnqueueOptions(NamedTuple):
    """The arguments of `enqueue` besides the payload, as they were given."""

    delay: Seconds | None = None
    at: datetime | None = None
    id: str | None = None
    if_exists: IfExistsValue = "keep"
    remember: Seconds | None = None
    retry: int | None = None
    ttl: Seconds | None = None
    context: Mapping[str, str] | None = None


class Handler(Generic[Payload]):
    """A function that does the tasks of a topic, and of its aliases. To call it calls the function.

    `concurrency` is the number of runs at a time in this process. `timeout_s` is the time of a run (None: as long as
    the attempt has). With `strict` only True means done. `policy` is what the application wishes of its topic's policy;
    nothing sets it by itself. `local_names` are the names where a function within another one is defined;
    `registry` has the handler. One that `follows` another gets a task for each dead one of that.

    Raises:
        TypeError: the function takes more than one payload, or is a class, a method or a generator.
        ValueError: `concurrency` is less than 1, or `timeout_s` is not above 0.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        topic: str,
        *,
        concurrency: int,
        timeout_s: float | None,
        aliases: tuple[str, ...],
        strict: bool,
        codec: Codec | None,
        policy: Mapping[str, object],
        local_names: Mapping[str, Any],
        registry: HandlerRegistry,
        follows: Handler[Any] | None = None,
    ) -> None:
        _check_function(function, topic)
        if concurrency < 1:
            raise ValueError(f"{topic}: concurrency: expected 1 or more, got {concurrency}")
        if timeout_s is not None and timeout_s <= 0:
            raise ValueError(f"{topic}: timeout: expected more than 0 s, got {timeout_s:g}")
        self.function = function
        self.topic = topic
        self.aliases = aliases
        self.concurrency = concurrency
        self.timeout_s = timeout_s
        self.strict = strict
        self.policy = policy
        self.follows = follows
        self._registry = registry
        self.schedules: dict[str, DeclaredSchedule] = {}
        """The schedules that are declared at this handler, by their ids."""
        self.slots = Slots(concurrency)
        self._codec = codec
        self._types = resolve_parameters(function, topic, local_names)
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", topic)
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as a unit test does."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Handler({self.topic!r})"

    async def enqueue(
        self,
        payload: Payload,
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
        id: str | None = None,
        key: str | None = None,
        if_exists: IfExistsValue = "keep",
        remember: Seconds | None = None,
        retry: int | None = None,
        ttl: Seconds | None = None,
        context: Mapping[str, str] | None = None,
    ) -> Enqueued:
        """Create a task for this handler; when it returns, the daemon has stored the task.

        The task is due after `delay` (`15`, `"1h30m"`, a timedelta) or `at` a time with its zone; now, without both.
        `id` is its own id, or `key` makes one: a second task of the same id changes nothing (`keep`), takes the place
        of the first (`update`) or is refused (`error`), also for `remember` after the end of the first one. `retry`
        failures are followed by another attempt. After `ttl` it is not begun any more. `context` are values for
        the handler's `task.context`, besides what the application carries over.

        Raises:
            TypeError: the handler could not read the payload.
            Refused: an argument is wrong, or the topic's policy does not allow it.
            Exists: there is such a task (`error`).
            Conflict: it is in flight (`update`).
            Unavailable: the daemon did not answer; `unknown` says whether the task may be there.
            NotConfigured: the handler belongs to no application, or that one does not know where `later` is.
        """
        application = self.find_application()
        options = EnqueueOptions(delay, at, own_id(self.topic, id, key), if_exists, remember, retry, ttl, context)
        return await application.send_draft(application.build_draft(self, payload, options))

    def enqueue_sync(
        self,
        payload: Payload,
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
        id: str | None = None,
        key: str | None = None,
        if_exists: IfExistsValue = "keep",
        remember: Seconds | None = None,
        retry: int | None = None,
        ttl: Seconds | None = None,
        context: Mapping[str, str] | None = None,
    ) -> Enqueued:
        """Create a task as `enqueue` does, from a thread without an event loop.

        Raises:
            RuntimeError: an event loop runs in this thread, and would stand still meanwhile.
        """
        application = self.find_application()
        options = EnqueueOptions(delay, at, own_id(self.topic, id, key), if_exists, remember, retry, ttl, context)
        return application.send_draft_sync(application.build_draft(self, payload, options))

    def item(
        self,
        payload: Payload,
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
        id: str | None = None,
        key: str | None = None,
        if_exists: IfExistsValue = "keep",
        remember: Seconds | None = None,
        retry: int | None = None,
        ttl: Seconds | None = None,
        context: Mapping[str, str] | None = None,
    ) -> Draft:
        """Return a task for the application's `enqueue_many`, with the arguments of `enqueue`."""
        options = EnqueueOptions(delay, at, own_id(self.topic, id, key), if_exists, remember, retry, ttl, context)
        return self.find_application().build_draft(self, payload, options)

    def find_application(self) -> Enqueuer:
        """Return the application to which it belongs. Raises NotConfigured: there is none, or several."""
        return self._registry.find_application()

    def add_schedule(self, schedule: DeclaredSchedule) -> None:
        """Declare a schedule of this handler. Raises ValueError: it has one of this id."""
        if schedule.id in self.schedules:
            raise ValueError(f"{self.topic}: two schedules have the id {schedule.id}: give one of them another one")
        self.schedules[schedule.id] = schedule

    def schedule_content(self, schedule: DeclaredSchedule) -> str:
        """Return the content of the tasks of a schedule.

        Raises:
            TypeError: the handler cannot read its payload, or takes one that the schedule does not have.
        """
        if schedule.payload is not NO_PAYLOAD:
            return self.encode(schedule.payload)
        if self.parameters.payload is not None and not self.parameters.has_default:
            raise TypeError(f"{self.topic}: its handler takes a payload: declare its schedule with payload=…")
        return ""

    @property
    def topics(self) -> tuple[str, ...]:
        """Its topic, and those that it does, too."""
        return (self.topic, *self.aliases)

    @cached_property
    def parameters(self) -> Parameters:
        """The function's parameters. Raises TypeError: a type cannot be resolved."""
        return read_parameters(self.function, self.topic, self._types)

    @cached_property
    def codec(self) -> Codec:
        """The codec of its payload. Raises TypeError: the payload's type has none."""
        try:
            return self._codec or make_codec(self.parameters.payload_type)
        except TypeError as error:
            raise TypeError(f"{self.topic}: its payload has no codec: {error}") from error

    def check(self) -> None:
        """Resolve the types of its parameters and dependencies. Raises TypeError: one cannot be, or has no codec."""
        check_dependencies(self.parameters)
        if self.parameters.payload is not None:
            _ = self.codec
        for schedule in self.schedules.values():
            self.schedule_content(schedule)

    def decode(self, content: str) -> dict[str, Any]:
        """Return the payload of a task's content, by the name of its parameter; empty if the function takes none.

        Raises:
            Exception: the codec cannot read it.
        """
        parameters = self.parameters
        if parameters.payload is None or (not content and parameters.has_default):
            return {}
        return {parameters.payload: self.codec.decode(content)}

    def encode(self, payload: Payload) -> str:
        """Return the content of a task that has this payload.

        It is read back: a payload that the handler could not read fails here, where the mistake is.

        Raises:
            TypeError: the handler cannot read it, or takes none.
        """
        if self.parameters.payload is None:
            if payload is not None:
                raise TypeError(f"{self.topic}: its handler takes no payload, got {type(payload).__name__}")
            return ""
        try:
            content = self.codec.encode(payload)
            self.codec.decode(content)
        except Exception as error:
            raise TypeError(f"{self.topic}: its handler cannot read this payload: {error}") from error
        return content

    def id_of(self, key: str) -> str:
        """Return the id that a key makes: `k-` and 32 hex digits of the SHA-256 of topic, newline and key."""
        return KEY_ID_PREFIX + hashlib.sha256(f"{self.topic}\n{key}".encode()).hexdigest()[:KEY_ID_CHARS]

    def on_dead(self, function: Callable[Concatenate[Info, ...], Any], /) -> Handler[Info]:
        """Make a function the handler of this handler's dead tasks: it gets each as `/query` answers it, once it died.

        It is a handler like others, of a topic of its own, `<topic>.on_dead`. That this topic gets tasks is a wish for
        the policy of this handler's topic, which `apply_policies` and `later handlers apply` set.

        Raises:
            HandlerExists: there is such a handler already.
            TypeError: the function cannot be a handler.
            ValueError: `policy` of this handler names another topic for its dead tasks.
        """
        topic = f"{self.topic}{ON_DEAD_SUFFIX}"
        if self.policy.get("on_dead", topic) != topic:
            raise ValueError(
                f"{self.topic}: its policy says which topic learns of its dead tasks: {self.policy['on_dead']}"
            )
        follower = self._registry.add_follower(self, topic, function)
        self.policy = {**self.policy, "on_dead": topic}
        return follower

    def payload_of(self, task: Info) -> Payload:
        """Return the payload of one of its tasks, such as a dead one.

        Raises:
            Exception: the codec cannot read it.
        """
        parameters = self.parameters
        default = parameters.default if parameters.has_default else None
        return cast("Payload", self.decode(task.content or "").get(parameters.payload or "", default))

    def _own_id(self, id: str | None, key: str | None) -> str | None:
        """Return the id that is given, or made by a key. Raises Refused: both are given."""
        if id is not None and key is not None:
            raise Refused("key: expected either id or key, got both", "key")
        return id if key is None else self.id_of(key)


def key_id(topic: str, key: str) -> str:
    """Return the id that a key makes in a topic."""
    return KEY_ID_PREFIX + hashlib.sha256(f"{topic}\n{key}".encode()).hexdigest()[:KEY_ID_CHARS]


def own_id(topic: str, id: str | None, key: str | None) -> str | None:
    """Return the id that is given, or made by a key. Raises Refused: both are given."""
    if id is not None and key is not None:
        raise Refused("key: expected either id or key, got both", "key")
    return id if key is None else key_id(topic, key)


def _check_function(function: Callable[..., Any], name: str) -> None:
    if inspect.isclass(function):
        raise TypeError(f"{name}: a handler is a function, not a class")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{name}: a handler is a function that returns, not a generator")
    qualified = getattr(function, "__qualname__", "").rpartition("<locals>.")[2]
    if inspect.ismethod(function) or "." in qualified:
        raise TypeError(f"{name}: a handler is a function, not the method {qualified or function}")
