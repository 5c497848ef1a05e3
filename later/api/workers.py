"""`GET /workers`: the processes of all daemons on the store, by their heartbeats."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from later.api.authorization import CALLER
from later.api.json_response import json_response
from later.core.clock import rfc3339
from later.core.heartbeat import Heartbeat
from later.store.instances import Instances
from later.store.open import Store
from later.store.stats import FORGET_WORKER_MS, HEARTBEAT_TIMEOUT_MS

MAX_WORKERS = 1000
"""Processes in an answer, those with the latest heartbeats."""


class WorkersHandler:
    """The handler of `/workers`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET /workers`."""
        request[CALLER].require_all_namespaces("workers deliver for all namespaces")
        now = (await self._store.time.now()).low
        workers = list_workers(await self._store.instances.read(), now)
        return json_response({"at": rfc3339(now), "workers": workers[:MAX_WORKERS]})


def list_workers(instances: Instances, now: int) -> list[dict[str, Any]]:
    """Return the processes of the last hour, those with the latest heartbeats first."""
    beats = {**instances.workers, **{name: told.at for name, told in instances.heartbeats.items()}}
    latest = sorted(beats.items(), key=lambda item: (-item[1], item[0]))
    return [
        _worker(name, at, instances.heartbeats.get(name), now) for name, at in latest if at > now - FORGET_WORKER_MS
    ]


def _worker(name: str, at: int, told: Heartbeat | None, now: int) -> dict[str, Any]:
    return {
        "name": name,
        "role": None if told is None else told.role,
        "version": None if told is None else told.version,
        "host": name.partition(":")[0] if told is None else told.host,
        "processes": None if told is None else told.processes,
        "slots": None if told is None else told.slots,
        "slots_in_use": None if told is None else told.slots_in_use,
        "since": None if told is None else rfc3339(told.since),
        "last_heartbeat_at": rfc3339(at),
        "clock_offset_s": None if told is None else told.clock_offset_ms / 1000,
        "alive": at > now - HEARTBEAT_TIMEOUT_MS,
    }
