"""Creates in batches of a thousand, beside the same script driven raw."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from scripts.bench.daemons import an_api
from scripts.bench.environment import Setting, why_not
from scripts.bench.load import Load, press
from scripts.bench.processes import family_cpu_s
from scripts.bench.raw_script import Creates, Wire
from scripts.bench.results import AtLeast, Contender, Row, Sample, ShareOf
from scripts.bench.stores import a_store

EACH = 1_000
CONNECTIONS = 4
AHEAD_S = 3_600
RAW = "the script, raw, over one connection"
WITHIN_S = 120.0


@contextmanager
def contenders(setting: Setting) -> Iterator[list[Contender]]:
    creates = Creates(EACH)
    yield [
        Contender(name=RAW, store="none", measure=lambda: raw(setting, creates)),
        *(_ours(setting, 1, durability) for durability in setting.durabilities),
        *(_ours(setting, 2, durability) for durability in setting.durabilities[:1]),
    ]


def _ours(setting: Setting, processes: int, durability: str) -> Contender:
    return Contender(
        name="later serve" if processes == 1 else f"later serve --processes {processes}",
        store=durability,
        beside=RAW,
        goals=[ShareOf(0.6), AtLeast("rate", 60_000)] if (processes, durability) == (1, "none") else (),
        skip=why_not(processes),
        measure=partial(ours, setting, processes, durability),
    )


def raw(setting: Setting, creates: Creates) -> Sample:
    with a_store(setting, "none") as store, Wire(store.socket) as wire:
        wire.load_scripts()
        before = family_cpu_s(store.pid)
        batches = creates.batches(setting.scale.batched // EACH, lambda: int((time.time() + AHEAD_S) * 1000))
        seconds = wire.timed(batches, creates.calls, under_way=CONNECTIONS)
        store_s = family_cpu_s(store.pid) - before
    return {"rate": setting.scale.batched / seconds, "store_cpu": store_s * 1_000_000 / setting.scale.batched}


def ours(setting: Setting, processes: int, durability: str) -> Sample:
    with a_store(setting, durability) as store, an_api(setting, "serve", store, processes) as server:
        server_before, store_before = server.cpu_s(), family_cpu_s(store.pid)
        loaded = press(setting, load(server.url, setting.scale.batched))
        server_s, store_s = server.cpu_s() - server_before, family_cpu_s(store.pid) - store_before
    tasks = loaded.requests * EACH
    per_1000 = 1_000_000 / tasks
    return {
        "rate": tasks / loaded.seconds,
        "server_cpu": server_s * per_1000,
        "store_cpu": store_s * per_1000,
    }


def load(url: str, tasks: int, delays: Sequence[float] = (AHEAD_S,) * EACH) -> Load:
    """So many tasks, a call for each round of the delays (s)."""
    callback = "http://127.0.0.1:8888/success"
    body = [{"topic": "order", "delay": s, "retry": 3, "callback": callback, "content": "hello"} for s in delays]
    return Load(
        url=f"{url}/create/batch",
        bodies=[json.dumps(body).encode()],
        connections=CONNECTIONS,
        seconds=WITHIN_S,
        requests=tasks // len(delays),
    )


BATCH = Row(
    name="batch",
    title="`POST /create/batch`, 1,000 a call, 4 connections, an empty store filled to a million",
    target="≥ 0.6 of the script driven raw, ≥ 60,000 tasks/s",
    figures=("rate",),
    besides=("server_cpu", "store_cpu"),
    contenders=contenders,
)
