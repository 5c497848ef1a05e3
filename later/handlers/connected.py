"""Handlers whose tasks a later keeps: the calls of an application about its tasks and topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from later.client.answers import AppliedPolicy, Enqueued, Explained, Info
from later.client.calls import IfExistsValue, State, draft
from later.core.durations import Seconds
from later.core.errors import LaterError, NotConfigured, NotFound, Refused
from later.core.task import Draft
from later.handlers.context import Carried, capture_context
from later.handlers.handler import EnqueueOptions, Enqueuer, Handler, own_id
from later.handlers.policy_wishes import PolicyChange, PolicyWish, fields_to_set, wished_changes
from later.handlers.registry import Handlers

if TYPE_CHECKING:
    from later.client.aio import AsyncClient
    from later.client.backend import Backend
    from later.client.connection_settings import ConnectionSettings
    from later.client.sync import Client


class ConnectedHandlers(Handlers):
    """Handlers whose tasks the later at `url` keeps. Nothing is connected before it is needed.

    The arguments are those of `Later`. What ends with `_sync` is for threads without an event loop: where one runs, it
    raises RuntimeError.

    Raises:
        Refused: `namespace` is no namespace.
    """

    def __init__(
        self,
        url: str | None,
        *,
        key: str | None,
        ca: str | None,
        callback: str | None,
        namespace: str | None,
        context: Sequence[Carried],
        patience: Seconds,
        check: bool,
        coalesce: bool,
    ) -> None:
        super().__init__(namespace=namespace)
        self._url = url
        self._key = key
        self._ca = ca
        self._callback = callback
        self._carried = tuple(context)
        self._patience = patience
        self._check = check
        self._coalesce = coalesce
        self._backend: Backend | None = None
        self._async_client: AsyncClient | None = None
        self._sync_client: Client | None = None

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
        key: str | None = None,
        if_exists: IfExistsValue = "keep",
        remember: Seconds | None = None,
        retry: int | None = None,
        ttl: Seconds | None = None,
        context: Mapping[str, str] | None = None,
    ) -> Enqueued:
        """Create a task for a topic that others handle, with the arguments of `Handler.enqueue`. Raises as that."""
        full_name = self._full_name(topic)
        options = EnqueueOptions(delay, at, own_id(full_name, id, key), if_exists, remember, retry, ttl, context)
        return await self.send_draft(self._draft(full_name, content, callback, options))

    def enqueue_sync(
        self,
        topic: str,
        content: str = "",
        *,
        callback: str | None = None,
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
        """Create a task as `enqueue` does, from a thread without an event loop. Raises RuntimeError: one runs."""
        full_name = self._full_name(topic)
        options = EnqueueOptions(delay, at, own_id(full_name, id, key), if_exists, remember, retry, ttl, context)
        return self.send_draft_sync(self._draft(full_name, content, callback, options))

    async def enqueue_many(self, items: Iterable[Draft]) -> Sequence[Enqueued | LaterError]:
        """Create many tasks, made by `Handler.item`; return an answer or an error for each, in order."""
        return await self.client.create_many(items)

    def enqueue_many_sync(self, items: Iterable[Draft]) -> Sequence[Enqueued | LaterError]:
        """Create many tasks, as `enqueue_many` does."""
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
        """Remove a task, as `cancel` does."""
        try:
            self.client_sync.delete(id)
        except NotFound:
            return False
        return True

    async def update(
        self,
        id: str,
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
        payload: Any = UNSET,
        retry: int | None = None,
        ttl: Seconds | UnsetType | None = UNSET,
    ) -> Info:
        """Change a task that waits, and return it. A `ttl` of None lets it live for ever; what is not given stays.

        Raises:
            NotFound: there is no such task.
            Conflict: it is in flight, or dead.
            Refused: an argument is wrong, the topic's policy does not allow it, or `payload` is for a topic that has no
                handler here.
            TypeError: its handler could not read the payload.
        """
        content = None if payload is UNSET else self._encode((await self.client.query(id)).topic, payload)
        return await self.client.update(id, delay=delay, at=at, content=content, retry=retry, ttl=ttl)

    def update_sync(
        self,
        id: str,
        *,
        delay: Seconds | None = None,
        at: datetime | None = None,
        payload: Any = UNSET,
        retry: int | None = None,
        ttl: Seconds | UnsetType | None = UNSET,
    ) -> Info:
        """Change a task that waits, as `update` does."""
        content = None if payload is UNSET else self._encode(self.client_sync.query(id).topic, payload)
        return self.client_sync.update(id, delay=delay, at=at, content=content, retry=retry, ttl=ttl)

    async def run_now(self, id: str) -> Info:
        """Let a task be due now, also one that is dead. Raises NotFound; Conflict: it is in flight."""
        return await self.client.run_now(id)

    def run_now_sync(self, id: str) -> Info:
        """Let a task be due now, as `run_now` does."""
        return self.client_sync.run_now(id)

    # Topics

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

    def list_sync(
        self,
        of: Handler[Any] | str,
        *,
        state: State | None = None,
        due_after: datetime | None = None,
        due_before: datetime | None = None,
    ) -> Iterator[Info]:
        """Iterate over tasks, as `list` does."""
        return self.client_sync.list(_topic(of), state=state, due_after=due_after, due_before=due_before)

    async def explain(self, of: Handler[Any] | str) -> Explained:
        """Return why the tasks of a handler, or the task of an id, have not run yet. Raises NotFound."""
        return await (self.client.explain(topic=of.topic) if isinstance(of, Handler) else self.client.explain(id=of))

    def explain_sync(self, of: Handler[Any] | str) -> Explained:
        """Return why tasks have not run yet, as `explain` does."""
        client = self.client_sync
        return client.explain(topic=of.topic) if isinstance(of, Handler) else client.explain(id=of)

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

    def redrive_sync(
        self,
        of: Handler[Any] | str,
        *,
        reason: str | None = None,
        died_after: datetime | None = None,
        rate: float | None = None,
    ) -> int:
        """Let dead tasks be due again, as `redrive` does."""
        return self.client_sync.redrive(topic=_topic(of), reason=reason, died_after=died_after, rate=rate)

    async def pause(self, of: Handler[Any] | str) -> None:
        """Pause the topic of a handler: nothing of it is delivered until it is resumed."""
        await self.client.pause(_topic(of))

    def pause_sync(self, of: Handler[Any] | str) -> None:
        """Pause the topic of a handler, as `pause` does."""
        self.client_sync.pause(_topic(of))

    async def resume(self, of: Handler[Any] | str) -> None:
        """Resume the topic of a handler."""
        await self.client.resume(_topic(of))

    def resume_sync(self, of: Handler[Any] | str) -> None:
        """Resume the topic of a handler."""
        self.client_sync.resume(_topic(of))

    # Policies

    async def policy(self, of: Handler[Any] | str) -> AppliedPolicy:
        """Return the policy that applies to the topic of a handler, and which level sets each field."""
        return await self.client.policy(_topic(of))

    def policy_sync(self, of: Handler[Any] | str) -> AppliedPolicy:
        """Return the policy that applies to the topic of a handler, as `policy` does."""
        return self.client_sync.policy(_topic(of))

    async def apply_policies(self, *, dry_run: bool = False) -> Sequence[PolicyChange]:
        """Set what handlers wish of their topics' policies, unless it is a dry run; return what differed.

        Operators set policies, too: call this when you deploy, not when you start. `later handlers apply` asks first.

        Raises:
            Refused: the daemon refuses a wish. What it would refuse by itself is found before anything is set.
            Unavailable: the daemon does not answer. Some topics may be set.
        """
        changes: list[PolicyChange] = []
        for wish in self.policy_wishes():
            followed = None if wish.follows is None else await self.client.policy(wish.follows.topic)
            changes += wished_changes(wish, await self.client.policy(wish.topic), followed)
        for topic, fields in [] if dry_run else fields_to_set(changes):
            await self.client.set_policy(topic, fields)
        return changes

    def apply_policies_sync(self, *, dry_run: bool = False) -> Sequence[PolicyChange]:
        """Set what handlers wish of their topics' policies, as `apply_policies` does."""
        changes: list[PolicyChange] = []
        for wish in self.policy_wishes():
            followed = None if wish.follows is None else self.client_sync.policy(wish.follows.topic)
            changes += wished_changes(wish, self.client_sync.policy(wish.topic), followed)
        for topic, fields in [] if dry_run else fields_to_set(changes):
            self.client_sync.set_policy(topic, fields)
        return changes

    def policy_wishes(self) -> Sequence[PolicyWish]:
        """Return what handlers wish of their topics' policies, of those that wish anything."""
        wishes: dict[str, PolicyWish] = {}
        for handler in self:
            follows = None if handler.follows is None else wishes.get(handler.follows.topic)
            if handler.policy or follows is not None:
                wishes[handler.topic] = PolicyWish(handler.topic, handler.policy, follows, self._callback)
        return [*wishes.values()]

    # Connections

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
        from later.client.connection_settings import check_settings  # noqa: PLC0415  # as the clients

        return check_settings(self._needed_url(), self._key, self._ca, self._patience)

    @property
    def client(self) -> AsyncClient:
        """The client of this application. Raises NotConfigured: it does not know where later is."""
        if self._async_client is None:
            from later.client.aio import AsyncClient  # noqa: PLC0415  # a third of the import, for the first call
            from later.client.backend import NETWORK  # noqa: PLC0415

            self._async_client = AsyncClient(
                self._needed_url(),
                key=self._key,
                ca=self._ca,
                patience=self._patience,
                check=self._check,
                coalesce=self._coalesce,
                backend=self._backend or NETWORK,
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
                from later.client.backend import NETWORK  # noqa: PLC0415
                from later.client.sync import Client  # noqa: PLC0415  # most applications have an event loop

                self._sync_client = Client(
                    self._needed_url(),
                    key=self._key,
                    ca=self._ca,
                    patience=self._patience,
                    check=self._check,
                    backend=self._backend or NETWORK,
                )
            return self._sync_client
        raise RuntimeError("this would block the event loop: await the method without _sync")

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
            topic,
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

    def _encode(self, topic: str, payload: Any) -> str:
        entry = self.find(topic)
        if entry is None:
            text = f"payload: no handler for {topic} here; tasks.client.update(id, content=…) takes its text"
            raise Refused(text, "payload")
        return entry.handler.encode(payload)

    def find_application(self) -> Enqueuer:
        return self

    async def _close_clients(self) -> None:
        if self._async_client is not None:
            await self._async_client.aclose()
        if self._sync_client is not None:
            self._sync_client.close()

    def _needed_url(self) -> str:
        if self._url is None:
            raise NotConfigured('where is later? Later("http://127.0.0.1:8080"), configure(url=…) or from_env()')
        return self._url


def _topic(of: Handler[Any] | str) -> str:
    return of.topic if isinstance(of, Handler) else of
