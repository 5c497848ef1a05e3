"""The calls that say when waiting tasks fall due, and what the rate of their topic makes of that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from later.api.authorization import CALLER
from later.api.json_response import json_response
from later.api.read_queue import ReadQueue
from later.api.topic_rows import ReadSnapshot
from later.api.topics import parse_topic_scope
from later.core.clock import rfc3339
from later.core.forecast import (
    DEFAULT_HOURS,
    MAX_HOURS,
    MAX_STEPS,
    ForecastWindow,
    WaitingTasks,
    add_up,
    busiest_topics,
    default_step_s,
    simulate,
)
from later.core.policy import POLICY_FIELDS, Deliver, Policy, plain_number
from later.core.validation import refusal
from later.store.open import Store

MAX_STEP_S = 3600
FRESH_S, MAX_FRESH_S = 5.0, 60.0
"""How long a forecast of all is answered again, at least and at most: pages ask for it all the time."""
COST_FACTOR = 400
"""It is answered again for so many times as long as it took, so that it costs the store next to nothing."""
MAX_FRESH = 32
"""Forecasts of all that are kept."""
_INTEGER = re.compile("[0-9]{1,6}")
_DECIMAL = re.compile(r"[0-9]{1,7}(\.[0-9]{1,9})?")

_Question = tuple[str | None, int, int]
"""A namespace (None: all), hours, and the length of a step (s)."""


class ForecastHandlers:
    """Handlers of forecasts. Those of all are made one at a time, and shared for a while."""

    def __init__(self, store: Store, read_snapshot: ReadSnapshot) -> None:
        self._store = store
        self._read_snapshot = read_snapshot
        self._queue = ReadQueue()
        self._fresh: dict[_Question, tuple[float, dict[str, Any]]] = {}
        """The forecasts of all, each with when (s, monotonic) it is made anew."""

    async def show_all(self, request: web.Request) -> web.StreamResponse:
        """`GET /forecast`."""
        hours, step_s = _parse_window(request.query)
        question = (request[CALLER].namespace, hours, step_s)
        async with self._queue.turn():
            began = self._store.clock.monotonic()
            self._fresh = {asked: kept for asked, kept in self._fresh.items() if kept[0] > began}
            if question in self._fresh:
                return json_response(self._fresh[question][1])
            answer = await self._forecast_all(*question)
            if len(self._fresh) < MAX_FRESH:
                ended = self._store.clock.monotonic()
                self._fresh[question] = (ended + fresh_for_s(ended - began), answer)
        return json_response(answer)

    async def show_topic(self, request: web.Request) -> web.StreamResponse:
        """`GET /topics/{topic}/forecast`."""
        hours, step_s = _parse_window(request.query)
        scope = parse_topic_scope(request)
        own_rate = _parse_rate(request.query)
        policy = (await self._store.policies.current()).for_scope(scope)
        window = ForecastWindow.of((await self._store.time.now()).low, hours=hours, step_s=step_s)
        tasks = (await self._store.forecasts.read([scope.name], window))[scope.name]
        rate = _rate_of(policy) if own_rate is None else own_rate
        return json_response(
            {
                "topic": scope.name,
                **_view(tasks, window),
                "rate": plain_number(rate) if rate else None,
                "paused": policy.paused,
                **_simulation_view(tasks, window, 0 if policy.paused and own_rate is None else rate),
            }
        )

    async def _forecast_all(self, namespace: str | None, hours: int, step_s: int) -> dict[str, Any]:
        snapshot, now = await self._read_snapshot(), (await self._store.time.now()).low
        topics, left_out = busiest_topics(snapshot, namespace)
        window = ForecastWindow.of(now, hours=hours, step_s=step_s)
        found = await self._store.forecasts.read(topics, window)
        return {
            **_view(add_up([*found.values()], window.steps), window),
            "counted_at": None if snapshot is None else rfc3339(snapshot.at),
            "topics": [{"topic": name, "due": tasks.due, "counts": tasks.counts} for name, tasks in found.items()],
            "topics_left_out": left_out,
            **({"partial": True} if snapshot is not None and snapshot.partial else {}),
        }


def fresh_for_s(took_s: float) -> float:
    """Return how long a forecast of all is answered again that took so long."""
    return min(max(took_s * COST_FACTOR, FRESH_S), MAX_FRESH_S)


def _parse_window(query: Mapping[str, str]) -> tuple[int, int]:
    """Return the hours and the length of a step (s). Raises Refused."""
    hours = _parse_integer(query, "hours", DEFAULT_HOURS, 1, MAX_HOURS)
    default, least = default_step_s(hours), -(-hours * 3600 // MAX_STEPS)
    return hours, _parse_integer(query, "step", default, least, MAX_STEP_S, f" for at most {MAX_STEPS} steps")


def _parse_integer(query: Mapping[str, str], name: str, default: int, least: int, most: int, why: str = "") -> int:
    text = query.get(name)
    if text is None:
        return default
    if _INTEGER.fullmatch(text) is None or not least <= int(text) <= most:
        raise refusal(name, text, f"an integer from {least} to {most}{why}")
    return int(text)


def _parse_rate(query: Mapping[str, str]) -> float | None:
    """Return the rate to simulate; None if it is the topic's. Raises Refused."""
    text, field = query.get("rate"), POLICY_FIELDS["rate"]
    if text is None:
        return None
    try:
        if _DECIMAL.fullmatch(text) is None:
            raise ValueError
        return float(field.parse(float(text)))
    except ValueError:
        raise refusal("rate", text, field.expected) from None


def _rate_of(policy: Policy) -> float:
    """Return the rate that holds for a topic; 0 for none: consumers take the tasks of a pulled one as they please."""
    return 0.0 if policy.deliver is Deliver.PULL else policy.rate


def _view(tasks: WaitingTasks, window: ForecastWindow) -> dict[str, Any]:
    return {
        "at": rfc3339(window.now),
        "from": rfc3339(window.start),
        "step_s": plain_number(window.step_ms / 1000),
        "due": tasks.due,
        "counts": tasks.counts,
    }


def _simulation_view(tasks: WaitingTasks, window: ForecastWindow, rate: float) -> dict[str, Any]:
    """Return what this rate makes of the tasks; nothing if there is none."""
    if not rate:
        return {"behind_from": None, "caught_up_at": None, "worst_lateness_s": None}
    behind_from, caught_up_at, worst_ms = simulate(tasks, window, rate)
    return {
        "behind_from": None if behind_from is None else rfc3339(behind_from),
        "caught_up_at": None if caught_up_at is None else rfc3339(caught_up_at),
        "worst_lateness_s": round(worst_ms / 1000, 3),
    }
