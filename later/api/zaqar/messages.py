"""The calls of Zaqar's API for the messages of a queue: post, list, get, delete and pop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial

import msgspec
from aiohttp import web

from later.api.authorization import Authorization
from later.api.batch import ITEMS_PER_TURN
from later.api.due_signals import DueSignals
from later.api.durable_writes import DurableWrites
from later.api.json_response import json_response
from later.api.leases import flattened, report_pull
from later.api.load_shedding import PendingWrites
from later.api.requests import path_parameter, read_body
from later.api.task_answers import BytesInAnswers, send
from later.api.task_creation import create_tasks
from later.api.zaqar.error_answers import ZaqarError, invalid_request, not_found
from later.api.zaqar.message_claims import claimable_policy
from later.api.zaqar.message_fields import (
    admit_messages,
    check_post_size,
    due_at_once,
    message_href,
    message_view,
    messages_href,
    parse_post,
    post_too_large,
    show_messages,
    shown_ttl_s,
)
from later.api.zaqar.message_pages import MAX_PAGE_SIZE, MessagePages, parse_page_request
from later.api.zaqar.protocol import ZaqarCall, document_response, no_content
from later.api.zaqar.query_parameters import integer_parameter, list_parameter, text_parameter
from later.core.api_keys import Scope
from later.core.caller import Caller
from later.core.errors import Conflict, InFlight, LaterError, NotAllowed, NotFound, PushedTopic, Refused, TooLarge
from later.core.lease import Lease
from later.core.policy import PULL
from later.core.policy_scopes import NO_SETTINGS, Policies, namespace_from_topic, topic_scope
from later.core.queue_metadata import MAX_POST_BYTES, POST_BYTES
from later.core.task import Task
from later.core.task_names import is_namespaced
from later.core.validation import ID_PATTERN
from later.metrics import Metrics
from later.store.group_commit import GroupCommit
from later.store.keys import Bucket
from later.store.open import Store
from later.store.pull_plan import PulledTask
from later.store.types import CreateResult, TaskRecord

MAX_LOCATED = 100
"""Ids of new messages in the header Location, for which clients and proxies have little room; the body has all."""
MAX_POPPED = 20
MAX_MADE_BY_POSTS = 10_000
"""Queues that posts of callers make who may not change policies. Every process keeps the policies of all queues."""
UNABLE_TO_DELETE = "Unable to delete"

_ID = re.compile(ID_PATTERN)


class MessageHandlers:
    """Handlers of calls for messages."""

    def __init__(
        self,
        *,
        store: Store,
        metrics: Metrics,
        authorization: Authorization,
        pending_writes: PendingWrites,
        signals: DueSignals,
        bytes_in_answers: BytesInAnswers,
        durable_writes: DurableWrites,
        max_body: int,
    ) -> None:
        self._durable_writes = durable_writes
        self._store = store
        self._metrics = metrics
        self._authorization = authorization
        self._pending_writes = pending_writes
        self._bytes_in_answers = bytes_in_answers
        self._max_post = min(max_body, MAX_POST_BYTES)
        self._pages = MessagePages(store)
        self._last_due = 0
        timeout_s, create = store.client.timeout_s, flattened(partial(create_tasks, store, metrics, signals))
        self._create: GroupCommit[Sequence[Task], Sequence[CreateResult | LaterError]] = GroupCommit(
            create, queue_timeout_s=timeout_s
        )
        self._query = GroupCommit(store.lookup.query, queue_timeout_s=timeout_s)
        self._ack = GroupCommit(self._ack_group, queue_timeout_s=timeout_s)

    # Posting

    async def post_messages(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`POST /v2/queues/{queue}/messages`: all messages, or none if one of them is wrong."""
        try:
            tasks = await self._post(request, call)
        except (ZaqarError, Refused):
            self._metrics.tasks_refused.inc()
            raise
        hrefs = [message_href(call.queue, task.id) for task in tasks]
        location = messages_href(call.queue)
        if len(tasks) <= MAX_LOCATED:
            location += f"?ids={','.join(task.id for task in tasks)}"
        return document_response({"resources": hrefs}, 201, location=location)

    async def _post(self, request: web.Request, call: ZaqarCall) -> list[Task]:
        """Return the tasks that were stored.

        Raises:
            ZaqarError: the post is wrong.
            PushedTopic: the tasks of the topic are delivered, and messages have no callback.
            NotDurable: they were stored, but not as durably as the policy of the topic asks.
            StoreDown: whether they were stored is not known.
        """
        try:
            body = await read_body(request, self._max_post)
        except TooLarge:
            raise post_too_large(self._max_post) from None
        messages = parse_post(body)
        self._authorization.charge_batch(call.caller, len(messages))
        with self._pending_writes.reserve(len(messages)):
            policies = await self._ensure_queue(call, len(body))
            level = policies.for_topic(call.topic).durability
            changes = await self._durable_writes.begin(level)
            now = await self._store.time.now()
            self._last_due = due_at_once(now, self._last_due)
            draw = self._store.away_shards.draw
            tasks = admit_messages(messages[:ITEMS_PER_TURN], call, policies, now, self._last_due, draw)
            for start in range(ITEMS_PER_TURN, len(messages), ITEMS_PER_TURN):
                await asyncio.sleep(0)
                some = messages[start : start + ITEMS_PER_TURN]
                tasks += admit_messages(some, call, policies, now, self._last_due, draw)
            for answer in await self._create(tasks, len(body)):
                if isinstance(answer, LaterError):
                    raise answer
        await self._durable_writes.confirm(level, changes)
        return tasks

    async def _ensure_queue(self, call: ZaqarCall, size: int) -> Policies:
        """Make the queue of a post of `size` bytes if it is not there yet; return the policies from then on.

        Raises:
            NotAllowed: that would change a topic which has settings of its own, and is pushed; or there are so many
                queues that only those who may change policies make more.
        """
        queue = await self._store.queues.get(call.topic)
        check_post_size(size, self._max_post, None if queue is None else queue.extra.get(POST_BYTES))
        if queue is None:
            before = self._store.policies.latest
            is_set_up = before.settings_at(topic_scope(call.topic)) != NO_SETTINGS
            if is_set_up and before.for_topic(call.topic).deliver is not PULL:
                call.caller.require(Scope.ADMIN)  # nobody could create tasks with a callback there any more
            _check_queue_count(call.caller, before)
            await self._store.queues.ensure(call.topic)
        policies = self._store.policies.latest
        if policies.for_topic(call.topic).deliver is not PULL:
            raise PushedTopic(call.topic)
        return policies

    # Reading

    async def get_messages(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`GET /v2/queues/{queue}/messages`: a page of them, or those with these `ids`."""
        ids = list_parameter(request.query, "ids")
        if ids:
            return await self._get_by_ids(request, call, ids)
        wanted = parse_page_request(request.query)
        with self._bytes_in_answers.open_answer() as answer:
            with self._pending_writes.reserve():
                page = await self._pages.read(call, wanted, answer)
            return await send(request, json_response(page.document(call, wanted)))

    async def _get_by_ids(self, request: web.Request, call: ZaqarCall, ids: list[str]) -> web.StreamResponse:
        if len(ids) > MAX_PAGE_SIZE:
            raise invalid_request(f"Limit must be at least 1 and may not be greater than {MAX_PAGE_SIZE}.")
        names = [id for id in dict.fromkeys(ids) if _is_id(id)]
        messages: list[msgspec.Raw] = []
        with self._bytes_in_answers.open_answer() as answer:
            with self._pending_writes.reserve(len(ids)):
                now = await self._store.time.now()
                async with aclosing(self._store.lookup.query_in_slices(names)) as slices:
                    async for records in slices:
                        for _, view in await show_messages(self._store, call, records.values(), now):
                            if not answer.reserve(view):
                                raise invalid_request("The messages are too large for one answer: ask for fewer.")
                            messages.append(view)
            if not messages:
                raise not_found(
                    f"No messages with IDs: {ids} found in the queue {call.queue} for project {call.project}."
                )
            return await send(request, json_response({"messages": messages}))

    async def get_message(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`GET /v2/queues/{queue}/messages/{message}`."""
        id = path_parameter(request, "message")
        with self._bytes_in_answers.open_answer() as answer:
            with self._pending_writes.reserve():
                record = await self._find(call.topic, id) if _is_id(id) else None
                now = await self._store.time.now()
                shown = await show_messages(self._store, call, [] if record is None else [record], now)
            if not shown:
                raise not_found(f"Message {id} does not exist in queue {call.queue} for project {call.project}")
            answer.count(len(memoryview(shown[0].view)))
            return await send(request, json_response(shown[0].view))

    # Removing

    async def delete_message(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`DELETE /v2/queues/{queue}/messages/{message}`: with the claim that holds it, if one does.

        To end what it has claimed, a caller need not be allowed to delete anything else.
        """
        id, claim_id = path_parameter(request, "message"), text_parameter(request.query, "claim_id")
        if claim_id is None or Scope.CLAIM not in call.caller.scopes:
            call.caller.require(Scope.EDIT)
        if _is_id(id):
            with self._pending_writes.reserve():
                if claim_id is None:
                    await self._delete_unclaimed(call.topic, id)
                else:
                    await self._delete_claimed(call.topic, id, claim_id)
        return no_content()

    async def _delete_unclaimed(self, topic: str, id: str) -> None:
        """Delete a message that no claim holds. Raises ZaqarError: one does."""
        now = await self._store.time.now()
        [answer] = await self._store.edits.delete_of_topic(topic, [id], now.low)
        if isinstance(answer, InFlight):
            raise _needs_claim()
        _raise_failure(answer)

    async def _delete_claimed(self, topic: str, id: str, claim_id: str) -> None:
        """Delete a message by the lease that a claim has on it. Raises ZaqarError: the claim does not hold it."""
        record = await self._find(topic, id)
        if record is None:
            return
        now = await self._store.time.now()
        lease = record.lease(now.low)
        if lease is not None and record.claim_id == claim_id:
            if not await self._ack(lease):
                raise _not_claimed()
            return
        if lease is None and self._store.keys.shards_of_claim(claim_id):
            raise _not_claimed()
        if lease is None or await self._store.claim_records.read(topic, claim_id, now) is None:
            raise ZaqarError(400, UNABLE_TO_DELETE, "The specified claim does not exist or has expired.")
        raise _needs_claim()

    async def _find(self, topic: str, id: str) -> TaskRecord | None:
        """Return the record of a message; None if the queue has no such message. Raises LaterError."""
        try:
            record = await self._query(id)
        except NotFound:
            return None
        return None if record.topic != topic or record.state is Bucket.DEAD else record

    async def _ack_group(self, leases: Sequence[Lease]) -> list[bool | LaterError]:
        await self._store.policies.current()  # they say what an end makes, and how long its id is remembered
        now = await self._store.time.now()
        answers = await self._store.pulls.ack(leases, now.high)
        self._metrics.consumers.acked.inc(answers.count(True))
        return answers

    async def delete_messages(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`DELETE /v2/queues/{queue}/messages`: with `ids`, delete these; with `pop`, claim so many and delete them."""
        ids = list_parameter(request.query, "ids")
        pop = integer_parameter(request.query, "pop")
        call.caller.require(Scope.EDIT if pop is None else Scope.CLAIM)
        if pop is not None and ids:
            raise invalid_request("pop and id params cannot be present together in the delete request.")
        if pop is not None:
            return await self._pop(request, call, pop)
        if not ids:
            raise invalid_request(
                'The request should have either "ids" or "pop" parameter in the request, to be able to delete.'
            )
        if len(ids) > MAX_PAGE_SIZE:
            raise invalid_request(f"ids parameter should have at least 1 and not greater than {MAX_PAGE_SIZE} values.")
        self._authorization.charge_batch(call.caller, len(ids))
        with self._pending_writes.reserve(len(ids)):
            names = [id for id in dict.fromkeys(ids) if _is_id(id)]
            for answer in await self._store.edits.delete_of_topic(call.topic, names):
                _raise_failure(answer)
        return no_content()

    async def _pop(self, request: web.Request, call: ZaqarCall, count: int) -> web.StreamResponse:
        if not 1 <= count <= MAX_POPPED:
            raise invalid_request(f"Pop value must be at least 1 and may not be greater than {MAX_POPPED}.")
        with self._bytes_in_answers.open_answer() as answer:
            with self._pending_writes.reserve(count):
                popped = await self._claim_and_delete(call.topic, count)
            self._authorization.charge_claimed(call.caller, len(popped))
            answer.count(sum(len(pulled.task.content) for pulled in popped))
            now = await self._store.time.now()
            messages = [
                message_view(
                    pulled.task,
                    href=message_href(call.queue, pulled.task.id),
                    claim_id=None,
                    claim_count=pulled.attempt,
                    now=now.low,
                    ttl_s=shown_ttl_s(pulled.task.created_at, pulled.task.expires_at),
                )
                for pulled in popped
            ]
            return await send(request, json_response({"messages": messages}))

    async def _claim_and_delete(self, topic: str, count: int) -> list[PulledTask]:
        """Claim due messages and remove them, if there is such a queue and it is not paused. Raises PushedTopic."""
        policy = await claimable_policy(self._store, topic)
        if policy is None:
            return []
        now = await self._store.time.now()
        result = await self._store.claim_records.pop(topic, count, now, policy.max_claims)
        report_pull(self._metrics, result)
        if result.tasks:
            self._metrics.consumers.claimed.inc(topic, count=len(result.tasks))
            self._metrics.consumers.acked.inc(len(result.tasks))
        return result.tasks


def _check_queue_count(caller: Caller, policies: Policies) -> None:
    """Check that a caller may make a queue by a post: each has a policy, which stays when its messages have gone.

    Those of the caller's namespace count, or all queues if its key is bound to none. Raises NotAllowed.
    """
    if Scope.ADMIN in caller.scopes or policies.queue_count < MAX_MADE_BY_POSTS:
        return
    own = [topic for topic in policies.queues if caller.namespace in (None, namespace_from_topic(topic))]
    if len(own) >= MAX_MADE_BY_POSTS:
        raise NotAllowed(
            f"there are {len(own)} queues: delete some, or let a key with the scope admin make this one", reason="scope"
        )


def _is_id(text: str) -> bool:
    """Return True if a task may have this id: no other text is asked for in the store."""
    return _ID.fullmatch(text) is not None or is_namespaced(text)


def _raise_failure(answer: object) -> None:
    """Raise the error that kept a message from being deleted. One that is not there, or that is dead, is no error."""
    if isinstance(answer, LaterError) and not isinstance(answer, NotFound | Conflict):
        raise answer


def _not_claimed() -> ZaqarError:
    return ZaqarError(400, UNABLE_TO_DELETE, "A claim was specified, but the message is not currently claimed.")


def _needs_claim() -> ZaqarError:
    return ZaqarError(403, UNABLE_TO_DELETE, "This message is claimed; it cannot be deleted without a valid claim ID.")
