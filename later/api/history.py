"""`GET /history`, what happened in each slot of time, and `GET /deliveries`, a sample of the attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

from aiohttp import web

from later.api.authorization import CALLER
from later.api.json_response import JsonResponse, json_response
from later.api.load_shedding import PendingWrites
from later.api.paging import parse_page_size
from later.api.read_queue import ReadQueue
from later.api.task_answers import BytesInAnswers, send
from later.core.caller import Caller
from later.core.clock import rfc3339
from later.core.delivery_sample import SampledDelivery
from later.core.history import (
    LONG,
    RESOLUTIONS,
    SERIES,
    SHORT,
    TOPIC_RESOLUTION,
    TOPIC_SERIES,
    Resolution,
    TopicRow,
    value_to_show,
)
from later.core.policy_scopes import namespace_from_topic
from later.core.retry import OutcomeKind
from later.core.validation import parse_time, parse_topic, refusal
from later.store.open import Store

MAX_SHOWN_DELIVERIES = 500
OUTCOMES = tuple(kind.value for kind in OutcomeKind)
_EXPECTED_OUTCOME = ", ".join(OUTCOMES[:-1]) + f" or {OUTCOMES[-1]}"
VALUES_IN_A_ROW = 256
"""Values that are computed before other requests go on: most of a percentile take a quarter of a millisecond."""

Values = dict[str, list[float | None]]
"""The values of each series, the oldest first."""


class HistoryHandlers:
    """Handlers that show the history. Where none is kept, they say so, and the store is not asked."""

    def __init__(
        self, *, store: Store, pending_writes: PendingWrites, bytes_in_answers: BytesInAnswers, is_kept: bool
    ) -> None:
        self._store = store
        self._pending_writes = pending_writes
        self._bytes_in_answers = bytes_in_answers
        self._is_kept = is_kept
        self._queue = ReadQueue()
        """The calls that read slots: those of a week take megabytes, so there is one answer's worth at a time."""

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET /history`."""
        topic = _parse_topic(request)
        if topic is None:
            request[CALLER].require_all_namespaces("history without a topic is that of all namespaces")
        series, resolution = _parse_series(request, topic), _parse_resolution(request, topic)
        since = parse_time("since", request.query["since"]) if "since" in request.query else None
        now = (await self._store.time.now()).low
        first = resolution.first_slot(now - resolution.default_ms if since is None else since, now)
        values: Values = {name: [None] * resolution.slots_from(first, now) for name in series}
        if self._is_kept:
            with self._pending_writes.reserve():
                async with self._queue.turn():
                    await self._fill(values, topic, resolution, first, now)
        answer = {"step_s": resolution.length_ms // 1000, "from": rfc3339(first), "topic": topic, "series": values}
        return await self._send(request, self._mark(answer))

    async def list_deliveries(self, request: web.Request) -> web.StreamResponse:
        """`GET /deliveries`."""
        topic, outcome = _parse_topic(request), request.query.get("outcome")
        if outcome not in (None, *OUTCOMES):
            raise refusal("outcome", outcome, _EXPECTED_OUTCOME)
        limit = parse_page_size(request.query.get("limit"), MAX_SHOWN_DELIVERIES)
        wanted = _filter(request[CALLER], topic, outcome)
        found: list[SampledDelivery] = []
        if self._is_kept:
            with self._pending_writes.reserve():
                async with aclosing(self._store.history.deliveries()) as slices:
                    async for deliveries in slices:
                        found += filter(wanted, deliveries)
                        if len(found) >= limit:
                            break
        found.sort(key=lambda delivery: delivery.began_at, reverse=True)
        answer = {"sampled": True, "deliveries": [_delivery_view(delivery) for delivery in found[:limit]]}
        return await self._send(request, self._mark(answer))

    async def _fill(self, values: Values, topic: str | None, resolution: Resolution, first: int, now: int) -> None:
        """Set the values of the slots from `first` on. Raises StoreDown."""
        if topic is not None:
            rows: Sequence[TopicRow | None] = await self._store.history.read_topic(topic, first, now)
            for name in values:
                values[name] = [None if row is None else row.value(name) for row in rows]
            return
        # Gauges are carried on over one slot, so that before the first is read, too.
        fills = resolution is SHORT
        slots = await self._store.history.read(resolution, first - fills * resolution.length_ms, now)
        before = slots[:-1] if fills else [None] * len(slots)
        pairs = list(zip(slots[fills:], before, strict=True))
        at_a_time = max(VALUES_IN_A_ROW // len(values), 1)
        for start in range(0, len(pairs), at_a_time):
            for name, numbers in values.items():
                for number, (fields, previous) in enumerate(pairs[start : start + at_a_time], start):
                    numbers[number] = value_to_show(name, fields, previous)
            await asyncio.sleep(0)

    def _mark(self, answer: dict[str, Any]) -> JsonResponse:
        return json_response(answer if self._is_kept else {**answer, "off": True})

    async def _send(self, request: web.Request, response: JsonResponse) -> JsonResponse:
        with self._bytes_in_answers.open_answer() as all_answers:
            all_answers.count(len(response.body))
            return await send(request, response)


def _parse_topic(request: web.Request) -> str | None:
    """Return the topic that a query names, if any. Raises Refused; NotAllowed if it is not of the caller's."""
    text = request.query.get("topic")
    return None if text is None else request[CALLER].own_topic(parse_topic(text))


def _parse_series(request: web.Request, topic: str | None) -> list[str]:
    """Return the series that a query names, each once. Raises Refused."""
    text, known = request.query.get("series"), SERIES if topic is None else TOPIC_SERIES
    names = [] if text is None else text.split(",")
    if not names or not set(names) <= set(known):
        of_what = "" if topic is None else " of a topic"
        raise refusal("series", text, f"series{of_what} with commas between them, of {', '.join(known)}")
    return [*dict.fromkeys(names)]


def _parse_resolution(request: web.Request, topic: str | None) -> Resolution:
    """Return the slots that a query names. Raises Refused."""
    default = SHORT if topic is None else LONG
    text = request.query.get("step", str(default.length_ms // 1000))
    known = {str(seconds): resolution for seconds, resolution in RESOLUTIONS.items()}
    if text not in known:
        raise refusal("step", text, " or ".join(known))
    if topic is not None and known[text] is not LONG:
        raise refusal("step", text, "300 with a topic")
    return known[text] if topic is None else TOPIC_RESOLUTION


def _filter(caller: Caller, topic: str | None, outcome: str | None) -> Callable[[SampledDelivery], bool]:
    """Return the check whether a delivery is asked for, and of the caller's namespace."""

    def is_wanted(delivery: SampledDelivery) -> bool:
        return (
            (topic is None or delivery.topic == topic)
            and (outcome is None or delivery.outcome == outcome)
            and (caller.namespace is None or namespace_from_topic(delivery.topic) == caller.namespace)
        )

    return is_wanted


def _delivery_view(delivery: SampledDelivery) -> dict[str, Any]:
    """Return a delivery as it is shown. One that was never sent has no host."""
    view = {
        "id": delivery.id,
        "topic": delivery.topic,
        "attempt": delivery.attempt,
        "due_at": rfc3339(delivery.due_at),
        "began_at": rfc3339(delivery.began_at),
        "took_ms": delivery.took_ms,
        "outcome": delivery.outcome,
        "status": delivery.status,
        "host": delivery.host or None,
    }
    return {**view, "reason": delivery.reason} if delivery.reason else view
