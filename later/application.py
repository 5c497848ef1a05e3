"""The application: its handlers, and the later that keeps and calls their tasks."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from later.client.aio import AsyncClient
from later.client.answers import AppliedPolicy, Enqueued, Explained, Info
from later.client.calls import IfExistsValue, State, draft
from later.client.connection_settings import ConnectionSettings, check_settings
from later.core.durations import Seconds, to_seconds
from later.core.errors import LaterError, NotConfigured, NotFound
from later.core.task import Draft
from later.handlers.context import Carried, capture_context
from later.handlers.dispatch import DEFAULT_THREADS, HandlerDispatcher
from later.handlers.handler import EnqueueOptions, Enqueuer, Handler
from later.handlers.registry import Handlers
from later.receiver.asgi import AsgiReceiver
from later.receiver.frameworks import add_receiver, aiohttp_handler, django_view
from later.receiver.receiver import Receiver
from later.receiver.signed import Signed
from later.receiver.wsgi import WsgiReceiver

if TYPE_CHECKING:
    from later.client.sync import Client
    from later.puller.claim_source import ClaimSource

Lifespan = Callable[["Later"], AbstractAsyncContextManager[Any]]
"""A function that opens the resources of an application, such as a connection pool. Its value is `task.state`."""


class PolicyChange(NamedTuple):
    """A field of a topic's policy that differs from what its handler wishes. None: it is not set at the topic."""

    topic: str
    field: str
    before: object
    after: object


