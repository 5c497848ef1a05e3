"""Queries: each for another of the ids that the store holds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from scripts.bench.daemons import an_api, bare_handlers
from scripts.bench.environment import Setting, why_not
from scripts.bench.load import Load
from scripts.bench.results import Contender, Row, Sample, ShareOf
from scripts.bench.rows.requests import CONNECTIONS, pressed
from scripts.bench.seed import a_task, fill
from scripts.bench.stores import a_store

AHEAD_MS = 3_600_000
BARE = {1: "bare handler", 2: "two bare handlers on one port"}


@contextmanager
def contenders(setting: Setting) -> Iterator[list[Contender]]:
    yield [
        Contender(name=BARE[1], measure=partial(bare, setting, 1)),
        Contender(name=BARE[2], measure=partial(bare, setting, 2)),
        *(_ours(setting, 1, durability) for durability in setting.durabilities),
        *(_ours(setting, 2, durability) for durability in setting.durabilities),
    ]


def _ours(setting: Setting, processes: int, durability: str) -> Contender:
    return Contender(
        name="later serve" if processes == 1 else f"later serve --processes {processes}",
        store=durability,
        beside=BARE[processes],
        goals=[ShareOf(0.7)] if processes > 1 and durability == "none" else (),
        skip=why_not(processes),
        measure=partial(ours, setting, processes, durability),
    )


def bare(setting: Setting, processes: int) -> Sample:
    due_at = int(time.time() * 1000) + AHEAD_MS
    ids = [a_task(due_at).id for _ in range(setting.scale.known)]
    with bare_handlers(setting, "query", processes) as server:
        return pressed(setting, _load(setting, server.url, ids), server)


def ours(setting: Setting, processes: int, durability: str) -> Sample:
    due_at = int(time.time() * 1000) + AHEAD_MS
    tasks = [a_task(due_at) for _ in range(setting.scale.known)]
    with a_store(setting, durability) as store, an_api(setting, "serve", store, processes) as server:
        fill(store.url, tasks)
        return pressed(setting, _load(setting, server.url, [task.id for task in tasks]), server, store)


def _load(setting: Setting, url: str, ids: list[str]) -> Load:
    bodies = [json.dumps({"id": id}).encode() for id in ids]
    return Load(url=f"{url}/query", bodies=bodies, connections=CONNECTIONS, seconds=setting.scale.load_s)


QUERY = Row(
    name="query",
    title="`POST /query`, 64 connections, each request another id",
    target="two processes: ≥ 0.7 of two bare handlers",
    figures=("rate",),
    besides=("server_cpu", "store_cpu"),
    elsewhere=("Later (Go): 30,950/s [25,950 to 32,040]",),
    contenders=contenders,
)
