"""The application: its handlers, and the later that keeps and calls their tasks.

Receivers, workers and clients are imported when they are first used: no application has all of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from later.client.answers import ScheduleInfo
from later.core.durations import Seconds, to_seconds
from later.core.errors import NotFound
from later.core.retry import Outcome
from later.handlers.connected import ConnectedHandlers
from later.handlers.context import Carried
from later.handlers.declared_schedules import ScheduleChange, is_undeclared, schedule_changes
from later.handlers.dispatch import DEFAULT_THREADS, HandlerDispatcher
from later.handlers.handler import Handler
from later.handlers.handler_metrics import HandlerMetrics
from later.handlers.shared_opening import SharedOpening
from later.handlers.task import Task
from later.puller.embedded_later import EmbeddedLater

if TYPE_CHECKING:
    from later.client.backend import Backend
    from later.puller.claim_source import ClaimSource
    from later.receiver.asgi import AsgiReceiver
    from later.receiver.receiver import Receiver
    from later.receiver.signed import Signed
    from later.receiver.wsgi import WsgiReceiver

EMBEDDED_URL = "http://later.in-process"
"""The URL that the clients of an application with an embedded later are given. They never connect to it."""

Lifespan = Callable[["Later"], AbstractAsyncContextManager[Any]]
"""A function that opens the resources of an application, such as a connection pool. Its value is `task.state`."""


class Later(ConnectedHandlers):
    """An application's handlers, which later calls at `callback`, and its client of the later at `url`.

    A `StoreClaims` in place of the URL keeps the tasks in a store, without a daemon: this process claims them itself.
    `key` is an API key, the file `ca` has authorities that are trusted besides the machine's. Handlers without a
    namespace of their own are in `namespace`. With `signed`, calls must be signed. `context` are the parts of the
    context that tasks carry to their handlers. `lifespan` makes the state of handlers. Handlers that are not async run
    in `threads` threads. `patience`, `check` and `coalesce` are those of `AsyncClient`. Nothing is connected, and no
    thread is started, before it is needed; no environment is read.

    Raises:
        Refused: `namespace` is no namespace.
    """

    def __init__(
        self,
        url: str | EmbeddedLater | None = None,
        *,
        key: str | None = None,
        ca: str | None = None,
        callback: str | None = None,
        namespace: str | None = None,
        signed: Signed | None = None,
        context: Sequence[Carried] = (),
        lifespan: Lifespan | None = None,
        threads: int = DEFAULT_THREADS,
        patience: Seconds = 10,
        check: bool = True,
        coalesce: bool = True,
    ) -> None:
        super().__init__(
            None if isinstance(url, EmbeddedLater) else url,
            key=key,
            ca=ca,
            callback=callback,
            namespace=namespace,
            context=context,
            patience=patience,
            check=check,
            coalesce=coalesce,
        )
        self._embedded: EmbeddedLater | None = None
        self._brought: list[EmbeddedLater] = []
        """The embedded laters that workers have brought with them, because there is no URL."""
        if isinstance(url, EmbeddedLater):
            self._embed(url)
        self._signed = signed
        self._make_state = lifespan
        self._state: Any = None
        self._opening = SharedOpening(self._open)
        self._receiver: Receiver | None = None
        self._dispatcher = HandlerDispatcher(self, carried=self._carried, threads=threads)

    @classmethod
    def from_env(cls, **more: Any) -> Self:
        """Return an application that is configured by LATER_URL, LATER_KEY, LATER_CALLBACK and LATER_SIGNING_SECRETS.

        The last one has one secret or more, with commas or white space between them. `more` are further arguments,
        which replace those of the environment.
        """
        from later.receiver.signed import Signed  # noqa: PLC0415  # see above

        secrets = re.split(r"[\s,]+", os.environ.get("LATER_SIGNING_SECRETS", "").strip())
        found = {
            "url": os.environ.get("LATER_URL"),
            "key": os.environ.get("LATER_KEY"),
            "callback": os.environ.get("LATER_CALLBACK"),
            "signed": Signed(secrets) if secrets != [""] else None,
        }
        return cls(**{**found, **more})

    def configure(
        self,
        *,
        url: str | None = None,
        key: str | None = None,
        ca: str | None = None,
        callback: str | None = None,
        signed: Signed | None = None,
    ) -> None:
        """Set what was not known when the application was imported; what is None stays as it is.

        Raises:
            RuntimeError: it was used already; or it takes calls already, and `signed` would change which.
        """
        is_receiving = self._receiver is not None and signed is not None
        if self._async_client is not None or self._sync_client is not None or is_receiving:
            raise RuntimeError("configure comes before the first use")
        self._url = url or self._url
        self._key = key or self._key
        self._ca = ca or self._ca
        self._callback = callback or self._callback
        self._signed = signed or self._signed

    # State

    async def __aenter__(self) -> Self:
        """Resolve all handlers, open an embedded store, and enter the lifespan.

        Raises:
            TypeError: a handler's types cannot be resolved.
            LaterError: the embedded store cannot be used.
        """
        self.check()
        await self._opening.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the lifespan, and close what this application has opened."""
        await self._opening.leave(kind, error, traceback)

    async def _open(self, stack: AsyncExitStack) -> None:
        if self._embedded is not None:
            await stack.enter_async_context(self._embedded)
            if self._callback is None:
                await self._embedded.pull([topic for handler in self for topic in handler.topics])
        stack.push_async_callback(self._close)
        if self._make_state is not None:
            self._state = await stack.enter_async_context(self._make_state(self))

    async def _close(self) -> None:
        """Close what this application has opened, while an embedded store is still open."""
        self._dispatcher.close()
        await self._close_clients()

    def _embed(self, embedded: EmbeddedLater) -> None:
        self._embedded, self._url, self._backend = embedded, EMBEDDED_URL, embedded.backend

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """The lifespan of a FastAPI or Starlette application: `FastAPI(lifespan=tasks.lifespan)`."""
        async with self:
            yield

    async def aiohttp_ctx(self, app: object) -> AsyncIterator[None]:
        """The lifespan of an aiohttp application: `app.cleanup_ctx.append(tasks.aiohttp_ctx)`."""
        async with self:
            yield

    # Metrics

    def metrics(self, registry: Any = None) -> None:
        """Export what handlers do to a `CollectorRegistry` of prometheus_client, or to the one that it has by default.

        Raises:
            ModuleNotFoundError: prometheus_client is not installed.
            ValueError: the registry has these metrics already.
        """
        self._dispatcher.metrics = HandlerMetrics(registry, self.topics)

    # Receivers

    def receive(self, app: Any, path: str = "/later") -> None:
        """Let an application of FastAPI, Starlette, aiohttp or Flask take the calls for the handlers at a path.

        Raises:
            TypeError: the application is of another framework.
            ValueError: the path does not begin with a slash.
        """
        from later.receiver.frameworks import add_receiver  # noqa: PLC0415

        add_receiver(app, path, self._get_receiver())

    def asgi(self) -> AsgiReceiver:
        """Return an ASGI application that takes the calls: the endpoint of a `Route`, not of a `Mount`."""
        from later.receiver.asgi import AsgiReceiver  # noqa: PLC0415

        return AsgiReceiver(self._get_receiver())

    def wsgi(self) -> WsgiReceiver:
        """Return a WSGI application that takes the calls."""
        from later.receiver.wsgi import WsgiReceiver  # noqa: PLC0415

        return WsgiReceiver(self._get_receiver())

    def aiohttp(self) -> Callable[[Any], Any]:
        """Return a handler of aiohttp that takes the calls."""
        from later.receiver.frameworks import aiohttp_handler  # noqa: PLC0415

        return aiohttp_handler(self._get_receiver())

    def django(self) -> Callable[[Any], Any]:
        """Return a view of Django that takes the calls."""
        from later.receiver.frameworks import django_view  # noqa: PLC0415

        return django_view(self._get_receiver())

    # Schedules

    async def apply_schedules(self, *, dry_run: bool = False) -> Sequence[ScheduleChange]:
        """Put the schedules that handlers declare, unless it is a dry run; return what differed.

        Call this when you deploy, not when you start; `later handlers apply` asks first. No other schedule is touched:
        one whose declaration is gone fires until it is deleted, see `undeclared_schedules`.

        Raises:
            LaterError: a schedule is refused, or the daemon does not answer. Those before it are put.
            TypeError: a handler cannot read the payload of its schedule, or misses one.
            ValueError: two handlers declare schedules of the same id.
        """
        changes: list[ScheduleChange] = []
        for id, fields in self.declared_schedules().items():
            applied = await self.client.policy(fields["topic"])
            try:
                found = await self.client.schedule(id)
            except NotFound:
                found = None
            differing = schedule_changes(id, fields, found, applied)
            if differing and not dry_run:
                await self.client.put_schedule(id, **fields)
            changes += differing
        return changes

    def apply_schedules_sync(self, *, dry_run: bool = False) -> Sequence[ScheduleChange]:
        """Put the schedules that handlers declare, as `apply_schedules` does."""
        changes: list[ScheduleChange] = []
        for id, fields in self.declared_schedules().items():
            applied = self.client_sync.policy(fields["topic"])
            try:
                found = self.client_sync.schedule(id)
            except NotFound:
                found = None
            differing = schedule_changes(id, fields, found, applied)
            if differing and not dry_run:
                self.client_sync.put_schedule(id, **fields)
            changes += differing
        return changes

    async def undeclared_schedules(self) -> Sequence[ScheduleInfo]:
        """Return the schedules of this application's topics that no handler declares: other people's, or old ones."""
        declared = self.declared_schedules()
        return [found async for found in self.client.schedules() if is_undeclared(found, declared, self.topics)]

    def undeclared_schedules_sync(self) -> Sequence[ScheduleInfo]:
        """Return the schedules that no handler declares, as `undeclared_schedules` does."""
        declared = self.declared_schedules()
        return [found for found in self.client_sync.schedules() if is_undeclared(found, declared, self.topics)]

    def declared_schedules(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what handlers declare of schedules: the arguments of the client's `put_schedule`, by the id.

        Raises:
            TypeError: a handler cannot read the payload of its schedule, or misses one.
            ValueError: two handlers declare schedules of the same id.
        """
        declared: dict[str, Mapping[str, Any]] = {}
        for handler in self:
            for schedule in handler.schedules.values():
                if schedule.id in declared:
                    topics = f"{declared[schedule.id]['topic']} and {handler.topic}"
                    raise ValueError(f"the schedule {schedule.id} is declared at two handlers, of {topics}")
                content = handler.schedule_content(schedule)
                declared[schedule.id] = schedule.fields(handler.topic, content, self._callback)
        return declared

    # Workers

    async def work(
        self,
        *,
        claims: ClaimSource | None = None,
        only: Sequence[Handler[Any]] = (),
        drain: Seconds = 25,
        lease: Seconds = 30,
    ) -> None:
        """Claim the tasks of pulled topics, and run their handlers, until this is cancelled.

        Then nothing more is claimed; what runs has `drain`, and what still runs is given back. `only` are the handlers
        whose tasks are claimed; all without it. Tasks are claimed for `lease`, which is extended while they run: so
        long it takes until others get the tasks of a process that was killed. `claims` takes the place of the API of
        `url`. A `StoreClaims` has a `lease` of its own; if there is no URL, it also takes the application's calls
        meanwhile.

        Raises:
            NotConfigured: the application does not know where later is.
            TypeError: a handler's types cannot be resolved.
            LaterError: an embedded store cannot be used.
        """
        from later.puller.claim_source import ApiClaims  # noqa: PLC0415  # most applications are called
        from later.puller.pull_worker import PullWorker  # noqa: PLC0415

        handlers = list(only or self)
        embedded = claims if isinstance(claims, EmbeddedLater) else None if claims else self._embedded
        async with AsyncExitStack() as stack:
            if embedded is not None:
                topics = [topic for handler in handlers for topic in handler.topics]
                await stack.enter_async_context(self._embedded_in(embedded, topics))
                claims = embedded.claims(lambda: self._state)
            await stack.enter_async_context(self)
            source = claims or ApiClaims(self.client, lambda: self._state, to_seconds("lease", lease))
            await PullWorker(handlers, self._dispatcher, source).run(to_seconds("drain", drain))

    @asynccontextmanager
    async def _embedded_in(self, embedded: EmbeddedLater, topics: Sequence[str]) -> AsyncIterator[None]:
        """Keep an embedded later open, where these topics are claimed; without a URL, it takes all calls meanwhile."""
        async with embedded:
            await embedded.pull(topics)
            if self._url is not None and not self._brought:
                yield
                return
            self._brought.append(embedded)
            self._embed(self._brought[0])
            try:
                yield
            finally:
                self._brought.remove(embedded)
                if self._embedded not in self._brought:  # another worker's takes the calls from now on, if there is one
                    self._embedded, self._url, self._backend = None, None, None
                    self._async_client = self._sync_client = None
                    if self._brought:
                        self._embed(self._brought[0])

    async def dispatch(self, task: Task[Any], content: str, *, cancel_before_s: float | None = None) -> Outcome:
        """Run the handler of a task, as `HandlerDispatcher.dispatch` does: receivers and workers end here."""
        return await self._dispatcher.dispatch(task, content, cancel_before_s=cancel_before_s)

    @property
    def is_embedded(self) -> bool:
        """True if its later is in its own process."""
        return self._embedded is not None

    # Tests

    @property
    def callback(self) -> str | None:
        """The URL at which later calls the handlers, if it was given."""
        return self._callback

    @property
    def state(self) -> Any:
        """The value of the lifespan, which handlers have as `task.state`."""
        return self._state

    @contextmanager
    def using_backend(self, backend: Backend, url: str, callback: str) -> Iterator[None]:
        """Let all calls go to another backend for a while, and none be sent again: `later.testing` does so."""
        settings = self._url, self._callback, self._patience, self._backend
        connected = self._embedded, self._async_client, self._sync_client
        self._url, self._callback, self._patience, self._backend = url, callback, 0, backend
        self._embedded = self._async_client = self._sync_client = None
        try:
            yield
        finally:
            self._url, self._callback, self._patience, self._backend = settings
            self._embedded, self._async_client, self._sync_client = connected
            if not self._opening.is_open:
                self._dispatcher.close()

    def _get_receiver(self) -> Receiver:
        if self._receiver is None:
            from later.receiver.receiver import Receiver  # noqa: PLC0415

            self._receiver = Receiver(self, self._dispatcher, self._signed, lambda: self._state, self._leave_loop)
        return self._receiver

    async def _leave_loop(self) -> None:
        """Close the connections that handlers have opened in an event loop which ends now."""
        if self._async_client is not None:
            await self._async_client.aclose()