class Later(Handlers):
    """An application's handlers, which later calls at `callback`, and its client of the later at `url`.

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
        url: str | None = None,
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
        super().__init__(namespace=namespace)
        self._url = url
        self._key = key
        self._ca = ca
        self._callback = callback
        self._signed = signed
        self._carried = tuple(context)
        self._make_state = lifespan
        self._patience = patience
        self._check = check
        self._coalesce = coalesce
        self._state: Any = None
        self._entered: list[AsyncExitStack] = []
        self._async_client: AsyncClient | None = None
        self._sync_client: Client | None = None
        self._receiver: Receiver | None = None
        self._dispatcher = HandlerDispatcher(self, carried=self._carried, threads=threads)

    @classmethod
    def from_env(cls, **more: Any) -> Self:
        """Return an application that is configured by LATER_URL, LATER_KEY, LATER_CALLBACK and LATER_SIGNING_SECRETS.

        The last one has one secret or more, with commas or white space between them. `more` are further arguments,
        which replace those of the environment.
        """
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

    # Tasks

    async def enqueue(
        self,
        topic: str,
        content: str = "",
        *,
        callback: str | None = None,
        delay: Seconds | None = None,
        at: datetime | None = None,
        id: str | None = None,
        if_exists: IfExistsValue = "keep",
        remember: Seconds | None = None,
        retry: int | None = None,
        ttl: Seconds | None = None,
        context: Mapping[str, str] | None = None,
    ) -> Enqueued:
        """Create a task for a topic that others handle, with the arguments of `Handler.enqueue`. Raises as that."""
        options = EnqueueOptions(delay, at, id, if_exists, remember, retry, ttl, context)
        return await self.send_draft(self._draft(topic, content, callback, options))

    def enqueue_sync(
        self,
        topic: str,
        content: str = "",
        *,
        callback: str | None = None,
        delay: Seconds | None = None,
        at: datetime | None = None,
        id: str | None = None,
        if_exists: IfExistsValue = "keep",
        remember: Seconds | None = None,
        retry: int | None = None,
        ttl: Seconds | None = None,
        context: Mapping[str, str] | None = None,
    ) -> Enqueued:
        """Create a task as `enqueue` does, from a thread without an event loop. Raises RuntimeError: one runs."""
        options = EnqueueOptions(delay, at, id, if_exists, remember, retry, ttl, context)
        return self.send_draft_sync(self._draft(topic, content, callback, options))

    async def enqueue_many(self, items: Iterable[Draft]) -> Sequence[Enqueued | LaterError]:
        """Create many tasks, made by `Handler.item`; return an answer or an error for each, in order."""
        return await self.client.create_many(items)

    def enqueue_many_sync(self, items: Iterable[Draft]) -> Sequence[Enqueued | LaterError]:
        """Create many tasks from a thread without an event loop."""
        return self.client_sync.create_many(items)

    async def get(self, id: str) -> Info:
        """Return a task. Raises NotFound."""
        return await self.client.query(id)

    def get_sync(self, id: str) -> Info:
        """Return a task. Raises NotFound."""
        return self.client_sync.query(id)

    async def cancel(self, id: str) -> bool:
        """Remove a task; return False if there was none. An attempt under way is not recalled."""
        try:
            await self.client.delete(id)
        except NotFound:
            return False
        return True

    def cancel_sync(self, id: str) -> bool:
        """Remove a task; return False if there was none. An attempt under way is not recalled."""
        try:
            self.client_sync.delete(id)
        except NotFound:
            return False
        return True

    async def run_now(self, id: str) -> Info:
        """Let a task be due now, also one that is dead. Raises NotFound; Conflict: it is in flight."""
        return await self.client.run_now(id)

    def run_now_sync(self, id: str) -> Info:
        """Let a task be due now, also one that is dead. Raises NotFound; Conflict: it is in flight."""
        return self.client_sync.run_now(id)

    def list(
        self,
        of: Handler[Any] | str,
        *,
        state: State | None = None,
        due_after: datetime | None = None,
        due_before: datetime | None = None,
    ) -> AsyncIterator[Info]:
        """Iterate over the tasks of a handler or a topic, in the order of their due times."""
        return self.client.list(_topic(of), state=state, due_after=due_after, due_before=due_before)

    async def explain(self, of: Handler[Any] | str) -> Explained:
        """Return why the tasks of a handler, or the task of an id, have not run yet. Raises NotFound."""
        return await (self.client.explain(topic=of.topic) if isinstance(of, Handler) else self.client.explain(id=of))

    async def redrive(
        self,
        of: Handler[Any] | str,
        *,
        reason: str | None = None,
        died_after: datetime | None = None,
        rate: float | None = None,
    ) -> int:
        """Let the dead tasks of a handler or a topic be due again, `rate` a second; return how many."""
        return await self.client.redrive(topic=_topic(of), reason=reason, died_after=died_after, rate=rate)

    # Policies

    async def pause(self, of: Handler[Any] | str) -> None:
        """Pause the topic of a handler: nothing of it is delivered until it is resumed."""
        await self.client.pause(_topic(of))

    async def resume(self, of: Handler[Any] | str) -> None:
        """Resume the topic of a handler."""
        await self.client.resume(_topic(of))

    async def policy(self, of: Handler[Any] | str) -> AppliedPolicy:
        """Return the policy that applies to the topic of a handler, and which level sets each field."""
        return await self.client.policy(_topic(of))

    async def apply_policies(self, *, dry_run: bool = False) -> Sequence[PolicyChange]:
        """Set what handlers wish of their topics' policies, unless it is a dry run; return what differed.

        Operators set policies, too: call this when you deploy, not when you start.

        Raises:
            LaterError: a policy is refused, or the daemon does not answer. The topics before it are set.
        """
        changes: list[PolicyChange] = []
        for handler in self:
            applied = await self.client.policy(handler.topic) if handler.policy else None
            differing = [
                PolicyChange(handler.topic, field, applied.values.get(field), wish)
                for field, wish in handler.policy.items()
                if applied is not None and applied.values.get(field) != wish
            ]
            if differing and not dry_run:
                await self.client.set_policy(handler.topic, {change.field: change.after for change in differing})
            changes += differing
        return changes

    # Connections and state

    @property
    def url(self) -> str | None:
        """The URL of later, if it was given."""
        return self._url

    @property
    def key(self) -> str | None:
        """The API key, if it was given."""
        return self._key

    @property
    def connection(self) -> ConnectionSettings:
        """The settings of its clients. Raises NotConfigured; ConfigError: the URL or the key is none."""
        return check_settings(self._needed_url(), self._key, self._ca, self._patience)

    @property
    def client(self) -> AsyncClient:
        """The client of this application. Raises NotConfigured: it does not know where later is."""
        if self._async_client is None:
            self._async_client = AsyncClient(
                self._needed_url(),
                key=self._key,
                ca=self._ca,
                patience=self._patience,
                check=self._check,
                coalesce=self._coalesce,
            )
        return self._async_client

    @property
    def client_sync(self) -> Client:
        """The client of threads without an event loop.

        Raises:
            NotConfigured: the application does not know where later is.
            RuntimeError: an event loop runs in this thread, and would stand still.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if self._sync_client is None:
                from later.client.sync import Client  # noqa: PLC0415  # most applications have an event loop

                self._sync_client = Client(
                    self._needed_url(), key=self._key, ca=self._ca, patience=self._patience, check=self._check
                )
            return self._sync_client
        raise RuntimeError("this would block the event loop: await the method without _sync")

    async def __aenter__(self) -> Self:
        """Resolve all handlers, and enter the lifespan. Raises TypeError: a handler's types cannot be resolved."""
        self.check()
        stack = AsyncExitStack()
        if self._make_state is not None and not self._entered:
            self._state = await stack.enter_async_context(self._make_state(self))
        self._entered.append(stack)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the lifespan, and close what this application has opened."""
        stack = self._entered.pop()
        try:
            await stack.__aexit__(kind, error, traceback)
        finally:
            if not self._entered:
                self._dispatcher.close()
                if self._async_client is not None:
                    await self._async_client.aclose()
                if self._sync_client is not None:
                    self._sync_client.close()

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """The lifespan of a FastAPI or Starlette application: `FastAPI(lifespan=tasks.lifespan)`."""
        async with self:
            yield

    async def aiohttp_ctx(self, app: object) -> AsyncIterator[None]:
        """The lifespan of an aiohttp application: `app.cleanup_ctx.append(tasks.aiohttp_ctx)`."""
        async with self:
            yield

    # Receivers

    def receive(self, app: Any, path: str = "/later") -> None:
        """Let an application of FastAPI, Starlette, aiohttp or Flask take the calls for the handlers at a path.

        Raises:
            TypeError: the application is of another framework.
            ValueError: the path does not begin with a slash.
        """
        add_receiver(app, path, self._get_receiver())

    def asgi(self) -> AsgiReceiver:
        """Return an ASGI application that takes the calls: the endpoint of a `Route`, not of a `Mount`."""
        return AsgiReceiver(self._get_receiver())

    def wsgi(self) -> WsgiReceiver:
        """Return a WSGI application that takes the calls."""
        return WsgiReceiver(self._get_receiver())

    def aiohttp(self) -> Callable[[Any], Any]:
        """Return a handler of aiohttp that takes the calls."""
        return aiohttp_handler(self._get_receiver())

    def django(self) -> Callable[[Any], Any]:
        """Return a view of Django that takes the calls."""
        return django_view(self._get_receiver())

    # Workers

    async def work(
        self, *, claims: ClaimSource | None = None, only: Sequence[Handler[Any]] = (), drain: Seconds = 25
    ) -> None:
        """Claim the tasks of pulled topics, and run their handlers, until this is cancelled.

        Then nothing more is claimed; what runs has `drain`, and what still runs is given back. `only` are the handlers
        whose tasks are claimed; all without it. `claims` takes the place of the API of `url`.

        Raises:
            NotConfigured: the application does not know where later is.
            TypeError: a handler's types cannot be resolved.
        """
        from later.puller.claim_source import ApiClaims  # noqa: PLC0415  # most applications are called
        from later.puller.pull_worker import PullWorker  # noqa: PLC0415

        async with self:
            source = claims or ApiClaims(self.client, lambda: self._state)
            await PullWorker(list(only or self), self._dispatcher, source).run(to_seconds("drain", drain))

    # Enqueuer

    def build_draft(self, handler: Handler[Any], payload: Any, options: EnqueueOptions) -> Draft:
        """Return the task of a handler's payload. Raises TypeError, Refused."""
        return self._draft(handler.topic, handler.encode(payload), None, options)

    async def send_draft(self, draft: Draft) -> Enqueued:
        """Create a task. Raises LaterError."""
        return await self.client.create_draft(draft)

    def send_draft_sync(self, draft: Draft) -> Enqueued:
        """Create a task in this thread. Raises LaterError; RuntimeError: an event loop runs in it."""
        return self.client_sync.create_draft(draft)

    def _draft(self, topic: str, content: str, callback: str | None, options: EnqueueOptions) -> Draft:
        return draft(
            self._full_name(topic),
            content,
            callback=callback or self._callback,
            delay=options.delay,
            at=options.at,
            id=options.id,
            if_exists=options.if_exists,
            retry=options.retry,
            ttl=options.ttl,
            context=capture_context(self._carried, options.context) or None,
            remember=options.remember,
        )

    def _application(self) -> Enqueuer:
        return self

    def _needed_url(self) -> str:
        if self._url is None:
            raise NotConfigured('where is later? Later("http://127.0.0.1:8080"), configure(url=…) or from_env()')
        return self._url

    def _get_receiver(self) -> Receiver:
        if self._receiver is None:
            self._receiver = Receiver(self, self._dispatcher, self._signed, lambda: self._state, self._leave_loop)
        return self._receiver

    async def _leave_loop(self) -> None:
        """Close the connections that handlers have opened in an event loop which ends now."""
        if self._async_client is not None:
            await self._async_client.aclose()


def _topic(of: Handler[Any] | str) -> str:
    return of.topic if isinstance(of, Handler) else of
