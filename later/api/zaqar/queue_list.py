"""`GET /v2/queues`: the queues of a project by name, page by page."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlencode

from aiohttp import web

from later.api.zaqar.error_answers import ROOT, invalid_request
from later.api.zaqar.protocol import ZaqarCall, document_response, topic_of
from later.api.zaqar.query_parameters import Query, integer_parameter, switch_parameter, text_parameter
from later.core.queue_metadata import Queue, metadata_view, queue_name
from later.store.open import Store

PATH = f"{ROOT}/queues"
DEFAULT_LIMIT = 10
MAX_LIMIT = 20
MAX_LOOKED_AT = 500
"""Queues that a call with a filter looks at. Then its page is short, or empty, and its link leads on."""
SLICE = 50
"""Queues that are looked at in one round trip: each may have much metadata."""
PARAMETERS = frozenset({"marker", "limit", "detailed", "name", "with_count"})
"""The parameters of the call. Any other is a filter: metadata with this key must have this value."""

_INTEGER = re.compile("-?[0-9]{1,19}")


class QueueFilter(NamedTuple):
    """The queues that are wanted: those whose names contain `name`, and with these metadata."""

    name: str
    metadata: dict[str, str | int]

    def matches(self, queue: Queue) -> bool:
        if self.name not in queue_name(queue.topic):
            return False
        if not self.metadata:
            return True
        shown = metadata_view(queue)
        return all(
            shown.get(key) == value and not isinstance(shown.get(key), bool) for key, value in self.metadata.items()
        )


class QueueListHandler:
    """The handler of the list of queues."""

    def __init__(self, *, store: Store) -> None:
        self._queues = store.queues

    async def list_queues(self, request: web.Request, call: ZaqarCall) -> web.StreamResponse:
        """`GET /v2/queues`."""
        query = request.query
        limit = integer_parameter(query, "limit")
        if limit is not None and not 0 < limit <= MAX_LIMIT:
            raise invalid_request(f"Limit must be at least 1 and no greater than {MAX_LIMIT}.")
        is_detailed, with_count = switch_parameter(query, "detailed"), switch_parameter(query, "with_count")
        after = topic_of(call.project, text_parameter(query, "marker") or "")
        queues, read_to = await self._find(call.project, after, limit or DEFAULT_LIMIT, _parse_filter(query))
        document: dict[str, object] = {
            "queues": [_queue_view(queue, bool(is_detailed)) for queue in queues],
            "links": [] if read_to is None else [{"rel": "next", "href": _next_href(query, queue_name(read_to))}],
        }
        if with_count and (count := await self._queues.count(call.project)):
            document["count"] = count
        return document_response(document)

    async def _find(self, project: str, after: str, limit: int, wanted: QueueFilter) -> tuple[list[Queue], str | None]:
        """Return the first queues after a topic, and the topic after which the next page begins.

        As in Zaqar, one that has queues is followed by another page, which may be empty.
        """
        found: list[Queue] = []
        is_filtered, looked_at = wanted != QueueFilter("", {}), 0
        read_to: str | None = after
        while read_to is not None and len(found) < limit and looked_at < MAX_LOOKED_AT:
            size = SLICE if is_filtered else limit - len(found)
            queues, read_to = await self._queues.slice(project, after=read_to, limit=size)
            looked_at += size
            found += filter(wanted.matches, queues)
        if len(found) >= limit or (found and read_to is None):
            found = found[:limit]
            read_to = found[-1].topic
        return found, read_to


def _parse_filter(query: Query) -> QueueFilter:
    """Return the queues that a query asks for. A value that is written as an integer is one."""
    metadata: dict[str, str | int] = {}
    for key in query:
        text = text_parameter(query, key)
        if key not in PARAMETERS and text is not None:
            metadata[key] = int(text) if _INTEGER.fullmatch(text) else text
    return QueueFilter(text_parameter(query, "name") or "", metadata)


def _queue_view(queue: Queue, is_detailed: bool) -> dict[str, object]:
    name = queue_name(queue.topic)
    view: dict[str, object] = {"name": name, "href": f"{PATH}/{name}"}
    return {**view, "metadata": metadata_view(queue)} if is_detailed else view


def _next_href(query: Query, marker: str) -> str:
    """Return the path of the next page, which asks for the same."""
    asked = [(name, value) for name, value in query.items() if name != "marker" and value]
    return f"{PATH}?{urlencode([*asked, ('marker', marker)])}"
