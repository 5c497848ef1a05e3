"""Zaqar's calls about one queue: make it, show and change its metadata, purge it, delete it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from aiohttp import hdrs, web

from later.api.audit_records import record_action
from later.api.json_response import DATA_HEADERS
from later.api.zaqar.error_answers import ZaqarError, invalid_body, invalid_request, not_found
from later.api.zaqar.protocol import ZaqarCall, document_response, no_content, read_json
from later.core.audit_event import AuditAction
from later.core.errors import Refused, TooLarge
from later.core.json_patch import MetadataChange, parse_patch
from later.core.queue_metadata import MAX_METADATA_BYTES, TOO_MUCH_METADATA, Queue, check_metadata, metadata_view
from later.store.open import Store
from later.store.queue_book import PURGED

PATCH_TYPE = "application/openstack-messaging-v2.0-json-patch"
RESOURCE_TYPES = ("messages", "subscriptions")
"""What a purge may name. There are no subscriptions."""


class QueueHandlers:
    """Handlers of calls about one queue."""

    def __init__(self, *, store: Store) -> None:
        self._store = store
        self._queues = store.queues
        self._record_action = partial(record_action, store.audit_trail)

    async def create(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`PUT /v2/queues/{queue}`. A queue that is there stays as it is."""
        metadata = await _read_document(request, invalid_request)
        if metadata is not None and not isinstance(metadata, dict):
            raise _unsupported_document()
        try:
            is_new = await self._make(request, call.topic, metadata or {})
        except Refused as error:
            raise invalid_request(error.detail) from None
        return web.Response(status=201 if is_new else 204, headers={**DATA_HEADERS, "Location": request.path})

    async def show(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`GET /v2/queues/{queue}`: its metadata. A queue that is not there has the defaults, as in Zaqar.

        `HEAD` tells whether it is there.
        """
        queue = await self._queues.get(call.topic)
        if request.method == hdrs.METH_HEAD:
            return web.Response(status=404 if queue is None else 204, headers=DATA_HEADERS)
        if queue is None:
            queue = Queue(call.topic, self._store.policies.latest.for_topic(call.topic), {})
        return document_response(metadata_view(queue))

    async def change(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`PATCH /v2/queues/{queue}`: change metadata by a JSON patch, and show all."""
        patch = await _read_document(request, invalid_body)
        if request.content_type != PATCH_TYPE:
            accepted = {"Accept-Patch": PATCH_TYPE}
            raise ZaqarError(400, "Invalid Content-Type", f"Accepted media type for PATCH: {accepted}.")
        if patch is None:
            raise invalid_body("PATCH body could not be empty for update.")
        if not isinstance(patch, list):
            raise _unsupported_document()
        try:
            changed = await self._change(request, call.topic, parse_patch(patch))
        except Refused as error:
            raise invalid_body(error.detail) from None
        if changed is None:
            raise not_found(f"Queue {call.queue} does not exist for project {call.project}")
        return document_response(metadata_view(changed))

    async def delete(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`DELETE /v2/queues/{queue}`: remove its messages, those that are claimed too, then itself."""
        with self._record_action(request, AuditAction.QUEUE_DELETED, topic=call.topic) as details:
            deleted = await self._queues.delete(call.topic)
            details["tasks"], details["before"] = deleted.tasks, deleted.before.loggable_fields
        return no_content()

    async def purge(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`POST /v2/queues/{queue}/purge`: remove its messages but those that are claimed, as Zaqar does."""
        if "messages" in _parse_resource_types(await read_json(request, MAX_METADATA_BYTES)):
            states = [bucket.value for bucket in PURGED]
            with self._record_action(request, AuditAction.TOPIC_PURGED, topic=call.topic, states=states) as details:
                details["tasks"] = await self._queues.purge(call.topic)
        return no_content()

    async def _make(self, request: web.Request, topic: str, metadata: dict[str, object]) -> bool:
        """Make a queue unless it is there; return whether it was made. Raises Refused: the metadata are wrong."""
        queue = await self._queues.get(topic)
        if queue is not None:
            check_metadata(metadata, queue.policy.max_delay_ms)
            return False
        with self._record_action(request, AuditAction.POLICY_CHANGED, topic=topic) as details:
            made = await self._queues.create(topic, metadata)
            if made is not None:
                details["before"], details["after"] = made.before.loggable_fields, made.after.loggable_fields
        return made is not None

    async def _change(self, request: web.Request, topic: str, changes: Sequence[MetadataChange]) -> Queue | None:
        """Change a queue's metadata; return it then, or None if there is no such queue. Raises as the store."""
        if await self._queues.get(topic) is None:
            return None
        with self._record_action(request, AuditAction.POLICY_CHANGED, topic=topic) as details:
            changed = await self._queues.change(topic, changes)
            if changed is not None:
                details["before"], details["after"] = changed.before.loggable_fields, changed.after.loggable_fields
        return None if changed is None else changed.queue


async def _read_document(request: web.Request, refuse: Callable[[str], ZaqarError]) -> object:
    """Return the JSON in a request's body; None if there is none. `refuse` makes the error of one that is too large."""
    try:
        return await read_json(request, MAX_METADATA_BYTES)
    except TooLarge:
        raise refuse(TOO_MUCH_METADATA) from None


def _unsupported_document() -> ZaqarError:
    return invalid_body("Document type not supported.")


def _parse_resource_types(document: object) -> list[str]:
    """Return what is to be purged: all, if there is no body. Raises ZaqarError."""
    if document is None:
        return [*RESOURCE_TYPES]
    if not isinstance(document, dict) or "resource_types" not in document:
        raise invalid_request('Post body must contain key "resource_types".')
    types = document["resource_types"]
    if not isinstance(types, list) or not all(type in RESOURCE_TYPES for type in types):
        allowed = ", ".join(map(repr, RESOURCE_TYPES))
        raise invalid_request(f"Resource types must be a sub set of {{{allowed}}}.")
    return types
